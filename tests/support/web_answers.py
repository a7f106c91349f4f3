"""A web server that answers every request alike."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Answers(ThreadingHTTPServer):
    """Answers every request alike, and keeps the headers of all."""

    daemon_threads = True

    def __init__(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.seen: list[dict[str, str]] = []
        seen = self.seen

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                seen.append({name.lower(): value for name, value in self.headers.items()})
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_DELETE = answer  # noqa: N815  # names of the library

            def log_message(self, format: str, *args: Any) -> None:
                return

        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/mcp"


@contextlib.contextmanager
def answering(status: int, body: bytes = b"", **headers: str) -> Generator[Answers]:
    """A web server that answers every request alike."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    with Answers(status, body, named) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
