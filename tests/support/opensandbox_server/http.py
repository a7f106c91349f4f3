"""HTTP/1.1 of the test server: requests, answers, faults, and the journal of both."""

from __future__ import annotations

import asyncio
import fnmatch
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote

from tests.support.chat_replies import Gate


@dataclass(frozen=True, slots=True)
class CapturedRequest:
    """One request as it arrived."""

    method: str
    path: str
    """Decoded, without query; for the daemon of a sandbox without the prefix of its proxy."""
    query: Sequence[tuple[str, str]]
    headers: Mapping[str, str]
    """Names in lower case; of a repeated header the last one."""
    body: bytes
    sandbox_id: str | None = None
    """The sandbox whose daemon was asked; None for the lifecycle API."""

    def json(self) -> Any:
        """Decode the body."""
        return json.loads(self.body)

    def all(self, name: str) -> list[str]:
        """Values of a query parameter, in order."""
        return [value for key, value in self.query if key == name]

    def fits(self, method: str, path: str) -> bool:
        """Whether it has a method (or `*`), and a path that fits a pattern with `*` and `?`."""
        return method in ("*", self.method) and fnmatch.fnmatchcase(self.path, path)


@dataclass(frozen=True, slots=True)
class Reply:
    """A complete answer."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    def encode(self) -> bytes:
        """The bytes to send."""
        return encode_head(self.status, self.headers, length=len(self.body)) + self.body


def json_reply(payload: object, status: int = 200) -> Reply:
    """Answer with a JSON document."""
    body = json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode()
    return Reply(status, body, {"content-type": "application/json"})


def error_reply(status: int, code: str, message: str) -> Reply:
    """Answer with an error as both APIs write it."""
    return json_reply({"code": code, "message": message}, status)


def encode_head(status: int, headers: Mapping[str, str], *, length: int | None) -> bytes:
    """Status line and headers; without a length the body comes in chunks."""
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items() if name != "content-length"]
    lines.append(f"date: {formatdate(usegmt=True)}")
    if length is None:
        lines.append("transfer-encoding: chunked")
    elif status != HTTPStatus.NO_CONTENT:
        lines.append(f"content-length: {length}")
    return "\r\n".join([*lines, "", ""]).encode()


def encode_chunk(data: bytes) -> bytes:
    """One chunk of a body; an empty one ends it."""
    return b"%x\r\n%b\r\n" % (len(data), data)


async def read_request(reader: asyncio.StreamReader) -> CapturedRequest | None:
    """The next request of a connection, or None at its end."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")[:-2]
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while size := int(await reader.readuntil(b"\r\n"), 16):
                body += (await reader.readexactly(size + 2))[:size]
            await reader.readuntil(b"\r\n")
        else:
            body = await reader.readexactly(int(headers.get("content-length", "0")))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    method, target, _ = first.split(" ")
    path, _, query = target.partition("?")
    pairs_of_query = parse_qsl(query, keep_blank_values=True)
    return CapturedRequest(method, unquote(path), pairs_of_query, headers, body)


# ---------------------------------------------------------------- faults

CutHow = Literal["close", "reset"]


@dataclass(frozen=True, slots=True)
class Answer:
    """The request is not carried out; this is the answer."""

    status: int
    body: Mapping[str, Any] | bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    def to_reply(self) -> Reply:
        """The answer to send."""
        if isinstance(self.body, bytes):
            return Reply(self.status, self.body, self.headers)
        reply = json_reply(self.body, self.status)
        return Reply(reply.status, reply.body, {**reply.headers, **self.headers})


@dataclass(frozen=True, slots=True)
class CutStream:
    """The request is carried out; of its event stream so many frames come, then it breaks."""

    n_frames: int
    how: CutHow = "close"


@dataclass(frozen=True, slots=True)
class Drop:
    """The connection ends without an answer, before or after the request was carried out."""

    when: Literal["before", "after"] = "before"
    how: CutHow = "close"


Action = Answer | CutStream | Drop | Gate
"""At a `Gate` a request waits until the test releases it."""


@dataclass(slots=True)
class Fault:
    """An action on requests of one kind."""

    method: str
    path: str
    action: Action
    n_skip: int
    """So many fitting requests pass first."""
    n_left: int | None
    """So many are concerned then; None for all."""

    def takes(self, request: CapturedRequest) -> bool:
        """Whether this happens to a request; each yes counts."""
        if not request.fits(self.method, self.path):
            return False
        if self.n_skip:
            self.n_skip -= 1
            return False
        if self.n_left is not None:
            self.n_left -= 1
        return self.n_left is None or self.n_left >= 0


class Journal:
    """Requests in order of arrival, and faults in wait for them; for any thread."""

    def __init__(self) -> None:
        self._requests: list[CapturedRequest] = []
        self._faults: list[Fault] = []
        self._changed = threading.Condition()

    def add(self, fault: Fault) -> None:
        """Let something go wrong; of several that fit, the oldest happens."""
        with self._changed:
            self._faults.append(fault)

    def clear_faults(self) -> None:
        """Let everything go well again."""
        with self._changed:
            self._faults.clear()

    def note(self, request: CapturedRequest) -> Action | None:
        """Add a request; gives what is to happen to it."""
        with self._changed:
            self._requests.append(request)
            self._changed.notify_all()
            fault = next((fault for fault in self._faults if fault.takes(request)), None)
            self._faults = [fault for fault in self._faults if fault.n_left != 0]
            return None if fault is None else fault.action

    def matching(self, method: str, path: str) -> list[CapturedRequest]:
        """Requests of a method (or `*`) whose path fits a pattern."""
        with self._changed:
            return [each for each in self._requests if each.fits(method, path)]

    def wait_for(self, method: str, path: str, *, n_requests: int, timeout: float) -> None:
        """Wait until so many requests of a kind have arrived in all.

        Raises:
            TimeoutError: Fewer arrived within `timeout` seconds.
        """
        with self._changed:
            if not self._changed.wait_for(
                lambda: len(self.matching(method, path)) >= n_requests, timeout
            ):
                n_now = len(self.matching(method, path))
                raise TimeoutError(f"{n_now} of {n_requests} {method} {path} within {timeout} s")
