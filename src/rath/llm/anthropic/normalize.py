"""Answers of Anthropic's Messages API as typed values; pure functions over JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from rath._core.text import valid_unicode
from rath.llm.chat_response import (
    RathLLMAssistantMessage,
    RathLLMChatChoice,
    RathLLMChatResponse,
    RathLLMFinishReason,
    RathLLMTokenUsage,
    count_of,
    fields_of,
    objects_of,
    text_of,
    tool_call_part,
)
from rath.llm.credentials import RequestTarget
from rath.llm.errors import answer_error, incomplete_error
from rath.llm.stream import ServedInfo

__all__ = ["normalize_anthropic_response"]

Json = Mapping[str, Any]

_FINISH_REASONS: Mapping[object, RathLLMFinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "refusal",
    "pause_turn": "pause_turn",
}
_PLAIN = frozenset({"text", "tool_use"})


def normalize_anthropic_response(payload: Json) -> RathLLMChatResponse:
    """Return the JSON of an answer as a response.

    Texts are joined by line feeds, and so are thoughts. A stop reason that is unknown or missing
    becomes "stop". Cached tokens count as prompt tokens, as they do elsewhere.
    """
    content = objects_of(payload.get("content"))
    used = [block for block in content if block.get("type") == "tool_use"]
    calls = tuple(
        tool_call_part(
            text_of(block.get("id")) or f"call_{number}",
            text_of(block.get("name")) or "",
            arguments_text(block.get("input")),
        )
        for number, block in enumerate(used)
    )
    reason = finish_reason_of(payload.get("stop_reason"))
    message = RathLLMAssistantMessage(
        content=_joined(block.get("text") for block in content if block.get("type") == "text"),
        refusal=refusal_of(payload),
        reasoning_content=_joined(
            block.get("thinking") for block in content if block.get("type") == "thinking"
        ),
        tool_calls=calls or None,
    )
    usage = payload.get("usage")
    return RathLLMChatResponse(
        id=text_of(payload.get("id")) or "",
        choices=(RathLLMChatChoice(index=0, finish_reason=reason, message=message),),
        created=0,
        model=text_of(payload.get("model")) or "",
        service_tier=service_tier_of(usage),
        usage=decode_usage(usage),
        raw=payload,
    )


def decode_message(payload: Json, target: RequestTarget) -> tuple[RathLLMChatResponse, ServedInfo]:
    """Return an answer, and what the endpoint says about it.

    Raises:
        ProviderError: The answer reports an error, or has no content.
    """
    if error := answer_error(payload, target):
        raise error
    if not isinstance(payload.get("content"), list):
        raise incomplete_error(target, "any content", payload)
    response = normalize_anthropic_response(payload)
    served = ServedInfo.of(response, finish_reason=text_of(payload.get("stop_reason")))
    served.blocks = kept_blocks(objects_of(payload["content"]))
    return response, served


def finish_reason_of(stop_reason: object) -> RathLLMFinishReason:
    """Return the finish reason for a stop reason; "stop" for an unknown one."""
    if not isinstance(stop_reason, str):
        return "stop"
    return _FINISH_REASONS.get(stop_reason, "stop")


def refusal_of(ended: Json) -> str | None:
    """Return why the model declined, where `stop_details` say so."""
    return text_of(fields_of(ended.get("stop_details")).get("explanation")) or None


def service_tier_of(usage: object) -> str | None:
    """Return the tier that served a call, which stands among its token counts."""
    return text_of(fields_of(usage).get("service_tier"))


def decode_usage(value: object) -> RathLLMTokenUsage | None:
    """Return token counts, or None where there are none."""
    counts = fields_of(value)
    read = count_of(counts.get("cache_read_input_tokens"))
    written = count_of(counts.get("cache_creation_input_tokens"))
    prompt = (count_of(counts.get("input_tokens")) or 0) + (read or 0) + (written or 0)
    completion = count_of(counts.get("output_tokens")) or 0
    if not prompt and not completion:
        return None
    thought = count_of(fields_of(counts.get("output_tokens_details")).get("thinking_tokens"))
    # Kept an hour a token costs more than kept for five minutes.
    hour = (
        count_of(fields_of(counts.get("cache_creation")).get("ephemeral_1h_input_tokens")) or None
    )
    details = {
        "cached_tokens": read, "cache_write_tokens": written, "cache_write_1h_tokens": hour,
    }  # fmt: skip
    return RathLLMTokenUsage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        completion_tokens_details=None if thought is None else {"reasoning_tokens": thought},
        prompt_tokens_details={n: count for n, count in details.items() if count is not None}
        or None,
    )


def kept_blocks(content: Sequence[Json]) -> tuple[Json, ...]:
    """Return the whole content where it holds more than text and tool calls, else nothing."""
    if all(text_of(block.get("type")) in _PLAIN for block in content):
        return ()
    return tuple(_valid(block) for block in content)


def arguments_text(value: object) -> str:
    """Return the input of a call as the text of its arguments."""
    return json.dumps({} if value is None else value, ensure_ascii=False)


def _joined(texts: Iterable[object]) -> str | None:
    known = [text for text in texts if isinstance(text, str) and text]
    return valid_unicode("\n".join(known)) if known else None


def _valid(value: Any) -> Any:
    """Return JSON whose texts are valid, at every depth."""
    if isinstance(value, str):
        return valid_unicode(value)
    if isinstance(value, Mapping):
        named = cast("Mapping[str, Any]", value)
        return {valid_unicode(name): _valid(item) for name, item in named.items()}
    if isinstance(value, list):
        return [_valid(item) for item in cast("list[object]", value)]
    return value
