"""A server at an address that refuses the credential: named as such, and not asked again."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from rath.backend.results import ToolExecutionFailure
from rath.errors import MCPAuthenticationError
from rath.flow.tool.mcp_adapter import MCPToolCall, tools_of
from rath.mcp import Bearer, HttpServer, MCPClient
from rath.testing import tool_call
from tests.support.sessions import run

TOKEN = "canary-0123456789"


class Guarded(ThreadingHTTPServer):
    """Takes the token in `good`, and answers `status` to any other; keeps what was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        self.good = TOKEN
        self.status = 401
        self.body: dict[str, Any] = {}
        self.asked: list[str] = []
        self.forbidden: set[str] = set()
        self.told: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def spec(self) -> HttpServer:
        return HttpServer(f"http://127.0.0.1:{self.server_port}/mcp", auth=Bearer(env="THE_TOKEN"))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Guarded  # pyright: ignore[reportIncompatibleVariableOverride]  # made by that alone

    def do_GET(self) -> None:
        """Give the stream of a session by SSE, until the server ends it."""
        if self.path != "/sse":
            self.say({}, 405)
            return
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.wfile.write(b"event: endpoint\ndata: /messages\n\n")
        while (told := self.server.told.get()) is not None:
            self.wfile.write(b"event: message\ndata: " + told + b"\n\n")

    def do_DELETE(self) -> None:
        self.say({}, 200)

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        server.asked.append(asked["method"])
        is_known = self.headers.get("Authorization") == f"Bearer {server.good}"
        if not is_known or asked["method"] in server.forbidden:
            self.say(server.body, server.status)
        elif "id" not in asked:
            self.say({}, 202)
        else:
            self.answer(asked)

    def answer(self, asked: dict[str, Any]) -> None:
        results: dict[str, Any] = {
            "initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                           "serverInfo": {"name": "guarded", "version": "1"}},
            "tools/list": {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]},
            "tools/call": {"content": [{"type": "text", "text": "hello"}]},
        }  # fmt: skip
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": asked["id"]}
        if asked["method"] in results:
            self.say({**reply, "result": results[asked["method"]]})
        else:
            self.say({**reply, "error": {"code": -32601, "message": "no"}})

    def say(self, payload: dict[str, Any], status: int = 200) -> None:
        body = json.dumps(payload).encode()
        if self.path == "/messages" and status == 200:
            self.server.told.put(body)
            status, body = 202, b""
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        return


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Guarded]:
    monkeypatch.setenv("THE_TOKEN", TOKEN)
    with Guarded() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.told.put(None)
        server.shutdown()
        thread.join()


def called(found: MCPToolCall) -> Any:
    """What the model reads of a call."""
    return found(None, {})  # type: ignore[arg-type]  # the session is not sent


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize(
    "body",
    [{}, {"jsonrpc": "2.0", "id": None, "error": {"code": -32001, "message": f"not {TOKEN}"}}],
    ids=["nothing", "an error of the protocol"],
)
def test_a_refused_connect_says_so_and_is_not_repeated(
    guarded: Guarded, status: int, body: dict[str, Any]
) -> None:
    guarded.good, guarded.status, guarded.body = "another", status, body
    with MCPClient(guarded.spec) as client, pytest.raises(MCPAuthenticationError) as caught:
        client.list_tools()
    assert caught.value.status == status
    assert caught.value.server == client.name
    assert "the credential was refused" in str(caught.value)
    assert TOKEN not in str(caught.value)
    assert guarded.asked == ["server/discover", "initialize"]  # the ways of two protocols


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize(
    "body",
    [{}, {"jsonrpc": "2.0", "id": None, "error": {"code": -32001, "message": f"not {TOKEN}"}}],
    ids=["nothing", "an error of the protocol"],
)
def test_a_token_that_expires_is_a_failure_of_its_own(
    guarded: Guarded, status: int, body: dict[str, Any]
) -> None:
    with MCPClient(guarded.spec) as client:
        (found,) = tools_of(client)
        assert called(found) == {"text": "hello"}
        guarded.good, guarded.status, guarded.body = "another", status, body
        guarded.asked.clear()
        failure = called(found)
        assert guarded.asked == ["tools/call"]
    assert isinstance(failure, ToolExecutionFailure)
    assert failure.kind == "mcp_unauthorized"
    assert client.name in failure.message
    assert TOKEN not in failure.message


@pytest.mark.parametrize("status", [401, 403])
def test_a_token_that_expires_is_one_by_sse_too(guarded: Guarded, status: int) -> None:
    url = guarded.spec.url.replace("/mcp", "/sse")
    with MCPClient(HttpServer(url, auth=guarded.spec.auth, transport="sse")) as client:
        (found,) = tools_of(client)
        assert called(found) == {"text": "hello"}
        guarded.good, guarded.status = "another", status
        guarded.asked.clear()
        assert called(found).kind == "mcp_unauthorized"
        assert guarded.asked == ["tools/call"]


def test_a_new_token_is_taken_at_the_next_call(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    with MCPClient(guarded.spec) as client:
        (found,) = tools_of(client)
        guarded.good = "another-0123456789"
        assert called(found).kind == "mcp_unauthorized"
        monkeypatch.setenv("THE_TOKEN", guarded.good)
        assert called(found) == {"text": "hello"}


def test_what_one_call_may_not_do_leaves_the_connection_alone(guarded: Guarded) -> None:
    with MCPClient(guarded.spec) as client:
        (found,) = tools_of(client)
        guarded.status, guarded.forbidden = 403, {"tools/call"}
        assert called(found).kind == "mcp_unauthorized"
        assert client.is_connected
        guarded.forbidden = set()
        assert called(found) == {"text": "hello"}
    assert guarded.asked.count("initialize") == 1


def test_a_run_goes_on_and_the_model_reads_why(guarded: Guarded) -> None:
    with MCPClient(guarded.spec) as client:
        (found,) = tools_of(client)
        guarded.good = "another"
        out = run([tool_call("t"), "done"], found)
        assert out.text() == "done"
    said = str([row.payload for row in out.chunk_table.rows])
    assert "mcp_unauthorized" in said
    assert TOKEN not in said
