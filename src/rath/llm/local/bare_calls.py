"""Tool calls that a small model writes as plain text, without the fence it was asked for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from rath.llm.chat_response import (
    RathLLMChatResponse,
    RathLLMStreamDelta,
    RathLLMToolCallPart,
    fields_of,
    tool_call_part,
)
from rath.llm.credentials import RequestTarget
from rath.llm.openai.normalize import OpenAIChunkDecoder

_FENCED = re.compile(r"```\w*\s*(.*?)\s*(?:```)?", re.DOTALL)


def call_in_text(text: str, tools: frozenset[str]) -> RathLLMToolCallPart | None:
    """Return the call that an answer is, None for one that says anything else.

    Args:
        text: Text of the answer. A call is one JSON object, bare or in a fence, with the members
            `name` and `arguments` and no others.
        tools: Names of the tools that were offered; a call names one of them.
    """
    fenced = _FENCED.fullmatch(text.strip())
    try:
        found: Any = json.loads(fenced[1] if fenced else text)
    except (ValueError, RecursionError):
        return None
    call = fields_of(found)
    name, arguments = call.get("name"), call.get("arguments")
    if len(call) != 2 or not isinstance(name, str) or not isinstance(arguments, dict):
        return None
    if name not in tools:
        return None
    return tool_call_part("call_0", name, json.dumps(arguments, ensure_ascii=False))


def with_calls(response: RathLLMChatResponse, tools: frozenset[str]) -> RathLLMChatResponse:
    """Return an answer whose text is a call as one that makes this call."""
    choice = response.primary_choice
    message = choice.message
    call = None if message.tool_calls else call_in_text(message.content or "", tools)
    if call is None:
        return response
    message = replace(message, content=None, tool_calls=(call,))
    return replace(
        response, choices=(replace(choice, message=message, finish_reason="tool_calls"),)
    )


class BareCallDecoder(OpenAIChunkDecoder):
    """Keeps text back that may be a call, until it goes on as something else or has ended."""

    __slots__ = ("_held", "_tools")

    def __init__(self, target: RequestTarget, tools: frozenset[str]) -> None:
        super().__init__(target)
        self._tools = tools
        self._held: str | None = ""
        """Text so far that may be a call; None once the answer is known to be none."""

    def read(self, event: dict[str, Any]) -> Sequence[RathLLMStreamDelta]:
        return [read for delta in super().read(event) for read in self._read(delta)]

    def _read(self, delta: RathLLMStreamDelta) -> Iterator[RathLLMStreamDelta]:
        if self._held is not None and delta.content_delta is not None:
            self._held += delta.content_delta
            if self._held.lstrip()[:1] in {"", "{", "`"}:
                return
            delta = RathLLMStreamDelta(content_delta=self._held)
            self._held = None
        elif self._held and (delta.finish_reason or delta.tool_call_index is not None):
            held, self._held = self._held, None
            call = call_in_text(held, self._tools) if delta.finish_reason else None
            if call is None:
                yield RathLLMStreamDelta(content_delta=held)
            else:
                yield RathLLMStreamDelta(
                    tool_call_index=0,
                    tool_call_id=call.id,
                    tool_call_name_delta=call.function.name,
                    tool_call_args_delta=call.function.arguments,
                )
                delta = replace(delta, finish_reason="tool_calls")
        yield delta
