"""A run inside a tool call waits, and the run around it waits with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from rath import autosave
from rath.flow import Agent
from rath.flow.tool import FlowToolCall
from rath.session import Session
from rath.session.log.verify import verify
from rath.session.outcome import Completed, NeedsApproval, NeedsDecision
from rath.session.persistence.store import default_store
from rath.session.record import Interrupt
from rath.session.run.stored_programs import pass_on, waiting_sessions
from rath.testing import ScriptedClient, tool_call
from tests.support.approvals import Noting, calls_of, go, results
from tests.support.cut_off import cut_off


class Helper(FlowToolCall):
    """Hands a task to an agent of its own."""

    parallel_safe = True

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.n_calls = 0

    @property
    def name(self) -> str:
        return "help"

    @property
    def parameters(self) -> Mapping[str, Any]:
        return {"type": "object"}

    def resource_key(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        return (str(arguments.get("n")),)

    def __call__(self, session: Session, arguments: Mapping[str, Any]) -> Any:
        self.n_calls += 1
        return pass_on(self.agent(Session.from_user_message("please help"))).text()


def agent_of(name: str, turns: list[Any], *tools: FlowToolCall) -> Agent:
    return Agent(name, ScriptedClient(turns).provider, list(tools), system_tools=False)


def boss_of(*tools: FlowToolCall) -> Agent:
    """An agent that asks for help once and is done."""
    return agent_of("boss", [tool_call("help", {}, id="h"), "boss is done"], *tools)


@pytest.fixture(params=[False, True], ids=["in memory", "stored"])
def stored(request: pytest.FixtureRequest) -> Any:
    """Every session is stored, or none is."""
    if not request.param:
        yield False
        return
    with autosave():
        yield True


def again(session: Session, is_stored: bool) -> Session:
    """The session as another process finds it, where it is stored."""
    return Session.load(session.id) if is_stored else session


def test_an_approval_inside_a_call_suspends_the_run_around_it(stored: bool) -> None:
    tool = Noting()
    helper = Helper(agent_of("helper", [calls_of(1), "helper is done"], tool))
    boss = boss_of(helper)
    out = boss(Session.from_user_message("go")).synchronize()
    (inner,) = waiting_sessions(again(out, stored))
    assert out.outcome == NeedsApproval(inner.id, ("c1",))
    (entry,) = [each for each in out.record if isinstance(each, Interrupt) and each.child]
    assert (entry.reason, entry.calls, entry.child) == ("approval", ("h",), inner.id)
    with pytest.raises(ValueError, match=f"session {inner.id} waits"):
        again(out, stored).approve("c1")
    if stored:
        assert all(verify(default_store(), each.id).is_sound for each in (out, inner))
    inner.approve("c1")
    done = boss(again(out, stored)).synchronize()
    assert (done.id, done.text(), done.outcome) == (out.id, "boss is done", Completed())
    assert results(done) == [("h", "helper is done")]
    assert (tool.calls, helper.n_calls) == ([1], 2)


def test_at_any_depth(stored: bool) -> None:
    tool = Noting()
    inmost = Helper(agent_of("inmost", [calls_of(1), "inmost is done"], tool))
    middle = agent_of("middle", [tool_call("help", {}, id="m"), "middle is done"], inmost)
    boss = boss_of(Helper(middle))
    out = boss(Session.from_user_message("go")).synchronize()
    (inner,) = waiting_sessions(again(out, stored))
    assert out.outcome == NeedsApproval(inner.id, ("c1",))
    inner.approve("c1")
    done = boss(again(out, stored)).synchronize()
    assert (done.text(), tool.calls) == ("boss is done", [1])
    assert results(done) == [("h", "middle is done")]


def test_a_program_that_runs_again_goes_on_inside_the_call() -> None:
    tool = Noting()
    helper = Helper(agent_of("helper", [calls_of(1), "helper is done"], tool))
    boss = boss_of(helper)
    with autosave():
        out = boss(Session.from_user_message("go")).synchronize()
        (inner,) = waiting_sessions(Session.load(out.id))
        inner.approve("c1")
        done = boss.resume(Session.load(inner.id))
        assert (done.id, done.text()) == (out.id, "boss is done")
    assert tool.calls == [1]
    assert done.replay().chunk_table == done.chunk_table


def test_passing_on_outside_of_a_tool_is_refused() -> None:
    with pytest.raises(RuntimeError, match="pass_on was called outside of a tool call"):
        pass_on(Session.from_user_message("go"))


def test_a_session_that_passes_on_names_the_one_that_waits(stored: bool) -> None:
    tool = Noting()
    first = agent_of("first", [calls_of(1)], tool)
    out = agent_of("second", [])(first(Session.from_user_message("go"))).synchronize()
    if stored:
        (inner,) = waiting_sessions(Session.load(out.id))
        assert inner.id == out.outcome.session  # type: ignore[union-attr]  # it waits
    else:
        assert waiting_sessions(out) == ()


def test_a_decision_that_is_wanted_inside_a_call_is_passed_on() -> None:
    complete = agent_of("helper", [calls_of(1), "done"], Noting(approval="never"))
    cut = cut_off(complete(Session.from_user_message("help")).synchronize(), 0, begun=[0])

    def work(_: int) -> Any:
        return pass_on(cut).text()

    out = go([calls_of(2)], Noting(work=work, approval="never"))
    assert out.outcome == NeedsDecision(cut.id, ("c1",))
    (entry,) = [each for each in out.record if isinstance(each, Interrupt) and each.child]
    assert (entry.reason, entry.child) == ("decision", cut.id)
    assert waiting_sessions(out) == (cut,)
