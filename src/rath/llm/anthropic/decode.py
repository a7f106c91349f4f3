"""Answers of Anthropic's Messages API as typed values; pure functions over JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from rath._core.text import valid_unicode
from rath.errors import ProviderError
from rath.llm.call import Served
from rath.llm.chat_response import (
    RathLLMAssistantMessage,
    RathLLMChatChoice,
    RathLLMChatResponse,
    RathLLMFinishReason,
    RathLLMTokenUsage,
    RathLLMToolCallPart,
)
from rath.llm.failure import Asked, protocol_error, status_error, untyped_error
from rath.llm.fold import tool_call_part

__all__ = [
    "arguments_text",
    "decode_message",
    "decode_usage",
    "finish_reason_of",
    "kept_blocks",
    "normalize_anthropic_response",
    "reported_error",
    "text_of",
]

Json = Mapping[str, Any]

_TOO_MANY = 2**63
"""No count reaches it; JSON may hold such numbers, and infinity."""

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
_STATUS_OF_TYPE = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "conflict_error": 409,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""Statuses for errors that come in the body of an answer with status 200."""


def normalize_anthropic_response(payload: Json) -> RathLLMChatResponse:
    """Return the JSON of an answer as a response.

    Texts are joined by line feeds, and so are thoughts. A stop reason that is unknown or missing
    becomes "stop". Cached tokens count as prompt tokens, as they do elsewhere.
    """
    content = _objects(payload.get("content"))
    calls = _tool_calls(content)
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


def decode_message(payload: Json, asked: Asked) -> tuple[RathLLMChatResponse, Served]:
    """Return an answer, and what the endpoint says about it.

    Raises:
        ProviderError: The answer reports an error, or has no content.
    """
    error: object = payload.get("error")
    is_typed = payload.get("type") == "error"
    if isinstance(error, str) and error and not is_typed:
        raise untyped_error(asked, error)
    if is_typed or error:
        raise reported_error(error, asked)
    if not isinstance(payload.get("content"), list):
        found = json.dumps(payload, ensure_ascii=False).encode(errors="replace")
        raise protocol_error(asked, "without any content", found)
    response = normalize_anthropic_response(payload)
    served = Served.of(response, finish_reason=text_of(payload.get("stop_reason")))
    served.blocks = kept_blocks(_objects(payload["content"]))
    return response, served


def finish_reason_of(stop_reason: object) -> RathLLMFinishReason:
    """Return the finish reason for a stop reason; "stop" for an unknown one."""
    if not isinstance(stop_reason, str):
        return "stop"
    return _FINISH_REASONS.get(stop_reason, "stop")


def refusal_of(ended: Json) -> str | None:
    """Return why the model declined, where `stop_details` say so."""
    return text_of(_fields(ended.get("stop_details")).get("explanation")) or None


def service_tier_of(usage: object) -> str | None:
    """Return the tier that served a call, which stands among its token counts."""
    return text_of(_fields(usage).get("service_tier"))


def decode_usage(value: object) -> RathLLMTokenUsage | None:
    """Return token counts, or None where there are none."""
    counts = _fields(value)
    read = _integer(counts.get("cache_read_input_tokens"))
    written = _integer(counts.get("cache_creation_input_tokens"))
    prompt = (_integer(counts.get("input_tokens")) or 0) + (read or 0) + (written or 0)
    completion = _integer(counts.get("output_tokens")) or 0
    if not prompt and not completion:
        return None
    thought = _integer(_fields(counts.get("output_tokens_details")).get("thinking_tokens"))
    # Kept an hour a token costs more than kept for five minutes.
    hour = _integer(_fields(counts.get("cache_creation")).get("ephemeral_1h_input_tokens")) or None
    return RathLLMTokenUsage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        completion_tokens_details=None if thought is None else {"reasoning_tokens": thought},
        prompt_tokens_details=_given(
            cached_tokens=read, cache_write_tokens=written, cache_write_1h_tokens=hour
        ),
    )


def kept_blocks(content: Sequence[Json]) -> tuple[Json, ...]:
    """Return the whole content where it holds more than text and tool calls, else nothing."""
    if all(text_of(block.get("type")) in _PLAIN for block in content):
        return ()
    return tuple(_valid(block) for block in content)


def reported_error(error: object, asked: Asked) -> ProviderError:
    """Return the error that stands in an answer, or in an event, whose status is 200."""
    body = _fields(error) or {"message": error}
    kind = text_of(body.get("type"))
    code = _fields(body.get("details")).get("error_code")
    message = text_of(body.get("message")) or kind or "an error that it does not name"
    status = _STATUS_OF_TYPE.get(kind or "", 500)
    return status_error(asked, status, message, code=text_of(code) or kind)


def arguments_text(value: object) -> str:
    """Return the input of a call as the text of its arguments."""
    return json.dumps({} if value is None else value, ensure_ascii=False)


def text_of(value: object) -> str | None:
    """Return a text with valid characters, None for what is no text."""
    return valid_unicode(value) if isinstance(value, str) else None


def _tool_calls(content: Sequence[Json]) -> tuple[RathLLMToolCallPart, ...]:
    used = [block for block in content if block.get("type") == "tool_use"]
    return tuple(
        tool_call_part(
            text_of(block.get("id")) or f"call_{number}",
            text_of(block.get("name")) or "",
            arguments_text(block.get("input")),
        )
        for number, block in enumerate(used)
    )


def _joined(texts: Iterable[object]) -> str | None:
    said = [text for text in texts if isinstance(text, str) and text]
    return valid_unicode("\n".join(said)) if said else None


def _given(**counts: int | None) -> dict[str, int] | None:
    known = {name: count for name, count in counts.items() if count is not None}
    return known or None


def _objects(value: object) -> list[Json]:
    """Return the JSON objects of a list; what is not one is left out."""
    if not isinstance(value, list):
        return []
    return [cast("Json", item) for item in cast("list[object]", value) if isinstance(item, Mapping)]


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


def _fields(value: object) -> Json:
    """Return the fields of a JSON object, and none of anything else."""
    return cast("Json", value) if isinstance(value, Mapping) else {}


def _integer(value: object) -> int | None:
    """Return a count; None for what can be none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value < _TOO_MANY else None
