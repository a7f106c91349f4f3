"""Hooks of tool calls and of answers: what they change, deny, withhold and end."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from rath._async.runtime import runtime
from rath.flow import Agent, CallRequest, Deny, ToolResultText
from rath.flow.hooks import ModelTurn
from rath.llm.image import Image
from rath.session import Session
from rath.session.content import AssistantTurn, ToolCall
from rath.session.hooks import LoopHooks
from rath.session.outcome import Cancelled, Completed, OutputValue
from rath.session.record import Change, ModelCall, ToolRun
from rath.testing import ScriptedClient, Turn, tool_call
from tests.support.api import Record, hook_answers_module
from tests.support.hooks import always, arguments_of, calling, noting, telling
from tests.support.offline_vendor import OfflineVendor, Says
from tests.support.sessions import FunctionTool, entries_of, run
from tests.support.waiting import PATIENCE, at_a_deadline

SCHEMA = {
    "type": "object",
    "properties": {"x": {"type": "string"}},
    "required": ["x"],
    "additionalProperties": False,
}


class Echo(FunctionTool):
    """Gives its argument back and remembers what it was called with."""

    def __init__(self, **options: Any) -> None:
        super().__init__("echo", self._echo, schema=SCHEMA, **options)
        self.called: list[str] = []

    def _echo(self, _: Session, arguments: Mapping[str, Any]) -> Any:
        self.called.append(arguments["x"])
        return arguments["x"]


def agent(tool: FunctionTool, *turns: Turn, **options: Any) -> Agent:
    script = turns or (tool_call("echo", {"x": "a"}, id="c"), "end")
    return Agent("p", ScriptedClient(script).provider, [tool], system_tools=False, **options)


def ask(asked: Agent) -> Session:
    return asked(Session.from_user_message("go")).synchronize()


def adding(mark: str) -> Callable[[Agent, CallRequest], CallRequest]:
    return calling(lambda given: {"x": f"{given['x']}{mark}"})


def ending(mark: str) -> Callable[[Agent, CallRequest, ToolResultText], ToolResultText]:
    return telling(lambda text: text + mark)


def keep(_: Agent, *given: object) -> None:
    """Leave a call as it is, and its result."""


def bad(_: Agent, *given: object) -> None:
    raise LookupError("secret")


def results(session: Session) -> list[str]:
    rows = session.chunk_table.rows
    return [str(row.payload["content"]) for row in rows if row.kind_name == "tool_result"]


def failure(session: Session) -> tuple[str, str]:
    reply = json.loads(results(session)[0])
    return reply["error_kind"], reply["message"]


STEPS = st.tuples(
    st.sampled_from(["before", "after"]),
    st.sampled_from(["keep", "a", "b", "deny"]),
    st.booleans(),
)


@given(st.lists(STEPS, max_size=6), st.booleans())
def test_hooks_are_asked_in_order_each_with_what_the_one_before_gave(
    steps: list[tuple[str, str, bool]], is_parallel: bool
) -> None:
    tool = Echo(parallel_safe=is_parallel)
    asked = agent(tool)
    argument, is_denied, reports, marks = "a", False, list[tuple[str, str]](), list[str]()
    for when, step, is_async in steps:
        plain: Any = keep
        if step == "deny" and when == "before":
            plain = always(Deny("no"))
        elif step in "ab":
            plain = adding(step) if when == "before" else ending(step)

        async def later(*given: Any, hook: Any = plain) -> Any:
            return hook(*given)

        asked.register_tool_hook(
            later if is_async else plain, when="before" if when == "before" else "after"
        )
        if when == "before" and not is_denied and step in "ab":
            reports.append((f'{{"x": "{argument}"}}', f'{{"x": "{argument}{step}"}}'))
            argument += step
        is_denied = is_denied or (when == "before" and step == "deny")
        marks += [step] if when == "after" and step in "ab" else []
    out = ask(asked)
    text = f'"{argument}"'
    for mark in () if is_denied else marks:
        reports.append((text, text + mark))
        text += mark
    assert tool.called == ([] if is_denied else [argument])
    assert entries_of(out, ToolRun)[0].status == ("denied" if is_denied else "done")
    assert results(out) == ([results(out)[0]] if is_denied else [text])
    found = [
        ((one.before.data or b"").decode(), (one.after.data or b"").decode())
        for one in entries_of(out, Change)
    ]
    assert found == reports
    assert out.replay().chunk_table == out.chunk_table


def test_arguments_that_are_the_same_are_no_change() -> None:
    asked = agent(Echo())
    asked.register_tool_hook(adding(""), when="before")
    asked.register_tool_hook(ending(""), when="after")
    assert entries_of(ask(asked), Change) == []


def test_what_a_hook_changes_in_place_is_no_word_of_it() -> None:
    def meddle(_: Agent, call: CallRequest, *result: object) -> None:
        call.arguments["x"] = "b"  # type: ignore[index]  # what is tested

    tool = Echo()
    asked = agent(tool)
    asked.register_tool_hook(meddle, when="before")
    asked.register_tool_hook(meddle, when="after")
    out = ask(asked)
    assert (tool.called, entries_of(out, Change)) == (["a"], [])


def test_a_denied_call_is_not_made_and_says_by_whom_and_why() -> None:
    tool = Echo()
    asked = agent(tool)
    asked.register_tool_hook(always(Deny("not \ud800 here")), when="before")
    asked.register_tool_hook(adding("never asked"), when="before")
    out = ask(asked)
    assert (tool.called, out.text()) == ([], "end")
    assert (entries_of(out, ToolRun)[0].status, entries_of(out, ToolRun)[0].error_kind) == (
        "denied",
        "denied",
    )
    kind, message = failure(out)
    assert kind == "denied"
    assert "by the hook tests.support.hooks:always.<locals>.hook: not \ufffd here" in message


NOT_BEFORE: list[tuple[Any, str]] = [
    (bad, "bad, which raised LookupError"),
    (always("text"), "returned str, expected a CallRequest, Deny or None"),
    (always(Deny(3)), "for a reason that is no text"),  # type: ignore[arg-type]  # what is tested
    (calling(dict, tool="other"), "only its arguments can be changed"),
    (calling(dict, call_id="other"), "only its arguments can be changed"),
    (calling(list), "arguments of type list"),
    (calling(lambda _: {"x": object()}), "have no JSON form"),
    (calling(lambda _: {"y": "b"}), "gave it arguments that do not fit"),
]


@pytest.mark.parametrize(("hook", "problem"), NOT_BEFORE)
def test_a_hook_that_fails_before_a_call_denies_it(
    hook: Any, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    tool = Echo()
    asked = agent(tool)
    asked.register_tool_hook(hook, when="before")
    with caplog.at_level(logging.ERROR):
        out = ask(asked)
    kind, message = failure(out)
    assert (kind, entries_of(out, ToolRun)[0].status, tool.called) == ("denied", "denied", [])
    assert problem in message
    assert "secret" not in message
    assert entries_of(out, Change) == []


NOT_AFTER: list[tuple[Any, str]] = [
    (bad, "bad raised LookupError"),
    (always("text"), "returned str, expected a ToolResultText or None"),
    (always(Deny("late")), "returned Deny"),
    (always(ToolResultText(3)), "whose text is of type int"),  # type: ignore[arg-type]  # what is tested
    (always(ToolResultText("", images=["x"])), "no tuple of images"),  # type: ignore[arg-type]  # as before
    (always(ToolResultText("", error_kind=3)), "whose error_kind is of type int"),  # type: ignore[arg-type]  # as before
]


@pytest.mark.parametrize(("hook", "problem"), NOT_AFTER)
def test_a_hook_that_fails_after_a_call_withholds_its_result(
    hook: Any, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    tool = Echo()
    asked = agent(tool)
    asked.register_tool_hook(hook, when="after")
    with caplog.at_level(logging.ERROR):
        out = ask(asked)
    kind, message = failure(out)
    assert (kind, entries_of(out, ToolRun)[0].status, tool.called) == ("withheld", "done", ["a"])
    assert problem in message
    assert "secret" not in message
    (change,) = entries_of(out, Change)
    assert (change.what, change.before.data) == ("result", b'"a"')


def leave(_: Agent, *given: object) -> None:
    raise SystemExit(3)


async def leave_later(_: Agent, *given: object) -> None:
    raise asyncio.CancelledError


async def give_up(_: Agent, *given: object) -> None:
    raise TimeoutError("of its own")


@pytest.mark.parametrize("hook", [leave, leave_later, give_up])
def test_a_hook_that_wants_to_end_more_than_itself_does_not(hook: Any) -> None:
    first, second = agent(Echo()), agent(Echo())
    first.register_tool_hook(hook, when="before")
    second.register_tool_hook(hook, when="after")
    assert failure(ask(first))[0] == "denied"
    assert failure(ask(second))[0] == "withheld"


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("is_async", [False, True])
def test_hooks_have_the_deadline_of_the_tool(
    is_async: bool, when: Literal["before", "after"]
) -> None:
    started, go = threading.Event(), threading.Event()

    def hang(_: Agent, *given: object) -> None:
        started.set()
        go.wait(PATIENCE)

    async def hang_later(_: Agent, *given: object) -> None:
        started.set()
        await asyncio.Event().wait()

    def run_until(deadline: float) -> tuple[str, str]:
        asked = agent(Echo(timeout=deadline))
        asked.register_tool_hook(hang_later if is_async else hang, when=when)
        return f"gave nothing within {deadline:g} s", failure(ask(asked))[1]

    expected, reports = at_a_deadline(run_until, lambda _: started.is_set())
    go.set()
    assert expected in reports


def test_hooks_see_no_call_that_is_refused_anyway() -> None:
    seen = list[object]()
    turn = tool_call("echo", "{broken", tool_call("?", {}), tool_call("echo", {"y": 1}))
    asked = agent(Echo(), turn, "end")
    asked.register_tool_hook(noting(seen), when="before")
    asked.register_tool_hook(noting(seen), when="after")
    out = ask(asked)
    assert (seen, [one.status for one in entries_of(out, ToolRun)]) == ([], ["failed"] * 3)


PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 8


def test_a_hook_sees_the_images_of_a_result_and_may_remove_them() -> None:
    image = Image.from_bytes(PNG)
    seen = list[tuple[Image, ...]]()

    def take_out(_: Agent, __: CallRequest, result: ToolResultText) -> ToolResultText:
        seen.append(result.images)
        return replace(result, images=())

    asked = agent(FunctionTool("echo", lambda *_: image))
    asked.register_tool_hook(take_out, when="after")
    out = ask(asked)
    assert seen == [(image,)]
    assert out.chunk_table[2].images == ()
    (change,) = entries_of(out, Change)
    text = out.chunk_table[2].payload["content"]
    assert change.before.data == f"{image.label} {text}".encode()
    assert change.after.data == text.encode()


def test_a_changed_argument_moves_a_call_to_its_lane() -> None:
    order, both = list[str](), threading.Barrier(2, timeout=PATIENCE)

    def meet(_: Session, arguments: Mapping[str, Any]) -> str:
        both.wait()
        order.append(arguments["key"])
        return "met"

    tool = FunctionTool("echo", meet, parallel_safe=True)
    turn = tool_call("echo", {"key": "k", "n": 1}, tool_call("echo", {"key": "k", "n": 2}))
    asked = agent(tool, turn, "end")
    apart = calling(lambda given: {"key": str(given["n"])})
    asked.register_tool_hook(apart, when="before")
    assert results(ask(asked)) == ['"met"', '"met"']
    assert sorted(order) == ["1", "2"]


def test_hooks_never_run_on_the_runtime_thread() -> None:
    seen = list[int]()

    async def here() -> int:
        return threading.get_ident()

    def look(*_: object) -> None:
        seen.append(threading.get_ident())

    async def look_later(*_: object) -> None:
        seen.append(threading.get_ident())

    asked = agent(Echo())
    for hook in (look, look_later):
        asked.register_tool_hook(hook, when="before")
        asked.register_tool_hook(hook, when="after")
        asked.register_model_hook(hook)
    ask(asked)
    assert len(seen) == 8
    assert runtime().run(here, label="a test") not in seen


@pytest.mark.parametrize("kind", ["result", "answer"])
def test_a_run_that_is_cancelled_in_a_hook_has_nothing_of_what_the_hook_was_displayed(
    kind: str,
) -> None:
    reached = threading.Event()

    async def hang(*_: object) -> None:
        reached.set()
        await asyncio.sleep(10)

    asked = agent(Echo())
    if kind == "result":
        asked.register_tool_hook(hang, when="after")
    else:
        asked.register_model_hook(hang)
    out = asked(Session.from_user_message("go"))
    assert reached.wait(PATIENCE)
    out.cancel().synchronize()
    assert isinstance(out.outcome, Cancelled)
    (last,) = list(out.record)[-1:]
    assert isinstance(last, ToolRun if kind == "result" else ModelCall)
    assert (last.status, last.rows) == (
        "interrupted" if kind == "result" else "cancelled",
        (),
    )
    assert (results(out), len(out.chunk_table)) == ([], 2 if kind == "result" else 1)


def test_an_agent_that_a_hook_asks_is_counted_and_replayed() -> None:
    guard = Agent("g", ScriptedClient(["fine", "good"]).provider, system_tools=False)

    def judge(_: Agent, __: CallRequest, result: ToolResultText) -> ToolResultText:
        reply = guard(Session.from_user_message(result.text)).text()
        return replace(result, text=f"{result.text} ({reply})")

    def allow(_: Agent, call: CallRequest) -> None:
        guard(Session.from_user_message(call.tool)).synchronize()

    asked = agent(Echo())
    asked.register_tool_hook(allow, when="before")
    asked.register_tool_hook(judge, when="after")
    out = ask(asked)
    assert results(out) == ['"a" (good)']
    again = out.replay()
    assert again.chunk_table == out.chunk_table
    assert again.cumulative_usage == out.cumulative_usage


def plain_agent(*turns: Turn, tools: tuple[FunctionTool, ...] = (), **options: Any) -> Agent:
    provider = ScriptedClient(turns).provider
    return Agent("p", provider, list(tools), system_tools=False, **options)


def submit(asked: Agent) -> Session:
    return asked(Session.from_user_message("go"))


def adding_text(mark: str) -> Callable[[Agent, ModelTurn], ModelTurn]:
    return lambda _, turn: replace(turn, text=f"{turn.text}{mark}")


def calls(record: Record) -> list[ModelCall]:
    return [one for one in record if isinstance(one, ModelCall)]


def echo() -> FunctionTool:
    return FunctionTool("echo", arguments_of)


@given(st.lists(st.sampled_from(["", "a", "b"]), max_size=5), st.booleans())
def test_model_hooks_run_in_order_each_on_the_answer_of_the_one_before(
    marks: list[str], is_async: bool
) -> None:
    asked, expected, reports = plain_agent("x"), "x", list[tuple[str, str]]()
    for mark in marks:
        plain = adding_text(mark) if mark else keep

        async def later(one: Agent, turn: ModelTurn, hook: Any = plain) -> ModelTurn | None:
            return hook(one, turn)  # type: ignore[no-any-return]  # one of two hooks

        asked.register_model_hook(later if is_async else plain)
        if mark:
            reports.append((expected, expected + mark))
            expected += mark
    out = submit(asked)
    assert out.text() == (expected or "")
    found = [
        (
            json.loads(one.before.data or b"")["content"],
            json.loads(one.after.data or b"")["content"],
        )
        for one in entries_of(out, Change)
    ]
    assert found == reports
    assert out.replay().chunk_table == out.chunk_table


def test_calls_that_a_hook_adds_are_made() -> None:
    def add(_: Agent, turn: ModelTurn) -> ModelTurn | None:
        return None if turn.text == "end" else replace(turn, calls=(ToolCall("n", "echo", "{}"),))

    asked = plain_agent("x", "end", tools=(echo(),))
    asked.register_model_hook(add)
    out = submit(asked)
    assert [one.call_id for one in out.record if isinstance(one, ToolRun)] == ["n"]
    assert out.text() == "end"
    assert out.replay().chunk_table == out.chunk_table


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("text", "returned str, expected a ModelTurn"),
        (ModelTurn(session=None, text=3), "whose text is of type int"),  # type: ignore[arg-type]  # what is tested
        (ModelTurn(session=None, text="", calls=None), "whose calls are of type NoneType"),  # type: ignore[arg-type]  # as before
        (ModelTurn(session=None, text="", calls=("x",)), "expected a ToolCall"),  # type: ignore[arg-type]  # as before
        (ModelTurn(session=None, text="", calls=(ToolCall("", "f", "{}"),)), "has no id"),
        (ModelTurn(session=None, text="", calls=(ToolCall("a", "f f", "{}"),)), "no name of a"),
        (ModelTurn(session=None, text="", calls=(ToolCall("a", "f", "[1]"),)), "no JSON object"),
        (ModelTurn(session=None, text="", calls=(ToolCall("a", "f", {}),)), "must be text"),  # type: ignore[arg-type]  # as before
        (ModelTurn(session=None, text="", calls=(ToolCall("a", "f", ""),) * 2), "the same id: a"),
    ],
)
def test_what_cannot_be_an_answer_ends_the_run(given: object, problem: str) -> None:
    asked = plain_agent("x")
    asked.register_model_hook(always(given))
    with pytest.raises(TypeError, match=problem):
        submit(asked).synchronize()


def test_what_a_hook_raises_ends_the_run_without_the_answer() -> None:
    asked = plain_agent("x")
    asked.register_model_hook(adding_text("!"))
    asked.register_model_hook(bad)
    out = submit(asked)
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


@pytest.mark.parametrize("hook", [stop, stop_later, leave])
def test_what_cannot_be_raised_by_a_run_still_names_the_hook(hook: Any) -> None:
    asked = plain_agent("x")
    asked.register_model_hook(hook)
    with pytest.raises(RuntimeError, match=f"the hook {__name__}:{hook.__name__} raised "):
        submit(asked).synchronize()


def test_a_run_that_a_hook_ended_goes_on_with_another_answer() -> None:
    asked = plain_agent(tool_call("echo", {}), "x", "y", tools=(echo(),), persist=True)
    asked.register_model_hook(lambda one, turn: bad(one, turn) if turn.text == "x" else None)
    out = submit(asked)
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
    asked = plain_agent("x")
    asked.register_model_hook(hang_later if is_async else hang)
    with pytest.raises(TimeoutError, match=r"hang(_later)? gave nothing within 0\.01 s"):
        submit(asked).synchronize()
    go.set()


class Number(BaseModel):
    n: int


def test_a_typed_answer_is_read_from_what_the_hook_made_of_it() -> None:
    def double(_: Agent, turn: ModelTurn) -> ModelTurn:
        called = [replace(one, arguments=json.dumps({"n": 4})) for one in turn.calls]
        return replace(turn, calls=tuple(called), text=turn.text and '{"n": 4}')

    asked = plain_agent(tool_call("final_answer", {"n": 2}), output=Number)
    asked.register_model_hook(double)
    out = submit(asked)
    assert out.output == Number(n=4)
    replayed = out.replay()
    assert isinstance(replayed.outcome, Completed)
    assert isinstance(replayed.outcome.output, OutputValue)


def test_blocks_of_a_changed_answer_are_not_sent_back() -> None:
    def answer(messages: Sequence[Mapping[str, Any]]) -> Says:
        calls = ("echo",) if messages[-1]["role"] == "user" else ()
        return Says("x", calls, blocks=({"signed": "x"},))

    vendor, plain = OfflineVendor(answer), OfflineVendor(answer)
    for one in (vendor, plain):
        asked = Agent("p", one.provider, [echo()], system_tools=False)
        if one is vendor:
            asked.register_model_hook(lambda _, turn: replace(turn, text="y"))
        submit(asked).synchronize()
    (reply,) = [one for one in vendor.requests[1] if one["role"] == "assistant"]
    assert (reply["content"], reply.get("blocks")) == ("y", None)
    assert any("blocks" in one for one in plain.requests[1])


@pytest.mark.parametrize("hooks", [[], {"model": []}, print])
def test_a_bare_loop_takes_no_other_hooks(hooks: object) -> None:
    with pytest.raises(TypeError, match="hooks must be a LoopHooks"):
        run(["x"], hooks=hooks)
    with pytest.raises(TypeError, match=r"LoopHooks\(model=\.\.\.\) takes functions"):
        LoopHooks(model=("x",))  # type: ignore[arg-type]  # what is tested


@pytest.mark.parametrize(("text", "expected"), [(None, None), ("\ud800", "\ufffd")])
def test_an_answer_of_a_hook_is_a_row_of_valid_text(text: str | None, expected: str | None) -> None:
    asked = plain_agent("x")
    asked.register_model_hook(lambda _, turn: replace(turn, text=text))
    out = submit(asked)
    assert out.chunk_table[-1].content == AssistantTurn(expected)
    assert out.text() == (expected or "")
