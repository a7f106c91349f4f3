"""Evidence of model calls: the facts of a draft, the recorder of a call, the finished exchange."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, Self, TypeAlias

from msgspec import Meta, Struct, structs

from rath._async.retry import Attempt
from rath._core.dataclasses import dataclass
from rath._core.lazy_imports import lazy_modules
from rath.errors import ProviderError
from rath.llm.chat_response import RathLLMChatResponse, RathLLMStreamDelta, RathLLMTokenUsage

if TYPE_CHECKING:
    from rath.llm import prices, stream
    from rath.llm.prices import Cost

    JsonValue: TypeAlias = (
        "str | int | float | bool | Sequence[JsonValue] | Mapping[str, JsonValue] | None"
    )
else:
    prices, stream = lazy_modules(__name__, "rath.llm.prices", "rath.llm.stream")
    JsonValue = Any  # msgspec knows no type that holds itself
CallStatus = Literal["done", "failed", "cancelled"]
OnDelta = Callable[[RathLLMStreamDelta], Awaitable[None] | None]


class CallEvidence(Struct, frozen=True, kw_only=True, dict=True, omit_defaults=True):
    """The evidence of one model call; it holds no credential and no message."""

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
    started: Annotated[datetime, Meta(tz=True)]
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
    """The answer's whole content in the vendor's own form, kept where it holds more than text and
    tool calls (signed thinking, for example); it goes back only to the provider and model that it
    came from."""

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

    queued_ms: float = 0.0
    """Time spent waiting for a limit of `Provider` to let the call through, over all attempts."""

    was_sent: bool = True
    """Whether the call got as far as its endpoint; False where no try passed the limits."""

    fallback_from: str | None = None
    """Provider kind, endpoint and model whose failure led to this call, None for a first choice."""

    @property
    def cost(self) -> Cost | None:
        """Cost of the call, from its `usage`; None where no price or no usage is known.

        A call that failed or was cancelled costs what its usage says. The first question of a
        process for a cost takes 0.5 s, since it loads the price list.
        """
        known = vars(self)
        if "cost" not in known:
            known["cost"] = prices.cost_of(self)
        cost: Cost | None = known["cost"]
        return cost

    def settle_cost(self, cost: Cost | None) -> None:
        """Say once for all what the call cost, as a file does: prices change, and that does not."""
        vars(self)["cost"] = cost

    def __copy__(self) -> Self:
        return self

    def __reduce__(self) -> tuple[Callable[..., CallEvidence], tuple[Any, ...]]:
        return _evidence, (structs.asdict(self), dict(vars(self)))


def _evidence(values: Mapping[str, Any], known: Mapping[str, Any]) -> CallEvidence:
    evidence = CallEvidence(**values)
    vars(evidence).update(known)
    return evidence


@dataclass(frozen=True, slots=True)
class Exchange:
    """A model call that was answered."""

    response: RathLLMChatResponse
    evidence: CallEvidence


def evidence_of(error: BaseException) -> CallEvidence | None:
    """Return what is known of the model call that ended with `error`, if it was one."""
    evidence = getattr(error, "evidence", None)
    return evidence if isinstance(evidence, CallEvidence) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftFacts:
    """The part of the evidence that is the same for every call of a draft."""

    provider_kind: str
    adapter: str
    adapter_version: str
    renderer: str
    sdk: str | None = None
    endpoint: str | None = None
    requested_model: str | None = None
    origins: tuple[tuple[str, str], ...] = ()
    tools_digest: str | None = None


_FACTS = tuple(item.name for item in fields(DraftFacts))


class CallPermit(Protocol):
    """One try of a call that limits beyond those of its provider let through."""

    def note_status(self, status: int | None) -> None:
        """Take how the try ended: 200, the HTTP status of a refusal, or None where none is known.

        Only the first one counts.
        """
        ...

    def settle(self, evidence: CallEvidence) -> None:
        """Take what the whole call used, at its end."""
        ...


class CallRecorder:
    """Collects the evidence of one call; used on the runtime loop only."""

    __slots__ = ("_first_token", "_started_at", "_status", "attempts", "credential", "digest",
                 "endpoint", "error", "facts", "folded", "parameters", "permit", "queued_ms",
                 "response", "sdk_version", "served", "started", "was_sent")  # fmt: skip

    def __init__(self, facts: DraftFacts, *, parameters: Mapping[str, Any], digest: str) -> None:
        self.facts: DraftFacts = facts
        self.parameters: Mapping[str, Any] = parameters
        self.digest: str = digest
        self.started: datetime = datetime.now(UTC)
        self.attempts: list[Attempt] = []
        self.queued_ms: float = 0.0
        self.was_sent: bool = False
        self.permit: CallPermit | None = None
        self.endpoint = facts.endpoint
        self.credential: str | None = None
        self.sdk_version: str | None = None
        self.served: stream.ServedInfo = stream.ServedInfo()
        self.folded: stream.StreamFold | None = None
        self.response: RathLLMChatResponse | None = None
        self.error: str | None = None
        self._started_at = time.perf_counter()
        self._first_token: float | None = None
        # A call that nobody ended was cancelled.
        self._status: CallStatus = "cancelled"

    def reached(
        self, endpoint: str | None, *, sdk_version: str | None, credential: str | None
    ) -> None:
        """Remember what is known once there is a way to the endpoint."""
        self.endpoint, self.sdk_version, self.credential = endpoint, sdk_version, credential

    def end_try(self, attempt: Attempt) -> None:
        """Take what a try came to."""
        self.attempts.append(attempt)
        if self.permit is not None:
            self.permit.note_status(200 if attempt.error is None else attempt.status)

    def begin_stream(self) -> stream.StreamFold:
        """Start to fold an answer from nothing; a try that failed before is forgotten."""
        self.folded = stream.StreamFold()
        self._first_token = None
        return self.folded

    def noting_tokens(self, deltas: Iterable[RathLLMStreamDelta]) -> Iterator[RathLLMStreamDelta]:
        """Yield `deltas`, and remember when the first one came."""
        for delta in deltas:
            if self._first_token is None:
                self._first_token = self.elapsed_ms()
            yield delta

    def elapsed_ms(self) -> float:
        """Return the time since the call began."""
        return (time.perf_counter() - self._started_at) * 1000

    def finish(self, response: RathLLMChatResponse) -> Exchange:
        """Return the exchange that this call was."""
        self.response = response
        self._status = "done"
        return Exchange(response, self._settled(200))

    def fail(self, error: BaseException) -> CallEvidence:
        """Return the evidence of a call that ended with `error`, which gets it if it can."""
        self._status = "failed"
        self.error = f"{type(error).__name__}: {error}"
        evidence = self._settled(getattr(error, "status", None))
        if isinstance(error, ProviderError):
            error.evidence = evidence
        return evidence

    def cancel(self) -> None:
        """Take that the call was cut off."""
        self._settled(None)

    def _settled(self, status: int | None) -> CallEvidence:
        """Return the evidence at the end, once its limits know what was used."""
        evidence = self.evidence()
        permit, self.permit = self.permit, None
        if permit is not None:
            permit.note_status(status)
            permit.settle(evidence)
        return evidence

    def evidence(self) -> CallEvidence:
        """Return what is known now."""
        facts, served, response, folded = self.facts, self.served, self.response, self.folded
        choice = response.choices[0] if response is not None and response.choices else None
        source = folded if response is None else response
        usage = None if source is None else source.usage
        reasoning = choice.message.reasoning_content if choice else None
        if reasoning is None and folded is not None:
            reasoning = folded.reasoning
        prompt = usage.prompt_tokens_details if usage else None
        completion = usage.completion_tokens_details if usage else None
        known: dict[str, Any] = {name: getattr(facts, name) for name in _FACTS}
        known["endpoint"] = self.endpoint
        return CallEvidence(
            **known,
            sdk_version=self.sdk_version,
            served_model=served.model,
            response_id=served.response_id,
            service_tier=served.service_tier,
            fingerprint=served.fingerprint,
            parameters=self.parameters,
            credential=self.credential,
            attempts=tuple(self.attempts),
            started=self.started,
            first_token_ms=self._first_token,
            duration_ms=self.elapsed_ms(),
            finish_reason=choice.finish_reason if choice else None,
            finish_reason_raw=served.finish_reason,
            usage=usage,
            cached_tokens=_count(prompt, "cached_tokens"),
            cache_write_tokens=_count(prompt, "cache_write_tokens"),
            reasoning_tokens=_count(completion, "reasoning_tokens"),
            reasoning=reasoning,
            reasoning_blocks=served.blocks,
            request_digest=self.digest,
            status=self._status,
            error=self.error,
            partial_text="" if folded is None or self._status == "done" else folded.text,
            queued_ms=self.queued_ms,
            was_sent=self.was_sent,
        )


def _count(details: Mapping[str, Any] | None, name: str) -> int | None:
    value = details.get(name) if details else None
    return value if isinstance(value, int) else None
