"""The little of HTTP that the server of a live page speaks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

MAX_HEAD_BYTES = 16_384
REQUEST_SECONDS = 10.0
"""How long a client may take for its request; browsers open connections before they need them."""

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Connection": "close",
}


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asks for."""

    method: str
    target: str
    headers: Mapping[str, str]
    """By name in small letters."""


class BadRequest(Exception):
    """The client did not say what could be understood."""


async def read_request(reader: asyncio.StreamReader) -> Request:
    """Return the request of a client.

    Raises:
        BadRequest: It is none, or too long, or takes too long, or did not come.
    """
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            head = await reader.readuntil(b"\r\n\r\n")
    except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError) as exc:
        raise BadRequest(str(exc)) from exc
    first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    words = first.split(" ")
    pairs = [line.partition(":") for line in lines]
    if len(words) != 3 or not all(separator for _, separator, _ in pairs):
        raise BadRequest(first)
    headers: dict[str, str] = {}
    for name, _, value in pairs:
        key = name.lower()
        if key in headers and key in ("host", "origin"):
            raise BadRequest(f"two headers {key}")
        headers[key] = value.strip()
    return Request(words[0], words[1], headers)


def answer_head(status: HTTPStatus, kind: str, *, length: int | None) -> bytes:
    """Return the head of an answer; without a length it lasts as long as the connection."""
    headers = {**_HEADERS, "Content-Type": kind}
    if length is not None:
        headers["Content-Length"] = str(length)
    lines = [f"HTTP/1.1 {status.value} {status.phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def event(name: str, data: str) -> bytes:
    """Return a server-sent event; `data` is JSON, which has no line feed."""
    return f"event: {name}\ndata: {data}\n\n".encode()
