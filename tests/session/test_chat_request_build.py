"""A request has the provider's sampling parameters; its tool choice wins over the default."""

from __future__ import annotations

from typing import Any

import pytest

from rath.llm import Provider, RathLLMFunctionTool, RathLLMMessage
from rath.session.chat_request_build import provider_into_chat_request

TOOL = RathLLMFunctionTool(name="f", parameters={"type": "object"})


@pytest.mark.parametrize(
    ("preferred", "default", "chosen"),
    [("none", "auto", "none"), (None, "auto", "auto"), ("required", None, "required")],
)
def test_the_providers_tool_choice_wins(preferred: Any, default: Any, chosen: Any) -> None:
    request = provider_into_chat_request(
        (), (TOOL,), Provider(model="m", tool_choice=preferred), default_tool_choice=default
    )
    assert request.tool_choice == chosen


def test_messages_tools_and_sampling_are_copied() -> None:
    messages = (RathLLMMessage("user", "hi"),)
    prefs = Provider(model="m", temperature=0.5, max_tokens=7, extra_create_args={"x": 1})
    request = provider_into_chat_request(messages, (TOOL,), prefs, default_tool_choice="auto")
    assert (request.messages, request.tools) == (messages, (TOOL,))
    assert (request.model, request.temperature, request.max_tokens) == ("m", 0.5, 7)
    assert request.extra_create_args == {"x": 1}


@pytest.mark.parametrize("tools", [None, ()])
def test_no_tools_are_none(tools: tuple[RathLLMFunctionTool, ...] | None) -> None:
    prefs = Provider(model="m")
    assert provider_into_chat_request((), tools, prefs, default_tool_choice=None).tools is None
