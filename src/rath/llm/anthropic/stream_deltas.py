"""Events of a stream of the Messages API as deltas; pure functions, and a decoder with memory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from rath.llm.anthropic import normalize
from rath.llm.chat_response import RathLLMStreamDelta, text_of
from rath.llm.credentials import RequestTarget
from rath.llm.errors import reported_error
from rath.llm.stream import ChunkDecoder

__all__ = ["anthropic_event_to_deltas"]

Json = Mapping[str, Any]
Deltas = Sequence[RathLLMStreamDelta]

_TEXT_BLOCKS = frozenset({"text", "thinking"})
"""Kinds of blocks whose text, in a field of the same name, is given out as it comes."""

_DELTAS = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "input_json_delta": ("input", "partial_json"),
}
"""By the kind of a delta the field of the block that it goes on with, and its own field."""

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
            yield RathLLMStreamDelta(finish_reason=normalize.finish_reason_of(reason))
        counts = _field(event, "usage") or _field(delta, "usage")
        if usage := normalize.decode_usage(_mapping(counts)):
            yield RathLLMStreamDelta(usage=usage)


class _PartialBlock:
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

    def complete(self) -> dict[str, Any]:
        """Return the block as it would stand in an answer that came in one piece."""
        block = dict(self.start)
        written = "".join(self.pieces)
        if self.field == "input" and written:
            try:
                block["input"] = json.loads(written)
            except (ValueError, RecursionError):
                block.setdefault("input", None)  # it was cut off at the length limit
        elif self.field is not None and self.field != "input":
            block[self.field] = f"{block.get(self.field) or ''}{written}"
        if self.signature is not None:
            block["signature"] = self.signature
        if self.citations:
            block["citations"] = [*(block.get("citations") or ()), *self.citations]
        return block


class AnthropicChunkDecoder(ChunkDecoder):
    """Reads the events of one stream; `message_stop` is its end marker.

    The answer that the deltas fold to is the one that would have come whole. What is unknown is
    left out: events and deltas; blocks of an unknown type stay among the blocks.
    """

    __slots__ = ("_blocks", "_counts", "_last_blocks")

    def __init__(self, target: RequestTarget) -> None:
        super().__init__(target)
        self._blocks: dict[int, _PartialBlock] = {}
        self._counts: dict[str, Any] = {}
        self._last_blocks: dict[str, int] = {}
        """The block that gave the last text, or thought; another one begins on a new line."""

    def read(self, event: dict[str, Any]) -> Deltas:
        kind = event.get("type")
        if kind == "content_block_delta":
            return self._read_delta(_index(event), event["delta"])
        if kind == "content_block_start":
            return self._begin_block(_index(event), event["content_block"])
        if kind == "content_block_stop":
            return self._end_block(_index(event))
        if kind == "message_start":
            message: Json = event["message"]
            self.served.response_id = text_of(message.get("id")) or None
            self.served.model = text_of(message.get("model")) or None
            self._count(message.get("usage"))
        elif kind == "message_delta":
            return self._end(event.get("delta") or {}, event.get("usage"))
        elif kind == "message_stop":
            self.ended = True
            self._serve_blocks()
        elif kind == "error" or (kind is None and event.get("error")):
            raise reported_error(event.get("error"), self.target)
        return ()

    def _begin_block(self, index: int, start: dict[str, Any]) -> Deltas:
        block = self._blocks[index] = _PartialBlock(start)
        if block.kind == "tool_use":
            return (
                RathLLMStreamDelta(
                    tool_call_index=index,
                    tool_call_id=text_of(start.get("id")),
                    tool_call_name_delta=text_of(start.get("name")),
                ),
            )
        if block.kind in _TEXT_BLOCKS:
            return self._write(index, block.kind, _checked(start.get(block.kind), block.kind))
        return ()

    def _read_delta(self, index: int, delta: dict[str, Any]) -> Deltas:
        kind = delta.get("type")
        block = self._blocks.get(index)
        if block is None:
            # Kinds of blocks that a server may go on with although it did not begin them.
            if kind not in {"text_delta", "thinking_delta"}:
                return ()
            block = self._blocks[index] = _PartialBlock({"type": _DELTAS[kind][0]})
        if kind in _DELTAS:
            field, source = _DELTAS[kind]
            piece = _checked(delta[source], field)
            block.field = field
            block.pieces.append(piece)
            if block.kind in _TEXT_BLOCKS:
                return self._write(index, field, piece) if block.kind == field else ()
            if piece and field == "input" and block.kind == "tool_use":
                return (RathLLMStreamDelta(tool_call_index=index, tool_call_args_delta=piece),)
        elif kind == "signature_delta":
            block.signature = _checked(delta["signature"], "signature")
        elif kind == "citations_delta":
            block.citations.append(delta["citation"])
        return ()

    def _write(self, index: int, kind: str, text: str) -> Deltas:
        """Return a piece of a text or of a thought."""
        if not text:
            return ()
        last = self._last_blocks.get(kind, index)
        self._last_blocks[kind] = index
        if last != index:
            text = f"\n{text}"
        if kind == "text":
            return (RathLLMStreamDelta(content_delta=text),)
        return (RathLLMStreamDelta(reasoning_delta=text),)

    def _end_block(self, index: int) -> Deltas:
        block = self._blocks.get(index)
        if block is None or block.kind != "tool_use" or any(block.pieces):
            return ()
        # A call without arguments, or one whose arguments came with its start.
        written = normalize.arguments_text(block.start.get("input"))
        return (RathLLMStreamDelta(tool_call_index=index, tool_call_args_delta=written),)

    def _end(self, delta: Json, usage: object) -> Deltas:
        deltas: list[RathLLMStreamDelta] = []
        reason = delta.get("stop_reason")
        if reason:
            self.served.finish_reason = text_of(reason)
            self._serve_blocks()
            if refusal := normalize.refusal_of(delta):
                deltas.append(RathLLMStreamDelta(refusal_delta=refusal))
            deltas.append(RathLLMStreamDelta(finish_reason=normalize.finish_reason_of(reason)))
        self._count(usage or delta.get("usage"))
        if counted := normalize.decode_usage(self._counts):
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
        self.served.service_tier = normalize.service_tier_of(self._counts)

    def _serve_blocks(self) -> None:
        self.served.blocks = normalize.kept_blocks(
            [block.complete() for block in self._blocks.values()]
        )


def _n_read(counts: Json) -> int:
    usage = normalize.decode_usage(counts)
    return 0 if usage is None else usage.prompt_tokens


def _index(event: Json) -> int:
    index: object = event["index"]
    if type(index) is not int:
        raise TypeError("the index of a block must be a whole number")
    return index


def _checked(piece: object, field: str) -> str:
    """Return a piece of a text; null is an empty one."""
    if piece is None:
        return ""
    if not isinstance(piece, str):
        raise TypeError(f"a piece of {field!r} must be a text")
    return piece


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
