"""Processes and connections of servers that are not ours: one for all calls, none left behind."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import get_args

import pytest
from mcp_types import TextContent

from rath.errors import MCPConnectionError
from rath.mcp.client import MCPClient
from rath.mcp.spec import ServerSpec, Transport
from tests.support.mcp_servers import (
    CountedServer,
    everything_server,
    has_ended,
    running_everything,
)

pytestmark = pytest.mark.timeout(120)
"""Servers take seconds to start on a busy machine."""

SLOW = "trigger-long-running-operation"
LONG = {"duration": 60, "steps": 1200}
"""Arguments of a call that tells its first step soon, and its end late."""

N_CALLS: Mapping[Transport, int] = {"stdio": 500, "http": 100, "sse": 100}


class Counted:
    """The server with everything on one transport; its sessions are counted, it can be killed."""

    def __init__(
        self,
        spec: ServerSpec,
        n_sessions: Callable[[], int],
        kill: Callable[[], None],
        start_again: Callable[[], None],
    ) -> None:
        self.spec = spec
        self.n_sessions = n_sessions
        """How often somebody connected so far."""
        self.kill = kill
        self.start_again = start_again
        """Lets it be there for the next who connects."""


@pytest.fixture(params=get_args(Transport))
def counted(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Counted]:
    """The server with everything, on each transport."""
    if request.param == "stdio":
        child = CountedServer(everything_server(), tmp_path / "pids")
        yield Counted(child.spec, lambda: len(child.pids), child.kill, lambda: None)
        child.wait_until_ended()
        return
    said = {"http": "Session initialized", "sse": "Client Connected"}[request.param]
    with running_everything(request.param, tmp_path) as server:
        yield Counted(
            server.spec,
            lambda: server.log.read_text().count(said),
            server.kill,
            server.start_again,
        )


def echoed(client: MCPClient, text: str) -> str:
    """What the server says to a text."""
    (content,) = client.call_tool("echo", {"message": text}).content
    assert isinstance(content, TextContent)
    return content.text


def test_many_calls_use_one_connection(counted: Counted) -> None:
    with MCPClient(counted.spec) as client:
        client.list_tools()
        pid, transport = client.pid, client.transport
        assert transport is not None
        said = [echoed(client, str(n)) for n in range(N_CALLS[transport])]
        assert client.pid == pid
    assert said == [f"Echo: {n}" for n in range(N_CALLS[transport])]
    assert counted.n_sessions() == 1


def test_a_server_killed_in_the_middle_of_a_call_fails_it_and_the_next_one_reconnects(
    counted: Counted,
) -> None:
    with MCPClient(counted.spec) as client:
        with pytest.raises(MCPConnectionError, match=f"lost during the call of '{SLOW}'"):
            client.call_tool(SLOW, LONG, on_progress=once(counted.kill))
        counted.start_again()
        assert not client.is_connected
        assert echoed(client, "again") == "Echo: again"
    assert counted.n_sessions() == 2


def test_a_server_that_ended_between_two_calls_is_connected_to_again(counted: Counted) -> None:
    with MCPClient(counted.spec) as client:
        assert echoed(client, "first") == "Echo: first"
        counted.kill()
        counted.start_again()
        try:
            said = echoed(client, "second")
        except MCPConnectionError:
            # The connection had not noticed yet: whether the call was made is not known.
            said = echoed(client, "second")
    assert said == "Echo: second"
    assert counted.n_sessions() == 2


def test_a_closed_client_leaves_no_process(tmp_path: Path) -> None:
    server = CountedServer(everything_server(), tmp_path / "pids")
    client = MCPClient(server.spec)
    client.list_tools()
    assert [client.pid] == server.pids
    client.close()
    assert all(has_ended(pid) for pid in server.pids)
    client.close()
    with pytest.raises(MCPConnectionError, match="is closed"):
        client.list_tools()


def test_a_client_that_nobody_holds_leaves_no_process(tmp_path: Path) -> None:
    server = CountedServer(everything_server(), tmp_path / "pids")
    client = MCPClient(server.spec)
    client.list_tools()
    del client
    gc.collect()
    server.wait_until_ended()
    assert len(server.pids) == 1


def test_two_clients_have_a_process_each(tmp_path: Path) -> None:
    server = CountedServer(everything_server(), tmp_path / "pids")
    with MCPClient(server.spec) as first, MCPClient(server.spec) as second:
        assert first.server_info == second.server_info
        assert first.pid != second.pid
    assert len(server.pids) == 2
    server.wait_until_ended()


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


def once(work: Callable[[], None]) -> Callable[..., None]:
    """Something that is told often and works once."""
    left = [work]

    def tell(*_: object) -> None:
        if left:
            left.pop()()

    return tell


def test_a_server_that_cannot_be_reached_is_told_and_can_come_later(tmp_path: Path) -> None:
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
