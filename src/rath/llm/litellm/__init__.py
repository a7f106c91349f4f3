"""The adapter for LiteLLM, a library that speaks to a hundred vendors in OpenAI's form.

    the draft's body (JSON)  ->  keyword arguments  ->  litellm.acompletion  ->  JSON again

It runs on the loop for user code, since parts of it block. `connection`, `errors` and `library`
import the library; they are loaded with the first call.
"""

from __future__ import annotations

from typing import Any

from rath.llm.litellm import client
from rath.llm.litellm.client import RathLiteLLMChatClient

# `LITELLM_RETRYABLE` is no part of it, since it cannot be had where LiteLLM is not installed.
__all__ = ["RathLiteLLMChatClient"]

LITELLM_RETRYABLE: tuple[type[Exception], ...]


def __getattr__(name: str) -> Any:
    """Give `LITELLM_RETRYABLE`, which needs the library, on first use."""
    if name == "LITELLM_RETRYABLE":
        return client.LITELLM_RETRYABLE
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
