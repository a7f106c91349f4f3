"""One model call as it was: what was asked, what answered, and what it took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias

from rath._async.retry import Attempt
from rath.llm.chat_response import RathLLMChatResponse, RathLLMTokenUsage

__all__ = ["CallEvidence", "CallStatus", "Exchange", "JsonValue", "evidence_of"]

JsonValue: TypeAlias = (
    "str | int | float | bool | Sequence[JsonValue] | Mapping[str, JsonValue] | None"
)
CallStatus = Literal["done", "failed", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallEvidence:
    """What is known of one model call; it holds no credential and no message."""

    provider_kind: str
    adapter: str
    """`module:class` of the chat client."""

    adapter_version: str
    sdk: str | None
    """Package that made the connection."""

    sdk_version: str | None
    endpoint: str | None
    """Scheme, host and path; no query, no credentials."""

    requested_model: str | None
    served_model: str | None
    response_id: str | None
    service_tier: str | None
    fingerprint: str | None
    parameters: Mapping[str, JsonValue]
    """The request body as sent, without messages and tools."""

    origins: tuple[tuple[str, str], ...]
    """For model, base_url and api_key where the value came from: "call", "session", "env NAME",
    "config FILE" or "default"."""

    credential: str | None
    """Source of the key and a digest of it that is keyed by a salt of this home."""

    attempts: tuple[Attempt, ...]
    started: datetime
    """UTC."""

    first_token_ms: float | None
    """Time to the first delta of a stream; None for an answer that came whole."""

    duration_ms: float
    finish_reason: str | None
    """One of `RathLLMFinishReason`."""

    finish_reason_raw: str | None
    """As the vendor wrote it."""

    usage: RathLLMTokenUsage | None
    cached_tokens: int | None
    """Prompt tokens that the endpoint had in its cache."""

    cache_write_tokens: int | None
    reasoning_tokens: int | None
    reasoning: str | None
    reasoning_blocks: tuple[Mapping[str, JsonValue], ...]
    """Opaque blocks, which go back only to the provider and model that they came from."""

    request_digest: str
    """sha256 of the exact body, as hex."""

    tools_digest: str | None
    """sha256 of the tool schemas as sent."""

    renderer: str
    """Name and version of the code that turned the messages into the body."""

    status: CallStatus
    error: str | None
    partial_text: str
    """Text that had arrived before the call failed or was cancelled."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A model call that was answered."""

    response: RathLLMChatResponse
    evidence: CallEvidence


def evidence_of(error: BaseException) -> CallEvidence | None:
    """Return what is known of the model call that ended with `error`, if it was one."""
    evidence = getattr(error, "evidence", None)
    return evidence if isinstance(evidence, CallEvidence) else None
