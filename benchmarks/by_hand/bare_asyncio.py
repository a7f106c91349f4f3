"""Calls and fan-outs on nothing but asyncio streams: the floor of what Python can do."""

from __future__ import annotations

import asyncio
import json
from typing import Self
from urllib.parse import urlsplit


async def ask(base_url: str, question: str) -> str:
    """One question on a connection of its own, one answer."""
    async with Connection(base_url) as connection:
        return await connection.ask(question)


async def fan_out(base_url: str, n_calls: int) -> list[str]:
    """Ask `n_calls` questions at once."""
    return await asyncio.gather(*(ask(base_url, f"question {i}") for i in range(n_calls)))


async def fan_out_over(base_url: str, n_calls: int, *, n_connections: int) -> list[str]:
    """Ask `n_calls` questions, as many at once as there are connections, which stay open."""
    questions = iter([f"question {i}" for i in range(n_calls)])

    async def ask_in_turn() -> list[str]:
        async with Connection(base_url) as connection:
            return [await connection.ask(question) for question in questions]

    answers = await asyncio.gather(*(ask_in_turn() for _ in range(min(n_calls, n_connections))))
    return [text for texts in answers for text in texts]


class Connection:
    """A connection that is kept open in a block."""

    def __init__(self, base_url: str) -> None:
        self._url = urlsplit(base_url)

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection(
            self._url.hostname, self._url.port
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def ask(self, question: str) -> str:
        """One question, one answer."""
        messages = [{"role": "user", "content": question}]
        answer = await self.post(json.dumps({"model": "fake", "messages": messages}).encode())
        return str(json.loads(answer)["choices"][0]["message"]["content"])

    async def post(self, body: bytes) -> bytes:
        """Post a body that is encoded already, and return the answer's bytes."""
        self._writer.write(_request(self._url.path, self._url.netloc, body))
        head = await self._reader.readuntil(b"\r\n\r\n")
        return await self._reader.readexactly(_content_length(head))


def _request(path: str, host: str, body: bytes) -> bytes:
    head = (
        f"POST {path}/chat/completions HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer x\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _content_length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line[15:])
    raise ValueError(f"the answer names no content-length: {head[:200]!r}")
