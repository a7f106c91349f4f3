"""What a tool answered, as what a tool of ours returns."""

from __future__ import annotations

import base64
from types import SimpleNamespace
from typing import Any

import pytest
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    TextContent,
    Tool,
)

from rath.llm.image import Image
from rath.mcp.tools import NO_SCHEMA, decode_result, error_text, input_schema
from tests.support.images import picture

PNG = picture()


def texts(*said: str, **more: Any) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=text) for text in said], **more)


def parts(*content: Any, **more: Any) -> CallToolResult:
    return CallToolResult(content=list(content), **more)


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


PICTURE = ImageContent(type="image", data=encoded(PNG), mime_type="image/png")
EMBEDDED = EmbeddedResource(
    type="resource",
    resource=BlobResourceContents(uri="x://1", mime_type="image/png", blob=encoded(PNG)),
)


@pytest.mark.parametrize(
    ("answer", "decoded"),
    [
        (texts("a", "b"), {"text": "a\nb"}),
        (parts(), {"ok": True}),
        (parts(structured_content={"a": 1}), {"a": 1}),
        (
            texts("warm", structured_content={"celsius": 21}),
            {"text": "warm", "structured_content": {"celsius": 21}},
        ),
        (parts(PICTURE), {"content": [Image.from_bytes(PNG)]}),
        (parts(EMBEDDED), {"content": [Image.from_bytes(PNG)]}),
        ({"a": 1}, {"a": 1}),
    ],
    ids=["texts", "nothing", "structured", "both", "picture", "embedded picture", "no answer"],
)
def test_an_answer_is_what_a_tool_of_ours_returns(answer: Any, decoded: Any) -> None:
    assert decode_result(answer) == decoded


@pytest.mark.parametrize(
    ("said", "structured"),
    [
        (["3"], {"result": 3}),
        (["warm"], {"result": "warm"}),
        (['{"a": [1]}'], {"a": [1]}),
        (["1", "2"], {"result": [1, 2]}),
        (["x", "y"], {"result": ["x", "y"]}),
    ],
)
def test_structured_content_that_the_text_says_is_not_repeated(
    said: list[str], structured: Any
) -> None:
    assert set(decode_result(texts(*said, structured_content=structured))) == {"text"}


@pytest.mark.parametrize("data", ["AAAA", "no base64!"])
def test_a_picture_that_no_model_can_see_is_named_as_one(data: str) -> None:
    image = ImageContent(type="image", data=data, mime_type="image/x")
    (found,) = decode_result(parts(image))["content"]
    assert (found["type"], found["mime_type"]) == ("image", "image/x")


def test_a_sound_is_named_as_one() -> None:
    (found,) = decode_result(
        parts(AudioContent(type="audio", data=encoded(b"abc"), mime_type="audio/wav"))
    )["content"]
    assert (found["type"], found["mime_type"], found["bytes"]) == ("audio", "audio/wav", 3)


def test_an_answer_of_another_sdk_is_read() -> None:
    part = SimpleNamespace(type="text", text="a")
    assert decode_result(SimpleNamespace(content=[part], isError=False)) == {"text": "a"}
    assert error_text(SimpleNamespace(content=[part], isError=True)) == "a"


def test_only_an_error_has_the_text_of_one() -> None:
    assert error_text(texts("a")) is None
    assert error_text(texts("a", is_error=True)) == "a"
    assert error_text(parts(is_error=True)) == '{"ok": true}'
    assert error_text(parts(is_error=True, structured_content={"why": "x"})) == '{"why": "x"}'


def test_a_schema_is_read_in_either_spelling() -> None:
    schema = {"type": "object", "required": ["a"]}
    assert input_schema(Tool(name="t", input_schema=schema)) == schema
    assert input_schema(SimpleNamespace(inputSchema=schema)) == schema
    assert input_schema(SimpleNamespace(inputSchema=None)) == NO_SCHEMA
