"""Answers and chunks of a chat completion as typed values; pure functions over JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast, get_args

from rath._core.text import valid_unicode
from rath.errors import ProviderError
from rath.llm.call import Served
from rath.llm.chat_response import (
    RathLLMAssistantMessage,
    RathLLMChatChoice,
    RathLLMChatResponse,
    RathLLMFinishReason,
    RathLLMStreamDelta,
    RathLLMTokenUsage,
    RathLLMToolCallPart,
)
from rath.llm.failure import Asked, protocol_error, status_error, untyped_error
from rath.llm.fold import tool_call_part

__all__ = [
    "OpenAIChunkDecoder",
    "answer_error",
    "chunk_to_deltas",
    "decode_completion",
    "normalize_chat_completion",
    "reported_error",
]

Json = Mapping[str, Any]

_TOO_MANY = 2**63
"""No count reaches it; JSON may hold such numbers, and infinity."""

_FINISH_REASONS = frozenset(get_args(RathLLMFinishReason))
_STATUS_OF_TYPE = {
    "authentication_error": 401,
    "invalid_request_error": 400,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "insufficient_quota": 429,
    "overloaded_error": 529,
    "server_error": 500,
    "api_error": 500,
    "internal_server_error": 500,
}
"""Statuses for errors that come in the body of an answer with status 200."""


class Dumpable(Protocol):
    """A model object of the SDK."""

    def model_dump(self, *, mode: str) -> dict[str, Any]: ...


def normalize_chat_completion(completion: Dumpable | Json) -> RathLLMChatResponse:
    """Return an answer of the SDK, or its JSON, as a response.

    A finish reason that is unknown or missing becomes "stop". Lone surrogates in texts are
    replaced. A tool call without an id gets one.
    """
    payload = completion if isinstance(completion, Mapping) else completion.model_dump(mode="json")
    return RathLLMChatResponse(
        id=_text(payload.get("id")) or "",
        choices=tuple(
            _choice(index, choice) for index, choice in enumerate(_objects(payload, "choices"))
        ),
        created=_integer(payload.get("created")) or 0,
        model=_text(payload.get("model")) or "",
        service_tier=_text(payload.get("service_tier")),
        system_fingerprint=_text(payload.get("system_fingerprint")),
        usage=_usage(payload.get("usage")),
        raw=payload,
    )


def decode_completion(payload: Json, asked: Asked) -> tuple[RathLLMChatResponse, Served]:
    """Return an answer, and what the endpoint says about it.

    Raises:
        ProviderError: The answer reports an error, or has no choices.
    """
    if payload.get("error"):
        raise answer_error(payload["error"], asked)
    response = normalize_chat_completion(payload)
    if not response.choices:
        content = json.dumps(payload, ensure_ascii=False).encode(errors="replace")
        raise protocol_error(asked, "without any choices", content)
    raw_reason = _text(_objects(payload, "choices")[0].get("finish_reason"))
    return response, Served.of(response, finish_reason=raw_reason)


def chunk_to_deltas(chunk: Json) -> tuple[RathLLMStreamDelta, ...]:
    """Return what a chunk says of the first choice: text, tool calls, finish reason, usage."""
    deltas: list[RathLLMStreamDelta] = []
    choices: list[Json] = chunk.get("choices") or []
    if choices:
        choice = choices[0]
        if not choice.get("index"):
            _read_delta(cast("Json", choice.get("delta") or {}), deltas)
            reason = choice.get("finish_reason")
            if reason in _FINISH_REASONS:
                deltas.append(RathLLMStreamDelta(finish_reason=reason))
    usage = chunk.get("usage")
    if usage:
        counts = _usage(usage)
        if counts is not None and counts.total_tokens:
            deltas.append(RathLLMStreamDelta(usage=counts))
    return tuple(deltas)


class OpenAIChunkDecoder:
    """Reads the chunks of one stream; the vendor's `[DONE]` is its end marker."""

    __slots__ = ("_asked", "ended", "served")

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self.served = Served()
        self.ended = False

    def decode_chunk(self, data: str) -> Sequence[RathLLMStreamDelta]:
        """Return what one event says; see `ChunkDecoder`."""
        if data.startswith("[DONE]"):
            self.ended = True
            return ()
        try:
            chunk: dict[str, Any] = json.loads(data)
        except RecursionError as exc:
            raise ValueError("a chunk that is nested too deeply") from exc
        if type(chunk) is not dict:
            raise ValueError("a chunk must be a JSON object")
        if chunk.get("error"):
            raise reported_error(chunk["error"], self._asked)
        try:
            self._note(chunk)
            return chunk_to_deltas(chunk)
        except (AttributeError, KeyError, IndexError, TypeError, RecursionError) as exc:
            raise ValueError(f"a chunk of an unknown form: {exc}") from exc

    def _note(self, chunk: dict[str, Any]) -> None:
        served = self.served
        if served.response_id is None:
            served.response_id = _text(chunk.get("id"))
            served.created = _integer(chunk.get("created")) or 0
        if served.model is None:
            served.model = _text(chunk.get("model")) or None
        if served.fingerprint is None:
            served.fingerprint = _text(chunk.get("system_fingerprint"))
        if served.service_tier is None:
            served.service_tier = _text(chunk.get("service_tier"))
        choices = chunk.get("choices")
        if choices and (reason := choices[0].get("finish_reason")):
            served.finish_reason = _text(reason)


def answer_error(error: object, asked: Asked) -> ProviderError:
    """Return the error that a whole answer with status 200 is."""
    return untyped_error(asked, error) if isinstance(error, str) else reported_error(error, asked)


def reported_error(error: object, asked: Asked) -> ProviderError:
    """Return the error that stands in an event, or in an answer, whose status is 200."""
    is_object = isinstance(error, Mapping)
    body: Json = cast("Json", error) if is_object else {"message": str(error)}
    code, kind = body.get("code"), _text(body.get("type"))
    named = _STATUS_OF_TYPE.get(kind or str(code), 500)
    status = code if isinstance(code, int) and 400 <= code < 600 else named
    text = _text(body.get("message")) or str(error)
    return status_error(asked, status, text, code=kind if code is None else str(code))


def _read_delta(delta: Json, into: list[RathLLMStreamDelta]) -> None:
    reasoning = delta.get("reasoning_content") or delta.get("reasoning")
    if isinstance(reasoning, str):
        into.append(RathLLMStreamDelta(reasoning_delta=reasoning))
    content = delta.get("content")
    if content and isinstance(content, str):
        into.append(RathLLMStreamDelta(content_delta=content))
    refusal = delta.get("refusal")
    if refusal and isinstance(refusal, str):
        into.append(RathLLMStreamDelta(refusal_delta=refusal))
    calls: list[Json] = delta.get("tool_calls") or []
    for call in calls:
        function: Json = call.get("function") or {}
        arguments = function.get("arguments")
        into.append(
            RathLLMStreamDelta(
                tool_call_index=_integer(call.get("index")),
                tool_call_id=_text(call.get("id")),
                tool_call_name_delta=_text(function.get("name")),
                tool_call_args_delta=_arguments(arguments) if arguments is not None else None,
            )
        )


def _choice(position: int, choice: Json) -> RathLLMChatChoice:
    reason = _text(choice.get("finish_reason"))
    index = _integer(choice.get("index"))
    return RathLLMChatChoice(
        index=position if index is None else index,
        finish_reason=cast("RathLLMFinishReason", reason) if reason in _FINISH_REASONS else "stop",
        message=_message(_details(choice.get("message")) or {}),
        logprobs=_details(choice.get("logprobs")),
    )


def _message(message: Json) -> RathLLMAssistantMessage:
    calls = _tool_calls(_objects(message, "tool_calls"))
    annotations = tuple(_objects(message, "annotations"))
    return RathLLMAssistantMessage(
        content=_text(message.get("content")),
        refusal=_text(message.get("refusal")),
        reasoning_content=_text(message.get("reasoning_content") or message.get("reasoning")),
        tool_calls=calls or None,
        function_call=_details(message.get("function_call")),
        annotations=annotations or None,
    )


def _tool_calls(calls: Sequence[Json]) -> tuple[RathLLMToolCallPart, ...]:
    taken = {_text(call.get("id")) for call in calls}
    free = (name for number in range(2 * len(calls)) if (name := f"call_{number}") not in taken)
    parts: list[RathLLMToolCallPart] = []
    for call in calls:
        kind = _text(call.get("type")) or "function"
        # A "custom" call has a name and a text as input where a function call has arguments.
        body = _details(call.get("function")) or _details(call.get("custom")) or {}
        arguments = _arguments(body.get("arguments", body.get("input")))
        call_id = _text(call.get("id")) or next(free)
        parts.append(tool_call_part(call_id, _text(body.get("name")) or "", arguments, kind=kind))
    return tuple(parts)


def _arguments(value: object) -> str:
    """Return arguments as text; some servers send the object itself."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False)


def _usage(value: object) -> RathLLMTokenUsage | None:
    if not isinstance(value, Mapping):
        return None
    counts = cast("Json", value)
    prompt = _integer(counts.get("prompt_tokens")) or 0
    completion = _integer(counts.get("completion_tokens")) or 0
    total = _integer(counts.get("total_tokens"))
    return RathLLMTokenUsage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion if total is None else total,
        completion_tokens_details=_details(counts.get("completion_tokens_details")),
        prompt_tokens_details=_prompt_details(counts),
    )


def _prompt_details(counts: Json) -> Json | None:
    details = _details(counts.get("prompt_tokens_details"))
    hit = _integer(counts.get("prompt_cache_hit_tokens"))
    if hit is None or (details and details.get("cached_tokens") is not None):
        return details
    # DeepSeek counts cached tokens beside the others.
    return {**(details or {}), "cached_tokens": hit}


def _details(value: object) -> Json | None:
    return cast("Json", value) if isinstance(value, Mapping) else None


def _objects(payload: Json, name: str) -> list[Json]:
    """Return the JSON objects of a list; what is not one is left out."""
    values: object = payload.get(name)
    if not isinstance(values, list):
        return []
    return [
        cast("Json", item) for item in cast("list[object]", values) if isinstance(item, Mapping)
    ]


def _text(value: object) -> str | None:
    return valid_unicode(value) if isinstance(value, str) else None


def _integer(value: object) -> int | None:
    """Return a count or a number in a list; None for what can be neither."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value < _TOO_MANY else None
