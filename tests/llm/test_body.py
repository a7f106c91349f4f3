"""Bodies that grow."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.llm.body import Body, ListWriter
from rath.llm.chat_request import RathLLMMessage

TEXT = st.text(max_size=20)
MESSAGES = st.lists(
    st.builds(RathLLMMessage, st.sampled_from(["user", "tool"]), TEXT, tool_call_id=TEXT),
    max_size=8,
)
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": "f", "parameters": {}}}]


def make_body(tools: list[dict[str, Any]] | None = None) -> Body:
    return Body(ListWriter(lambda streaming: {"model": "m", "stream": streaming}, tools))


@given(MESSAGES, MESSAGES, st.booleans())
def test_growing_gives_the_bytes_of_writing_at_once(
    first: list[RathLLMMessage], more: list[RathLLMMessage], streaming: bool
) -> None:
    grown, written = make_body(TOOLS), make_body(TOOLS)
    grown.append(first)
    grown.content(streaming=streaming)
    grown.append(more)
    written.append(first + more)
    assert grown.content(streaming=streaming) == written.content(streaming=streaming)


@given(MESSAGES, st.booleans())
def test_the_digest_is_that_of_the_bytes(messages: list[RathLLMMessage], streaming: bool) -> None:
    body = make_body(TOOLS)
    body.append(messages)
    content = body.content(streaming=streaming)
    assert body.digest(streaming=streaming) == sha256(content).hexdigest()


@given(MESSAGES, st.sampled_from([None, TOOLS]))
def test_the_body_is_json_with_the_messages_first(
    messages: list[RathLLMMessage], tools: list[dict[str, Any]] | None
) -> None:
    body = make_body(tools)
    body.append(messages)
    decoded = json.loads(body.content(streaming=False))
    assert next(iter(decoded)) == "messages"
    assert len(decoded.pop("messages")) == len(messages)
    assert decoded == {"model": "m", "stream": False} | ({} if tools is None else {"tools": tools})


def test_text_is_sent_as_it_is() -> None:
    body = make_body()
    body.append([RathLLMMessage("user", "grün \U0001f600 \ud800")])
    assert "grün \U0001f600 ?".encode() in body.content(streaming=False)


def test_the_tools_have_a_digest_of_their_own() -> None:
    assert (
        make_body(TOOLS).tools_digest
        == sha256(json.dumps(TOOLS, separators=(",", ":")).encode()).hexdigest()
    )
    assert make_body().tools_digest is None


def test_refuses_what_json_cannot_hold() -> None:
    body = Body(ListWriter(lambda _: {"temperature": float("inf")}, None))
    with pytest.raises(ValueError, match="JSON"):
        body.content(streaming=False)
