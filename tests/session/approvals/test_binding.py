"""A decision holds for exactly one call, whoever wrote it wherever."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from msgspec import structs

from rath.session import Session
from rath.session.log.verify import verify
from rath.session.outcome import NeedsApproval
from rath.session.persistence.store import default_store
from rath.session.record import Decision
from rath.testing import tool_call
from tests.support.api import chained, dump
from tests.support.approvals import Noting, calls_of, decisions, go, interrupts, log_of, waiting


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPENRATH_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def refused(session: Session) -> None:
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


def test_the_decision_that_the_others_are_made_of_is_good() -> None:
    session, tool = waiting(1), Noting()
    session.add_entry(about(session))
    go(["done"], tool, user=session)
    assert tool.calls == [1]


@pytest.mark.parametrize(
    "changes",
    [
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
    ],
    ids=str,
)
def test_a_decision_that_differs_in_anything_is_not_about_the_call(changes: dict[str, Any]) -> None:
    session = waiting(1)
    session.add_entry(about(session, **changes))
    refused(session)


def test_a_decision_of_another_session_is_not_about_the_call() -> None:
    session, other = waiting(1), waiting(1).approve("c1")
    session.add_entries(*decisions(other))
    refused(session)


def test_the_interrupt_of_another_session_does_not_make_its_decision_good() -> None:
    session, other = waiting(1), waiting(1).approve("c1")
    session.add_entries(*interrupts(other), *decisions(other))
    refused(session)


def test_a_decision_of_another_turn_is_not_about_the_call() -> None:
    tool = Noting()
    session = go([calls_of(1)], tool, user=waiting(1).approve("c1"))
    (old,) = decisions(session)
    session.add_entry(structs.replace(old, id=uuid4()))
    outcome = session.outcome
    assert isinstance(outcome, NeedsApproval)
    assert outcome.calls == ("c1",)
    refused(session)
    assert tool.calls == [1]


def test_a_decision_about_one_of_two_calls_of_an_id_is_not_about_the_other() -> None:
    turn = tool_call("f", {"n": 1}, tool_call("f", {"n": 1}, id="c1"), id="c1")
    session, tool = go([turn], Noting()), Noting()
    session.approve(session.open_calls[1])
    assert [each.waits for each in session.open_calls] == [True, False]
    go([], tool, user=session)
    assert tool.calls == []


# In the store: whoever can write there cannot make a decision good for another call.


def rewrite(session: UUID, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the lines of a stored log, with checksums that fit again."""
    path = log_of(session)
    records = [json.loads(line) for line in path.read_bytes().splitlines()]
    for record in records:
        record.pop("sum", None)
        change(record)
    data, _ = chained([dump(record) for record in records], "", is_compact=True)
    path.write_bytes(data)


def stored(session: Session) -> Session:
    assert verify(default_store(), session.id).is_sound
    return Session.load(session.id)


def test_rewritten_lines_are_believed_when_they_are_the_same() -> None:
    session = waiting(1, persist=True).approve("c1")
    rewrite(session.id, lambda _: None)
    loaded, tool = stored(session), Noting()
    go(["done"], tool, user=loaded)
    assert tool.calls == [1]


def test_arguments_that_were_altered_in_the_row_are_not_what_was_allowed() -> None:
    session = waiting(1, persist=True).approve("c1")

    def change(record: dict[str, Any]) -> None:
        if record.get("event") == "row" and record["kind"] == "assistant":
            record["payload"]["tool_calls"][0]["function"]["arguments"] = '{"n": 9}'

    rewrite(session.id, change)
    refused(Session.load(session.id))


def test_arguments_that_were_altered_in_the_decision_are_not_those_of_the_call() -> None:
    session = waiting(1, persist=True).approve("c1")

    def change(record: dict[str, Any]) -> None:
        if record.get("event") == "decision":
            record["arguments"] = {"n": 9}

    rewrite(session.id, change)
    refused(Session.load(session.id))


def test_a_decision_copied_from_the_log_of_another_session_is_not_about_the_call() -> None:
    session, other = waiting(1, persist=True).deny("c1"), waiting(1, persist=True).approve("c1")
    path = log_of(other.id)
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    (theirs,) = [line for line in lines if line.get("event") == "decision"]

    def change(record: dict[str, Any]) -> None:
        if record.get("event") == "decision":
            record.clear()
            record.update({key: value for key, value in theirs.items() if key != "sum"})

    rewrite(session.id, change)
    refused(Session.load(session.id))


def test_a_bit_that_flipped_in_a_decision_is_named() -> None:
    session = waiting(1, persist=True).approve("c1")
    path = log_of(session.id)
    path.write_bytes(path.read_bytes().replace(b'"approve"', b'"approvE"'))
    with pytest.raises(Exception, match="checksum"):
        Session.load(session.id)
