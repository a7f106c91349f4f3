"""A model call while it runs: what its evidence will be made of."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from rath._async.retry import Attempt
from rath.llm.chat_response import RathLLMChatResponse, RathLLMStreamDelta, RathLLMTokenUsage
from rath.llm.exchange import CallEvidence, CallStatus, Exchange
from rath.llm.fold import StreamFold

__all__ = ["CallFacts", "OnDelta", "OpenCall", "ProviderOrigin", "Served"]

OnDelta = Callable[[RathLLMStreamDelta], Awaitable[None] | None]
ProviderOrigin = Literal["call", "session"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFacts:
    """What is the same for every call of a draft."""

    provider_kind: str
    adapter: str
    adapter_version: str
    renderer: str
    sdk: str | None = None
    endpoint: str | None = None
    requested_model: str | None = None
    origins: tuple[tuple[str, str], ...] = ()
    tools_digest: str | None = None


@dataclass(slots=True)
class Served:
    """What the endpoint says about its answer, as far as it has come."""

    model: str | None = None
    response_id: str | None = None
    created: int = 0
    service_tier: str | None = None
    fingerprint: str | None = None
    finish_reason: str | None = None
    """As the vendor wrote it."""

    blocks: tuple[Mapping[str, Any], ...] = ()
    """See `CallEvidence.reasoning_blocks`."""

    @classmethod
    def of(cls, response: RathLLMChatResponse, *, finish_reason: str | None = None) -> Served:
        """Return what a whole response says."""
        return cls(
            model=response.model or None,
            response_id=response.id or None,
            created=response.created,
            service_tier=response.service_tier,
            fingerprint=response.system_fingerprint,
            finish_reason=finish_reason,
        )


class OpenCall:
    """Collects the evidence of one call; used on the runtime loop only."""

    __slots__ = ("_begun", "_first_token", "_status", "attempts", "credential", "digest",
                 "endpoint", "error", "facts", "folded", "parameters", "queued_ms", "response",
                 "sdk_version", "served", "started", "was_sent")  # fmt: skip

    def __init__(self, facts: CallFacts, *, parameters: Mapping[str, Any], digest: str) -> None:
        self.facts = facts
        self.parameters = parameters
        self.digest = digest
        self.started = datetime.now(UTC)
        self.attempts: list[Attempt] = []
        self.queued_ms = 0.0
        self.was_sent = False
        self.endpoint = facts.endpoint
        self.credential: str | None = None
        self.sdk_version: str | None = None
        self.served = Served()
        self.folded: StreamFold | None = None
        self.response: RathLLMChatResponse | None = None
        self.error: str | None = None
        self._begun = time.perf_counter()
        self._first_token: float | None = None
        # A call that nobody ended was cancelled.
        self._status: CallStatus = "cancelled"

    def reached(
        self, endpoint: str | None, *, sdk_version: str | None, credential: str | None
    ) -> None:
        """Remember what is known once there is a way to the endpoint."""
        self.endpoint, self.sdk_version, self.credential = endpoint, sdk_version, credential

    def begin_stream(self) -> StreamFold:
        """Start to fold an answer from nothing; a try that failed before is forgotten."""
        self.folded = StreamFold()
        self._first_token = None
        return self.folded

    def note_token(self) -> None:
        """Remember when the first delta came."""
        if self._first_token is None:
            self._first_token = self.elapsed_ms()

    def elapsed_ms(self) -> float:
        """Return the time since the call began."""
        return (time.perf_counter() - self._begun) * 1000

    def finish(self, response: RathLLMChatResponse) -> Exchange:
        """Return the exchange that this call was."""
        self.response = response
        self._status = "done"
        return Exchange(response, self.evidence())

    def fail(self, error: BaseException) -> CallEvidence:
        """Return the evidence of a call that ended with `error`."""
        self._status = "failed"
        self.error = f"{type(error).__name__}: {error}"
        return self.evidence()

    def evidence(self) -> CallEvidence:
        """Return what is known now."""
        facts, served = self.facts, self.served
        response = self.response
        folded = self.folded
        choice = response.choices[0] if response is not None and response.choices else None
        usage = _usage_of(response, folded)
        reasoning = choice.message.reasoning_content if choice else None
        if reasoning is None and folded is not None:
            reasoning = folded.reasoning
        return CallEvidence(
            provider_kind=facts.provider_kind,
            adapter=facts.adapter,
            adapter_version=facts.adapter_version,
            sdk=facts.sdk,
            sdk_version=self.sdk_version,
            endpoint=self.endpoint,
            requested_model=facts.requested_model,
            served_model=served.model,
            response_id=served.response_id,
            service_tier=served.service_tier,
            fingerprint=served.fingerprint,
            parameters=self.parameters,
            origins=facts.origins,
            credential=self.credential,
            attempts=tuple(self.attempts),
            started=self.started,
            first_token_ms=self._first_token,
            duration_ms=self.elapsed_ms(),
            finish_reason=choice.finish_reason if choice else None,
            finish_reason_raw=served.finish_reason,
            usage=usage,
            cached_tokens=_count(usage, "prompt", "cached_tokens"),
            cache_write_tokens=_count(usage, "prompt", "cache_write_tokens"),
            reasoning_tokens=_count(usage, "completion", "reasoning_tokens"),
            reasoning=reasoning,
            reasoning_blocks=served.blocks,
            request_digest=self.digest,
            tools_digest=facts.tools_digest,
            renderer=facts.renderer,
            status=self._status,
            error=self.error,
            partial_text="" if folded is None or self._status == "done" else folded.text,
            queued_ms=self.queued_ms,
            was_sent=self.was_sent,
        )


def _usage_of(
    response: RathLLMChatResponse | None, folded: StreamFold | None
) -> RathLLMTokenUsage | None:
    if response is not None:
        return response.usage
    return None if folded is None else folded.usage


def _count(
    usage: RathLLMTokenUsage | None, side: Literal["prompt", "completion"], name: str
) -> int | None:
    if usage is None:
        return None
    details = usage.prompt_tokens_details if side == "prompt" else usage.completion_tokens_details
    value = details.get(name) if details else None
    return value if isinstance(value, int) else None
