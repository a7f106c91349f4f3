"""Answers and chunks of LiteLLM as typed values: OpenAI's form, with what it adds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from rath.llm.chat_response import RathLLMChatResponse, RathLLMStreamDelta, objects_of
from rath.llm.credentials import RequestTarget
from rath.llm.openai.normalize import OpenAIChunkDecoder, decode_completion
from rath.llm.stream import ServedInfo

__all__ = ["END", "LiteLLMChunkDecoder", "decode_litellm", "event", "is_final"]

END = b"data: [DONE]\n\n"
"""What follows a stream that has reached its end."""


def decode_litellm(
    payload: Mapping[str, Any], asked: RequestTarget
) -> tuple[RathLLMChatResponse, ServedInfo]:
    """Return an answer, and what is said about it.

    LiteLLM writes zeros where a vendor counted nothing; they are no usage.

    Raises:
        ProviderError: The answer reports an error, or has no choices.
    """
    counted = (
        payload if _object(payload, "usage").get("total_tokens") else {**payload, "usage": None}
    )
    response, served = decode_completion(counted, asked)
    served.blocks = tuple(_blocks(_object(_first_choice(payload), "message")))
    return response, served


def event(chunk: Mapping[str, Any]) -> bytes:
    """Return a chunk as a server-sent event."""
    return b"data: %s\n\n" % json.dumps(chunk, ensure_ascii=False).encode(errors="replace")


def is_final(chunk: Mapping[str, Any]) -> bool:
    """Tell whether a chunk says why the answer ended."""
    return bool(_first_choice(chunk).get("finish_reason"))


class LiteLLMChunkDecoder(OpenAIChunkDecoder):
    """Reads the chunks of one stream, and folds the thinking that a vendor signs."""

    def __init__(self, target: RequestTarget) -> None:
        super().__init__(target)
        self._thinking: list[dict[str, Any]] = []

    def read(self, event: dict[str, Any]) -> Sequence[RathLLMStreamDelta]:
        deltas = super().read(event)
        if blocks := objects_of(_object(_first_choice(event), "delta").get("thinking_blocks")):
            for block in blocks:
                self._add(block)
            self.served.blocks = tuple(self._thinking)
        return deltas

    def _add(self, piece: Mapping[str, Any]) -> None:
        """Append to the block that is open; a signature closes it."""
        last = self._thinking[-1] if self._thinking else None
        if piece.get("type") != "thinking" or last is None or last.get("signature"):
            self._thinking.append(dict(piece))
            return
        if last.get("type") != "thinking":
            self._thinking.append(dict(piece))
            return
        last["thinking"] = (last.get("thinking") or "") + (piece.get("thinking") or "")
        last["signature"] = piece.get("signature") or None


def _first_choice(payload: Mapping[str, Any]) -> Mapping[str, Any]:
    choices: object = payload.get("choices")
    if not isinstance(choices, list) or not choices:
        return {}
    first = cast("list[object]", choices)[0]
    return cast("Mapping[str, Any]", first) if isinstance(first, Mapping) else {}


def _object(payload: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value: object = payload.get(name)
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _blocks(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found: object = message.get("thinking_blocks")
    if not isinstance(found, list):
        return []
    return [
        cast("Mapping[str, Any]", block)
        for block in cast("list[object]", found)
        if isinstance(block, Mapping)
    ]
