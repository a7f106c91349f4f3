"""The adapter for OpenAI's chat completions, which many other servers speak too."""

from __future__ import annotations

from typing import Any

from rath.llm.openai import client
from rath.llm.openai.client import RathOpenAIChatClient
from rath.llm.openai.create_kwargs import to_create_kwargs, to_create_kwargs_stream
from rath.llm.openai.normalize import normalize_chat_completion

__all__ = [
    "OPENAI_RETRYABLE",
    "RathOpenAIChatClient",
    "normalize_chat_completion",
    "to_create_kwargs",
    "to_create_kwargs_stream",
]

OPENAI_RETRYABLE: tuple[type[Exception], ...]


def __getattr__(name: str) -> Any:
    """Give `OPENAI_RETRYABLE`, which needs the SDK, on first use."""
    if name == "OPENAI_RETRYABLE":
        return client.OPENAI_RETRYABLE
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
