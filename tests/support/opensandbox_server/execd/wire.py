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
        self.code = code
        self.message = message


class DroppedError(Exception):
    """The connection ends here without an answer."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request, with the values of its path."""

    method: str
    path: str
    query: Sequence[tuple[str, str]]
    headers: Mapping[str, str]
    body: bytes
    names: Sequence[str] = ()
    """What stood in the open places of the route."""

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
        self.has_begun = False
        """Whether a head was sent: from there on the status is settled."""

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
        """Answer with an error; in a stream that has begun it is one more frame."""
        payload = {"code": refused.code, "message": refused.message}
        if self.has_begun:
            self._block(json.dumps(payload, separators=(",", ":")).encode() + b"\n\n")
            self.end_stream()
        else:
            self.send_json(payload, refused.status)

    def send_frames(self, *frames: Frame) -> None:
        """Send events; the first ones open the stream. Never fails when the client is gone."""
        if not self.has_begun:
            headers = {
                "content-type": "text/event-stream",
                "cache-control": "no-cache",
                "x-accel-buffering": "no",
            }
            self._head(200, headers, is_stream=True)
        if frames:
            self._block(b"".join(_encode(frame) for frame in frames))

    def end_stream(self) -> None:
        """Say that no event follows."""
        self._block(b"")

    def _head(self, status: int, headers: Mapping[str, str], *, is_stream: bool) -> None:
        self.has_begun = True
        head = {"status": status, "headers": dict(headers), "is_stream": is_stream}
        self._block(json.dumps(head).encode())

    def _block(self, data: bytes) -> None:
        if self._is_gone:
            return
        try:
            self._connection.sendall(struct.pack(">I", len(data)) + data)
        except OSError:
            self._is_gone = True  # the client left; what it asked for goes on


def read_request(connection: socket.socket) -> Request:
    """Read the request that stands on a socket."""
    with connection.makefile("rb") as stream:
        head = json.loads(stream.readline())
        body = stream.read(head["length"])
    query = [(str(name), str(value)) for name, value in head["query"]]
    return Request(head["method"], head["path"], query, head["headers"], body)


def frame(kind: str, **values: Any) -> Frame:
    """An event with the time of now."""
    stamped: dict[str, Any] = {"type": kind}
    error = values.pop("error", None)
    stamped.update(values)
    stamped["timestamp"] = time.time_ns() // 1_000_000
    if error is not None:
        stamped["error"] = error
    return stamped


def _encode(event: Frame) -> bytes:
    return json.dumps(event, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def stamp(nanoseconds: int) -> str:
    """A time as Go writes it: UTC, down to nanoseconds, without zeros at the end."""
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    fraction = f".{rest:09d}".rstrip("0") if rest else ""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + fraction + "Z"


def reason(error: OSError) -> str:
    """The text of an operating system error as Go writes it."""
    return (error.strerror or str(error)).lower()
