"""Events of a stream of the Messages API as deltas; pure functions, and a decoder with memory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from rath.llm.anthropic.decode import (
    arguments_text,
    decode_usage,
    finish_reason_of,
    kept_blocks,
    refusal_of,
    reported_error,
    service_tier_of,
    text_of,
)
from rath.llm.call import Served
from rath.llm.chat_response import RathLLMStreamDelta
from rath.llm.failure import Asked

__all__ = ["AnthropicChunkDecoder", "anthropic_event_to_deltas"]

Json = Mapping[str, Any]
Deltas = Sequence[RathLLMStreamDelta]

_BLOCK_OF_DELTA = {"text_delta": "text", "thinking_delta": "thinking"}
"""Kinds of blocks that a server may go on with although it did not begin them."""

_INPUT = (
    "input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "cache_creation",
)  # fmt: skip
"""The counts of what a model has read."""


def anthropic_event_to_deltas(event: Any) -> Iterator[RathLLMStreamDelta]:
    """Yield what one event says, without regard to those before it.

    Args:
        event: An event of the SDK, or its JSON.
    """
    kind, delta = _field(event, "type"), _field(event, "delta")
    if kind == "content_block_start":
        block = _field(event, "content_block")
        if _field(block, "type") == "tool_use":
            yield RathLLMStreamDelta(
                tool_call_index=_known_index(event),
                tool_call_id=text_of(_field(block, "id")),
                tool_call_name_delta=text_of(_field(block, "name")),
            )
    elif kind == "content_block_delta":
        if text := text_of(_field(delta, "text")):
            yield RathLLMStreamDelta(content_delta=text)
        elif thought := text_of(_field(delta, "thinking")):
            yield RathLLMStreamDelta(reasoning_delta=thought)
        elif written := text_of(_field(delta, "partial_json")):
            yield RathLLMStreamDelta(
                tool_call_index=_known_index(event), tool_call_args_delta=written
            )
    elif kind == "message_delta":
        if reason := _field(delta, "stop_reason"):
            yield RathLLMStreamDelta(finish_reason=finish_reason_of(reason))
        counts = _field(event, "usage") or _field(delta, "usage")
        if usage := decode_usage(_mapping(counts)):
            yield RathLLMStreamDelta(usage=usage)


class _Block:
    """A content block that is still coming."""

    __slots__ = ("citations", "field", "kind", "pieces", "signature", "start")

    def __init__(self, start: dict[str, Any]) -> None:
        self.start = start
        self.kind = start.get("type")
        self.field: str | None = None
        """The field that is being written."""

        self.pieces: list[str] = []
        """Pieces of a text, of a thought, or of the JSON of an input."""

        self.citations: list[Any] = []
        self.signature: str | None = None

    def take(self, field: str, piece: object) -> str:
        """Append a piece to the field that is being written; null is an empty one.

        Raises:
            TypeError: It is no text.
        """
        text = _checked(piece, field)
        self.field = field
        self.pieces.append(text)
        return text

    def whole(self) -> dict[str, Any]:
        """Return the block as it would stand in an answer that came whole."""
        block = dict(self.start)
        written = "".join(self.pieces)
        if self.field == "input" and written:
            block["input"] = _parsed(written, block.get("input"))
        elif self.field is not None and self.field != "input":
            block[self.field] = f"{block.get(self.field) or ''}{written}"
        if self.signature is not None:
            block["signature"] = self.signature
        if self.citations:
            block["citations"] = [*(block.get("citations") or ()), *self.citations]
        return block


class AnthropicChunkDecoder:
    """Reads the events of one stream; `message_stop` is its end marker.

    The answer that the deltas fold to is the one that would have come whole. What is unknown is
    left out: events and deltas; blocks of an unknown type stay among the blocks.
    """

    __slots__ = ("_asked", "_blocks", "_counts", "_speaking", "_thinking", "ended", "served")

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._blocks: dict[int, _Block] = {}
        self._counts: dict[str, Any] = {}
        # The block that spoke, or thought, last; another one begins on a new line.
        self._speaking: int | None = None
        self._thinking: int | None = None
        self.served = Served()
        self.ended = False

    def decode_chunk(self, data: str) -> Deltas:
        """Return what one event says; see `ChunkDecoder`."""
        if data.startswith("[DONE]"):
            self.ended = True
            return ()
        try:
            event: dict[str, Any] = json.loads(data)
        except RecursionError as exc:
            raise ValueError("an event that is nested too deeply") from exc
        if type(event) is not dict:
            raise ValueError("an event must be a JSON object")
        try:
            return self._read(event)
        except (AttributeError, KeyError, TypeError, RecursionError) as exc:
            raise ValueError(f"an event of an unknown form: {exc!r}") from exc

    def _read(self, event: dict[str, Any]) -> Deltas:
        kind = event.get("type")
        if kind == "content_block_delta":
            return self._go_on(_index(event), event["delta"])
        if kind == "content_block_start":
            return self._begin_block(_index(event), event["content_block"])
        if kind == "content_block_stop":
            return self._end_block(_index(event))
        if kind == "message_start":
            self._begin(event["message"])
        elif kind == "message_delta":
            return self._end(event.get("delta") or {}, event.get("usage"))
        elif kind == "message_stop":
            self.ended = True
            self._keep_blocks()
        elif kind == "error" or (kind is None and event.get("error")):
            raise reported_error(event.get("error"), self._asked)
        return ()

    def _begin(self, message: Json) -> None:
        served = self.served
        served.response_id = text_of(message.get("id")) or None
        served.model = text_of(message.get("model")) or None
        self._count(message.get("usage"))

    def _begin_block(self, index: int, start: dict[str, Any]) -> Deltas:
        block = self._blocks[index] = _Block(start)
        kind = block.kind
        if kind == "tool_use":
            return (
                RathLLMStreamDelta(
                    tool_call_index=index,
                    tool_call_id=text_of(start.get("id")),
                    tool_call_name_delta=text_of(start.get("name")),
                ),
            )
        if kind == "text":
            return self._speak(index, _piece(start, "text"))
        if kind == "thinking":
            return self._think(index, _piece(start, "thinking"))
        return ()

    def _go_on(self, index: int, delta: dict[str, Any]) -> Deltas:
        kind = delta.get("type")
        block = self._blocks.get(index)
        if block is None:
            if kind not in _BLOCK_OF_DELTA:
                return ()
            block = self._blocks[index] = _Block({"type": _BLOCK_OF_DELTA[kind]})
        if kind == "text_delta":
            piece = block.take("text", delta["text"])
            return self._speak(index, piece) if block.kind == "text" else ()
        if kind == "input_json_delta":
            piece = block.take("input", delta["partial_json"])
            if not piece or block.kind != "tool_use":
                return ()
            return (RathLLMStreamDelta(tool_call_index=index, tool_call_args_delta=piece),)
        if kind == "thinking_delta":
            piece = block.take("thinking", delta["thinking"])
            return self._think(index, piece) if block.kind == "thinking" else ()
        if kind == "signature_delta":
            block.signature = _checked(delta["signature"], "signature")
        elif kind == "citations_delta":
            block.citations.append(delta["citation"])
        return ()

    def _speak(self, index: int, text: str) -> Deltas:
        if not text:
            return ()
        if index != self._speaking:
            text = text if self._speaking is None else f"\n{text}"
            self._speaking = index
        return (RathLLMStreamDelta(content_delta=text),)

    def _think(self, index: int, text: str) -> Deltas:
        if not text:
            return ()
        if index != self._thinking:
            text = text if self._thinking is None else f"\n{text}"
            self._thinking = index
        return (RathLLMStreamDelta(reasoning_delta=text),)

    def _end_block(self, index: int) -> Deltas:
        block = self._blocks.get(index)
        if block is None or block.kind != "tool_use" or any(block.pieces):
            return ()
        # A call without arguments, or one whose arguments came with its start.
        written = arguments_text(block.start.get("input"))
        return (RathLLMStreamDelta(tool_call_index=index, tool_call_args_delta=written),)

    def _end(self, delta: Json, usage: object) -> Deltas:
        deltas: list[RathLLMStreamDelta] = []
        reason = delta.get("stop_reason")
        if reason:
            self.served.finish_reason = text_of(reason)
            self._keep_blocks()
            if refusal := refusal_of(delta):
                deltas.append(RathLLMStreamDelta(refusal_delta=refusal))
            deltas.append(RathLLMStreamDelta(finish_reason=finish_reason_of(reason)))
        self._count(usage or delta.get("usage"))
        if counted := decode_usage(self._counts):
            deltas.append(RathLLMStreamDelta(usage=counted))
        return deltas

    def _count(self, usage: object) -> None:
        """Take counts in: each is a total so far, and one that is missing stays as it was."""
        if not isinstance(usage, Mapping):
            return
        counts = cast("Json", usage)
        known = self._counts | {name: count for name, count in counts.items() if count is not None}
        if _n_read(known) < _n_read(self._counts):
            # Some servers end with zeros; what a model has read is never taken back.
            known |= {name: self._counts[name] for name in _INPUT if name in self._counts}
        self._counts = known
        self.served.service_tier = service_tier_of(self._counts)

    def _keep_blocks(self) -> None:
        self.served.blocks = kept_blocks([block.whole() for block in self._blocks.values()])


def _n_read(counts: Json) -> int:
    usage = decode_usage(counts)
    return 0 if usage is None else usage.prompt_tokens


def _index(event: Json) -> int:
    index: object = event["index"]
    if type(index) is not int:
        raise TypeError("the index of a block must be a whole number")
    return index


def _piece(block: Json, field: str) -> str:
    return _checked(block.get(field), field)


def _checked(piece: object, field: str) -> str:
    if piece is None:
        return ""
    if not isinstance(piece, str):
        raise TypeError(f"a piece of {field!r} must be a text")
    return piece


def _parsed(written: str, otherwise: object) -> object:
    try:
        return json.loads(written)
    except (ValueError, RecursionError):
        return otherwise  # it was cut off at the length limit


def _field(value: Any, name: str) -> Any:
    """Return a field of a JSON object or of an object of the SDK, None where it has none."""
    if isinstance(value, Mapping):
        return cast("Json", value).get(name)
    return getattr(value, name, None)


def _known_index(event: Any) -> int | None:
    index = _field(event, "index")
    return index if isinstance(index, int) else None


def _mapping(value: Any) -> Json | None:
    if value is None or isinstance(value, Mapping):
        return cast("Json | None", value)
    names = ("input_tokens", "output_tokens", "cache_read_input_tokens",
             "cache_creation_input_tokens", "cache_creation", "output_tokens_details")  # fmt: skip
    return {name: getattr(value, name, None) for name in names}
