"""Whose connection it is, and that nothing of it is left."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rath.errors import MCPConnectionError
from rath.flow.tool import MCPToolCall
from rath.mcp import MCPClient, StdioServer
from rath.testing import tool_call
from tests.support.mcp_own import eventually, scripted, texts, tool, tools
from tests.support.sessions import run

SCRIPT = {"tools/list": tools(tool("t")), "tools/call": texts("hello")}
SERVER = scripted(SCRIPT)


def is_running(pid: int | None) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_closing_ends_the_server() -> None:
    with MCPClient(SERVER) as client:
        client.list_tools()
        pid = client.pid
    assert not is_running(pid)
    assert not client.is_connected


def test_closing_a_client_that_was_never_used_starts_nothing() -> None:
    client = MCPClient(StdioServer("/nowhere"))
    client.close()
    client.close()
    assert client.pid is None


def test_many_first_uses_at_once_start_one_server() -> None:
    pids: set[int | None] = set()
    with MCPClient(SERVER) as client, ThreadPoolExecutor(8) as pool:
        uses = [pool.submit(client.list_tools) for _ in range(8)]
        for use in uses:
            use.result()
            pids.add(client.pid)
    assert len(pids) == 1


def test_closing_in_the_middle_of_a_call_ends_the_call() -> None:
    client = MCPClient(scripted({**SCRIPT, "tools/call": None}))
    closing = threading.Timer(0.5, client.close)
    closing.start()
    with pytest.raises(MCPConnectionError):
        client.call_tool("t", {})
    closing.join()


def test_a_client_that_nobody_has_any_more_ends_its_server() -> None:
    client = MCPClient(SERVER)
    client.list_tools()
    pid = client.pid
    del client
    assert eventually(lambda: not is_running(pid))


def test_a_tool_keeps_the_connection() -> None:
    found = MCPToolCall(client=MCPClient(SERVER), name="t", description=None, parameters={})
    assert found(None, {}) == {"text": "hello"}  # type: ignore[arg-type]  # the session is not sent
    assert found.client.is_connected


def test_a_run_calls_a_tool_of_a_server() -> None:
    found = MCPToolCall(client=MCPClient(SERVER), name="t", description=None, parameters={})
    out = run([tool_call("t"), "done"], found)
    assert '{"text": "hello"}' in [row.payload["content"] for row in out.chunk_table.rows]


PROGRAM = """
import os, sys
from rath.mcp import MCPClient
client = MCPClient(sys.argv[1:])
client.list_tools()
print(client.pid, flush=True)
if os.environ.get("HOW") == "fork":
    child = os.fork()
    if child == 0:
        mine = client.call_tool("t", {}).content[0].text
        print(mine, client.pid, flush=True)
        client.close()
        os._exit(0)
    os.waitpid(child, 0)
    print(client.call_tool("t", {}).content[0].text, client.pid, flush=True)
    client.close()
"""


def program(server: StdioServer, **env: str) -> list[str]:
    """Run a program that uses a server and does not close it; what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, server.command, *server.args],
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, **env},
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_at_exit_of_the_program_the_server_is_ended_and_nothing_is_reported() -> None:
    (pid,) = program(SERVER)
    assert not is_running(int(pid))


def test_at_exit_a_server_that_will_not_end_is_killed() -> None:
    serve = SERVER.args[3]
    stubborn = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + serve
    stubborn += "\nwhile True:\n    signal.pause()\n"
    (pid,) = program(StdioServer(sys.executable, ("-c", stubborn, *SERVER.args[4:])))
    assert eventually(lambda: not is_running(int(pid)))


def test_a_forked_child_has_a_connection_of_its_own() -> None:
    first, childs, parents = program(SERVER, HOW="fork")
    assert childs.split()[0] == parents.split()[0] == "hello"
    assert childs.split()[1] != first
    assert parents.split()[1] == first
    assert not is_running(int(childs.split()[1]))
