"""Hooks of answers: what they change, what they end, and what is noted of them."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from rath.errors import SelfWaitError
from rath.flow import Agent
from rath.flow.hooks import ModelTurn
from rath.llm.chat_response import RathLLMAssistantMessage, RathLLMStreamDelta
from rath.session import Session
from rath.session.content import AssistantTurn, ToolCall
from rath.session.hooks import LoopHooks
from rath.session.outcome import Cancelled, Completed, OutputValue
from rath.session.record import Change, ModelCall, ToolRun
from rath.testing import ScriptedClient, Turn, tool_call
from tests.support.api import Record, hook_answers_module
from tests.support.hooked import always, arguments_of
from tests.support.offline_vendor import OfflineVendor, Says
from tests.support.sessions import FunctionTool, run
from tests.support.waiting import PATIENCE


def agent(*turns: Turn, tools: tuple[FunctionTool, ...] = (), **options: Any) -> Agent:
    provider = ScriptedClient(turns).provider
    return Agent("p", provider, list(tools), system_tools=False, **options)


def ask(asked: Agent) -> Session:
    return asked(Session.from_user_message("go"))


def adding(mark: str) -> Callable[[Agent, ModelTurn], ModelTurn]:
    return lambda _, turn: replace(turn, text=f"{turn.text}{mark}")


def keep(_: Agent, turn: ModelTurn) -> None:
    """Leave an answer as it is."""


def bad(_: Agent, turn: ModelTurn) -> None:
    raise LookupError("secret")


def changes(session: Session) -> list[Change]:
    return [one for one in session.record if isinstance(one, Change)]


def calls(record: Record) -> list[ModelCall]:
    return [one for one in record if isinstance(one, ModelCall)]


def echo() -> FunctionTool:
    return FunctionTool("echo", arguments_of)


@given(st.lists(st.sampled_from(["", "a", "b"]), max_size=5), st.booleans())
def test_hooks_are_asked_in_order_each_with_what_the_one_before_gave(
    marks: list[str], is_async: bool
) -> None:
    asked, expected, told = agent("x"), "x", list[tuple[str, str]]()
    for mark in marks:
        plain = adding(mark) if mark else keep

        async def later(one: Agent, turn: ModelTurn, hook: Any = plain) -> ModelTurn | None:
            return hook(one, turn)  # type: ignore[no-any-return]  # one of two hooks

        asked.register_model_hook(later if is_async else plain)
        if mark:
            told.append((expected, expected + mark))
            expected += mark
    out = ask(asked)
    assert out.text() == expected
    found = [
        (
            json.loads(one.before.data or b"")["content"],
            json.loads(one.after.data or b"")["content"],
        )
        for one in changes(out)
    ]
    assert found == told
    assert out.replay().chunk_table == out.chunk_table


def test_a_change_names_hook_and_row() -> None:
    asked, hook = agent("x"), adding("!")
    asked.register_model_hook(hook)
    out = ask(asked)
    (change,) = changes(out)
    assert (change.what, change.hook) == ("answer", f"{__name__}:{hook.__qualname__}")
    assert change.rows == (out.chunk_table[-1].id,)
    assert out.evidence_of(out.chunk_table[-1]) is calls(out.record)[0]


def test_a_hook_sees_agent_snapshot_text_and_calls() -> None:
    seen = list[tuple[Any, ...]]()

    def look(one: Agent, turn: ModelTurn) -> None:
        seen.append((one, turn.session.id, len(turn.session.chunk_table), turn.text, turn.calls))

    asked = agent(tool_call("echo", {"x": 1}, id="c"), "done", tools=(echo(),))
    asked.register_model_hook(look)
    out = ask(asked).synchronize()
    call = ToolCall("c", "echo", '{"x": 1}')
    assert seen == [(asked, out.id, 1, None, (call,)), (asked, out.id, 3, "done", ())]


def test_calls_that_a_hook_takes_out_are_not_made() -> None:
    asked = agent(tool_call("echo", {}, content="so"), tools=(echo(),))
    asked.register_model_hook(lambda _, turn: replace(turn, calls=()))
    out = ask(asked)
    assert (out.text(), out.outcome) == ("so", Completed())
    assert not any(isinstance(one, ToolRun) for one in out.record)
    assert out.replay().chunk_table == out.chunk_table


def test_calls_that_a_hook_adds_are_made() -> None:
    def add(_: Agent, turn: ModelTurn) -> ModelTurn | None:
        return None if turn.text == "end" else replace(turn, calls=(ToolCall("n", "echo", "{}"),))

    asked = agent("x", "end", tools=(echo(),))
    asked.register_model_hook(add)
    out = ask(asked)
    assert [one.call_id for one in out.record if isinstance(one, ToolRun)] == ["n"]
    assert out.text() == "end"
    assert out.replay().chunk_table == out.chunk_table


def test_calls_that_the_model_wrote_badly_may_stay() -> None:
    asked = agent(tool_call("echo", "{broken", tool_call("?", {}, id=""), id=""), "end")
    asked.register_model_hook(lambda _, turn: replace(turn, text="seen") if turn.calls else None)
    assert ask(asked).text() == "end"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("text", "returned str, expected a ModelTurn"),
        (ModelTurn(session=None, text=3), "whose text is a int"),  # type: ignore[arg-type]  # what is tested
        (ModelTurn(session=None, text="", calls=None), "whose calls are a NoneType"),  # type: ignore[arg-type]  # as before
        (ModelTurn(session=None, text="", calls=("x",)), "expected a ToolCall"),  # type: ignore[arg-type]  # as before
        (ModelTurn(session=None, text="", calls=(ToolCall("", "f", "{}"),)), "has no id"),
        (ModelTurn(session=None, text="", calls=(ToolCall("a", "f f", "{}"),)), "no name of a"),
        (ModelTurn(session=None, text="", calls=(ToolCall("a", "f", "[1]"),)), "no JSON object"),
        (ModelTurn(session=None, text="", calls=(ToolCall("a", "f", {}),)), "must be text"),  # type: ignore[arg-type]  # as before
        (ModelTurn(session=None, text="", calls=(ToolCall("a", "f", ""),) * 2), "the same id: a"),
    ],
)
def test_what_cannot_be_an_answer_ends_the_run(given: object, problem: str) -> None:
    asked = agent("x")
    asked.register_model_hook(always(given))
    with pytest.raises(TypeError, match=problem):
        ask(asked).synchronize()


def test_what_a_hook_raises_ends_the_run_without_the_answer() -> None:
    asked = agent("x")
    asked.register_model_hook(adding("!"))
    asked.register_model_hook(bad)
    out = ask(asked)
    with pytest.raises(LookupError, match="secret") as caught:
        out.text()
    assert f"in the hook {__name__}:bad" in caught.value.__notes__
    (call,) = calls(out.partial_record)
    assert (call.status, call.rows, call.evidence.partial_text) == ("failed", (), "x")
    assert call.evidence.error == "LookupError: a hook of the run ended it after the answer"
    assert call.evidence.usage is not None
    assert len(out.partial_table) == 1
    assert [one for one in out.partial_record if isinstance(one, Change)] == []


def stop(_: Agent, turn: ModelTurn) -> None:
    raise StopIteration


async def stop_later(_: Agent, turn: ModelTurn) -> None:
    raise asyncio.CancelledError


def leave(_: Agent, turn: ModelTurn) -> None:
    raise SystemExit(3)


@pytest.mark.parametrize("hook", [stop, stop_later, leave])
def test_what_cannot_be_raised_by_a_run_still_names_the_hook(hook: Any) -> None:
    asked = agent("x")
    asked.register_model_hook(hook)
    with pytest.raises(RuntimeError, match=f"the hook {__name__}:{hook.__name__} raised "):
        ask(asked).synchronize()


def test_a_run_that_a_hook_ended_goes_on_with_another_answer() -> None:
    asked = agent(tool_call("echo", {}), "x", "y", tools=(echo(),), persist=True)
    asked.register_model_hook(lambda one, turn: bad(one, turn) if turn.text == "x" else None)
    out = ask(asked)
    with pytest.raises(LookupError):
        out.synchronize()
    again = asked(Session.load(out.id))
    assert (again.id, again.text()) == (out.id, "y")
    assert [one.status for one in calls(again.record)] == ["done", "failed", "done"]
    assert again.replay().chunk_table == again.chunk_table


@pytest.mark.parametrize("is_async", [False, True])
def test_a_hook_that_hangs_ends_its_run(is_async: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()

    def hang(_: Agent, turn: ModelTurn) -> None:
        go.wait(PATIENCE)

    async def hang_later(_: Agent, turn: ModelTurn) -> None:
        await asyncio.sleep(10)

    monkeypatch.setattr(hook_answers_module, "MODEL_HOOK_TIMEOUT", 0.01)
    asked = agent("x")
    asked.register_model_hook(hang_later if is_async else hang)
    with pytest.raises(TimeoutError, match=r"hang(_later)? gave nothing within 0\.01 s"):
        ask(asked).synchronize()
    go.set()


def test_a_hook_that_waits_for_its_own_run_is_refused() -> None:
    made = list[Session]()
    asked = agent(lambda _: "x")
    ready = threading.Event()

    def wait(_: Agent, turn: ModelTurn) -> None:
        ready.wait(PATIENCE)
        made[0].text()

    asked.register_model_hook(wait)
    made.append(ask(asked))
    ready.set()
    with pytest.raises(SelfWaitError):
        made[0].synchronize()


def test_a_run_that_is_cancelled_in_a_hook_has_no_answer() -> None:
    reached = threading.Event()

    async def hang(_: Agent, turn: ModelTurn) -> None:
        reached.set()
        await asyncio.sleep(10)

    asked = agent("x")
    asked.register_model_hook(hang)
    out = ask(asked)
    assert reached.wait(PATIENCE)
    out.cancel().synchronize()
    assert isinstance(out.outcome, Cancelled)
    assert [(one.status, one.rows) for one in calls(out.record)] == [("cancelled", ())]
    assert len(out.chunk_table) == 1


def test_a_call_that_fails_is_noted_as_ever() -> None:
    asked = agent(ValueError("no"))
    asked.register_model_hook(keep)
    out = ask(asked)
    with pytest.raises(Exception, match="no"):
        out.synchronize()
    assert [one.status for one in calls(out.partial_record)] == ["failed"]


class Number(BaseModel):
    n: int


def test_a_typed_answer_is_read_from_what_the_hook_made_of_it() -> None:
    def double(_: Agent, turn: ModelTurn) -> ModelTurn:
        called = [replace(one, arguments=json.dumps({"n": 4})) for one in turn.calls]
        return replace(turn, calls=tuple(called), text=turn.text and '{"n": 4}')

    asked = agent(tool_call("final_answer", {"n": 2}), output=Number)
    asked.register_model_hook(double)
    out = ask(asked)
    assert out.output == Number(n=4)
    replayed = out.replay()
    assert isinstance(replayed.outcome, Completed)
    assert isinstance(replayed.outcome.output, OutputValue)


def test_an_answer_that_a_hook_spoils_is_asked_for_again() -> None:
    def spoil(_: Agent, turn: ModelTurn) -> ModelTurn | None:
        is_first = len(turn.session.chunk_table) == 1
        return replace(turn, calls=(), text="none") if is_first else None

    asked = agent(*(tool_call("final_answer", {"n": n}) for n in (1, 2)), output=Number)
    asked.register_model_hook(spoil)
    assert ask(asked).output == Number(n=2)


def test_blocks_of_a_changed_answer_are_not_sent_back() -> None:
    def answer(messages: Sequence[Mapping[str, Any]]) -> Says:
        calls = ("echo",) if messages[-1]["role"] == "user" else ()
        return Says("x", calls, blocks=({"signed": "x"},))

    vendor, plain = OfflineVendor(answer), OfflineVendor(answer)
    for one in (vendor, plain):
        asked = Agent("p", one.provider, [echo()], system_tools=False)
        if one is vendor:
            asked.register_model_hook(lambda _, turn: replace(turn, text="y"))
        ask(asked).synchronize()
    (said,) = [one for one in vendor.requests[1] if one["role"] == "assistant"]
    assert (said["content"], said.get("blocks")) == ("y", None)
    assert any("blocks" in one for one in plain.requests[1])


def test_what_was_streamed_was_shown_before_a_hook_saw_it() -> None:
    told = list[str | None]()

    def on_event(delta: RathLLMStreamDelta) -> None:
        told.append(delta.content_delta)

    asked = agent("ab", on_event=on_event)
    asked.register_model_hook(adding("!"))
    assert ask(asked).text() == "ab!"
    assert "".join(filter(None, told)) == "ab"


def test_a_run_has_the_hooks_that_there_were_when_it_was_submitted() -> None:
    go, handles = threading.Event(), list[Any]()

    def answer(_: object) -> str:
        go.wait(PATIENCE)
        return "x"

    asked = agent(answer, "x")
    handles.append(asked.register_model_hook(adding("1")))
    first = ask(asked)
    handles[0].remove()
    asked.register_model_hook(adding("2"))
    go.set()
    assert first.text() == "x1"
    assert ask(asked).text() == "x2"


def test_a_hook_that_fails_in_one_run_disturbs_no_other() -> None:
    def fail_on_odd(_: Agent, turn: ModelTurn) -> None:
        if int(turn.session.chunk_table[0].payload["content"]) % 2:
            raise LookupError("odd")

    asked = agent(*["x"] * 20)
    asked.register_model_hook(fail_on_odd)
    outs = list[Session]()

    def submit(number: int) -> None:
        outs.append(asked(Session.from_user_message(str(number))))

    threads = [threading.Thread(target=partial(submit, number)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ended = [isinstance(one.body.error(), LookupError) for one in outs if _wait(one)]
    assert sorted(ended) == [False] * 10 + [True] * 10


def _wait(session: Session) -> bool:
    try:
        session.synchronize()
    except LookupError:
        return True
    return True


def test_a_bare_loop_takes_hooks_of_one_argument() -> None:
    def shout(turn: ModelTurn) -> ModelTurn:
        return replace(turn, text="X")

    out = run(["x"], hooks=LoopHooks(model=[shout]))  # type: ignore[arg-type]  # any sequence will do
    assert out.text() == "X"


@pytest.mark.parametrize("hooks", [[], {"model": []}, print])
def test_a_bare_loop_takes_no_other_hooks(hooks: object) -> None:
    with pytest.raises(TypeError, match="hooks must be a LoopHooks"):
        run(["x"], hooks=hooks)


def test_hooks_of_a_loop_are_functions() -> None:
    with pytest.raises(TypeError, match=r"LoopHooks\(model=\.\.\.\) takes functions"):
        LoopHooks(model=("x",))  # type: ignore[arg-type]  # what is tested


def test_an_answer_without_a_word_is_a_row_too() -> None:
    asked = agent(RathLLMAssistantMessage(content="x"))
    asked.register_model_hook(lambda _, turn: replace(turn, text=None))
    out = ask(asked)
    assert out.chunk_table[-1].content == AssistantTurn(None)
    assert out.text() is None


def test_a_lone_surrogate_of_a_hook_is_replaced() -> None:
    asked = agent("x")
    asked.register_model_hook(lambda _, turn: replace(turn, text="\ud800"))
    assert ask(asked).text() == "\ufffd"
