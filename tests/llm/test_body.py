"""Bodies of requests: their JSON, and how they grow."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.llm import (
    Provider,
    RathLLMChatRequest,
    RathLLMFunctionTool,
    RathLLMMessage,
    chat_client_for,
    open_draft,
)
from rath.llm.body import (
    ContentParts,
    ListWriter,
    RequestBody,
    encode_message,
    images_then_text,
    text_then_images,
)
from rath.llm.image import Image
from tests.support.asking import HELLO, KEY
from tests.support.images import picture
from tests.support.litellm import needs_litellm

texts = st.text(max_size=20)
MESSAGES = st.lists(
    st.builds(RathLLMMessage, st.sampled_from(["user", "tool"]), texts, tool_call_id=texts),
    max_size=8,
)
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": "f", "parameters": {}}}]


def make_body(tools: list[dict[str, Any]] | None = None) -> RequestBody:
    return RequestBody(ListWriter({"model": "m", "stream": False}, tools))


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
    body = RequestBody(ListWriter({"temperature": float("inf")}, None))
    with pytest.raises(ValueError, match="JSON"):
        body.content(streaming=False)


CAT = Image.from_bytes(picture(b"cat"))
DOG = Image.from_bytes(picture(b"dog", mime="image/jpeg"))
TEXT = {"type": "text", "text": "What is it?"}


def part(image: Image) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": image.to_data_url()}}


def test_images_stand_before_the_text() -> None:
    encoded = encode_message(RathLLMMessage("user", "What is it?", images=(CAT, DOG)))
    assert encoded == {"role": "user", "content": [part(CAT), part(DOG), TEXT]}


@pytest.mark.parametrize(
    ("parts", "content"),
    [(images_then_text, [part(CAT), TEXT]), (text_then_images, [TEXT, part(CAT)])],
    ids=["images first", "text first"],
)
def test_either_order_can_be_asked_for(parts: ContentParts, content: list[Any]) -> None:
    message = RathLLMMessage("user", "What is it?", images=(CAT,))
    assert encode_message(message, parts=parts)["content"] == content


@pytest.mark.parametrize("text", [None, "", " \n"])
@pytest.mark.parametrize("parts", [images_then_text, text_then_images])
def test_a_blank_text_next_to_images_is_left_out(text: str | None, parts: ContentParts) -> None:
    assert parts(text, (CAT,)) == [part(CAT)]


@pytest.mark.parametrize("images", [None, ()])
def test_a_message_without_images_keeps_its_plain_text(images: tuple[Image, ...] | None) -> None:
    encoded = encode_message(RathLLMMessage("user", "hi", images=images))
    assert encoded == {"role": "user", "content": "hi"}


def test_blocks_of_another_vendor_have_no_place_in_this_form() -> None:
    said = RathLLMMessage("assistant", "hi", blocks=({"type": "thinking", "signature": "s"},))
    assert encode_message(said) == {"role": "assistant", "content": "hi"}


CLOSED: dict[str, Any] = {
    "type": "object",
    "properties": {"additionalProperties": {"type": "string"}},
    "required": ["additionalProperties"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("kind", "model"),
    [
        pytest.param("openai", "m", id="openai"),
        pytest.param("anthropic", "m", id="anthropic"),
        pytest.param("litellm", "openai/m", id="litellm", marks=needs_litellm),
    ],
)
def test_every_vendor_reads_the_complete_schema_of_a_strict_tool(kind: Any, model: str) -> None:
    provider = Provider(provider_kind=kind, model=model, api_key=KEY)
    request = RathLLMChatRequest(
        messages=HELLO, tools=(RathLLMFunctionTool("f", CLOSED, strict=True),)
    )
    (tool,) = json.loads(open_draft(chat_client_for(provider), request).body())["tools"]
    schema = tool["input_schema"] if kind == "anthropic" else tool["function"]["parameters"]
    assert schema == CLOSED
