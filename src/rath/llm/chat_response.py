"""What a chat client answers, whole or in deltas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

__all__ = [
    "RathLLMAssistantMessage",
    "RathLLMChatChoice",
    "RathLLMChatResponse",
    "RathLLMFinishReason",
    "RathLLMStreamDelta",
    "RathLLMTokenUsage",
    "RathLLMToolCallFunction",
    "RathLLMToolCallPart",
    "add_usage",
]

RathLLMFinishReason = Literal[
    "stop", "length", "tool_calls", "content_filter", "function_call", "refusal", "pause_turn"
]
"""Why an answer ended. "refusal": the model declined. "pause_turn": the vendor paused a long turn,
which goes on when the answer is sent back as it is."""


@dataclass(frozen=True, slots=True)
class RathLLMTokenUsage:
    """Token counts of one call, or of several added up."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    completion_tokens_details: Mapping[str, Any] | None = None
    prompt_tokens_details: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class RathLLMToolCallFunction:
    """Which function a model calls, and with what."""

    name: str
    arguments: str
    """The text that the model wrote, which need not be JSON."""

    arguments_parsed: dict[str, Any] | None
    """The arguments as an object, or None where the text is empty or not one."""

    arguments_parse_error: bool
    """Whether the text is something else than a JSON object; an empty text is no error."""


@dataclass(frozen=True, slots=True)
class RathLLMToolCallPart:
    """One tool call of an answer."""

    id: str
    type: str
    function: RathLLMToolCallFunction


@dataclass(frozen=True, slots=True)
class RathLLMAssistantMessage:
    """The message of an answer."""

    role: Literal["assistant"] = "assistant"
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    tool_calls: tuple[RathLLMToolCallPart, ...] | None = None
    function_call: Mapping[str, Any] | None = None
    annotations: tuple[Mapping[str, Any], ...] | None = None


@dataclass(frozen=True, slots=True)
class RathLLMChatChoice:
    """One of the answers that were asked for; usually the only one."""

    index: int
    finish_reason: RathLLMFinishReason
    message: RathLLMAssistantMessage
    logprobs: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class RathLLMChatResponse:
    """A whole answer."""

    id: str
    choices: tuple[RathLLMChatChoice, ...]
    created: int
    """Seconds since 1970, or 0 where the vendor does not say."""

    model: str
    """The model that the vendor says it used."""

    object_type: Literal["chat.completion"] = "chat.completion"
    service_tier: str | None = None
    system_fingerprint: str | None = None
    usage: RathLLMTokenUsage | None = None
    raw: Mapping[str, Any] | None = None
    """The vendor's own answer, where there was one."""

    @property
    def primary_choice(self) -> RathLLMChatChoice:
        """The first choice.

        Raises:
            IndexError: The answer has no choices.
        """
        return self.choices[0]


@dataclass(frozen=True, slots=True)
class RathLLMStreamDelta:
    """A piece of a streamed answer; the fields that it does not bring are None."""

    content_delta: str | None = None
    tool_call_index: int | None = None
    tool_call_id: str | None = None
    tool_call_name_delta: str | None = None
    tool_call_args_delta: str | None = None
    finish_reason: RathLLMFinishReason | None = None
    usage: RathLLMTokenUsage | None = None
    reasoning_delta: str | None = None
    refusal_delta: str | None = None


def add_usage(a: RathLLMTokenUsage | None, b: RathLLMTokenUsage | None) -> RathLLMTokenUsage | None:
    """Return the sum of two counts, of which each may be missing.

    A sum has no details: what they count differs between vendors.
    """
    if a is None:
        return b
    if b is None:
        return a
    return RathLLMTokenUsage(
        prompt_tokens=a.prompt_tokens + b.prompt_tokens,
        completion_tokens=a.completion_tokens + b.completion_tokens,
        total_tokens=a.total_tokens + b.total_tokens,
    )
