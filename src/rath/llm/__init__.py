"""The provider plane: which model is asked, how, and what it answers."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rath.llm.anthropic import (
    RathAnthropicChatClient,
    build_anthropic_kwargs,
    build_anthropic_stream_kwargs,
    normalize_anthropic_response,
)
from rath.llm.base import ChatClient, StreamingChatClient
from rath.llm.budget import BudgetExceededError
from rath.llm.chat_request import (
    RathLLMChatRequest,
    RathLLMFunctionTool,
    RathLLMMessage,
    RathLLMRole,
)
from rath.llm.chat_response import (
    RathLLMAssistantMessage,
    RathLLMChatChoice,
    RathLLMChatResponse,
    RathLLMFinishReason,
    RathLLMStreamDelta,
    RathLLMTokenUsage,
    RathLLMToolCallFunction,
    RathLLMToolCallPart,
    add_usage,
)
from rath.llm.draft import ChatDraft, open_draft
from rath.llm.exchange import CallEvidence, Exchange, evidence_of
from rath.llm.openai import (
    RathOpenAIChatClient,
    normalize_chat_completion,
    to_create_kwargs,
)
from rath.llm.provider import Provider
from rath.llm.registry import (
    ChatClientFactory,
    chat_client_for,
    register_chat_client,
    registered_kinds,
)

if TYPE_CHECKING:
    from rath.llm import litellm
    from rath.llm.embedding import (
        DEFAULT_EMBEDDING_MODEL,
        EmbeddingClient,
        EmbeddingProvider,
        RathOpenAIEmbeddingClient,
        embedding_client_for,
    )
    from rath.llm.vlm import RathOpenAIVLMClient, VLMProvider

    RathLiteLLMChatClient: type[litellm.RathLiteLLMChatClient] | None

__all__ = [
    "DEFAULT_EMBEDDING_MODEL",
    "BudgetExceededError",
    "CallEvidence",
    "ChatClient",
    "ChatClientFactory",
    "ChatDraft",
    "EmbeddingClient",
    "EmbeddingProvider",
    "Exchange",
    "Provider",
    "RathAnthropicChatClient",
    "RathLLMAssistantMessage",
    "RathLLMChatChoice",
    "RathLLMChatRequest",
    "RathLLMChatResponse",
    "RathLLMFinishReason",
    "RathLLMFunctionTool",
    "RathLLMMessage",
    "RathLLMRole",
    "RathLLMStreamDelta",
    "RathLLMTokenUsage",
    "RathLLMToolCallFunction",
    "RathLLMToolCallPart",
    "RathLiteLLMChatClient",
    "RathOpenAIChatClient",
    "RathOpenAIEmbeddingClient",
    "RathOpenAIVLMClient",
    "StreamingChatClient",
    "VLMProvider",
    "add_usage",
    "build_anthropic_kwargs",
    "build_anthropic_stream_kwargs",
    "chat_client_for",
    "embedding_client_for",
    "evidence_of",
    "normalize_anthropic_response",
    "normalize_chat_completion",
    "open_draft",
    "register_chat_client",
    "registered_kinds",
    "to_create_kwargs",
]


_LATE = {
    **dict.fromkeys(
        ("DEFAULT_EMBEDDING_MODEL", "EmbeddingClient", "EmbeddingProvider",
         "RathOpenAIEmbeddingClient", "embedding_client_for"),
        "rath.llm.embedding",
    ),
    **dict.fromkeys(("RathOpenAIVLMClient", "VLMProvider"), "rath.llm.vlm"),
    "RathLiteLLMChatClient": "rath.llm.litellm",
}  # fmt: skip
"""What an agent does without, by the module that has it."""


def __getattr__(name: str) -> Any:
    """Load what few programs use; `RathLiteLLMChatClient` is None without LiteLLM (PEP 562)."""
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "RathLiteLLMChatClient" and find_spec("litellm") is None:
        return None
    return getattr(import_module(_LATE[name]), name)
