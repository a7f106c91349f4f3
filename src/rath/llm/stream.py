"""Streamed answers: bytes to events, events to deltas, deltas to a response, and back."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from msgspec import Struct

from rath._core.text import valid_unicode
from rath.config.redaction import TextRedactor
from rath.llm.chat_response import (
    RathLLMAssistantMessage,
    RathLLMChatChoice,
    RathLLMChatResponse,
    RathLLMFinishReason,
    RathLLMStreamDelta,
    RathLLMTokenUsage,
    RathLLMToolCallPart,
    tool_call_part,
)
from rath.llm.credentials import RequestTarget
from rath.llm.errors import protocol_error

Deltas = Iterable[RathLLMStreamDelta]
_DONE = "[DONE]"

_TEXTS = ("content_delta", "reasoning_delta", "tool_call_args_delta", "refusal_delta")
"""Fields of a delta that hold text; a delta brings one of them."""

_CONTENT: tuple[str, int | None, str | None] = ("content_delta", None, None)


class EventParser:
    """Server-sent events from a byte stream, in whatever pieces it comes (WHATWG HTML, 9.2.6).

    Comments, event names, ids and retry times are left out; several data lines of one event are
    joined by line feeds; lines end with LF, CRLF or CR.
    """

    __slots__ = ("_after_cr", "_data", "_line")

    def __init__(self) -> None:
        self._line: list[bytes] = []
        """Pieces of a line whose end has not come."""

        self._data: list[bytes] = []
        """Data lines of an event whose end has not come."""

        self._after_cr = False

    def feed(self, chunk: bytes) -> list[str]:
        """Return the data of the events that `chunk` completes."""
        chunk = self._with_line_feeds(chunk)
        if b"\n" not in chunk:
            self._line.append(chunk)
            return []
        lines = chunk.split(b"\n")
        lines[0] = b"".join((*self._line, lines[0]))
        self._line = [lines.pop()]
        events: list[str] = []
        data = self._data
        for line in lines:
            if not line:
                if data:
                    events.append(b"\n".join(data).decode("utf-8", "replace"))
                    data.clear()
            elif line.startswith(b"data:"):
                data.append(line[6:] if line.startswith(b" ", 5) else line[5:])
            elif line == b"data":
                data.append(b"")
        return events

    def close(self) -> list[str]:
        """Return the data of an event that lacks only the line ends behind it."""
        self._after_cr = False
        return self.feed(b"\n\n")

    def _with_line_feeds(self, chunk: bytes) -> bytes:
        if self._after_cr and chunk:
            self._after_cr = False
            # The other half of a CRLF whose first half was taken as a whole line end.
            chunk = chunk.removeprefix(b"\n")
        if b"\r" not in chunk:
            return chunk
        self._after_cr = chunk.endswith(b"\r")
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


class ServedInfo(Struct, gc=False):
    """The endpoint's words about its answer, as far as it has come."""

    model: str | None = None
    response_id: str | None = None
    created: int = 0
    service_tier: str | None = None
    fingerprint: str | None = None
    finish_reason: str | None = None
    """As the vendor wrote it."""

    blocks: tuple[Mapping[str, Any], ...] = ()
    """See `CallEvidence.reasoning_blocks`."""

    @classmethod
    def of(cls, response: RathLLMChatResponse, *, finish_reason: str | None = None) -> ServedInfo:
        """Return what a response says."""
        return cls(
            model=response.model or None,
            response_id=response.id or None,
            created=response.created,
            service_tier=response.service_tier,
            fingerprint=response.system_fingerprint,
            finish_reason=finish_reason,
        )


class ChunkDecoder(ABC):
    """Reads the events of one stream; a vendor says what each of them means."""

    __slots__ = ("ended", "served", "target")

    def __init__(self, target: RequestTarget) -> None:
        self.target: RequestTarget = target
        self.served: ServedInfo = ServedInfo()
        """What the events so far say about the answer; one object that fills up."""

        self.ended: bool = False
        """Whether the end marker has come."""

    def decode_chunk(self, data: str) -> Sequence[RathLLMStreamDelta]:
        """Return what one event says.

        Raises:
            ProviderError: The event reports an error.
            ValueError: The event is not a JSON object, or of an unknown form.
        """
        if data.startswith(_DONE):
            self.ended = True
            return ()
        try:
            event: dict[str, Any] = json.loads(data)
        except RecursionError as exc:
            raise ValueError("an event that is nested too deeply") from exc
        if type(event) is not dict:
            raise ValueError("an event must be a JSON object")
        try:
            return self.read(event)
        except (AttributeError, KeyError, IndexError, TypeError, RecursionError) as exc:
            raise ValueError(f"an event of an unknown form: {exc!r}") from exc

    @abstractmethod
    def read(self, event: dict[str, Any]) -> Sequence[RathLLMStreamDelta]:
        """Return what the JSON of one event says; any error of access means an unknown form."""


class StreamReader:
    """Bytes of one streamed answer as deltas: parsed, decoded, with valid text, without the key."""

    def __init__(self, decoder: ChunkDecoder) -> None:
        self.decoder = decoder
        self._target = decoder.target
        self._redact = decoder.target.redactor.json_text
        self._parser = EventParser()
        self._surrogates = SurrogateJoiner()
        self._keys = StreamRedactor(self._target.secret)
        self._has_redacted = False
        """Whether an event held the key in one piece."""

    @property
    def ended(self) -> bool:
        """Whether the end marker has come."""
        return self.decoder.ended

    @property
    def served(self) -> ServedInfo:
        """What the events so far say about the answer."""
        served = self.decoder.served
        # Blocks were folded from events, which may each hold a part of the key.
        has_hidden = self._has_redacted or self._keys.has_hidden
        if has_hidden or self._keys.is_in(served.blocks):
            served.blocks = ()
        return served

    def feed(self, chunk: bytes) -> Iterator[RathLLMStreamDelta]:
        """Yield what the events say that `chunk` completes.

        Raises:
            ProviderError: An event reports an error, or is not one of this protocol.
        """
        for data in self._parser.feed(chunk):
            yield from self._keys.hide(self._decode(data))

    def close(self) -> Iterator[RathLLMStreamDelta]:
        """Yield what the rest of the stream says, which ended or needs no more bytes."""
        if not self.ended:
            for data in self._parser.close():
                # What a cut left of an event is no event.
                if data.startswith(_DONE) or _is_json(data):
                    yield from self._keys.hide(self._decode(data))
        yield from self._keys.hide(self._surrogates.flush())
        yield from self._keys.flush()

    def _decode(self, data: str) -> Deltas:
        redacted = self._redact(data)
        if redacted != data:
            data, self._has_redacted = redacted, True
        try:
            deltas = self.decoder.decode_chunk(data)
        except (ValueError, RecursionError) as exc:
            is_json = not isinstance(exc, json.JSONDecodeError)
            form = "of an unexpected form" if is_json else "that is not JSON"
            problem = f"its stream holds an event {form}"
            raise protocol_error(self._target, problem, data.encode(errors="replace")) from exc
        # Only an escape can bring half a character; to look for one is much cheaper than to mend.
        mends = "\\u" in data or self._surrogates.holds
        return self._surrogates.mend(deltas) if mends else deltas


def _is_json(data: str) -> bool:
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True


class StreamRedactor:
    """Hides a key in the deltas of a stream, also one that is spread over several of them."""

    __slots__ = ("_place", "_text")

    def __init__(self, secret: str) -> None:
        self._text = TextRedactor(secret)
        self._place = _CONTENT
        """Field and tool call whose text was read last."""

    @property
    def has_hidden(self) -> bool:
        """Whether the key was found so far."""
        return self._text.has_hidden

    def hide(self, deltas: Deltas) -> Iterator[RathLLMStreamDelta]:
        """Yield the deltas without the key; the end of a text may come with the next delta."""
        for delta in deltas:
            text = delta.content_delta
            if text and self._place is _CONTENT and self._text.is_clear(text):
                yield delta
                continue
            name = next((name for name in _TEXTS if getattr(delta, name) is not None), _TEXTS[-1])
            text = getattr(delta, name)
            index = delta.tool_call_index
            place = (name, index, delta.tool_call_id if index is None else None)
            if place != self._place:
                yield from self.flush()
                self._place = _CONTENT if place == _CONTENT else place
            redacted = self._text.feed(text) if text else text
            if redacted == text:
                yield delta
            elif redacted or delta.tool_call_id or delta.tool_call_name_delta:
                yield _with_text(delta, name, redacted)

    def flush(self) -> Iterator[RathLLMStreamDelta]:
        """Yield what was kept back, for nothing follows in its field."""
        if held := self._text.flush():
            name, index, _ = self._place
            yield _with_text(RathLLMStreamDelta(tool_call_index=index), name, held)

    def is_in(self, value: object) -> bool:
        """Tell whether the key stands in a text, or in one that a JSON value holds."""
        return self._text.is_in(value)


def _with_text(delta: RathLLMStreamDelta, name: str, text: str | None) -> RathLLMStreamDelta:
    changed: dict[str, Any] = {name: text}
    return replace(delta, **changed)


class SurrogateJoiner:
    """Joins characters that a vendor cut in two: half a surrogate pair waits for the other one."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = ""

    @property
    def holds(self) -> bool:
        """Whether half a character waits for the rest."""
        return bool(self._held)

    def mend(self, deltas: Deltas) -> Iterator[RathLLMStreamDelta]:
        """Yield the deltas with valid text; only content is joined across deltas."""
        for delta in deltas:
            if delta.content_delta is None:
                yield from self.flush()
                yield _valid(delta)
                continue
            text = self._held + delta.content_delta
            self._held = text[-1] if text and "\ud800" <= text[-1] <= "\udbff" else ""
            valid = text[: len(text) - len(self._held)]
            if valid:
                yield replace(_valid(delta), content_delta=valid_unicode(valid))

    def flush(self) -> Iterator[RathLLMStreamDelta]:
        """Yield a half whose other half never came, as U+FFFD."""
        if self._held:
            self._held = ""
            yield RathLLMStreamDelta(content_delta="\ufffd")


def _valid(delta: RathLLMStreamDelta) -> RathLLMStreamDelta:
    """Return a delta whose texts are valid; the halves of arguments are joined by the fold."""
    reasoning, refusal = delta.reasoning_delta, delta.refusal_delta
    if reasoning is None and refusal is None:
        return delta
    return replace(
        delta,
        reasoning_delta=None if reasoning is None else valid_unicode(reasoning),
        refusal_delta=None if refusal is None else valid_unicode(refusal),
    )


class _PartialCall:
    """A tool call that is still being written."""

    __slots__ = ("arguments", "id", "index", "name")

    def __init__(self, call_id: str | None, index: int | None) -> None:
        self.id = call_id
        self.index = index
        self.name = ""
        self.arguments: list[str] = []


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
        self._calls: list[_PartialCall] = []
        self._by_index: dict[int, _PartialCall] = {}
        self._last: _PartialCall | None = None
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
        if (
            delta.tool_call_args_delta is not None
            or delta.tool_call_index is not None
            or delta.tool_call_id is not None
            or delta.tool_call_name_delta is not None
        ):
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
    def has_content(self) -> bool:
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

    def _call_of(self, delta: RathLLMStreamDelta) -> _PartialCall:
        index, new_id = delta.tool_call_index, delta.tool_call_id or None
        if index is not None:
            call = self._by_index.get(index)
            is_another = call is not None and new_id is not None and call.id not in {None, new_id}
            if call is None or (is_another and delta.tool_call_name_delta):
                call = self._by_index[index] = self._add_call(new_id, index)
            return call
        if new_id is not None:
            known = next((call for call in self._calls if call.id == new_id), None)
            return known or self._add_call(new_id, None)
        return self._last or self._add_call(None, None)

    def _add_call(self, call_id: str | None, index: int | None) -> _PartialCall:
        call = _PartialCall(call_id, index)
        self._calls.append(call)
        return call

    def _finished_calls(self) -> tuple[RathLLMToolCallPart, ...]:
        # The sort is stable: calls without an index keep their order, behind those with one.
        ordered = sorted(
            self._calls, key=lambda call: math.inf if call.index is None else call.index
        )
        ids = {call.id for call in ordered}
        return tuple(
            tool_call_part(call.id or _free_id(ids), call.name, "".join(call.arguments))
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
        first, *words = message.content.split(" ")
        yield RathLLMStreamDelta(content_delta=first)
        for word in words:
            yield RathLLMStreamDelta(content_delta=f" {word}")
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


def _joined(parts: list[str]) -> str | None:
    return valid_unicode("".join(parts)) if parts else None


def _free_id(ids: set[str | None]) -> str:
    number = 0
    while (name := f"call_{number}") in ids:
        number += 1
    ids.add(name)
    return name
