"""Deltas to a whole response, and back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from rath._core.text import valid_unicode
from rath.llm.chat_response import (
    RathLLMAssistantMessage,
    RathLLMChatChoice,
    RathLLMChatResponse,
    RathLLMFinishReason,
    RathLLMStreamDelta,
    RathLLMTokenUsage,
    RathLLMToolCallFunction,
    RathLLMToolCallPart,
)
from rath.llm.tool_args import parse_tool_arguments

__all__ = ["StreamFold", "fold", "split", "tool_call_part"]


class _Call:
    """A tool call that is still being written."""

    __slots__ = ("arguments", "id", "index", "name")

    def __init__(self, call_id: str | None, index: int | None) -> None:
        self.id = call_id
        self.index = index
        self.name = ""
        self.arguments: list[str] = []

    def place(self) -> float:
        return math.inf if self.index is None else self.index


class StreamFold:
    """Adds up the deltas of one answer.

    Tool deltas are told apart by their index. Where vendors leave it out, a new id starts a new
    call and no id goes on with the last one. Where they give every call the same index, a new id
    with a name starts a new call. A name that is sent again whole is taken once.
    """

    __slots__ = ("_by_index", "_calls", "_content", "_last", "_reasoning", "_refusal",
                 "finish_reason", "usage")  # fmt: skip

    finish_reason: RathLLMFinishReason | None
    """The last one that came."""

    usage: RathLLMTokenUsage | None
    """The last one that came."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._refusal: list[str] = []
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._last: _Call | None = None
        self.finish_reason = None
        self.usage = None

    def add(self, delta: RathLLMStreamDelta) -> None:
        """Take the next delta."""
        if delta.content_delta is not None:
            self._content.append(delta.content_delta)
        if delta.reasoning_delta is not None:
            self._reasoning.append(delta.reasoning_delta)
        if delta.refusal_delta is not None:
            self._refusal.append(delta.refusal_delta)
        if _speaks_of_a_call(delta):
            self._add_to_call(delta)
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason
        if delta.usage is not None:
            self.usage = delta.usage

    @property
    def text(self) -> str:
        """The content so far."""
        return valid_unicode("".join(self._content))

    @property
    def reasoning(self) -> str | None:
        """The reasoning so far, None when there was none."""
        return _joined(self._reasoning)

    @property
    def has_begun(self) -> bool:
        """Whether any delta has come that says something."""
        return bool(
            self._content or self._reasoning or self._refusal or self._calls or self.finish_reason
        )

    def response(
        self,
        *,
        id: str = "",
        created: int = 0,
        model: str = "",
        service_tier: str | None = None,
        system_fingerprint: str | None = None,
    ) -> RathLLMChatResponse:
        """Return the answer that the deltas make; calls without an id get one of their own."""
        calls = self._finished_calls()
        message = RathLLMAssistantMessage(
            content=_joined(self._content),
            refusal=_joined(self._refusal),
            reasoning_content=self.reasoning,
            tool_calls=calls or None,
        )
        reason = self.finish_reason or ("tool_calls" if calls else "stop")
        return RathLLMChatResponse(
            id=id,
            choices=(RathLLMChatChoice(index=0, finish_reason=reason, message=message),),
            created=created,
            model=model,
            service_tier=service_tier,
            system_fingerprint=system_fingerprint,
            usage=self.usage,
        )

    def _add_to_call(self, delta: RathLLMStreamDelta) -> None:
        call = self._call_of(delta)
        self._last = call
        if call.id is None:
            call.id = delta.tool_call_id or None
        name = delta.tool_call_name_delta
        if name and name != call.name:
            call.name += name
        if delta.tool_call_args_delta:
            call.arguments.append(delta.tool_call_args_delta)

    def _call_of(self, delta: RathLLMStreamDelta) -> _Call:
        index, new_id = delta.tool_call_index, delta.tool_call_id or None
        if index is not None:
            call = self._by_index.get(index)
            is_another = call is not None and new_id is not None and call.id not in {None, new_id}
            if call is None or (is_another and delta.tool_call_name_delta):
                call = self._by_index[index] = self._begin(new_id, index)
            return call
        if new_id is not None:
            known = next((call for call in self._calls if call.id == new_id), None)
            return known or self._begin(new_id, None)
        return self._last or self._begin(None, None)

    def _begin(self, call_id: str | None, index: int | None) -> _Call:
        call = _Call(call_id, index)
        self._calls.append(call)
        return call

    def _finished_calls(self) -> tuple[RathLLMToolCallPart, ...]:
        # The sort is stable: calls without an index keep their order, behind those with one.
        ordered = sorted(self._calls, key=_Call.place)
        taken = {call.id for call in ordered}
        return tuple(
            tool_call_part(call.id or _free_id(taken), call.name, "".join(call.arguments))
            for call in ordered
        )


def fold(
    deltas: Iterable[RathLLMStreamDelta], *, id: str = "", created: int = 0, model: str = ""
) -> RathLLMChatResponse:
    """Return the response that `deltas` add up to."""
    folded = StreamFold()
    for delta in deltas:
        folded.add(delta)
    return folded.response(id=id, created=created, model=model)


def split(response: RathLLMChatResponse) -> Iterator[RathLLMStreamDelta]:
    """Yield the first choice of `response` as a vendor would stream it, word by word."""
    choice = response.primary_choice
    message = choice.message
    if message.reasoning_content is not None:
        yield RathLLMStreamDelta(reasoning_delta=message.reasoning_content)
    if message.refusal is not None:
        yield RathLLMStreamDelta(refusal_delta=message.refusal)
    if message.content is not None:
        for word in _words(message.content):
            yield RathLLMStreamDelta(content_delta=word)
    for index, call in enumerate(message.tool_calls or ()):
        yield RathLLMStreamDelta(
            tool_call_index=index, tool_call_id=call.id, tool_call_name_delta=call.function.name
        )
        if call.function.arguments:
            yield RathLLMStreamDelta(
                tool_call_index=index, tool_call_args_delta=call.function.arguments
            )
    yield RathLLMStreamDelta(finish_reason=choice.finish_reason)
    if response.usage is not None:
        yield RathLLMStreamDelta(usage=response.usage)


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


def _speaks_of_a_call(delta: RathLLMStreamDelta) -> bool:
    return (
        delta.tool_call_args_delta is not None
        or delta.tool_call_index is not None
        or delta.tool_call_id is not None
        or delta.tool_call_name_delta is not None
    )


def _joined(parts: list[str]) -> str | None:
    return valid_unicode("".join(parts)) if parts else None


def _words(text: str) -> list[str]:
    words = text.split(" ")
    return [word if index == 0 else f" {word}" for index, word in enumerate(words)]


def _free_id(taken: set[str | None]) -> str:
    number = 0
    while (name := f"call_{number}") in taken:
        number += 1
    taken.add(name)
    return name
