from __future__ import annotations

import threading
from uuid import UUID, uuid4

import pytest

from rath.session import Session
from rath.session.outcome import (
    BudgetExceeded,
    Cancelled,
    Completed,
    DeadlineExceeded,
    NeedsApproval,
    NeedsDecision,
    NeedsInput,
    RoundLimit,
)
from rath.session.view.page_data import PageNode, nodes_of, outcome_state, own_entries, totals
from rath.testing import tool_call
from tests.support.api import Outcome
from tests.support.sessions import cancelled_session, run
from tests.support.viewed import echo
from tests.support.waiting import PATIENCE

SESSION = UUID(int=1)


def node_of(session: Session) -> PageNode:
    return nodes_of([session.as_parent()])[-1]


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        (Completed(), "completed"),
        (RoundLimit(3), "round_limit"),
        (BudgetExceeded(10, 20), "budget_exceeded"),
        (DeadlineExceeded(1.5), "deadline_exceeded"),
        (Cancelled(SESSION), "cancelled"),
        (NeedsApproval(SESSION, ("a",)), "needs_approval"),
        (NeedsInput(SESSION, "which?"), "needs_input"),
        (NeedsDecision(SESSION, ("a",)), "needs_decision"),
        (NeedsDecision(SESSION, ()), "cut_off"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_an_outcome_has_a_state_and_all_but_one_a_reason(outcome: Outcome, state: str) -> None:
    named, reason = outcome_state(outcome)
    assert named == state
    assert bool(reason) == (outcome != Completed())


def test_parents_stand_before_what_came_from_them() -> None:
    start = Session.from_user_message("hello")
    left, right = start.fork(), start.fork()
    merged = left.merge(right)
    made = nodes_of([merged.as_parent(), start.as_parent()])
    assert [node.id for node in made] == [start.id, left.id, right.id, merged.id]


def test_a_long_line_of_forks_has_all_its_sessions() -> None:
    session = Session.from_user_message("hello")
    for _ in range(2000):
        session = session.fork()
    assert len(nodes_of([session.as_parent()])) == 2001


def test_the_later_one_of_two_moments_of_a_session_counts() -> None:
    asked = run(["hello"]).synchronize()
    fork = asked.fork()
    operation = asked.record[0]
    asked.add_entry(operation)
    made = nodes_of([fork.as_parent(), asked.as_parent()])
    body = next(node.body for node in made if node.id == asked.id)
    assert body is not None
    assert len(body.record) == len(fork.record)


def test_a_parent_that_is_known_by_its_id_alone_is_absent() -> None:
    parent = uuid4()
    session = Session(Session.from_user_message("x").chunk_table, parent_session_ids=(parent,))
    absent, _ = nodes_of([session.as_parent()])
    assert (absent.id, absent.state, absent.body) == (parent, "absent", None)
    assert own_entries(absent) == ()
    assert totals(absent)["title"] == ""


def test_a_run_that_goes_on_is_running_and_then_completed() -> None:
    may_end = threading.Event()

    def wait(_: object) -> str:
        may_end.wait(PATIENCE)
        return "done"

    session = run([wait])
    running = node_of(session)
    may_end.set()
    session.synchronize()
    assert (running.state, node_of(session).state) == ("running", "completed")


def test_a_failed_run_says_why() -> None:
    session = run([ValueError("no such luck")])
    with pytest.raises(ValueError, match="luck"):
        session.synchronize()
    node = node_of(session)
    assert node.state == "failed"
    assert "no such luck" in node.problem


def test_a_cancelled_session_is_told_as_such() -> None:
    assert node_of(cancelled_session()).state == "cancelled"


def test_totals_count_what_a_session_did_itself() -> None:
    first = run([tool_call("echo", {}), "one"], echo()).synchronize()
    second = run(["two"], user=first.merge(Session.from_user_message("more"))).synchronize()
    made = totals(node_of(second))
    assert (made["calls"], made["tools"], made["models"]) == (1, 0, ["scripted"])
    assert made["tokens"] == second.record[-1].evidence.usage.total_tokens  # type: ignore[union-attr]  # the last one is a model call
    assert (made["usd"], made["unpriced"]) == (None, 1)
    assert made["at"] is not None
    assert made["ms"] >= 0


def test_what_a_fork_or_a_detached_session_inherited_is_not_its_own() -> None:
    asked = run(["one"]).synchronize()
    assert totals(node_of(asked.fork()))["calls"] == 0
    assert totals(node_of(asked.detach()))["calls"] == 0


def test_late_entries_of_a_session_without_an_operation_are_its_own() -> None:
    asked = run(["one"]).synchronize()
    leaf = Session.from_user_message("hello")
    leaf.add_entries(*asked.record)
    assert totals(node_of(leaf))["calls"] == 1


def test_the_title_is_the_first_thing_a_user_said_in_it() -> None:
    asked = Session.from_user_message("first\nwords")
    assert totals(node_of(asked))["title"] == "first\\nwords"
    assert totals(node_of(asked.fork()))["title"] == ""


def test_a_parent_known_by_its_id_is_told_whole_where_it_is_given_too() -> None:
    parent = Session.from_user_message("hello")
    child = Session(parent.chunk_table, parent_session_ids=(parent.id,))
    first, second = nodes_of([child.as_parent(), parent.as_parent()])
    assert (first.id, first.state, second.id) == (parent.id, "completed", child.id)


def test_a_stored_run_that_failed_says_why() -> None:
    session = run([ValueError("no such luck")], persist=True)
    with pytest.raises(ValueError, match="luck"):
        session.synchronize()
    node = node_of(Session.load(session.id))
    assert node.state == "failed"
    assert "no such luck" in node.problem
