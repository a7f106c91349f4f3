"""Requests to JSON: the form of OpenAI's chat protocol, which most vendors took over."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from rath.llm.chat_request import RathLLMChatRequest, RathLLMFunctionTool, RathLLMMessage
from rath.llm.image import Image
from rath.llm.sampling import SAMPLING_FIELDS

__all__ = [
    "CALL_OPTIONS",
    "ContentParts",
    "encode_message",
    "encode_sampling",
    "encode_tool",
    "images_then_text",
    "plain_json",
    "refuse_call_options",
    "text_part",
    "text_then_images",
    "to_json",
]

CALL_OPTIONS = frozenset({"api_key", "extra_headers", "extra_query", "headers"})
"""Arguments of the SDKs that are no keys of a body, and may hold a secret."""

_BY_NAME = frozenset(
    {"$defs", "definitions", "dependencies", "dependentRequired", "dependentSchemas",
     "patternProperties", "properties"}
)  # fmt: skip
"""Keywords of JSON Schema that hold schemas by names, any of which may be that of a keyword."""

_LITERALS = frozenset({"const", "default", "enum", "examples"})
"""Keywords that hold values, and no schemas."""

ContentParts = Callable[[str | None, Sequence[Image]], list[dict[str, Any]]]
"""Writes a text and images as the list of content parts of a message."""


def _plain(value: object) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, Any]", value))
    raise TypeError(f"JSON has no form for {type(value).__name__}")


_to_text = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain
).encode


def to_json(value: object) -> bytes:
    """Return compact JSON; a lone surrogate, which UTF-8 cannot hold, becomes a question mark.

    Raises:
        TypeError: `value` holds something that JSON has no form for.
        ValueError: It holds a number that is not finite.
    """
    return _to_text(value).encode(errors="replace")


def plain_json(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return `value` as JSON holds it; what JSON has no form for becomes its text."""
    plain: dict[str, Any] = json.loads(json.dumps(value, default=_plain_or_text))
    return plain


def refuse_call_options(extra: Mapping[str, Any]) -> None:
    """Refuse extra arguments that would be sent, and recorded, as a part of the body.

    Raises:
        ValueError: There is one that is no key of a body.
    """
    for name in sorted(CALL_OPTIONS & set(extra)):
        raise ValueError(
            f"extra_create_args cannot set {name!r}: its keys are those of the request body, which "
            "is recorded. A key belongs into Provider(api_key=...), headers for all calls into the "
            "variable OPENAI_CUSTOM_HEADERS or ANTHROPIC_CUSTOM_HEADERS"
        )


def _plain_or_text(value: object) -> Any:
    return _plain(cast("object", value)) if isinstance(value, Mapping) else str(value)


def images_then_text(text: str | None, images: Sequence[Image]) -> list[dict[str, Any]]:
    """Return the images and then the text, the order in which models read them best.

    Raises:
        PersistenceError: The bytes of an image are not there.
    """
    return [*(_image_part(image) for image in images), *text_part(text)]


def text_then_images(text: str | None, images: Sequence[Image]) -> list[dict[str, Any]]:
    """Return the text and then the images.

    Raises:
        PersistenceError: The bytes of an image are not there.
    """
    return [*text_part(text), *(_image_part(image) for image in images)]


def text_part(text: str | None) -> list[dict[str, Any]]:
    """Return the part that says `text`; none for a blank text, which several vendors refuse."""
    return [{"type": "text", "text": text}] if text and not text.isspace() else []


def _image_part(image: Image) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": image.to_data_url()}}


def encode_message(
    message: RathLLMMessage, *, parts: ContentParts = images_then_text
) -> dict[str, Any]:
    """Return a message without the fields that it does not use.

    Args:
        message: What is encoded.
        parts: Writes the content of a message that has images.

    Raises:
        PersistenceError: The bytes of an image are not there.
    """
    encoded: dict[str, Any] = {"role": message.role}
    if message.images and message.captions:
        encoded["content"] = [
            part
            for caption, image in zip(message.captions, message.images, strict=True)
            for part in (*text_part(caption), *parts(None, (image,)))
        ]
    elif message.images:
        encoded["content"] = parts(message.content, message.images)
    elif message.content is not None:
        encoded["content"] = message.content
    if message.name is not None:
        encoded["name"] = message.name
    if message.tool_call_id is not None:
        encoded["tool_call_id"] = message.tool_call_id
    if message.tool_calls is not None:
        encoded["tool_calls"] = [dict(call) for call in message.tool_calls]
    if message.reasoning is not None:
        encoded["reasoning_content"] = message.reasoning
    return encoded


def encode_tool(tool: RathLLMFunctionTool) -> dict[str, Any]:
    """Return a function tool; unless it is strict, without `additionalProperties` at any depth.

    Many servers refuse the keyword, and arguments are validated on our side anyway. Those that
    know strict tools demand it.
    """
    schema = tool.parameters
    function: dict[str, Any] = {
        "name": tool.name,
        "parameters": schema if tool.strict else _without_additional_properties(schema),
    }
    if tool.description is not None:
        function["description"] = tool.description
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def encode_sampling(request: RathLLMChatRequest, *, model: str | None) -> dict[str, Any]:
    """Return the parameters that are set, without messages, tools and extra arguments."""
    encoded: dict[str, Any] = {}
    for name in SAMPLING_FIELDS:
        value = getattr(request, name)
        if value is not None and name != "extra_create_args":
            encoded[name] = value
    if model is not None:
        encoded["model"] = model
    return encoded


def _without_additional_properties(schema: Any) -> Any:
    if isinstance(schema, Mapping):
        return {
            key: _open_keyword(key, value)
            for key, value in cast("Mapping[str, Any]", schema).items()
            if key != "additionalProperties"
        }
    if isinstance(schema, list | tuple):
        return [_without_additional_properties(item) for item in cast("list[Any]", schema)]
    return schema


def _open_keyword(key: str, value: Any) -> Any:
    if key in _LITERALS:
        return value
    if key in _BY_NAME and isinstance(value, Mapping):
        schemas = cast("Mapping[str, Any]", value)
        return {name: _without_additional_properties(part) for name, part in schemas.items()}
    return _without_additional_properties(value)
