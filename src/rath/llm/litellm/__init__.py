"""The adapter for LiteLLM, a library that speaks to a hundred vendors in OpenAI's form.

    the draft's body (JSON)  ->  keyword arguments  ->  litellm.acompletion  ->  JSON again

It runs on the loop for user code, since parts of it block. `connection` imports the library; it is
loaded with the first call.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from rath.llm.litellm.client import RathLiteLLMChatClient

# `LITELLM_RETRYABLE` is no part of it, since it cannot be had where LiteLLM is not installed.
__all__ = ["RathLiteLLMChatClient"]

LITELLM_RETRYABLE: tuple[type[Exception], ...]
"""Exceptions of the library that another try may mend; imports the library on first use."""

_RETRYABLE = (
    "RateLimitError", "APIConnectionError", "Timeout", "ServiceUnavailableError",
    "InternalServerError",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    """Give `LITELLM_RETRYABLE`, which needs the library, on first use."""
    if name != "LITELLM_RETRYABLE":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    library = import_module("rath.llm.litellm.connection").litellm
    return tuple(getattr(library, each) for each in _RETRYABLE)
