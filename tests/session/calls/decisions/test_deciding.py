"""Somebody decides about calls of which it is not known whether they took effect."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rath._async.deferred import Deferred
from rath.session import Session
from rath.session.content import ToolFeedback
from rath.session.outcome import Completed, NeedsDecision
from rath.session.record import Decision, Interrupt, ToolRun
from rath.testing import tool_call
from tests.session.programs.test_going_on import AGENT, SCRIPT, Counting, rows_of
from tests.support.cut_off import cut_off
from tests.support.sessions import run


def whole() -> Session:
    return run(SCRIPT, Counting(), agent=AGENT).synchronize()


def waiting(*begun: int, known: tuple[int, ...] = ()) -> Session:
    return cut_off(whole(), 0, begun=begun or (1,), known=known)


def results(session: Session) -> dict[str, Any]:
    contents = [row.content for row in session.chunk_table]
    return {
        each.call_id: json.loads(each.body) for each in contents if isinstance(each, ToolFeedback)
    }


def test_a_decision_leaves_the_session_waiting_without_that_call() -> None:
    session = waiting(0, 1)
    assert session.decide("call_1", "retry") is session
    assert session.outcome == NeedsDecision(session.id, ("call_2",))
    session.decide("call_2", "skip")
    assert session.outcome == NeedsDecision(session.id, ())


def test_what_is_retried_is_made_again() -> None:
    session, tool = waiting(), Counting()
    out = run(SCRIPT[1:], tool, user=session.decide("call_2", "retry"), agent=AGENT)
    assert out.outcome == Completed()
    assert rows_of(out) == rows_of(whole())
    assert 2 in tool.calls


@pytest.mark.parametrize(
    ("choice", "result", "said"),
    [
        ("skip", None, '"error_kind": "skipped"'),
        ("done", "42 pages were printed", "42 pages were printed"),
        ("done", None, "not known"),
    ],
)
def test_what_was_skipped_or_done_is_not_made_and_the_model_reads_so(
    choice: Any, result: str | None, said: str
) -> None:
    session, tool = waiting(), Counting()
    session.decide("call_2", choice, result=result)
    out = run(SCRIPT[1:], tool, user=session, agent=AGENT)
    assert said in json.dumps(results(out)["call_2"])
    assert sorted(tool.calls) == [1, 3, 4]


def test_the_last_decision_holds() -> None:
    session, tool = waiting(), Counting()
    session.decide("call_2", "retry").decide("call_2", "skip")
    out = run(SCRIPT[1:], tool, user=session, agent=AGENT)
    assert results(out)["call_2"]["error_kind"] == "skipped"


def test_a_run_of_a_call_names_the_decision_that_allowed_it() -> None:
    session = waiting().decide("call_2", "retry")
    out = run(SCRIPT[1:], Counting(), user=session, agent=AGENT)
    (decision,) = [entry for entry in out.record if isinstance(entry, Decision)]
    by_id = {entry.call_id: entry for entry in out.record if isinstance(entry, ToolRun)}
    assert by_id["call_2"].decision == decision.id
    assert by_id["call_1"].decision is None


def test_a_decision_is_bound_to_its_call_and_to_what_the_run_waited_for() -> None:
    session = waiting().decide("call_2", "retry")
    (interrupt,) = [entry for entry in session.record if isinstance(entry, Interrupt)]
    (decision,) = [entry for entry in session.record if isinstance(entry, Decision)]
    assert interrupt.calls == ("call_2",)
    assert (decision.interrupt, decision.tool, decision.call) == (interrupt.id, "f", 1)
    assert decision.arguments == {"n": 2}
    assert decision.rows == (session.open_calls[1].asked_in,)


@pytest.mark.parametrize("call", ["call_9", "call_3"], ids=["unknown", "its result is there"])
def test_a_call_that_is_not_open_is_refused_and_the_open_ones_are_listed(call: str) -> None:
    with pytest.raises(ValueError, match=r"no open call .*'call_1' \(f .*'call_2' \(f"):
        waiting(0, known=(2,)).decide(call, "retry")


def two_of_one_id() -> Session:
    turn = tool_call("f", {"n": 1}, tool_call("f", {"n": 2}, id="same"), id="same")
    made = run([turn, "done"], Counting(), agent=AGENT).synchronize()
    return cut_off(made, 0, begun=[0, 1])


def test_calls_of_one_id_are_told_apart_by_what_they_are() -> None:
    session = two_of_one_id()
    with pytest.raises(ValueError, match=r"2 open calls .* have the id 'same'"):
        session.decide("same", "retry")
    session.decide(session.open_calls[1], "skip")
    assert [each.waits for each in session.open_calls] == [True, False]


def test_an_open_call_of_another_session_is_refused() -> None:
    with pytest.raises(ValueError, match="no open call 'call_2'"):
        waiting().decide(waiting().open_calls[1], "retry")


def test_a_session_that_waits_for_nothing_takes_no_decision() -> None:
    with pytest.raises(ValueError, match="waits for no decision"):
        whole().decide("call_1", "retry")


def test_a_session_that_passes_on_that_another_waits_names_that_one() -> None:
    session = waiting()
    with pytest.raises(ValueError, match=f"session {session.id} waits; decide there"):
        session.fork().decide("call_2", "retry")


def test_an_unknown_choice_and_a_result_that_does_not_fit_are_refused() -> None:
    session = waiting()
    with pytest.raises(ValueError, match="unknown choice 'again'"):
        session.decide("call_2", "again")  # type: ignore[arg-type]  # what is refused
    with pytest.raises(ValueError, match="goes with the choice 'done'"):
        session.decide("call_2", "skip", result="x")
    with pytest.raises(TypeError, match="a str, not dict"):
        session.decide("call_2", "done", result={})  # type: ignore[arg-type]  # what is refused


def test_a_decision_is_used_up_when_the_call_was_begun_again() -> None:
    session = waiting().decide("call_2", "retry")
    body = session.body.result()
    again = Session.from_body(
        Deferred.of(session.inherited(body)), session.provenance, id=session.id
    )
    # It was loaded, and its log says that the call was begun after the decision.
    assert again.open_calls[1].waits


def test_a_cancelled_session_takes_decisions_too() -> None:
    session = waiting()
    body = session.body.result().cancelled(session.id)
    cancelled = Session.from_body(Deferred.of(body), session.provenance, id=session.id)
    assert cancelled.decide("call_2", "skip").open_calls[1].decision is not None
