"""Agents with tools of servers that are not ours: results, failures, effects, and the record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
from typer.testing import CliRunner

from rath.cli.app import app
from rath.flow import Agent
from rath.flow.tool import FlowToolCall, MCPToolCall, mcp_tools_from_server
from rath.flow.tool.mcp_adapter import tools_of
from rath.mcp import MCPClient
from rath.mcp.spec import ServerSpec, Transport
from rath.session import ChunkKind, Session, load_session
from rath.session.record import ToolRun
from rath.testing import ScriptedClient, Turn, tool_call
from tests.support.mcp_servers import (
    everything_on,
    everything_server,
    filesystem_server,
    git_server,
    own_repository,
    time_server,
)

pytestmark = pytest.mark.timeout(120)
"""Servers take seconds to start on a busy machine."""

SLOW = "trigger-long-running-operation"


@pytest.fixture(scope="module", params=get_args(Transport))
def tools(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, MCPToolCall]]:
    """The tools of the server with everything, by name, on each transport."""
    with everything_on(request.param, tmp_path_factory.mktemp("everything")) as spec:
        found = mcp_tools_from_server(spec)
        yield {tool.name: tool for tool in found}
        found[0].client.close()


def run(tools: Sequence[FlowToolCall], *turns: Turn, persist: bool = False) -> Session:
    """A run of a scripted model with these tools, at its end."""
    provider = ScriptedClient([*turns, "Done."]).provider
    agent = Agent("Use your tools.", provider, tools, system_tools=False, persist=persist)
    return agent(Session.from_user_message("Go.")).synchronize()


def runs_of(session: Session) -> list[ToolRun]:
    """The calls of tools that are on record."""
    return [entry for entry in session.record if isinstance(entry, ToolRun)]


def test_a_model_sees_an_image(tools: dict[str, MCPToolCall]) -> None:
    session = run([tools["get-tiny-image"]], tool_call("get-tiny-image", {}))
    (row,) = [row for row in session.chunk_table if row.kind is ChunkKind.TOOL_RESULT]
    (image,) = row.images
    assert image.mime == "image/png"
    assert "Here's the image you requested" in row.payload["content"]


def test_arguments_are_checked_before_the_server_is_asked(tools: dict[str, MCPToolCall]) -> None:
    session = run([tools["get-sum"]], tool_call("get-sum", {"a": "one"}))
    assert [each.error_kind for each in runs_of(session)] == ["invalid_tool_arguments"]


class Watched(MCPClient):
    """A client that does something at the first step that a server tells of."""

    def __init__(self, spec: ServerSpec, at_first_step: Callable[[], object]) -> None:
        super().__init__(spec)
        self._left: list[Callable[[], object]] = [at_first_step]

    async def acall_tool(self, *args: Any, **options: Any) -> Any:
        return await super().acall_tool(*args, **{**options, "on_progress": self._tell})

    def _tell(self, *_: object) -> None:
        if self._left:
            self._left.pop()()


def test_a_cancelled_run_ends_its_call_and_keeps_the_connection() -> None:
    sessions: list[Session] = []
    with Watched(everything_server(), lambda: sessions[0].cancel()) as client:
        offered = tools_of(client)
        script = ScriptedClient([tool_call(SLOW, {"duration": 60, "steps": 1200}), "Done."])
        agent = Agent("Use your tools.", script.provider, offered, system_tools=False)
        sessions.append(agent(Session.from_user_message("Go.")))
        assert type(sessions[0].outcome).__name__ == "Cancelled"
        pid = client.pid
        assert client.call_tool("echo", {"message": "on"}).is_error is False
        assert client.pid == pid


def test_a_recorded_run_with_three_servers_is_explained_after_the_fact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = own_repository(tmp_path / "garden")
    folder = tmp_path / "notes"
    folder.mkdir()
    servers = (time_server(), git_server(repository), filesystem_server(folder))
    offered = [tool for server in servers for tool in mcp_tools_from_server(server)]
    monkeypatch.setenv("COLUMNS", "400")
    session = run(
        offered,
        tool_call("get_current_time", {"timezone": "Etc/UTC"}),
        tool_call("git_log", {"repo_path": str(repository)}),
        tool_call("write_file", {"path": str(folder / "log.txt"), "content": "Plan"}),
        tool_call("read_text_file", {"path": str(tmp_path / "beside.txt")}),
        persist=True,
    )
    for tool in offered:
        tool.client.close()
    assert (folder / "log.txt").read_text() == "Plan"
    told = CliRunner().invoke(app, ["explain", str(session.id), "--where"])
    assert told.exit_code == 0, told.output
    for server in ("mcp-time@2026", "mcp-git@2026", "secure-filesystem-server@"):
        assert f"mcp:{server}" in told.stdout
    assert " stdio " in told.stdout
    kinds = [each.error_kind for each in runs_of(load_session(session.id).session())]
    assert kinds == [None, None, None, "mcp_tool_error"]
