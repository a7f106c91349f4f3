"""The provider plane: which model is asked, how, and what it answers."""

from __future__ import annotations

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

__all__ = [
    "BudgetExceededError",
    "CallEvidence",
    "ChatClient",
    "ChatClientFactory",
    "ChatDraft",
    "Exchange",
    "Provider",
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
    "RathOpenAIChatClient",
    "StreamingChatClient",
    "add_usage",
    "chat_client_for",
    "evidence_of",
    "normalize_chat_completion",
    "open_draft",
    "register_chat_client",
    "registered_kinds",
    "to_create_kwargs",
]
