"""Runs of a server: the time that they have."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from rath.flow import Agent, Workflow
from rath.flow.serving import ServeOptions
from rath.flow.serving.calls import Calls
from rath.serving.principals import Limits, Principal
from rath.serving.runs import RunRequest, Runs
from rath.session import Session, user_text_chunk
from rath.session.outcome import Cancelled
from rath.testing import FakeSessionStore, ScriptedClient, tool_call
from tests.support.sessions import FunctionTool


async def wait_forever(*_: object) -> str:
    await asyncio.Event().wait()
    return ""


def waiting_agent() -> Agent:
    """Return an agent whose tool never ends."""
    script = ScriptedClient([tool_call("wait"), "done"])
    return Agent("x", script.provider, [FunctionTool("wait", wait_forever)], system_tools=False)


class Twice(Workflow):
    """Waits for one agent in `forward`, and then for another one on the same input."""

    def __init__(self) -> None:
        super().__init__()
        self.agents = [waiting_agent(), waiting_agent()]
        self.made: list[Session] = []

    def forward(self, session: Session) -> Session:
        for agent in self.agents:
            self.made.append(agent(session))
            self.made[-1].synchronize()
        return self.made[-1]


def over_http(team: Workflow, home: Path) -> None:
    limits = Limits(home / "spending.db")
    runs = Runs({"team": team}, limits, store=FakeSessionStore(), run_seconds=0.2)
    rows = (user_text_chunk("hello"),)
    asyncio.run(runs.start(RunRequest(principal=Principal(name="me"), workflow="team", rows=rows)))


def over_mcp(team: Workflow, _: Path) -> None:
    calls = Calls(team, "team", ServeOptions(store=FakeSessionStore(), run_seconds=0.2))
    answer = asyncio.run(calls.call({"message": "hello"}, lambda _: None))
    assert answer.structured["outcome"] == "cancelled"


@pytest.mark.parametrize("start", [over_http, over_mcp])
def test_a_forward_that_waits_has_the_time_of_a_run(
    tmp_path: Path, start: Callable[[Workflow, Path], None]
) -> None:
    team = Twice()
    start(team, tmp_path)
    assert [type(session.outcome) for session in team.made] == [Cancelled, Cancelled]
