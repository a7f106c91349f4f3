"""From a provider's preferences to a request."""

from __future__ import annotations

from typing import Any

from rath.llm.chat_request import (
    SAMPLING_FIELDS,
    RathLLMChatRequest,
    RathLLMFunctionTool,
    RathLLMMessage,
)
from rath.llm.provider import Provider


def provider_into_chat_request(
    messages: tuple[RathLLMMessage, ...],
    tools: tuple[RathLLMFunctionTool, ...] | None,
    prefs: Provider,
    *,
    default_tool_choice: Any,
) -> RathLLMChatRequest:
    """Return a request with the provider's sampling parameters.

    Args:
        messages: What the model reads.
        tools: What it may call; None or () for nothing.
        prefs: Its sampling fields are copied; its `tool_choice`, if set, wins over the default.
        default_tool_choice: Used where the provider says nothing; left out without tools.
    """
    fields = {name: getattr(prefs, name) for name in SAMPLING_FIELDS}
    if fields["tool_choice"] is None:
        fields["tool_choice"] = default_tool_choice
    return RathLLMChatRequest(messages=messages, tools=tools or None, **fields)
