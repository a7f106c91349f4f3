"""Hooks of tool calls: what they change, deny and withhold, before a call and after it."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath._async.runtime import runtime
from rath.flow import Agent, CallRequest, Deny, ToolResultText
from rath.llm.image import Image
from rath.session import Session
from rath.session.outcome import Cancelled
from rath.session.record import Change, ToolRun
from rath.testing import ScriptedClient, Turn, tool_call
from tests.support.hooked import always, calling, noting, telling
from tests.support.sessions import FunctionTool
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


def word(_: Session, arguments: Mapping[str, Any]) -> Any:
    return arguments["x"]


def keep(_: Agent, *given: object) -> None:
    """Leave a call as it is, and its result."""


def bad(_: Agent, *given: object) -> None:
    raise LookupError("secret")


def changes(session: Session) -> list[Change]:
    return [one for one in session.record if isinstance(one, Change)]


def runs(session: Session) -> list[ToolRun]:
    return [one for one in session.record if isinstance(one, ToolRun)]


def results(session: Session) -> list[str]:
    rows = session.chunk_table.rows
    return [str(row.payload["content"]) for row in rows if row.kind_name == "tool_result"]


def failure(session: Session) -> tuple[str, str]:
    said = json.loads(results(session)[0])
    return said["error_kind"], said["message"]


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
    argument, is_denied, told, marks = "a", False, list[tuple[str, str]](), list[str]()
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
            told.append((f'{{"x": "{argument}"}}', f'{{"x": "{argument}{step}"}}'))
            argument += step
        is_denied = is_denied or (when == "before" and step == "deny")
        marks += [step] if when == "after" and step in "ab" else []
    out = ask(asked)
    text = f'"{argument}"'
    for mark in () if is_denied else marks:
        told.append((text, text + mark))
        text += mark
    assert tool.called == ([] if is_denied else [argument])
    assert runs(out)[0].status == ("denied" if is_denied else "done")
    assert results(out) == ([results(out)[0]] if is_denied else [text])
    found = [
        ((one.before.data or b"").decode(), (one.after.data or b"").decode())
        for one in changes(out)
    ]
    assert found == told
    assert out.replay().chunk_table == out.chunk_table


def test_a_change_names_hook_call_and_row() -> None:
    asked = agent(Echo())
    hook, other = adding("!"), ending("?")
    asked.register_tool_hook(hook, when="before")
    asked.register_tool_hook(other, when="after")
    out = ask(asked)
    first, second = changes(out)
    assert (first.what, second.what) == ("arguments", "result")
    assert (first.hook, second.hook) == tuple(
        f"{one.__module__}:{one.__qualname__}" for one in (hook, other)
    )
    for change in (first, second):
        assert (change.call_id, change.call) == ("c", 0)
        assert change.rows == (out.chunk_table[1].id,)
        assert change.operation == out.record[0].operation


def test_a_hook_sees_agent_snapshot_and_call() -> None:
    seen = list[Any]()
    asked = agent(Echo())
    asked.register_tool_hook(noting(seen), when="before")
    asked.register_tool_hook(noting(seen), when="after")
    out = ask(asked)
    for shown in seen:
        assert shown[0] is asked
        assert (shown[1].session.id, shown[1].tool, shown[1].arguments) == (
            out.id,
            "echo",
            {"x": "a"},
        )
    assert seen[1][2] == ToolResultText('"a"')


def test_arguments_that_are_the_same_are_no_change() -> None:
    asked = agent(Echo())
    asked.register_tool_hook(adding(""), when="before")
    asked.register_tool_hook(ending(""), when="after")
    assert changes(ask(asked)) == []


def test_what_a_hook_changes_in_place_is_no_word_of_it() -> None:
    def meddle(_: Agent, call: CallRequest, *result: object) -> None:
        call.arguments["x"] = "b"  # type: ignore[index]  # what is tested

    tool = Echo()
    asked = agent(tool)
    asked.register_tool_hook(meddle, when="before")
    asked.register_tool_hook(meddle, when="after")
    out = ask(asked)
    assert (tool.called, changes(out)) == (["a"], [])


@pytest.mark.parametrize("when", ["during", None])
def test_when_is_before_or_after(when: Any) -> None:
    with pytest.raises(ValueError, match="when must be 'before' or 'after'"):
        agent(Echo()).register_tool_hook(keep, when=when)


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(TypeError, match="register_tool_hook takes functions"):
        agent(Echo()).register_tool_hook("x", when="after")  # type: ignore[call-overload]  # what is tested


def test_a_denied_call_is_not_made_and_says_by_whom_and_why() -> None:
    tool = Echo()
    asked = agent(tool)
    asked.register_tool_hook(always(Deny("not \ud800 here")), when="before")
    asked.register_tool_hook(adding("never asked"), when="before")
    out = ask(asked)
    assert (tool.called, out.text()) == ([], "end")
    assert (runs(out)[0].status, runs(out)[0].error_kind) == ("denied", "denied")
    kind, message = failure(out)
    assert kind == "denied"
    assert "by the hook tests.support.hooked:always.<locals>.hook: not \ufffd here" in message


def test_calls_beside_a_denied_one_are_made() -> None:
    tool = Echo(parallel_safe=True)
    turn = tool_call("echo", {"x": "a"}, *(tool_call("echo", {"x": x}) for x in "bc"))
    asked = agent(tool, turn, "end")

    def deny(_: Agent, call: CallRequest) -> Deny | None:
        return Deny("b") if call.arguments["x"] == "b" else None

    asked.register_tool_hook(deny, when="before")
    out = ask(asked)
    assert sorted(tool.called) == ["a", "c"]
    assert [one.status for one in runs(out)] == ["done", "denied", "done"]


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
    assert (kind, runs(out)[0].status, tool.called) == ("denied", "denied", [])
    assert problem in message
    assert "secret" not in message
    assert changes(out) == []


NOT_AFTER: list[tuple[Any, str]] = [
    (bad, "bad raised LookupError"),
    (always("text"), "returned str, expected a ToolResultText or None"),
    (always(Deny("late")), "returned Deny"),
    (always(ToolResultText(3)), "whose text is a int"),  # type: ignore[arg-type]  # what is tested
    (always(ToolResultText("", images=["x"])), "no tuple of images"),  # type: ignore[arg-type]  # as before
    (always(ToolResultText("", error_kind=3)), "whose error_kind is a int"),  # type: ignore[arg-type]  # as before
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
    assert (kind, runs(out)[0].status, tool.called) == ("withheld", "done", ["a"])
    assert problem in message
    assert "secret" not in message
    (change,) = changes(out)
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
    begun, go = threading.Event(), threading.Event()

    def hang(_: Agent, *given: object) -> None:
        begun.set()
        go.wait(PATIENCE)

    async def hang_later(_: Agent, *given: object) -> None:
        begun.set()
        await asyncio.Event().wait()

    def run_until(deadline: float) -> tuple[str, str]:
        asked = agent(Echo(timeout=deadline))
        asked.register_tool_hook(hang_later if is_async else hang, when=when)
        return f"gave nothing within {deadline:g} s", failure(ask(asked))[1]

    expected, told = at_a_deadline(run_until, lambda _: begun.is_set())
    go.set()
    assert expected in told


def test_a_hook_that_takes_too_long_ends_the_agents_that_it_asks() -> None:
    asked_of = list[Session]()
    go_on = threading.Event()

    def wait(_: object) -> str:
        go_on.wait(PATIENCE)
        return "late"

    judge = Agent("Judge.", ScriptedClient([wait] * 3).provider, system_tools=False)

    def ask_a_judge(*_: object) -> None:
        asked_of.append(judge(Session.from_user_message("May it?")))
        asked_of[0].text()

    def run_until(deadline: float) -> tuple[str, str]:
        asked = agent(Echo(timeout=deadline))
        asked.register_tool_hook(ask_a_judge, when="before")
        return f"gave nothing within {deadline:g} s", failure(ask(asked))[1]

    expected, told = at_a_deadline(run_until, lambda _: asked_of != [])
    go_on.set()
    assert expected in told
    assert isinstance(asked_of[0].outcome, Cancelled)


def test_hooks_see_no_call_that_is_refused_anyway() -> None:
    seen = list[object]()
    turn = tool_call("echo", "{broken", tool_call("?", {}), tool_call("echo", {"y": 1}))
    asked = agent(Echo(), turn, "end")
    asked.register_tool_hook(noting(seen), when="before")
    asked.register_tool_hook(noting(seen), when="after")
    out = ask(asked)
    assert (seen, [one.status for one in runs(out)]) == ([], ["failed"] * 3)


def test_results_of_calls_that_fail_are_shown_too() -> None:
    def boom(_: Session, __: object) -> None:
        raise ValueError("name: bob")

    asked = agent(FunctionTool("echo", boom))
    hide = telling(lambda text: text.replace("bob", "[name]"))
    asked.register_tool_hook(hide, when="after")
    out = ask(asked)
    assert failure(out) == ("tool_execution_exception", "ValueError: name: [name]")
    assert runs(out)[0].status == "failed"


def test_a_hook_may_say_that_a_result_is_a_failure_and_its_text_becomes_valid() -> None:
    asked = agent(Echo())
    given = ToolResultText("no \ud800", error_kind="poor \ud800")
    asked.register_tool_hook(always(given), when="after")
    out = ask(asked)
    assert (results(out), runs(out)[0].error_kind) == (["no \ufffd"], "poor \ufffd")


PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 8


def test_images_of_a_result_are_shown_and_may_be_taken_out() -> None:
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
    (change,) = (entry for entry in out.record if isinstance(entry, Change))
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


def test_a_run_that_is_cancelled_in_a_hook_after_a_call_does_not_show_its_result() -> None:
    reached = threading.Event()

    async def hang(*_: object) -> None:
        reached.set()
        await asyncio.sleep(10)

    asked = agent(Echo())
    asked.register_tool_hook(hang, when="after")
    out = asked(Session.from_user_message("go"))
    assert reached.wait(PATIENCE)
    out.cancel().synchronize()
    assert isinstance(out.outcome, Cancelled)
    assert [(one.status, one.rows) for one in runs(out)] == [("interrupted", ())]
    assert results(out) == []


def test_a_run_that_is_cancelled_in_a_hook_before_a_call_has_not_made_it() -> None:
    reached, tool = threading.Event(), Echo()

    async def hang(*_: object) -> None:
        reached.set()
        await asyncio.sleep(10)

    asked = agent(tool)
    asked.register_tool_hook(hang, when="before")
    out = asked(Session.from_user_message("go"))
    assert reached.wait(PATIENCE)
    out.cancel().synchronize()
    assert (tool.called, results(out)) == ([], [])


def test_an_agent_that_a_hook_asks_is_counted_and_replayed() -> None:
    guard = Agent("g", ScriptedClient(["fine", "good"]).provider, system_tools=False)

    def judge(_: Agent, __: CallRequest, result: ToolResultText) -> ToolResultText:
        said = guard(Session.from_user_message(result.text)).text()
        return replace(result, text=f"{result.text} ({said})")

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


def test_a_shared_agent_with_hooks_is_asked_from_many_threads() -> None:
    tool = FunctionTool("echo", word, parallel_safe=True)

    def answer(request: Any) -> Any:
        last = request.messages[-1]
        return tool_call("echo", {"x": last.content}) if last.role == "user" else last.content

    asked = Agent("p", ScriptedClient([answer] * 40).provider, [tool], system_tools=False)
    asked.register_tool_hook(adding("!"), when="before")
    asked.register_tool_hook(ending("?"), when="after")
    outs = dict[int, Session]()

    def submit(number: int) -> None:
        outs[number] = asked(Session.from_user_message(str(number)))

    threads = [threading.Thread(target=submit, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {number: out.text() for number, out in outs.items()} == {
        number: f'"{number}!"?' for number in range(20)
    }
