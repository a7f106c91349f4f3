"""Processes and connections of servers that are not ours: one for all calls, none left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest
from mcp_types import TextContent

from rath.errors import MCPConnectionError
from rath.mcp.client import MCPClient
from tests.support.mcp_servers import (
    CountedServer,
    everything_server,
    running_everything,
)

pytestmark = pytest.mark.timeout(120)
"""Servers take seconds to start on a busy machine."""

SLOW = "trigger-long-running-operation"
LONG = {"duration": 60, "steps": 1200}
"""Arguments of a call that tells its first step soon, and its end late."""


def echoed(client: MCPClient, text: str) -> str:
    """What the server says to a text."""
    (content,) = client.call_tool("echo", {"message": text}).content
    assert isinstance(content, TextContent)
    return content.text


def test_many_calls_of_two_clients_use_one_process_each(tmp_path: Path) -> None:
    server = CountedServer(everything_server(), tmp_path / "pids")
    with MCPClient(server.spec) as first, MCPClient(server.spec) as second:
        for client in (first, second):
            assert [echoed(client, str(n)) for n in range(100)] == [
                f"Echo: {n}" for n in range(100)
            ]
        assert [first.pid, second.pid] == server.pids
    server.wait_until_ended()


@pytest.mark.parametrize(
    ("transport", "log"), [("http", "Session initialized"), ("sse", "Client Connected")]
)
def test_many_calls_use_one_session(
    transport: Literal["http", "sse"], log: str, tmp_path: Path
) -> None:
    with running_everything(transport, tmp_path) as server, MCPClient(server.spec) as client:
        for n in range(100):
            assert echoed(client, str(n)) == f"Echo: {n}"
        assert server.log.read_text().count(log) == 1


ENDS = {
    "plain": "",
    "in a call": "begin()",
    "error": "begin(); raise SystemExit('its own end')",
    "killed": "begin(); os.kill(os.getpid(), signal.SIGKILL)",
    "no cleaning up": "os._exit(0)",
}
PROGRAM = f"""
import os, signal, sys, threading
from rath.mcp.client import MCPClient

client = MCPClient(sys.argv[1:])
print(client.pid, client.list_tools()[0].name, client.pid, flush=True)
begun = threading.Event()

def call():
    try:
        client.call_tool({SLOW!r}, {LONG!r}, on_progress=lambda *_: begun.set())
    except BaseException:
        pass

def begin():
    threading.Thread(target=call, daemon=True).start()
    begun.wait()

"""


@pytest.mark.parametrize("how", ENDS)
def test_a_program_leaves_no_server_behind_however_it_ends(how: str, tmp_path: Path) -> None:
    # The server looks at its input while a call runs, but its own timer holds it for so long.
    server = CountedServer(everything_server(), tmp_path / "pids")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM + ENDS[how], *server.argv],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    (pid,) = server.pids
    assert done.stdout == f"None echo {pid}\n"
    assert "Traceback" not in done.stderr
    server.wait_until_ended()


def test_a_server_that_cannot_be_reached_is_reported_and_can_come_later(tmp_path: Path) -> None:
    with running_everything("http", tmp_path) as server, MCPClient(server.spec) as client:
        server.kill()
        with pytest.raises(MCPConnectionError, match="no connection to MCP server"):
            client.list_tools()
        server.start_again()
        assert echoed(client, "here") == "Echo: here"


def test_a_closed_client_ends_its_session_at_the_server(tmp_path: Path) -> None:
    with running_everything("http", tmp_path) as server:
        with MCPClient(server.spec) as client:
            client.list_tools()
        assert "Received session termination request" in server.log.read_text()
