"""Calls of agents as tools that are made again: after a crash, and once somebody has spoken."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from rath.backend.results import ToolExecutionFailure
from rath.flow import Workflow
from rath.session import Session
from rath.session.outcome import Completed, NeedsApproval, NeedsDecision
from rath.session.tooling import ToolEffects
from rath.testing import tool_call
from rath.testing.chat import Turn
from tests.flow.tool.test_agent_tool import agent, asked, children_of, result_of
from tests.support.delegating_program import Team
from tests.support.sessions import FunctionTool, run


def test_a_strict_replay_needs_neither_model_nor_agent() -> None:
    out = run([asked(), "done"], agent("found").as_tool("helper"), persist=True).synchronize()
    (made,) = children_of(out)
    assert Session.load(out.id).replay().chunk_table == out.chunk_table
    assert Session.load(made.session).replay().text() == "found"


def killed(notes: Path, effects: ToolEffects) -> Session:
    program = [sys.executable, "-m", "tests.support.delegating_program", str(notes), effects]
    done = subprocess.run(program, capture_output=True, text=True, timeout=15, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return Session.load(done.stdout.strip())


def gone_on(notes: Path, effects: ToolEffects, session: Session) -> Session:
    team = Team(notes, effects, outer=["boss is done"], inner=["worker is done"])
    return team.resume(session).synchronize()


def test_after_a_kill_the_child_goes_on_and_repeats_nothing(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    out = gone_on(notes, "idempotent", killed(notes, "idempotent"))
    assert (result_of(out), out.text()) == ("worker is done", "boss is done")
    assert notes.read_text() == "once\n"
    assert out.replay().text() == "boss is done"


def test_after_a_kill_a_call_that_must_not_be_repeated_waits(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    session = killed(notes, "non_idempotent")
    assert session.outcome == NeedsDecision(session.id, ("handed",))
    out = gone_on(notes, "non_idempotent", session.decide("handed", "retry"))
    assert (result_of(out), out.text()) == ("worker is done", "boss is done")
    assert notes.read_text() == "once\n"


# ---- waiting for somebody


class Guarded(FunctionTool):
    approval = "always"


class Boss(Workflow):
    """Hands its work to an agent whose tool must be allowed."""

    def __init__(self, outer: Sequence[Turn], inner: Sequence[Turn], done: list[str]) -> None:
        def act(*_: object) -> str:
            done.append("acted")
            return "acted"

        self.worker = agent(*inner, tools=[Guarded("act", act)])
        helper = self.worker.as_tool("helper", effects="idempotent")
        self.boss = agent(*outer, tools=[helper])

    def forward(self, session: Session) -> Session:
        return self.boss(session)


def waiting(done: list[str]) -> Session:
    boss = Boss([asked()], [tool_call("act", id="acting")], done)
    boss.boss.persist = True
    return boss(Session.from_user_message("go")).synchronize()


def test_a_child_that_waits_makes_its_caller_wait() -> None:
    done: list[str] = []
    out = waiting(done)
    outcome = out.outcome
    assert isinstance(outcome, NeedsApproval)
    assert outcome.session != out.id
    assert (outcome.calls, done) == (("acting",), [])
    assert len(out.chunk_table) == 2


@pytest.mark.parametrize("is_loaded", [False, True], ids=["in memory", "loaded"])
def test_once_the_child_may_go_on_its_caller_does(is_loaded: bool) -> None:
    done: list[str] = []
    out = waiting(done)
    outcome = out.outcome
    assert isinstance(outcome, NeedsApproval)
    Session.load(outcome.session).approve("acting")
    again = Boss(["boss is done"], ["worker is done"], done)
    after = again.resume(Session.load(out.id) if is_loaded else out).synchronize()
    assert (after.id, after.outcome, done) == (out.id, Completed(), ["acted"])
    assert (result_of(after), after.text()) == ("worker is done", "boss is done")
    assert Session.load(outcome.session).text() == "worker is done"


def test_called_by_hand_it_says_what_its_session_waits_for() -> None:
    helper = agent(tool_call("act"), tools=[Guarded("act", lambda *_: "x")]).as_tool("helper")

    async def call() -> object:
        return await helper(Session.from_user_message("go"), {"task": "look"})

    told = asyncio.run(call())
    assert isinstance(told, ToolExecutionFailure)
    assert told.kind == "agent_waits"
    assert "waits for somebody" in told.message
