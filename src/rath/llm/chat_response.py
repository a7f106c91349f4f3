"""The answer of a chat client, in one piece or in deltas, and the fields of a vendor's JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast

from rath._core.dataclasses import dataclass
from rath._core.text import valid_unicode
from rath.llm.tool_args import parse_tool_arguments

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

_TOO_MANY = 2**63
"""No count reaches it; JSON may hold such numbers, and infinity."""

RathLLMFinishReason = Literal[
    "stop", "length", "tool_calls", "content_filter", "function_call", "refusal", "pause_turn"
]
"""Reason for the end of an answer. "refusal": the model declined. "pause_turn": the vendor paused a
long turn, which goes on when the answer is sent back as it is."""


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
    """The function that a model calls, and its arguments."""

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


def tool_call_part(
    call_id: str, name: str, arguments: str, *, kind: str = "function"
) -> RathLLMToolCallPart:
    """Return a tool call with its arguments parsed."""
    text = valid_unicode(arguments)
    parsed, failed = parse_tool_arguments(text)
    return RathLLMToolCallPart(
        id=valid_unicode(call_id),
        type=kind,
        function=RathLLMToolCallFunction(
            name=valid_unicode(name),
            arguments=text,
            arguments_parsed=parsed,
            arguments_parse_error=failed,
        ),
    )


def text_of(value: object) -> str | None:
    """Return a text with valid characters, None for what is no text."""
    return valid_unicode(value) if isinstance(value, str) else None


def count_of(value: object) -> int | None:
    """Return a count or an index; None for what can be neither."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value < _TOO_MANY else None


def fields_of(value: object) -> Mapping[str, Any]:
    """Return the fields of a JSON object, and none of anything else."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def objects_of(value: object) -> list[Mapping[str, Any]]:
    """Return the JSON objects of a list; what is not one is left out."""
    items = cast("list[object]", value) if isinstance(value, list) else []
    return [cast("Mapping[str, Any]", item) for item in items if isinstance(item, Mapping)]
