"""Tools ask somebody and are called again; somebody decides about calls of unknown effect."""

from __future__ import annotations

import asyncio
import contextvars
import json
import threading
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Literal

import pytest
from pydantic import BaseModel

import rath
from rath.session import Session
from rath.session.content import ToolFeedback
from rath.session.log.verify import verify
from rath.session.outcome import Cancelled, NeedsDecision, NeedsInput
from rath.session.persistence.store import default_store
from rath.session.record import Decision, ToolRun
from rath.testing import tool_call
from tests.session.programs.test_going_on import SCRIPT, Counting
from tests.support.approvals import (
    AGENT,
    Noting,
    calls_of,
    decisions,
    go,
    results,
    tool_runs,
)
from tests.support.cut_off import cut_off
from tests.support.sessions import AsyncFunctionTool, FunctionTool, entries_of, run
from tests.support.waiting import PATIENCE


def color(number: int) -> Any:
    return [rath.ask("which color?"), number]


def asking(**more: Any) -> Noting:
    """A tool that asks for a color."""
    return Noting(work=color, approval="never", **more)


def statuses(session: Session) -> list[str]:
    return [entry.status for entry in session.record if isinstance(entry, ToolRun)]


def test_a_tool_that_asks_suspends_the_run_and_is_called_again_with_the_answer() -> None:
    tool = asking()
    session = go([calls_of(1)], tool)
    assert session.outcome == NeedsInput(session.id, "which color?")
    assert session.answer("red") is session
    assert session.outcome == NeedsInput(session.id, "")
    out = go(["done"], tool, user=session)
    assert (out.id, out.text()) == (session.id, "done")
    assert results(out) == [("c1", ["red", 1])]
    assert tool.calls == [1, 1]
    assert statuses(out) == ["suspended", "done"]


def test_an_answer_is_only_for_the_question_that_was_asked() -> None:
    asked = ["delete a?", "delete b?", "delete b?"]
    tool = Noting(work=lambda _: rath.ask(asked.pop(0), bool), approval="never")
    session = go([calls_of(1)], tool).answer(True)
    session = go([], tool, user=session)
    assert session.outcome == NeedsInput(session.id, "delete b?")
    out = go(["done"], tool, user=session.answer(False))
    assert results(out) == [("c1", {"ok": False})]


def test_an_answer_to_another_schema_is_not_used() -> None:
    schemas: list[Any] = [{"type": "integer"}, {"type": "string"}]
    tool = Noting(work=lambda _: rath.ask("x?", schemas.pop(0)), approval="never")
    session = go([calls_of(1)], tool).answer(1)
    session = go([], tool, user=session)
    assert session.questions[0].schema == {"type": "string"}


def test_what_must_come_after_a_call_that_waits_is_not_started_before_it() -> None:
    order: list[str] = []

    def first(_: Session, __: Mapping[str, Any]) -> Any:
        order.append("first")
        return rath.ask("go on?")

    def second(_: Session, __: Mapping[str, Any]) -> Any:
        order.append("second")
        return "after"

    tools = (FunctionTool("first", first), FunctionTool("second", second))
    turn = tool_call("first", {}, tool_call("second", {}, id="b"), id="a")
    session = go([turn], *tools)
    assert order == ["first"]
    assert [each.state for each in session.open_calls] == ["suspended", "asked"]
    out = go(["done"], *tools, user=session.answer("yes"))
    assert order == ["first", "first", "second"]
    assert results(out) == [("a", "yes"), ("b", "after")]


def test_an_invalid_call_behind_one_that_waits_is_refused() -> None:
    def work(_: Session, __: Mapping[str, Any]) -> Any:
        return rath.ask("?")

    tool = FunctionTool("ask", work)
    turn = tool_call("ask", {}, tool_call("nowhere", {}, id="b"), id="a")
    out = go(["done"], tool, user=go([turn], tool).answer(1))
    (_, first), (_, second) = results(out)
    assert (first, second["error_kind"]) == (1, "unknown_tool")


def test_tasks_may_ask_in_another_order_when_the_tool_is_called_again() -> None:
    asked: list[str] = []

    async def work(_: Session, __: Mapping[str, Any]) -> Any:
        order = ["first?", "second?"] if len(asked) < 3 else ["second?", "first?"]
        reply = dict[str, Any]()
        for question in order:
            asked.append(question)
            reply[question] = rath.ask(question)
        return reply

    tool = AsyncFunctionTool("f", work)
    session = go([tool_call("f", {}, id="c1")], tool)
    session = go([], tool, user=session.answer(1))
    out = go(["done"], tool, user=session.answer(2))
    assert results(out) == [("c1", {"first?": 1, "second?": 2})]


def another_error() -> Any:
    raise ValueError("what is this?") from None


@pytest.mark.parametrize(
    ("caught", "then"),
    [
        (Exception, lambda: "swallowed"),
        (BaseException, lambda: "swallowed"),
        (BaseException, lambda: rath.ask("something else?")),
        (BaseException, another_error),
    ],
    ids=["an exception", "everything", "asks on", "raises another"],
)
def test_a_tool_that_swallows_what_leaves_it_waits_all_the_same(
    caught: type[BaseException], then: Callable[[], Any]
) -> None:
    def work(_: int) -> Any:
        try:
            return rath.ask("?")
        except caught:
            return then()

    tool = Noting(work=work, approval="never")
    session = go([calls_of(1)], tool)
    assert session.outcome == NeedsInput(session.id, "?")
    assert results(go(["done"], tool, user=session.answer("told"))) == [("c1", "told")]


def test_a_thread_of_a_tool_needs_the_context_of_it() -> None:
    problems: list[BaseException] = []

    def plain() -> None:
        try:
            rath.ask("?")
        except RuntimeError as exc:
            problems.append(exc)

    def work(_: int) -> Any:
        thread = threading.Thread(target=plain)
        thread.start()
        thread.join()
        context = contextvars.copy_context()
        return context.run(rath.ask, "in the context?")

    session = go([calls_of(1)], Noting(work=work, approval="never"))
    assert "copy_context" in str(problems[0])
    assert session.outcome == NeedsInput(session.id, "in the context?")


class Color(Enum):
    """An enum that is no text."""

    RED = "red"


class Address(BaseModel):
    """Where somebody lives."""

    street: str
    number: int


@pytest.mark.parametrize(
    ("schema", "good", "bad", "expected"),
    [
        (int, 3, "3", 3),
        ({"type": "integer", "minimum": 2}, 3, 1, 3),
        ({"enum": ["a", "b"]}, "a", "c", "a"),
        (bool, False, 0, False),
        (list[int], [1, 2], [1, "b"], [1, 2]),
        (Address, {"street": "s", "number": 1}, {"street": "s"}, {"street": "s", "number": 1}),
        (str | None, None, 1, None),
        ({"type": "string", "format": "date"}, "2026-02-28", "2026-02-30", "2026-02-28"),
    ],
    ids=["int", "a schema", "a choice", "bool", "list", "a model", "an optional", "a format"],
)
def test_an_answer_must_fit_what_was_asked_for(
    schema: Any, good: Any, bad: Any, expected: Any
) -> None:
    def work(_: int) -> Any:
        given = rath.ask("what?", schema)
        assert schema is not Address or isinstance(given, Address)
        return given.model_dump() if isinstance(given, BaseModel) else {"given": given}

    tool = Noting(work=work, approval="never")
    session = go([calls_of(1)], tool)
    with pytest.raises(ValueError, match=r"the answer to 'what\?' of call 'c1' .* is not what was"):
        session.answer(bad)
    out = go(["done"], tool, user=session.answer(good))
    ((_, reply),) = results(out)
    assert reply == expected if schema is Address else reply["given"] == expected


@pytest.mark.parametrize(
    ("question", "schema", "reply"),
    [
        (3, None, "a question is a str, not int"),
        ("what?", 7, "must be a JSON Schema or a type that has one, not 7"),
        ("what?", threading.Thread, "must be a JSON Schema or a type"),
        ("what?", {"enum": {1}}, "cannot be written as JSON"),
        ("what?", Literal[Color.RED], "takes no JSON value; write Literal['red']"),
    ],
    ids=["no text", "no type", "a class without a schema", "no JSON", "a member of an enum"],
)
def test_what_cannot_be_asked_is_a_mistake_that_the_model_reads(
    question: Any, schema: Any, reply: str
) -> None:
    tool = Noting(work=lambda _: rath.ask(question, schema), approval="never")
    out = go([calls_of(1), "done"], tool)
    ((_, result),) = results(out)
    assert result["error_kind"] == "tool_execution_exception"
    assert reply in result["message"]


def test_a_schema_that_is_none_refuses_every_answer() -> None:
    tool = Noting(work=lambda _: rath.ask("?", {"type": "nonsense"}), approval="never")
    with pytest.raises(ValueError, match="its schema cannot be used"):
        go([calls_of(1)], tool).answer(1)


def test_a_question_and_its_answer_are_valid_unicode() -> None:
    tool = Noting(work=lambda _: rath.ask("wh\ud800?", str), approval="never")
    session = go([calls_of(1)], tool)
    assert session.outcome == NeedsInput(session.id, "wh\ufffd?")
    assert results(go(["done"], tool, user=session.answer("\udcff"))) == [("c1", "\ufffd")]


def test_an_approved_call_that_asks_keeps_its_approval() -> None:
    tool = Noting(work=color)
    session = go([calls_of(1)], tool).edit("c1", {"n": 5})
    asked = go([], tool, user=session)
    assert asked.outcome == NeedsInput(session.id, "which color?")
    out = go(["done"], tool, user=asked.answer("red"))
    assert tool.calls == [5, 5]
    assert results(out)[0][1]["result"] == ["red", 5]
    assert tool_runs(out)["c1"].decision == decisions(out)[0].id


# Stored.


@pytest.mark.parametrize("persist", [False, True], ids=["in memory", "stored"])
def test_calls_of_a_round_ask_at_once_and_results_of_the_others_are_there(persist: bool) -> None:
    def work(number: int) -> Any:
        return "plain" if number == 2 else rath.ask(f"what of {number}?", {"type": "integer"})

    def found() -> Session:
        return Session.load(session.id) if persist else session

    tool = Noting(work=work, approval="never")
    session = go([calls_of(1, 2, 3)], tool, persist=persist)
    loaded = found()
    assert [each.question for each in loaded.questions] == ["what of 1?", "what of 3?"]
    assert loaded.outcome == NeedsInput(session.id, "what of 1?")
    assert [(each.state, each.waits_for) for each in loaded.open_calls] == [
        ("suspended", "input"),
        ("known", None),
        ("suspended", "input"),
    ]
    with pytest.raises(ValueError, match=r"2 calls .* Say which one with its id"):
        loaded.answer(1)
    with pytest.raises(ValueError, match="is not of type 'integer'"):
        loaded.answer("x", "c1")
    loaded.answer(3, "c3")
    assert loaded.outcome == NeedsInput(session.id, "what of 1?")
    loaded.answer(1, "c1")
    out = go(["done"], tool, user=found())
    assert sorted(tool.calls) == [1, 1, 2, 3, 3]
    assert results(out) == [("c1", 1), ("c2", "plain"), ("c3", 3)]
    if persist:
        again = found()
        assert (again.record, again.chunk_table) == (out.record, out.chunk_table)
        assert verify(default_store(), session.id).is_sound


@pytest.mark.parametrize("persist", [False, True], ids=["in memory", "stored"])
def test_a_call_that_was_cut_off_after_it_had_asked_may_have_taken_effect(persist: bool) -> None:
    started = threading.Event()

    def work(_: int) -> Any:
        rath.ask("?")
        started.set()
        return asyncio.run(asyncio.sleep(30))

    tool = Noting(work=work, approval="never")
    session = go([calls_of(1)], tool, persist=persist).answer(1)
    out = run([], tool, user=session, agent=AGENT)
    assert started.wait(PATIENCE)
    out.cancel()
    assert isinstance(out.outcome, Cancelled)
    assert [each.state for each in out.open_calls] == ["begun"]
    assert [each.waits_for for each in out.open_calls] == ["decision"]


def complete() -> Session:
    return run(SCRIPT, Counting(), agent=AGENT).synchronize()


def waiting(*begun: int, known: tuple[int, ...] = ()) -> Session:
    return cut_off(complete(), 0, begun=begun or (1,), known=known)


def deciding_results(session: Session) -> dict[str, Any]:
    contents = [row.content for row in session.chunk_table]
    return {
        each.call_id: json.loads(each.body) for each in contents if isinstance(each, ToolFeedback)
    }


@pytest.mark.parametrize(
    ("choice", "result", "reply"),
    [
        ("skip", None, '"error_kind": "skipped"'),
        ("done", "42 pages were printed", "42 pages were printed"),
        ("done", None, "not known"),
    ],
)
def test_what_was_skipped_or_done_is_not_made_and_the_model_reads_so(
    choice: Any, result: str | None, reply: str
) -> None:
    session, tool = waiting(), Counting()
    session.decide("call_2", choice, result=result)
    out = run(SCRIPT[1:], tool, user=session, agent=AGENT)
    assert reply in json.dumps(deciding_results(out)["call_2"])
    assert sorted(tool.calls) == [1, 3, 4]


def test_the_last_decision_holds_and_the_run_of_its_call_names_it() -> None:
    session = waiting().decide("call_2", "skip").decide("call_2", "retry")
    assert session.outcome == NeedsDecision(session.id, ())
    out = run(SCRIPT[1:], Counting(), user=session, agent=AGENT)
    *_, decision = entries_of(out, Decision)
    by_id = {entry.call_id: entry for entry in out.record if isinstance(entry, ToolRun)}
    assert (by_id["call_1"].decision, by_id["call_2"].decision) == (None, decision.id)


def test_a_call_that_is_not_open_here_is_refused_and_the_open_ones_are_listed() -> None:
    session, other = waiting(0, known=(2,)), waiting()
    for call in ("call_9", "call_3"):  # unknown, and one whose result is there
        with pytest.raises(ValueError, match=r"no open call .*'call_1' \(f .*'call_2' \(f"):
            session.decide(call, "retry")
    with pytest.raises(ValueError, match="no open call 'call_2'"):
        waiting().decide(other.open_calls[1], "retry")
    with pytest.raises(ValueError, match="waits for no decision"):
        complete().decide("call_1", "retry")
    with pytest.raises(ValueError, match=f"session {session.id} waits; decide there"):
        session.fork().decide("call_2", "retry")


def two_of_one_id() -> Session:
    turn = tool_call("f", {"n": 1}, tool_call("f", {"n": 2}, id="same"), id="same")
    made = run([turn, "done"], Counting(), agent=AGENT).synchronize()
    return cut_off(made, 0, begun=[0, 1])


def test_open_calls_of_one_id_are_decided_by_object() -> None:
    session = two_of_one_id()
    with pytest.raises(ValueError, match=r"2 open calls .* have the id 'same'"):
        session.decide("same", "retry")
    session.decide(session.open_calls[1], "skip")
    assert [each.waits for each in session.open_calls] == [True, False]


def test_an_unknown_choice_and_a_result_that_does_not_fit_are_refused() -> None:
    session = waiting()
    with pytest.raises(ValueError, match="unknown choice 'again'"):
        session.decide("call_2", "again")  # type: ignore[arg-type]  # what is refused
    with pytest.raises(ValueError, match="goes with the choice 'done'"):
        session.decide("call_2", "skip", result="x")
    with pytest.raises(TypeError, match="a str, not dict"):
        session.decide("call_2", "done", result={})  # type: ignore[arg-type]  # what is refused
