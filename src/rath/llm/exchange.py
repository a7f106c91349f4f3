"""One model call as it was: what was asked, what answered, and what it took."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias

from msgspec import Meta, Struct, structs

from rath._async.retry import Attempt
from rath.llm.chat_response import RathLLMChatResponse, RathLLMTokenUsage
from rath.llm.prices import Cost, cost_of

__all__ = ["CallEvidence", "CallStatus", "Exchange", "JsonValue", "evidence_of"]

if TYPE_CHECKING:
    JsonValue: TypeAlias = (
        "str | int | float | bool | Sequence[JsonValue] | Mapping[str, JsonValue] | None"
    )
else:
    JsonValue = Any  # msgspec knows no type that holds itself
CallStatus = Literal["done", "failed", "cancelled"]


class CallEvidence(Struct, frozen=True, kw_only=True, dict=True, omit_defaults=True):
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
        """What the call cost, from its `usage`; None where no price or no usage is known.

        A call that failed or was cancelled costs what its usage says. The first question of a
        process for a cost takes 0.5 s, since it loads the price list.
        """
        known = vars(self)
        if "cost" not in known:
            known["cost"] = cost_of(self)
        cost: Cost | None = known["cost"]
        return cost

    def settle_cost(self, cost: Cost | None) -> None:
        """Say once for all what the call cost, as a file does: prices change, and that does not."""
        vars(self)["cost"] = cost

    def __copy__(self) -> Self:
        return self

    def __reduce__(self) -> tuple[Callable[..., CallEvidence], tuple[Any, ...]]:
        return _evidence, (structs.asdict(self), dict(vars(self)))


def _evidence(fields: Mapping[str, Any], known: Mapping[str, Any]) -> CallEvidence:
    evidence = CallEvidence(**fields)
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
