"""The fan-out on nothing but asyncio streams: the floor of what Python can do."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import urlsplit


async def ask(base_url: str, question: str) -> str:
    """One question on a connection of its own, one answer."""
    parts = urlsplit(base_url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        writer.write(_request(parts.path, parts.netloc, question))
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(_content_length(head))
    finally:
        writer.close()
    return str(json.loads(body)["choices"][0]["message"]["content"])


async def fan_out(base_url: str, n_calls: int) -> list[str]:
    """Ask `n_calls` questions at once."""
    return await asyncio.gather(*(ask(base_url, f"question {i}") for i in range(n_calls)))


def _request(path: str, host: str, question: str) -> bytes:
    messages = [{"role": "user", "content": question}]
    body = json.dumps({"model": "fake", "messages": messages}).encode()
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
