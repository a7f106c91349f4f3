"""HTTP/1.1 of the test server: reading requests, writing answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, unquote


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


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer."""

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
            body = await _read_chunks(reader)
        else:
            body = await reader.readexactly(int(headers.get("content-length", "0")))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    method, target, _ = first.split(" ")
    path, _, query = target.partition("?")
    pairs_of_query = parse_qsl(query, keep_blank_values=True)
    return CapturedRequest(method, unquote(path), pairs_of_query, headers, body)


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    pieces: list[bytes] = []
    while size := int(await reader.readuntil(b"\r\n"), 16):
        pieces.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readuntil(b"\r\n")
    return b"".join(pieces)
