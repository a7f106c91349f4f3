"""Evidence of model calls, and answers that lead to it: calls with known tokens and prices."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from rath.llm.chat_response import (
    RathLLMAssistantMessage,
    RathLLMChatChoice,
    RathLLMChatResponse,
    RathLLMTokenUsage,
)
from rath.llm.evidence import CallEvidence, CallRecorder, DraftFacts
from rath.llm.provider import Provider
from rath.session import RowId
from rath.session.record import ModelCall
from rath.testing import ScriptedClient, Turn

OPENAI = "https://api.openai.com/v1/chat/completions"
ANTHROPIC = "https://api.anthropic.com/v1/messages"
STARTED = datetime(2026, 11, 1, 12, tzinfo=UTC)


def tokens(prompt: int, completion: int, **details: int) -> RathLLMTokenUsage:
    """Token counts; `cached_tokens`, `cache_write_tokens` and `reasoning_tokens` as details."""
    reasoning = {name: details.pop(name) for name in ("reasoning_tokens",) if name in details}
    return RathLLMTokenUsage(
        prompt, completion, prompt + completion, reasoning or None, details or None
    )


def evidence(
    usage: RathLLMTokenUsage | None,
    *,
    endpoint: str | None = OPENAI,
    model: str | None = "gpt-5-mini",
    **changes: Any,
) -> CallEvidence:
    """A call that was answered, by the model that was asked for."""
    facts = DraftFacts(
        provider_kind="test", adapter="tests:none", adapter_version="0", renderer="none/0"
    )
    details = usage.prompt_tokens_details or {} if usage else {}
    counts = usage.completion_tokens_details or {} if usage else {}
    known: dict[str, Any] = {
        "usage": usage,
        "endpoint": endpoint,
        "requested_model": model,
        "served_model": model,
        "started": STARTED,
        "status": "done",
        "was_sent": True,
        "cached_tokens": details.get("cached_tokens"),
        "cache_write_tokens": details.get("cache_write_tokens"),
        "reasoning_tokens": counts.get("reasoning_tokens"),
    }
    return replace(CallRecorder(facts, parameters={}, digest="").evidence(), **(known | changes))


def answer(
    said: str | RathLLMAssistantMessage,
    usage: RathLLMTokenUsage | None,
    *,
    model: str = "gpt-5-mini",
) -> RathLLMChatResponse:
    """A whole answer of a model that took so many tokens; a turn of a script."""
    message = RathLLMAssistantMessage(content=said) if isinstance(said, str) else said
    choice = RathLLMChatChoice(0, "tool_calls" if message.tool_calls else "stop", message)
    return RathLLMChatResponse(id="r", choices=(choice,), created=0, model=model, usage=usage)


def priced_client(turns: Iterable[Turn], **provider: Any) -> ScriptedClient:
    """A model that follows a script and is told to be one of OpenAI's."""
    given: dict[str, Any] = {"base_url": "https://api.openai.com/v1", "model": "gpt-5-mini"}
    given |= provider
    return ScriptedClient(turns, provider=Provider(**given))


FACTS = DraftFacts(
    provider_kind="openai",
    adapter="a",
    adapter_version="1",
    renderer="r",
    endpoint="https://one.example/v1",
    requested_model="m",
)
EVIDENCE = replace(
    CallRecorder(FACTS, parameters={}, digest="d").evidence(),
    status="done",
    duration_ms=1.0,
    finish_reason="stop",
    finish_reason_raw="stop",
    reasoning="let me think",
)
"""A call of the model that `FACTS` name."""


def call_of(row: RowId, evidence: CallEvidence = EVIDENCE) -> ModelCall:
    """The entry of the call that wrote `row`."""
    return ModelCall(
        operation=UUID(int=7),
        rows=(row,),
        purpose="turn",
        status="done",
        seen=None,
        evidence=evidence,
    )
