"""The adapter for Anthropic's Messages API, which some other servers speak too."""

from __future__ import annotations

from typing import Any

from rath.llm.anthropic import client
from rath.llm.anthropic.client import RathAnthropicChatClient
from rath.llm.anthropic.create_kwargs import build_anthropic_kwargs, build_anthropic_stream_kwargs
from rath.llm.anthropic.normalize import normalize_anthropic_response
from rath.llm.anthropic.stream_deltas import anthropic_event_to_deltas

__all__ = [
    "ANTHROPIC_RETRYABLE",
    "RathAnthropicChatClient",
    "anthropic_event_to_deltas",
    "build_anthropic_kwargs",
    "build_anthropic_stream_kwargs",
    "normalize_anthropic_response",
]

ANTHROPIC_RETRYABLE: tuple[type[Exception], ...]


def __getattr__(name: str) -> Any:
    """Give `ANTHROPIC_RETRYABLE`, which needs the SDK, on first use."""
    if name == "ANTHROPIC_RETRYABLE":
        return client.ANTHROPIC_RETRYABLE
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
