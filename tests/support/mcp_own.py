"""Tool servers of ours for tests: one with everything on three transports, and scripted ones."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

from rath.mcp.spec import HttpServer, ServerSpec, StdioServer

_PROGRAM = Path(__file__).with_name("mcp_own_server.py")
_PATHS = {"http": "/mcp", "sse": "/sse"}

_SCRIPTED = """
import json, sys
script = json.loads(sys.argv[1])
print(script.get("stderr", ""), file=sys.stderr, end="", flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    method = asked["method"]
    params = asked.get("params") or {}
    key = method + ":" + str(params["cursor"]) if params.get("cursor") else method
    if method == "initialize":
        answer = {"result": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                  "serverInfo": {"name": script.get("name", "scripted"), "version": "7"}}}
    elif key in script:
        answer = script[key]
    else:
        answer = {"error": {"code": -32601, "message": "no " + method}}
    if answer == "exit":
        sys.exit(script.get("status", 0))
    if isinstance(answer, str):
        print(answer, flush=True)
    elif answer is not None:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}), flush=True)
"""


def own_stdio() -> StdioServer:
    """The server with everything as a child process."""
    return StdioServer(sys.executable, (str(_PROGRAM), "stdio"))


@contextlib.contextmanager
def own_server(transport: str) -> Generator[ServerSpec]:
    """The server with everything, on one transport."""
    if transport == "stdio":
        yield own_stdio()
        return
    with RunningServer(transport) as running:
        yield running.spec


class RunningServer:
    """The server with everything at an address; who connects early waits until it is there."""

    def __init__(self, transport: str) -> None:
        self._transport = transport
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=256)
        port = self._socket.getsockname()[1]
        self.spec = HttpServer(f"http://127.0.0.1:{port}{_PATHS[transport]}")
        self._process = self._started()

    def start_again(self) -> None:
        """Wait for its end, and start another one at the same address."""
        self._process.wait(10)
        self._process = self._started()

    def __enter__(self) -> RunningServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(10)
        self._socket.close()

    def _started(self) -> subprocess.Popen[bytes]:
        number = self._socket.fileno()
        return subprocess.Popen(
            [sys.executable, str(_PROGRAM), self._transport, str(number)],
            pass_fds=[number],
            stderr=subprocess.DEVNULL,
        )


def scripted(script: Mapping[str, Any], *more: str) -> StdioServer:
    """A server that answers each method as the script says, and starts fast.

    Args:
        script: By method, and `:cursor` where there is one: the answer, None for none, "exit", or
            a text to print as it is. `stderr` is printed first, `name` is the server's.
        more: Further arguments, which it does not read.
    """
    return StdioServer(sys.executable, ("-I", "-S", "-c", _SCRIPTED, json.dumps(script), *more))


def tool(name: str, **more: Any) -> dict[str, Any]:
    """A tool as a list has it."""
    return {"name": name, "inputSchema": {"type": "object"}, **more}


def tools(*listed: Mapping[str, Any], cursor: str | None = None) -> dict[str, Any]:
    """The answer to `tools/list`."""
    page: dict[str, Any] = {"tools": list(listed)}
    return {"result": page if cursor is None else {**page, "nextCursor": cursor}}


def texts(*said: str, **more: Any) -> dict[str, Any]:
    """The answer to `tools/call`."""
    return {"result": {"content": [{"type": "text", "text": text} for text in said], **more}}


def eventually(is_so: Callable[[], bool], *, seconds: float = 50.0) -> bool:
    """Wait until something is so that another process does; tell whether it came to be."""
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True
