"""Runs with approvals, denials, edits and questions are served from their record."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import rath
from rath._async.lazy import Deferred
from rath._core.vector import Vector
from rath.errors import ReplayDifference
from rath.flow import Agent
from rath.session import Session
from rath.session.outcome import Completed, NeedsApproval, NeedsInput
from rath.session.record import Decision, ToolRun
from rath.testing import ScriptedClient
from tests.support.api import Entry
from tests.support.approvals import Noting, calls_of, go, results, waiting


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPENRATH_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


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


def program(agent: Agent) -> Session:
    """A program that says yes to everything."""
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
    out = program(agent_with(tool, [calls_of(1), "done"]))
    n_calls = len(tool.calls)
    with rath.replay(out):
        again = program(agent_with(asking(), []))
    assert (again.id, again.chunk_table) == (out.id, out.chunk_table)
    assert len(tool.calls) == n_calls


def test_a_cassette_serves_what_was_approved(tmp_path: Path) -> None:
    tool = asking()
    agent = agent_with(tool, [calls_of(1), "done"])

    def say() -> str | None:
        return program(agent).text()

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


def test_a_decision_is_in_the_record_of_what_is_made_of_it() -> None:
    out = go(["done"], Noting(), user=waiting(1).approve("c1"))
    assert any(isinstance(entry, Decision) for entry in out.fork().record)
    assert results(out.fork()) == results(out)


def test_a_replayed_program_that_waits_says_for_what() -> None:
    agent = agent_with(Noting(), [calls_of(1, 2)])
    out = agent(Session.from_user_message("go")).synchronize().approve("c1")
    with rath.replay(out):
        again = agent_with(Noting(), [])(Session.from_user_message("go")).synchronize()
    assert again.outcome == out.outcome == NeedsApproval(out.id, ("c2",))
