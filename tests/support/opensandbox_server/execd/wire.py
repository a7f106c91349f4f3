"""Requests as the daemon gets them, and the ways to answer one.

The server hands over one connected socket per request. On it stands one line of JSON (`method`,
`path`, `query` as pairs, `headers`, `length`) and the body; back come blocks, each behind its
length in 4 bytes (big end first): a head of JSON (`status`, `headers`, `is_stream`), pieces of the
body, and an empty block as the end. A socket that closes before the end is a connection that broke.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Frame = Mapping[str, Any]


class RefusedError(Exception):
    """An error answer."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.payload = {"code": code, "message": message}


class DroppedError(Exception):
    """The connection ends here without an answer."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request."""

    method: str
    path: str
    query: Sequence[tuple[str, str]]
    headers: Mapping[str, str]
    body: bytes

    def all(self, name: str) -> list[str]:
        """Values of a query parameter, in order."""
        return [value for key, value in self.query if key == name]

    def first(self, name: str) -> str:
        """A query parameter; an error answer where it is missing."""
        values = self.all(name)
        if not values or not values[0]:
            raise RefusedError(400, "MISSING_QUERY", f"missing query parameter '{name}'")
        return values[0]

    def json(self) -> Any:
        """Decode the body; an error answer where it is not JSON."""
        try:
            return json.loads(self.body)
        except ValueError as exc:
            text = f"error parsing request, MAYBE invalid body format. {exc}"
            raise RefusedError(400, "INVALID_REQUEST_BODY", text) from exc


class Answering:
    """The way back of one request."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._is_gone = False
        self._has_head = False

    def send_json(self, payload: object, status: int = 200) -> None:
        """Answer with a JSON document."""
        body = json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode()
        self.send(body, status, {"content-type": "application/json; charset=utf-8"})

    def send(
        self, body: bytes = b"", status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        """Answer with these bytes."""
        self._head(status, {**(headers or {}), "content-length": str(len(body))}, is_stream=False)
        for start in range(0, len(body), 1 << 20):
            self._block(body[start : start + (1 << 20)])
        self._block(b"")

    def send_error(self, refused: RefusedError) -> None:
        """Answer with an error; in a stream that has a head it is one more frame."""
        if self._has_head:
            self.send_frames(refused.payload)
            self.end_stream()
        else:
            self.send_json(refused.payload, refused.status)

    def send_frames(self, *frames: Frame) -> None:
        """Send events; the first ones open the stream. Never fails when the client is gone."""
        if not self._has_head:
            headers = {
                "content-type": "text/event-stream",
                "cache-control": "no-cache",
                "x-accel-buffering": "no",
            }
            self._head(200, headers, is_stream=True)
        texts = [json.dumps(each, separators=(",", ":"), ensure_ascii=False) for each in frames]
        if texts:
            self._block("".join(f"{text}\n\n" for text in texts).encode())

    def end_stream(self) -> None:
        """Say that no event follows."""
        self._block(b"")

    def _head(self, status: int, headers: Mapping[str, str], *, is_stream: bool) -> None:
        self._has_head = True
        head = {"status": status, "headers": dict(headers), "is_stream": is_stream}
        self._block(json.dumps(head).encode())

    def _block(self, data: bytes) -> None:
        if self._is_gone:
            return
        try:
            self._connection.sendall(struct.pack(">I", len(data)) + data)
        except OSError:
            self._is_gone = True  # the client left; what it asked for goes on


def frame(kind: str, **values: Any) -> Frame:
    """An event with the time of now; an error comes last."""
    error = {"error": values.pop("error")} if "error" in values else {}
    return {"type": kind, **values, "timestamp": time.time_ns() // 1_000_000, **error}


def stamp(nanoseconds: int) -> str:
    """A time as Go writes it: UTC, down to nanoseconds, without zeros at the end."""
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    fraction = f".{rest:09d}".rstrip("0") if rest else ""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + fraction + "Z"


def reason(error: OSError) -> str:
    """The text of an operating system error as Go writes it."""
    return (error.strerror or str(error)).lower()
