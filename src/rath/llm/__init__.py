"""The provider plane: which model is asked, how, and what it answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rath.llm import litellm
    from rath.llm.anthropic import (
        RathAnthropicChatClient,
        build_anthropic_kwargs,
        build_anthropic_stream_kwargs,
        normalize_anthropic_response,
    )
    from rath.llm.base import ChatClient, ChatDraft, StreamingChatClient
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
    from rath.llm.client import open_draft
    from rath.llm.embedding import (
        DEFAULT_EMBEDDING_MODEL,
        EmbeddingClient,
        EmbeddingProvider,
        RathOpenAIEmbeddingClient,
        embedding_client_for,
    )
    from rath.llm.evidence import CallEvidence, Exchange, evidence_of
    from rath.llm.openai import RathOpenAIChatClient, normalize_chat_completion, to_create_kwargs
    from rath.llm.provider import Provider
    from rath.llm.registry import (
        ChatClientFactory,
        chat_client_for,
        register_chat_client,
        registered_kinds,
    )
    from rath.llm.vlm import RathOpenAIVLMClient, VLMProvider

    RathLiteLLMChatClient: type[litellm.RathLiteLLMChatClient] | None
else:
    from rath._core.lazy_imports import lazy_names

    _load, __dir__ = lazy_names(
        __name__,
        {
            "anthropic": (
                "RathAnthropicChatClient",
                "build_anthropic_kwargs",
                "build_anthropic_stream_kwargs",
                "normalize_anthropic_response",
            ),
            "base": ("ChatClient", "ChatDraft", "StreamingChatClient"),
            "client": ("open_draft",),
            "budget": ("BudgetExceededError",),
            "chat_request": (
                "RathLLMChatRequest",
                "RathLLMFunctionTool",
                "RathLLMMessage",
                "RathLLMRole",
            ),
            "chat_response": (
                "RathLLMAssistantMessage",
                "RathLLMChatChoice",
                "RathLLMChatResponse",
                "RathLLMFinishReason",
                "RathLLMStreamDelta",
                "RathLLMTokenUsage",
                "RathLLMToolCallFunction",
                "RathLLMToolCallPart",
                "add_usage",
            ),
            "embedding": (
                "DEFAULT_EMBEDDING_MODEL",
                "EmbeddingClient",
                "EmbeddingProvider",
                "RathOpenAIEmbeddingClient",
                "embedding_client_for",
            ),
            "evidence": ("CallEvidence", "Exchange", "evidence_of"),
            "litellm": ("RathLiteLLMChatClient",),
            "openai": ("RathOpenAIChatClient", "normalize_chat_completion", "to_create_kwargs"),
            "provider": ("Provider",),
            "registry": (
                "ChatClientFactory",
                "chat_client_for",
                "register_chat_client",
                "registered_kinds",
            ),
            "vlm": ("RathOpenAIVLMClient", "VLMProvider"),
        },
    )

    def __getattr__(name: str) -> object:
        """Load a name on first use; `RathLiteLLMChatClient` is None without LiteLLM."""
        if name == "RathLiteLLMChatClient":
            import importlib.util  # noqa: PLC0415  # for this one name

            if importlib.util.find_spec("litellm") is None:
                return None
        return _load(name)


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
