"""Recorded model calls as what they were to the run: an answer, its deltas, or an error."""

from __future__ import annotations

import builtins
import re
from typing import cast

import rath.errors
from rath.errors import ProviderError, StreamInterrupted
from rath.llm.chat_response import (
    RathLLMAssistantMessage,
    RathLLMChatChoice,
    RathLLMChatResponse,
    RathLLMFinishReason,
)
from rath.llm.exchange import CallEvidence
from rath.llm.failure import network_error_class
from rath.llm.fold import tool_call_part
from rath.session.chunk import ChunkRow
from rath.session.content import AssistantTurn, UserText
from rath.session.record import ModelCall

_OWN_ERROR = re.compile(r"\S+:\S+ failed: (\w+): (.*)", re.DOTALL)
"""How the record tells of an error that a client of the program raised itself."""


def response_of(call: ModelCall, row: ChunkRow | None) -> RathLLMChatResponse:
    """Return what a model answered.

    Args:
        call: An answered call.
        row: The row that the answer became, None where it became none: then the call says it.
    """
    evidence = call.evidence
    message = _message(call, row)
    reason = evidence.finish_reason or ("tool_calls" if message and message.tool_calls else "stop")
    # The record holds the reason in the words of the type.
    finish = cast("RathLLMFinishReason", reason)
    choices = () if message is None else (RathLLMChatChoice(0, finish, message),)
    return RathLLMChatResponse(
        id=evidence.response_id or "",
        choices=choices,
        created=0,
        model=evidence.served_model or evidence.requested_model or "",
        service_tier=evidence.service_tier,
        system_fingerprint=evidence.fingerprint,
        usage=evidence.usage,
    )


def error_of(evidence: CallEvidence) -> Exception:
    """Return the error with which a recorded call failed, of the class that it had.

    The own error of a client is made again where it was one of Python's; of another one the record
    has the text, and the class of rath for it.
    """
    name, _, message = (evidence.error or "").partition(": ")
    kind = getattr(rath.errors, name, None)
    own = _OWN_ERROR.fullmatch(message)
    made = None if own is None else _builtin_error(own[1], own[2])
    if made is not None and network_error_class(made) is kind:
        return made
    status = evidence.attempts[-1].status if evidence.attempts else None
    if not (isinstance(kind, type) and issubclass(kind, ProviderError)):
        error = ProviderError(evidence.error or "the call failed", endpoint=evidence.endpoint)
    elif issubclass(kind, StreamInterrupted):
        text = evidence.partial_text
        error = kind(message, endpoint=evidence.endpoint, partial_text=text)
    else:
        error = kind(message, endpoint=evidence.endpoint, status=status)
    error.evidence = evidence
    return error


def _builtin_error(name: str, text: str) -> Exception | None:
    kind = getattr(builtins, name, None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        return None
    try:
        return kind(text)
    except TypeError:
        return None  # it is made of more than a text


def _message(call: ModelCall, row: ChunkRow | None) -> RathLLMAssistantMessage | None:
    reasoning = call.evidence.reasoning
    content = None if row is None else row.content
    if isinstance(content, UserText):  # a summary
        return RathLLMAssistantMessage(content=content.text, reasoning_content=reasoning)
    if not isinstance(content, AssistantTurn):
        if call.answer is None:
            return None
        return RathLLMAssistantMessage(content=call.answer, reasoning_content=reasoning)
    parts = tuple(
        tool_call_part(each.id, each.name, each.arguments, kind=each.type) for each in content.calls
    )
    is_refusal = call.evidence.finish_reason == "refusal"
    return RathLLMAssistantMessage(
        content=content.text,
        refusal=content.text if is_refusal else None,
        reasoning_content=reasoning,
        tool_calls=parts or None,
    )
