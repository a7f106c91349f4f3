"""Endpoints that repeat the key which they were sent, in every way that one can."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from rath.llm import Provider
from rath.llm.client import VendorClient
from tests.support import anthropic_replies, chat_replies
from tests.support.asking import NoSleep
from tests.support.chat_replies import Reply
from tests.support.chat_server import ChatServer
from tests.support.dialects import ANTHROPIC, Dialect


def provider_of(dialect: Dialect, server: ChatServer, key: str) -> Provider:
    """A provider that tries once."""
    return Provider(
        model="m",
        api_key=key,
        base_url=server.base_url,
        provider_kind=dialect.kind,
        retry_max_attempts=1,
    )


def client_of(dialect: Dialect, server: ChatServer, key: str) -> VendorClient:
    """A client that does."""
    return dialect.make(provider_of(dialect, server, key), sleep=NoSleep())


def written_forms(key: str) -> dict[str, str]:
    """The key as a sloppy proxy writes it out."""
    return {
        "raw": f"your key {key} is no good",
        "quoted": f"see https://h/?key={quote(key, safe='')}&x=1",
        "plus": f"see https://h/?key={quote(key)}",
        "json": f"we got {json.dumps({'authorization': 'Bearer ' + key})}",
        "python": f"we got {[key, key.encode()]!r}",
        "html": f"<b>{html.escape(key)}</b>",
        "base64": f"Basic {base64.b64encode(f'user:{key}'.encode()).decode()}",
        "cut": "x" * 230 + key + "y" * 600,
    }


def failing(dialect: Dialect, key: str) -> Iterator[Reply]:
    """Answers that are none, each of which repeats the key."""
    statuses = (400, 401, 403, 404, 422, 429, 500, 529)
    for status, text in zip(statuses, written_forms(key).values(), strict=True):
        yield dialect.error(status, text)
    coded = {"error": {"message": "no", "code": key, "type": key, "param": key}}
    yield chat_replies.json_body(coded, status=400)
    for text in (*written_forms(key).values(), "x" * 190 + key):
        yield chat_replies.html(text, status=502)
        yield chat_replies.raw(f'{{"id": {json.dumps(text)}, ', content_type="application/json")
    yield chat_replies.json_body({"id": key, "model": key, "choices": [], "content": key})
    yield chat_replies.json_body({"error": {"message": key, "type": key}})
    yield chat_replies.event_stream(f"{{{key}", done=False)
    yield dialect.stream({"error": {"message": key, "type": key}, "type": "error"})
    yield dialect.stream(*dialect.begin, chat_replies.Cut())


def failing_by_headers(key: str) -> Iterator[Reply]:
    """The same, where the key stands in the head of an answer."""
    yield Reply((f"HTTP/1.1 401 bad {key}\r\ncontent-length: 0\r\n\r\n".encode(),))
    yield Reply((f"HTTP/1.1 200 OK\r\nbad header {key}\r\n\r\n".encode(),))
    yield chat_replies.raw(b"", status=429, headers={"retry-after": key, "x-request-id": key})
    yield chat_replies.raw(b"", status=307, headers={"location": f"http://127.0.0.1:1/{key}"})
    yield chat_replies.raw(b"{}", content_type=f"application/{key}")
    yield chat_replies.raw(b"{}", headers={"content-encoding": key, "set-cookie": key})


def answer(dialect: Dialect, key: str, *, is_streamed: bool = False) -> Reply:
    """An answer that repeats the key wherever an answer has a place for a text."""
    if dialect is ANTHROPIC:
        blocks = (
            anthropic_replies.thinking(f"so {key}", key),
            anthropic_replies.text(f"your key is {key}, {key}"),
            anthropic_replies.tool_use("f", {"x": [key]}, id=f"id-{key}"),
        )
        said = anthropic_replies.envelope(*blocks, id=key, model=key, stop_sequence=key)
        whole = anthropic_replies.message(*blocks, id=key, model=key, stop_sequence=key)
        return anthropic_replies.stream(*anthropic_replies.events(said)) if is_streamed else whole
    call = chat_replies.tool_call("f", {"x": [key]}, id=f"id-{key}")
    named = {"id": key, "model": key, "system_fingerprint": key, "service_tier": key}
    if is_streamed:
        delta = {"role": "assistant", "reasoning_content": f"so {key}"}
        parts: list[dict[str, Any]] = [
            delta,
            {"content": f"your key is {key}"},
            {"tool_calls": [{"index": 0, **call}]},
        ]
        chunks = [{**chat_replies.chunk(part), **named} for part in parts]
        return chat_replies.event_stream(*chunks, chat_replies.finish_chunk("tool_calls"))
    message = {"content": f"your key is {key}", "reasoning_content": f"so {key}", "refusal": key}
    choice = {"index": 0, "message": {**message, "tool_calls": [call]}, "finish_reason": key}
    return chat_replies.json_body({**named, "choices": [choice]})
