"""Requests to JSON: the form of OpenAI's chat protocol, which most vendors took over."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from rath.llm.chat_request import RathLLMChatRequest, RathLLMFunctionTool, RathLLMMessage
from rath.llm.sampling import SAMPLING_FIELDS

__all__ = ["encode_message", "encode_sampling", "encode_tool", "plain_json", "to_json"]


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


def _plain_or_text(value: object) -> Any:
    return _plain(cast("object", value)) if isinstance(value, Mapping) else str(value)


def encode_message(message: RathLLMMessage) -> dict[str, Any]:
    """Return a message without the fields that it does not use."""
    encoded: dict[str, Any] = {"role": message.role}
    if message.content is not None:
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
    """Return a function tool; `additionalProperties` is left out of its schema, at every depth.

    Many servers refuse the keyword, and arguments are validated on our side anyway.
    """
    function: dict[str, Any] = {
        "name": tool.name,
        "parameters": _without_additional_properties(tool.parameters),
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
            key: _without_additional_properties(value)
            for key, value in cast("Mapping[str, Any]", schema).items()
            if key != "additionalProperties"
        }
    if isinstance(schema, list | tuple):
        return [_without_additional_properties(item) for item in cast("list[Any]", schema)]
    return schema
