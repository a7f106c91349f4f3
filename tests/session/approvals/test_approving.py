"""Calls are approved, denied or edited; a decision holds for exactly one call, whoever wrote it."""

from __future__ import annotations

import getpass
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest
from msgspec import structs

import rath
from rath._async.deferred import Deferred
from rath._core.vector import Vector
from rath.errors import ResumeMismatch
from rath.flow import Agent
from rath.session import Session
from rath.session.log.verify import verify
from rath.session.outcome import Completed, NeedsApproval
from rath.session.persistence.store import default_store
from rath.session.record import Decision, Operation
from rath.testing import ScriptedClient, tool_call
from tests.support.api import EDITED, Entry, chained, dump
from tests.support.approvals import (
    N_SCHEMA,
    Noting,
    calls_of,
    decisions,
    go,
    interrupts,
    log_of,
    results,
    tool_runs,
    waiting,
)
from tests.support.cut_off import cut_off


@pytest.mark.parametrize(
    ("reasons", "message"),
    [(("too early",), "not made: too early"), ((), "the call was not allowed, and not made")],
    ids=["reason", "no reason"],
)
def test_a_denied_call_is_not_made_and_the_model_reads_why(
    reasons: tuple[str, ...], message: str
) -> None:
    tool = Noting()
    out = go(["done"], tool, user=waiting(1, 2).approve("c2").deny("c1", *reasons))
    assert tool.calls == [2]
    (_, denied), (_, other) = results(out)
    assert (denied["error_kind"], other) == ("denied", {"said": 2})
    assert denied["message"].endswith(message)


def test_an_edited_call_is_made_with_the_new_arguments_and_the_model_reads_which() -> None:
    tool = Noting()
    out = go(["done"], tool, user=waiting(1).edit("c1", {"n": 7}))
    assert tool.calls == [7]
    ((_, reply),) = results(out)
    assert reply == {"note": EDITED, "arguments": {"n": 7}, "result": {"said": 7}}
    run = tool_runs(out)["c1"]
    assert run.arguments == {"n": 7}
    assert run.shown.size == len(out.chunk_table[2].payload["content"])


@pytest.mark.parametrize(
    ("method", "given", "error", "reply"),
    [
        ("edit", ({"n": "x"},), ValueError, "'x' is not of type 'integer'"),
        ("edit", ([1],), TypeError, "not list"),
        ("edit", ({"n": object()},), TypeError, "cannot be written as JSON"),
        ("edit", ({"n": float("nan")},), TypeError, "cannot be written as JSON"),
        ("deny", ({"why": 1},), TypeError, "a str, not dict"),
        ("approve", (), TypeError, "by says who decides, a str, not int"),
    ],
    ids=["schema", "a list", "an object", "not a number", "reason", "name"],
)
def test_an_invalid_decision_is_refused_at_once(
    method: str, given: tuple[object, ...], error: type[Exception], reply: str
) -> None:
    session = waiting(1)
    more = {"by": 3} if method == "approve" else {}
    with pytest.raises(error, match=reply):
        getattr(session, method)("c1", *given, **more)
    assert decisions(session) == []


def test_texts_of_a_decision_become_valid_unicode() -> None:
    reply = waiting(1).deny("c1", "no\udcff", by="ad\ud800")
    assert results(go(["done"], Noting(), user=reply))[0][1]["message"].endswith("no\ufffd")
    assert decisions(reply)[0].by == "ad\ufffd"
    edited = waiting(1).edit("c1", {"n": 2, "more": "\ud800"})
    assert decisions(edited)[0].edited == {"n": 2, "more": "\ufffd"}


@pytest.mark.parametrize("last", ["approve", "deny", "edit"])
@pytest.mark.parametrize("first", ["approve", "deny", "edit"])
def test_the_last_decision_holds_under_the_same_session(first: str, last: str) -> None:
    session, tool = waiting(1), Noting()
    for choice in (first, last):
        given = ({"n": 9},) if choice == "edit" else ()
        assert getattr(session, choice)("c1", *given) is session
    out = go(["done"], tool, user=session)
    assert (out.id, out.outcome, out.text()) == (session.id, Completed(), "done")
    assert tool.calls == {"approve": [1], "deny": [], "edit": [9]}[last]
    assert last != "approve" or results(out) == [("c1", {"said": 1})]


def waits_for(kind: str) -> Session:
    """A session whose only call that waits is c1."""
    if kind == "approval":
        return waiting(1, 2).approve("c2")
    if kind == "input":
        return go([calls_of(1)], Noting(work=lambda _: rath.ask("?"), approval="never"))
    return cut_off(go([calls_of(1), "done"], Noting(approval="never")), 0, begun=[0])


@pytest.mark.parametrize(
    ("kind", "method", "given", "reply"),
    [
        ("approval", "approve", ("c9",), r"not a call 'c9' .* waits: 'c1' \(f .*approve, deny"),
        ("approval", "decide", ("c1", "skip"), r"waits for an approval.*use session.approve"),
        ("approval", "answer", (1, "c1"), r"for an answer; what waits: 'c1' .* session.approve"),
        ("input", "answer", (1, "c7"), r"has not a call 'c7' that waits for an answer"),
        ("input", "decide", ("c1", "skip"), r"waits for an input.*use session.answer"),
        ("input", "approve", ("c1",), r"what waits: 'c1' .* for an answer: session.answer"),
        ("decision", "approve", ("c1",), r"what waits: 'c1' .* for a decision: session.decide"),
    ],
)
def test_a_decision_of_another_kind_or_about_another_call_names_the_right_one(
    kind: str, method: str, given: tuple[object, ...], reply: str
) -> None:
    session = waits_for(kind)
    n_decisions = len(decisions(session))
    with pytest.raises(ValueError, match=reply):
        getattr(session, method)(*given)
    assert len(decisions(session)) == n_decisions


def two_of_one_id() -> Session:
    turn = tool_call("f", {"n": 1}, tool_call("f", {"n": 2}, id="same"), id="same")
    return go([turn], Noting())


def test_calls_of_one_id_are_approved_by_object() -> None:
    session, tool = two_of_one_id(), Noting()
    with pytest.raises(ValueError, match=r"2 calls .* meant by 'same'.*session.open_calls"):
        session.approve("same")
    first, second = session.open_calls
    session.deny(first).approve(second)
    assert session.outcome == NeedsApproval(session.id, ())
    out = go(["done"], tool, user=session)
    assert tool.calls == [2]
    assert [reply.get("error_kind") for _, reply in results(out)] == ["denied", None]


def test_other_agents_and_forks_pass_a_waiting_session_on_and_name_it() -> None:
    session, tool = waiting(1), Noting()
    other = Agent("other", ScriptedClient([]).provider, [tool], system_tools=False)
    for out in (other(session), session.fork()):
        assert (out.outcome, out.chunk_table) == (session.outcome, session.chunk_table)
        with pytest.raises(ValueError, match=f"session {session.id} waits; say it there"):
            out.approve("c1")
    assert tool.calls == []


class Described(Noting):
    @property
    def description(self) -> str:
        return "does something else"


class Elsewhere(Noting):
    @property
    def origin(self) -> str:
        return "elsewhere:Tool"


class Stricter(Noting):
    @property
    def parameters(self) -> Mapping[str, Any]:
        return {**N_SCHEMA, "required": ["n"]}


def test_a_tool_that_is_another_one_by_now_is_not_called() -> None:
    session = waiting(1).approve("c1")

    for tool in (Described(), Elsewhere(), Stricter()):
        with pytest.raises(ResumeMismatch, match="c1"):
            go(["done"], tool, user=session)
        assert tool.calls == []
    with pytest.raises(ResumeMismatch, match="no such tool"):
        go(["done"], user=session)


def test_a_tool_whose_call_was_denied_may_be_gone() -> None:
    out = go(["done"], user=waiting(1).deny("c1"))
    assert out.text() == "done"


def made_of(session: Session, **changes: Any) -> Session:
    """A session with something of its content changed."""
    body = replace(session.core.body.result(), **changes)
    return Session.from_body(Deferred.of(body), session.provenance, id=session.id)


def test_an_edited_call_is_checked_again_before_it_is_made() -> None:
    session, tool = waiting(1), Noting()
    record: list[Entry] = [
        structs.replace(each, tools=()) if isinstance(each, Operation) else each
        for each in session.record
    ]
    out = go(["done"], tool, user=made_of(session, record=Vector(record)).edit("c1", {"n": "x"}))
    assert results(out)[0][1]["error_kind"] == "invalid_tool_arguments"
    assert tool.calls == []


def answered(tool: Noting, **more: Any) -> Session:
    """A run with all that there is: an approval, a denial, an edit and two questions."""
    session = go([calls_of(1, 2, 3)], tool, **more)
    session.approve("c1").deny("c2", "no").edit("c3", {"n": 30})
    session = go([], tool, user=session)
    session.answer("a", "c1").answer("b", "c3")
    return go([calls_of(4)], tool, user=session)


def asking() -> Noting:
    return Noting(work=lambda n: [n, rath.ask(f"what of {n}?")])


@pytest.mark.parametrize("is_loaded", [False, True], ids=["in memory", "loaded"])
def test_a_run_that_still_waits_is_replayed_up_to_there(is_loaded: bool) -> None:
    asks_once = Noting(work=lambda n: rath.ask("?") if n == 1 else n, approval="never")
    with_open_results = go([calls_of(1, 2)], asks_once, persist=is_loaded)
    for session in (answered(asking(), persist=is_loaded), with_open_results):
        found = Session.load(session.id) if is_loaded else session
        again = found.replay()
        assert (again.chunk_table, again.outcome) == (found.chunk_table, session.outcome)


def agent_with(tool: Noting, turns: list[Any]) -> Agent:
    return Agent("go", ScriptedClient(turns).provider, [tool], system_tools=False)


def approving_program(agent: Agent) -> Session:
    """A approving_program that says yes to everything."""
    out = agent(Session.from_user_message("go")).synchronize()
    while not isinstance(out.outcome, Completed):
        for each in out.open_calls:
            if each.waits_for == "approval":
                out.edit(each, {"n": 10})
            elif each.waits_for == "input":
                out.answer("yes", each)
        out = agent(out).synchronize()
    return out


def test_a_program_that_approves_and_answers_is_replayed_without_stopping() -> None:
    tool = asking()
    out = approving_program(agent_with(tool, [calls_of(1), "done"]))
    n_calls = len(tool.calls)
    with rath.replay(out):
        again = approving_program(agent_with(asking(), []))
    assert (again.id, again.chunk_table) == (out.id, out.chunk_table)
    assert len(tool.calls) == n_calls


def test_a_replayed_program_that_waits_says_for_what() -> None:
    agent = agent_with(Noting(), [calls_of(1, 2)])
    out = agent(Session.from_user_message("go")).synchronize().approve("c1")
    with rath.replay(out):
        again = agent_with(Noting(), [])(Session.from_user_message("go")).synchronize()
    assert again.outcome == out.outcome == NeedsApproval(out.id, ("c2",))


def assert_refused(session: Session) -> None:
    """The call still waits, and giving the session back to its agent makes nothing."""
    tool = Noting()
    assert isinstance(session.outcome, NeedsApproval)
    assert session.outcome.calls == ("c1",)
    assert go([], tool, user=session) is session
    assert tool.calls == []


def about(session: Session, **changes: Any) -> Decision:
    """The decision that allows the call of a session, with something of it changed."""
    approved = waiting(1).approve("c1")
    (made,) = decisions(approved)
    (own,) = interrupts(session)
    right = structs.replace(made, operation=own.operation, rows=own.rows, interrupt=own.id)
    return structs.replace(right, **changes)


DIFFERENCES: list[dict[str, Any]] = [
    {"call_id": "c2"},
    {"call_id": None},
    {"tool": "g"},
    {"tool": None},
    {"call": 1},
    {"call": None},
    {"rows": ()},
    {"arguments": {"n": 2}},
    {"arguments": {"n": True}},
    {"arguments": {"n": 1.0}},
    {"arguments": {"n": 1, "m": 1}},
    {"arguments": None},
    {"interrupt": UUID(int=1)},
    {"operation": UUID(int=1)},
    {"choice": "allow"},
    {"choice": "retry"},
    {"choice": "answer", "text": "true"},
    {"choice": "edit"},
]


def test_only_a_decision_that_names_all_of_the_call_is_about_it() -> None:
    session, tool = waiting(1), Noting()
    for changes in DIFFERENCES:
        session.add_entry(about(session, **changes))
        assert_refused(session)
    session.add_entry(about(session))
    go(["done"], tool, user=session)
    assert tool.calls == [1]


def test_a_decision_of_another_session_or_turn_is_not_about_the_call() -> None:
    session, other = waiting(1), waiting(1).approve("c1")
    for entries in (decisions(other), [*interrupts(other), *decisions(other)]):
        session.add_entry(*entries)
        assert_refused(session)
    tool = Noting()
    later = go([calls_of(1)], tool, user=waiting(1).approve("c1"))
    (old,) = decisions(later)
    later.add_entry(structs.replace(old, id=uuid4()))
    assert_refused(later)
    assert tool.calls == [1]


# In the store: whoever can write there cannot make a decision good for another call.


Change = Callable[[dict[str, Any]], None]


def rewrite(session: UUID, change: Change) -> None:
    """Change the lines of a log, with checksums that fit again."""
    path = log_of(session)
    records = [json.loads(line) for line in path.read_bytes().splitlines()]
    for record in records:
        record.pop("sum", None)
        change(record)
    data, _ = chained([dump(record) for record in records], "", is_compact=True)
    path.write_bytes(data)


def alter_row(record: dict[str, Any]) -> None:
    if record.get("event") == "row" and record["kind"] == "assistant":
        record["payload"]["tool_calls"][0]["function"]["arguments"] = '{"n": 9}'


def alter_decision(record: dict[str, Any]) -> None:
    if record.get("event") == "decision":
        record["arguments"] = {"n": 9}


def copy_other_decision(record: dict[str, Any]) -> None:
    """Put the decision about a call of another session in the place of the own one."""
    if record.get("event") == "decision":
        lines = log_of(waiting(1, persist=True).approve("c1").id).read_bytes().splitlines()
        record.clear()
        record |= next(each for each in map(json.loads, lines) if each.get("event") == "decision")
        del record["sum"]


@pytest.mark.parametrize("change", [alter_row, alter_decision, copy_other_decision])
def test_a_rewritten_log_does_not_allow_another_call(change: Change) -> None:
    session = waiting(1, persist=True).approve("c1")
    rewrite(session.id, lambda _: None)
    assert verify(default_store(), session.id).is_sound
    assert Session.load(session.id).outcome == NeedsApproval(session.id, ())
    rewrite(session.id, change)
    assert_refused(Session.load(session.id))


def test_who_decides_is_the_user_unless_another_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "grace")
    session = waiting(1, 2, 3)
    session.approve("c1").deny("c2", by="policy 7").edit("c3", {"n": 7})
    assert [each.by for each in decisions(session)] == ["grace", "policy 7", "grace"]
    with pytest.raises(TypeError, match="by says who decides, a str, not int"):
        session.approve("c1", by=7)  # type: ignore[arg-type]  # the point


def test_a_user_without_a_name_is_named_by_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def nameless() -> str:
        raise OSError("no username set in the environment")

    monkeypatch.setattr(getpass, "getuser", nameless)
    session = waiting(1).approve("c1")
    assert [each.by for each in decisions(session)] == [f"user {os.getuid()}"]
