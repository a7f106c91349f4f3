"""Approvals beside hooks: what is asked about is what would be made."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rath.flow import Agent
from rath.session import Session
from rath.session.hooks import Deny
from rath.session.outcome import Completed, NeedsApproval
from rath.session.tooling import CallRequest
from rath.testing import ScriptedClient
from tests.support.approvals import Noting, calls_of, decisions, results


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPENRATH_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def agent_with(tool: Noting, *turns: Any, persist: bool = True) -> Agent:
    provider = ScriptedClient(turns).provider
    return Agent("go", provider, [tool], system_tools=False, persist=persist)


def ten_times(_: Agent, call: CallRequest) -> CallRequest:
    return replace(call, arguments={"n": call.arguments["n"] * 10})


def never(_: Agent, __: CallRequest) -> Deny:
    return Deny("never")


def start() -> Session:
    return Session.from_user_message("go")


@pytest.mark.parametrize("is_loaded", [False, True], ids=["in memory", "loaded"])
def test_an_approval_is_about_the_arguments_that_a_hook_gave(is_loaded: bool) -> None:
    seen: list[Any] = []

    def rule(call: CallRequest) -> bool:
        seen.append(call.arguments)
        return True

    tool = Noting(approval=rule)
    agent = agent_with(tool, calls_of(1), "done")
    agent.register_tool_hook(ten_times, when="before")
    out = agent(start()).synchronize()
    session = Session.load(out.id) if is_loaded else out
    assert seen == [{"n": 10}]
    assert session.open_calls[0].call.arguments == '{"n": 10}'
    session.approve("c1")
    assert decisions(session)[0].arguments == {"n": 10}
    assert agent(session).outcome == Completed()
    assert tool.calls == [10]


def test_what_somebody_gave_is_not_changed_by_a_hook_again() -> None:
    tool = Noting()
    agent = agent_with(tool, calls_of(1), "done")
    agent.register_tool_hook(ten_times, when="before")
    out = agent(start()).synchronize().edit("c1", {"n": 3})
    assert agent(out).outcome == Completed()
    assert tool.calls == [3]


def test_a_call_that_a_hook_denies_needs_no_approval() -> None:
    tool = Noting()
    agent = agent_with(tool, calls_of(1), "done")
    agent.register_tool_hook(never, when="before")
    out = agent(start())
    assert out.outcome == Completed()
    assert results(out)[0][1]["error_kind"] == "denied"
    assert tool.calls == []


def test_a_denied_result_beside_one_that_waits_is_not_asked_about() -> None:
    def hook(_: Agent, call: CallRequest) -> Deny | None:
        return Deny("not this one") if call.call_id == "c1" else None

    tool = Noting()
    agent = agent_with(tool, calls_of(1, 2), "done")
    agent.register_tool_hook(hook, when="before")
    out = agent(start()).synchronize()
    assert out.outcome == NeedsApproval(out.id, ("c2",))
    agent.register_tool_hook(never, when="before")
    assert agent(out.approve("c2")).outcome == Completed()
    assert tool.calls == [2]


def test_a_changed_call_beside_one_that_waits_is_shown_once() -> None:
    tool = Noting(approval=lambda call: call.call_id == "c1")
    agent = agent_with(tool, calls_of(1, 2), "done")
    agent.register_tool_hook(ten_times, when="before")
    out = agent(start()).synchronize()
    assert out.outcome == NeedsApproval(out.id, ("c1",))
    assert agent(out.approve("c1")).outcome == Completed()
    assert sorted(tool.calls) == [10, 20]


@pytest.mark.parametrize("is_loaded", [False, True], ids=["in memory", "loaded"])
def test_a_changed_call_that_was_denied_is_not_made_when_the_run_goes_on(is_loaded: bool) -> None:
    def hook(_: Agent, call: CallRequest) -> Deny | None:
        return Deny("not this one") if call.call_id == "c1" else None

    tool = Noting()
    agent = agent_with(tool, calls_of(1, 2), "done")
    agent.register_tool_hook(ten_times, when="before")
    agent.register_tool_hook(hook, when="before")
    out = agent(start()).synchronize()
    session = Session.load(out.id) if is_loaded else out
    assert [one.state for one in session.open_calls] == ["known", "asked"]
    assert session.replay().outcome == session.outcome
    done = agent(session.approve("c2"))
    assert results(done)[0][1]["error_kind"] == "denied"
    assert tool.calls == [20]
    assert done.replay().chunk_table == done.chunk_table
