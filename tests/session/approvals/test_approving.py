"""Calls are approved, denied or made with other arguments, and the run goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from rath._async.deferred import Deferred
from rath._core.vector import Vector
from rath.errors import ResumeMismatch
from rath.flow import Agent
from rath.session import Session
from rath.session.outcome import Completed, NeedsApproval
from rath.session.record import Operation
from rath.testing import ScriptedClient, tool_call
from tests.support.api import EDITED, Entry
from tests.support.approvals import (
    N_SCHEMA,
    Noting,
    calls_of,
    decisions,
    go,
    interrupts,
    results,
    tool_runs,
    waiting,
)
from tests.support.cut_off import cut_off


def test_the_outcome_lists_what_still_waits() -> None:
    session = waiting(1, 2, 3)
    assert session.outcome == NeedsApproval(session.id, ("c1", "c2", "c3"))
    session.approve("c2")
    assert session.outcome == NeedsApproval(session.id, ("c1", "c3"))
    session.approve("c1").deny("c3")
    assert session.outcome == NeedsApproval(session.id, ())


def test_a_run_that_still_waits_is_given_back_as_it_is() -> None:
    session, tool = waiting(1, 2), Noting()
    out = go([], tool, user=session.approve("c1"))
    assert out is session
    assert tool.calls == []


def test_a_denied_call_is_not_made_and_the_model_reads_why() -> None:
    tool = Noting()
    out = go(["done"], tool, user=waiting(1, 2).approve("c2").deny("c1", "too early"))
    assert tool.calls == [2]
    (_, said), (_, other) = results(out)
    assert (said["error_kind"], other) == ("denied", {"said": 2})
    assert said["message"].endswith("not made: too early")


def test_a_denial_without_a_reason_says_that_it_was_denied() -> None:
    out = go(["done"], Noting(), user=waiting(1).deny("c1"))
    assert results(out)[0][1]["message"] == "the call was not allowed, and not made"


def test_an_edited_call_is_made_with_the_new_arguments_and_the_model_reads_which() -> None:
    tool = Noting()
    out = go(["done"], tool, user=waiting(1).edit("c1", {"n": 7}))
    assert tool.calls == [7]
    ((_, said),) = results(out)
    assert said == {"note": EDITED, "arguments": {"n": 7}, "result": {"said": 7}}
    run = tool_runs(out)["c1"]
    assert run.arguments == {"n": 7}
    assert run.shown.size == len(out.chunk_table[2].payload["content"])


def test_a_failure_of_an_edited_call_says_its_arguments_too() -> None:
    def fails(_: Any) -> Any:
        raise LookupError("gone")

    out = go(["done"], Noting(work=fails), user=waiting(1).edit("c1", {"n": 7}))
    ((_, said),) = results(out)
    assert said["arguments"] == {"n": 7}
    assert said["result"]["error_kind"] == "tool_execution_exception"
    assert tool_runs(out)["c1"].status == "failed"


def test_what_is_changed_later_in_the_mapping_is_not_what_was_said() -> None:
    session, arguments, tool = waiting(1), {"n": 7}, Noting()
    session.edit("c1", arguments)
    arguments["n"] = 8
    go(["done"], tool, user=session)
    assert tool.calls == [7]


@pytest.mark.parametrize(
    ("method", "given", "error", "said"),
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
    method: str, given: tuple[object, ...], error: type[Exception], said: str
) -> None:
    session = waiting(1)
    more = {"by": 3} if method == "approve" else {}
    with pytest.raises(error, match=said):
        getattr(session, method)("c1", *given, **more)
    assert decisions(session) == []


def test_what_is_said_is_valid_unicode_and_ends_no_run() -> None:
    said = waiting(1).deny("c1", "no\udcff", by="ad\ud800")
    assert results(go(["done"], Noting(), user=said))[0][1]["message"].endswith("no\ufffd")
    assert decisions(said)[0].by == "ad\ufffd"
    edited = waiting(1).edit("c1", {"n": 2, "more": "\ud800"})
    assert decisions(edited)[0].edited == {"n": 2, "more": "\ufffd"}


def test_runs_name_the_decisions_by_which_they_were_made_or_not() -> None:
    session = waiting(1, 2, 3).approve("c1", by="ada").deny("c2", by="bob").edit("c3", {"n": 4})
    out = go(["done"], Noting(), user=session)
    by_call = {each.call_id: each for each in decisions(out)}
    assert {call: run.decision for call, run in tool_runs(out).items()} == {
        call: each.id for call, each in by_call.items() if call is not None
    }
    assert [(each.choice, each.by) for each in by_call.values()] == [
        ("approve", "ada"),
        ("deny", "bob"),
        ("edit", "Session.edit"),
    ]
    assert [run.status for run in tool_runs(out).values()] == ["done", "denied", "done"]


def test_a_decision_says_exactly_which_call_it_is_about() -> None:
    session = waiting(1, 2).approve("c2")
    (decision,) = decisions(session)
    (interrupt,) = interrupts(session)
    assert decision.interrupt == interrupt.id
    assert (decision.tool, decision.call, decision.call_id) == ("f", 1, "c2")
    assert (decision.arguments, decision.rows) == ({"n": 2}, (session.chunk_table[1].id,))


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


def test_what_is_said_of_an_unknown_call_lists_what_waits() -> None:
    session = waiting(1, 2).approve("c1")
    with pytest.raises(ValueError, match=r"not a call 'c9' .* waits: 'c2' \(f .*approve, deny"):
        session.approve("c9")
    assert len(decisions(session)) == 1


@pytest.mark.parametrize("method", ["approve", "deny"])
def test_a_call_of_a_run_that_has_gone_on_takes_no_decision(method: str) -> None:
    out = go(["done"], Noting(), user=waiting(1).approve("c1"))
    with pytest.raises(ValueError, match="nothing waits in it"):
        getattr(out, method)("c1")


def test_a_call_that_needs_no_approval_takes_none() -> None:
    session = waiting(1, 2, tool=Noting(approval=lambda call: call.arguments["n"] == 2))
    with pytest.raises(ValueError, match=r"not a call 'c1' .* what waits: 'c2'"):
        session.approve("c1")


def test_a_call_that_waits_for_an_approval_takes_no_other_word() -> None:
    session = waiting(1)
    with pytest.raises(ValueError, match=r"waits for an approval.*use session.approve"):
        session.decide("c1", "skip")
    with pytest.raises(ValueError, match=r"for an answer; what waits: 'c1' .* session.approve"):
        session.answer(1, "c1")


def test_a_call_that_waits_for_a_decision_takes_no_approval() -> None:
    tool = Noting(approval="never")
    whole = go([calls_of(1), "done"], tool)
    session = cut_off(whole, 0, begun=[0])
    with pytest.raises(ValueError, match=r"what waits: 'c1' .* for a decision: session.decide"):
        session.approve("c1")


def two_of_one_id() -> Session:
    turn = tool_call("f", {"n": 1}, tool_call("f", {"n": 2}, id="same"), id="same")
    return go([turn], Noting())


def test_calls_of_one_id_are_told_apart_by_their_place() -> None:
    session, tool = two_of_one_id(), Noting()
    with pytest.raises(ValueError, match=r"2 calls .* meant by 'same'.*session.open_calls"):
        session.approve("same")
    first, second = session.open_calls
    session.deny(first).approve(second)
    assert session.outcome == NeedsApproval(session.id, ())
    out = go(["done"], tool, user=session)
    assert tool.calls == [2]
    assert [said.get("error_kind") for _, said in results(out)] == ["denied", None]


def test_a_session_that_waits_passes_through_other_agents_unchanged() -> None:
    session = waiting(1)
    other = Agent("other", ScriptedClient([]).provider, system_tools=False)
    out = other(session)
    assert (out.outcome, out.chunk_table) == (session.outcome, session.chunk_table)
    with pytest.raises(ValueError, match=f"session {session.id} waits; say it there"):
        out.approve("c1")


def test_what_is_derived_of_a_session_that_waits_says_where_it_does() -> None:
    session = waiting(1)
    assert session.fork().outcome == session.outcome
    with pytest.raises(ValueError, match=f"session {session.id} waits; say it there"):
        session.fork().approve("c1")


def test_a_run_waits_again_in_a_later_turn_and_an_old_decision_does_not_cover_it() -> None:
    tool = Noting()
    first = waiting(1).approve("c1")
    second = go([calls_of(1)], tool, user=first)
    assert second.outcome == NeedsApproval(first.id, ("c1",))
    assert tool.calls == [1]
    out = go(["done"], tool, user=second.approve("c1"))
    assert (tool.calls, out.id) == ([1, 1], first.id)


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


def test_a_run_that_was_allowed_to_go_on_keeps_its_operation() -> None:
    session = waiting(1).approve("c1")
    out = go(["done"], Noting(), user=session)
    assert len([entry for entry in out.record if isinstance(entry, Operation)]) == 1
    assert out.provenance is session.provenance


def test_approved_calls_and_others_stand_in_call_order() -> None:
    tool = Noting(approval=lambda call: call.arguments["n"] % 2 == 0)
    session = waiting(4, 1, 2, 3, tool=tool).deny("c4").edit("c2", {"n": 20})
    out = go(["done"], tool, user=session)
    assert [call for call, _ in results(out)] == ["c4", "c1", "c2", "c3"]
    assert sorted(tool.calls) == [1, 3, 20]


def test_the_head_of_the_agent_is_what_tells_whose_session_it_is() -> None:
    session, tool = waiting(1).approve("c1"), Noting()
    stranger = Agent("another", ScriptedClient([]).provider, [tool], system_tools=False)
    assert isinstance(stranger(session).outcome, NeedsApproval)
    assert tool.calls == []


def made_of(session: Session, **changes: Any) -> Session:
    """A session with something of its content changed."""
    body = replace(session.body.result(), **changes)
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
