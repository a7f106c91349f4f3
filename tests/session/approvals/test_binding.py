"""A decision holds for exactly one call, whoever wrote it, and is served from its record."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from msgspec import structs

import rath
from rath._async.deferred import Deferred
from rath._core.vector import Vector
from rath.errors import ReplayDifference
from rath.flow import Agent
from rath.session import Session
from rath.session.log.verify import verify
from rath.session.outcome import Completed, NeedsApproval, NeedsInput
from rath.session.persistence.store import default_store
from rath.session.record import Decision, ToolRun
from rath.testing import ScriptedClient, tool_call
from tests.support.api import Entry, chained, dump
from tests.support.approvals import Noting, calls_of, decisions, go, interrupts, log_of, waiting


def answered(tool: Noting, **more: Any) -> Session:
    """A run with all that there is: an approval, a denial, an edit and two questions."""
    session = go([calls_of(1, 2, 3)], tool, **more)
    session.approve("c1").deny("c2", "no").edit("c3", {"n": 30})
    session = go([], tool, user=session)
    session.answer("a", "c1").answer("b", "c3")
    return go([calls_of(4)], tool, user=session)


def asking() -> Noting:
    return Noting(work=lambda n: [n, rath.ask(f"what of {n}?")])


def test_a_run_with_all_of_it_is_replayed_and_no_tool_is_called() -> None:
    tool = asking()
    out = go(["done"], tool, user=answered(tool).deny("c4"))
    n_calls = len(tool.calls)
    again = out.replay()
    assert (again.chunk_table, again.outcome) == (out.chunk_table, Completed())
    assert len(tool.calls) == n_calls


@pytest.mark.parametrize("is_loaded", [False, True], ids=["in memory", "loaded"])
def test_a_run_that_still_waits_is_replayed_up_to_there(is_loaded: bool) -> None:
    session = answered(asking(), persist=is_loaded)
    session = Session.load(session.id) if is_loaded else session
    again = session.replay()
    assert (again.chunk_table, again.outcome) == (
        session.chunk_table,
        NeedsApproval(session.id, ("c4",)),
    )


@pytest.mark.parametrize("is_loaded", [False, True], ids=["in memory", "loaded"])
def test_a_run_that_waits_with_results_that_are_no_rows_is_replayed(is_loaded: bool) -> None:
    tool = Noting(work=lambda n: rath.ask("?") if n == 1 else n, approval="never")
    session = go([calls_of(1, 2)], tool, persist=is_loaded)
    session = Session.load(session.id) if is_loaded else session
    again = session.replay()
    assert (again.chunk_table, again.outcome) == (session.chunk_table, NeedsInput(session.id, "?"))


def test_a_decision_that_names_other_arguments_is_a_difference() -> None:
    out = go(["done"], Noting(), user=waiting(1).approve("c1"))
    body = out.body.result()
    changed: list[Entry] = [
        structs.replace(each, arguments={"n": 9}) if isinstance(each, ToolRun) else each
        for each in body.record
    ]
    record = Vector(changed)
    other = Session.from_body(
        Deferred.of(replace(body, record=record)), out.provenance, id=out.id, lineage=out.lineage
    )
    with pytest.raises(ReplayDifference, match="tool call 'c1'"):
        other.replay()


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


def test_a_cassette_serves_what_was_approved(tmp_path: Path) -> None:
    tool = asking()
    agent = agent_with(tool, [calls_of(1), "done"])

    def say() -> str | None:
        return approving_program(agent).text()

    play = rath.cassette(tmp_path / "c.jsonl")(say)
    assert [play(), play()] == ["done", "done"]
    assert tool.calls == [10, 10]


def test_a_cassette_serves_a_run_that_waits(tmp_path: Path) -> None:
    tool = Noting(work=lambda n: rath.ask("?") if n == 1 else n, approval="never")
    agent = agent_with(tool, [calls_of(1, 2)])

    def begin() -> Session:
        return agent(Session.from_user_message("go")).synchronize()

    play = rath.cassette(tmp_path / "c.jsonl")(begin)
    first, second = play(), play()
    assert first.outcome == second.outcome == NeedsInput(first.id, "?")
    assert sorted(tool.calls) == [1, 2]


def test_a_branch_is_live_and_stops_for_approvals_of_its_own() -> None:
    tool = Noting()
    out = go(["done"], tool, user=waiting(1).approve("c1"))
    client = ScriptedClient([calls_of(5), "done"])
    branch = out.replay(at=1, provider=client.provider, tools=[tool])
    assert branch.outcome == NeedsApproval(branch.id, ("c5",))
    assert branch.id != out.id
    assert tool.calls == [1]


def test_a_replayed_program_that_waits_says_for_what() -> None:
    agent = agent_with(Noting(), [calls_of(1, 2)])
    out = agent(Session.from_user_message("go")).synchronize().approve("c1")
    with rath.replay(out):
        again = agent_with(Noting(), [])(Session.from_user_message("go")).synchronize()
    assert again.outcome == out.outcome == NeedsApproval(out.id, ("c2",))


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


@pytest.mark.parametrize("with_interrupt", [False, True])
def test_a_decision_of_another_session_is_not_about_the_call(with_interrupt: bool) -> None:
    session, other = waiting(1), waiting(1).approve("c1")
    session.add_entries(*(interrupts(other) if with_interrupt else ()), *decisions(other))
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
    """Change the lines of a loaded_anew log, with checksums that fit again."""
    path = log_of(session)
    records = [json.loads(line) for line in path.read_bytes().splitlines()]
    for record in records:
        record.pop("sum", None)
        change(record)
    data, _ = chained([dump(record) for record in records], "", is_compact=True)
    path.write_bytes(data)


def loaded_anew(session: Session) -> Session:
    assert verify(default_store(), session.id).is_sound
    return Session.load(session.id)


def test_rewritten_lines_are_believed_when_they_are_the_same() -> None:
    session = waiting(1, persist=True).approve("c1")
    rewrite(session.id, lambda _: None)
    loaded, tool = loaded_anew(session), Noting()
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
