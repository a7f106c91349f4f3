"""Answers and chunks of a chat completion as typed values; pure functions over JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast, get_args

from rath.llm.chat_response import (
    RathLLMAssistantMessage,
    RathLLMChatChoice,
    RathLLMChatResponse,
    RathLLMFinishReason,
    RathLLMStreamDelta,
    RathLLMTokenUsage,
    RathLLMToolCallPart,
    count_of,
    fields_of,
    objects_of,
    text_of,
    tool_call_part,
)
from rath.llm.credentials import RequestTarget
from rath.llm.errors import answer_error, incomplete_error, reported_error
from rath.llm.stream import ChunkDecoder, ServedInfo

__all__ = ["normalize_chat_completion"]

Json = Mapping[str, Any]

_FINISH_REASONS = frozenset(get_args(RathLLMFinishReason))


class Dumpable(Protocol):
    """A model object of the SDK."""

    def model_dump(self, *, mode: str) -> dict[str, Any]: ...


def normalize_chat_completion(completion: Dumpable | Json) -> RathLLMChatResponse:
    """Return an answer of the SDK, or its JSON, as a response.

    A finish reason that is unknown or missing becomes "stop". Lone surrogates in texts are
    replaced. A tool call without an id gets one.
    """
    payload = completion if isinstance(completion, Mapping) else completion.model_dump(mode="json")
    choices = objects_of(payload.get("choices"))
    return RathLLMChatResponse(
        id=text_of(payload.get("id")) or "",
        choices=tuple(_choice(index, choice) for index, choice in enumerate(choices)),
        created=count_of(payload.get("created")) or 0,
        model=text_of(payload.get("model")) or "",
        service_tier=text_of(payload.get("service_tier")),
        system_fingerprint=text_of(payload.get("system_fingerprint")),
        usage=_usage(payload.get("usage")),
        raw=payload,
    )


def decode_completion(
    payload: Json, target: RequestTarget
) -> tuple[RathLLMChatResponse, ServedInfo]:
    """Return an answer, and what the endpoint says about it.

    Raises:
        ProviderError: The answer reports an error, or has no choices.
    """
    if error := answer_error(payload, target):
        raise error
    response = normalize_chat_completion(payload)
    if not response.choices:
        raise incomplete_error(target, "any choices", payload)
    raw_reason = text_of(objects_of(payload.get("choices"))[0].get("finish_reason"))
    return response, ServedInfo.of(response, finish_reason=raw_reason)


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


class OpenAIChunkDecoder(ChunkDecoder):
    """Reads the chunks of one stream; the vendor's `[DONE]` is its end marker."""

    __slots__ = ()

    def read(self, event: dict[str, Any]) -> Sequence[RathLLMStreamDelta]:
        if event.get("error"):
            raise reported_error(event["error"], self.target)
        served = self.served
        if served.response_id is None:
            served.response_id = text_of(event.get("id"))
            served.created = count_of(event.get("created")) or 0
        served.model = served.model or text_of(event.get("model")) or None
        if served.fingerprint is None:
            served.fingerprint = text_of(event.get("system_fingerprint"))
        if served.service_tier is None:
            served.service_tier = text_of(event.get("service_tier"))
        choices = event.get("choices")
        if choices and (reason := choices[0].get("finish_reason")):
            served.finish_reason = text_of(reason)
        return chunk_to_deltas(event)


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
                tool_call_index=count_of(call.get("index")),
                tool_call_id=text_of(call.get("id")),
                tool_call_name_delta=text_of(function.get("name")),
                tool_call_args_delta=_arguments(arguments) if arguments is not None else None,
            )
        )


def _choice(position: int, choice: Json) -> RathLLMChatChoice:
    reason = text_of(choice.get("finish_reason"))
    index = count_of(choice.get("index"))
    return RathLLMChatChoice(
        index=position if index is None else index,
        finish_reason=cast("RathLLMFinishReason", reason) if reason in _FINISH_REASONS else "stop",
        message=_message(fields_of(choice.get("message"))),
        logprobs=_details(choice.get("logprobs")),
    )


def _message(message: Json) -> RathLLMAssistantMessage:
    calls = _tool_calls(objects_of(message.get("tool_calls")))
    annotations = tuple(objects_of(message.get("annotations")))
    return RathLLMAssistantMessage(
        content=text_of(message.get("content")),
        refusal=text_of(message.get("refusal")),
        reasoning_content=text_of(message.get("reasoning_content") or message.get("reasoning")),
        tool_calls=calls or None,
        function_call=_details(message.get("function_call")),
        annotations=annotations or None,
    )


def _tool_calls(calls: Sequence[Json]) -> tuple[RathLLMToolCallPart, ...]:
    ids = {text_of(call.get("id")) for call in calls}
    free = (name for number in range(2 * len(calls)) if (name := f"call_{number}") not in ids)
    parts: list[RathLLMToolCallPart] = []
    for call in calls:
        kind = text_of(call.get("type")) or "function"
        # A "custom" call has a name and a text as input where a function call has arguments.
        body = _details(call.get("function")) or _details(call.get("custom")) or {}
        arguments = _arguments(body.get("arguments", body.get("input")))
        call_id = text_of(call.get("id")) or next(free)
        parts.append(tool_call_part(call_id, text_of(body.get("name")) or "", arguments, kind=kind))
    return tuple(parts)


def _arguments(value: object) -> str:
    """Return arguments as text; some servers send the object itself."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False)


def _usage(value: object) -> RathLLMTokenUsage | None:
    counts = _details(value)
    if counts is None:
        return None
    prompt = count_of(counts.get("prompt_tokens")) or 0
    completion = count_of(counts.get("completion_tokens")) or 0
    total = count_of(counts.get("total_tokens"))
    details = _details(counts.get("prompt_tokens_details"))
    hit = count_of(counts.get("prompt_cache_hit_tokens"))
    if hit is not None and (not details or details.get("cached_tokens") is None):
        # DeepSeek counts cached tokens beside the others.
        details = {**(details or {}), "cached_tokens": hit}
    return RathLLMTokenUsage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion if total is None else total,
        completion_tokens_details=_details(counts.get("completion_tokens_details")),
        prompt_tokens_details=details,
    )


def _details(value: object) -> Json | None:
    return cast("Json", value) if isinstance(value, Mapping) else None
