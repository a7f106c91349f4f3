"""A tool server over HTTP in this process: a test says what it answers."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class HttpCall:
    """One request."""

    verb: str
    path: str
    headers: Mapping[str, str]
    content: bytes

    @property
    def asked(self) -> dict[str, Any]:
        """The message of the protocol that it brings; none where it brings no JSON."""
        return json.loads(self.content) if self.content.startswith(b"{") else {}

    @property
    def method(self) -> str:
        """The method of the protocol."""
        return str(self.asked.get("method", ""))


@dataclass(frozen=True, slots=True)
class HttpReply:
    """One answer."""

    payload: object = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


class ToolServer(ThreadingHTTPServer):
    """Serves on 127.0.0.1, by streamable HTTP at any path and by SSE at `/sse`.

    A context manager with a thread of its own. Subclasses override `reply`.
    """

    daemon_threads = True

    def __init__(self) -> None:
        self.calls: list[HttpCall] = []
        """All requests with a message, in order of arrival."""
        self.results: dict[str, Any] = {
            "initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                           "serverInfo": {"name": "scripted", "version": "1"}},
            "tools/list": {"tools": []},
            "tools/call": {"content": [{"type": "text", "text": "hello"}]},
        }  # fmt: skip
        """The result of each method; any other is refused."""
        self.events: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        """Messages for the stream by SSE, and None for its end."""
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,))
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def origin(self) -> str:
        """Its address without a path."""
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def methods(self) -> list[str]:
        """The methods of all calls."""
        return [call.method for call in self.calls]

    def reply(self, call: HttpCall) -> HttpReply:
        """The answer to a request."""
        if call.verb != "POST":
            return HttpReply({}, 200 if call.verb == "DELETE" else 405)
        asked = call.asked
        if "id" not in asked:
            return HttpReply({}, 202)
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": asked["id"]}
        if call.method in self.results:
            return HttpReply({**answer, "result": self.results[call.method]})
        return HttpReply({**answer, "error": {"code": -32601, "message": "no such method"}})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.events.put(None)
        self.shutdown()
        self._thread.join()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ToolServer  # pyright: ignore[reportIncompatibleVariableOverride]  # made by that alone

    def do_GET(self) -> None:
        if self.path != "/sse":
            self.do_POST()
            return
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.wfile.write(b"event: endpoint\ndata: /messages\n\n")
        while (event := self.server.events.get()) is not None:
            self.wfile.write(b"event: message\ndata: " + event + b"\n\n")

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        call = HttpCall(self.command, self.path, dict(self.headers), content)
        if call.asked:
            self.server.calls.append(call)
        reply = self.server.reply(call)
        body, status = json.dumps(reply.payload).encode(), reply.status
        if self.path == "/messages" and status == 200:
            self.server.events.put(body)
            status, body = 202, b""
        self.send_response(status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_DELETE(self) -> None:
        self.do_POST()

    def log_message(self, format: str, *args: Any) -> None:
        return
