"""A server at an address that does not know the session any more is asked in a new one."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from rath.errors import MCPConnectionError
from rath.mcp import MCPClient


class Forgetful(ThreadingHTTPServer):
    """Knows the sessions in `known`; a new one is `s1`, `s2`, and so on."""

    daemon_threads = True

    def __init__(self) -> None:
        self.n_sessions = 0
        self.known: set[str] = set()
        self.remembers = True
        super().__init__(("127.0.0.1", 0), Handler)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Forgetful  # pyright: ignore[reportIncompatibleVariableOverride]  # made by that alone

    def do_GET(self) -> None:
        self.say(None, 405)

    def do_DELETE(self) -> None:
        self.say(None, 200)

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        session = self.headers.get("Mcp-Session-Id")
        if asked["method"] == "initialize":
            self.begin(asked)
        elif session is None:
            self.say(None, 400)
        elif session not in self.server.known:
            self.say(None, 404)
        elif "id" not in asked:
            self.say(None, 202)
        else:
            content = [{"type": "text", "text": session}]
            is_list = asked["method"] == "tools/list"
            result: dict[str, Any] = {"tools": []} if is_list else {"content": content}
            self.say({"jsonrpc": "2.0", "id": asked["id"], "result": result})

    def begin(self, asked: dict[str, Any]) -> None:
        server = self.server
        server.n_sessions += 1
        session = f"s{server.n_sessions}"
        if server.remembers:
            server.known.add(session)
        result = {"protocolVersion": "2025-06-18", "capabilities": {},
                  "serverInfo": {"name": "forgetful", "version": "1"}}  # fmt: skip
        self.say({"jsonrpc": "2.0", "id": asked["id"], "result": result}, session=session)

    def say(self, payload: object, status: int = 200, *, session: str | None = None) -> None:
        body = b"" if payload is None else json.dumps(payload).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if session is not None:
            self.send_header("Mcp-Session-Id", session)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        return


@pytest.fixture
def forgetful() -> Iterator[Forgetful]:
    with Forgetful() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def said(client: MCPClient) -> str | None:
    """The session in which a call was made."""
    (content,) = client.call_tool("t", {}).content
    return getattr(content, "text", None)


def test_a_call_is_made_in_a_new_session(forgetful: Forgetful) -> None:
    with MCPClient(f"http://127.0.0.1:{forgetful.server_port}/mcp") as client:
        assert said(client) == "s1"
        forgetful.known.clear()
        assert said(client) == "s2"


def test_a_server_that_remembers_nothing_is_given_up(forgetful: Forgetful) -> None:
    forgetful.remembers = False
    client = MCPClient(f"http://127.0.0.1:{forgetful.server_port}/mcp")
    with client, pytest.raises(MCPConnectionError, match="does not know the session any more"):
        said(client)
    assert forgetful.n_sessions == 2
