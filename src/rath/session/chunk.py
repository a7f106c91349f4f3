"""Rows of a session and the table that holds them: what was said, append-only and shared."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, NoReturn, assert_never, cast, overload
from uuid import UUID

from msgspec import MsgspecError, Struct
from msgspec.json import Decoder

from rath._core.dataclasses import dataclass
from rath._core.lazy_imports import lazy_function
from rath._core.text import one_line_preview, valid_unicode
from rath._core.vector import Vector
from rath.llm.chat_request import RathLLMMessage
from rath.llm.chat_response import RathLLMToolCallPart
from rath.llm.image import Image, ImageSource, read_images
from rath.session.content import (
    AssistantTurn,
    Content,
    Opaque,
    RowsDigest,
    SystemText,
    ToolCall,
    ToolFeedback,
    UserText,
    decode_content,
    encode_call,
    encode_content,
    is_plain,
    row_digest,
    rows_digest,
)

# Needed where a program is refused, which most never are.
_redact_content = lazy_function("rath.config.redaction", "redact_content")

_HOW_TO_CHANGE = (
    "the payload of a row is read-only, because other sessions share it; change a copy, "
    "`copy.deepcopy(row.payload)`, and make a new row of that"
)


def _refuse(*_args: object, **_named: object) -> NoReturn:
    raise TypeError(_HOW_TO_CHANGE)


class FrozenDict(dict[str, Any]):
    """A dict that cannot be written; `copy.deepcopy` gives a plain one, all the way down."""

    __slots__ = ()

    # Not for type checkers, to which these have the types of `dict`.
    if not TYPE_CHECKING:
        __setitem__ = __delitem__ = __ior__ = _refuse
        clear = pop = popitem = setdefault = update = _refuse

    def __copy__(self) -> dict[str, Any]:
        return dict(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return {key: copy.deepcopy(value, memo) for key, value in self.items()}

    def __reduce__(self) -> tuple[type[FrozenDict], tuple[dict[str, Any]]]:
        return FrozenDict, (dict(self),)


class FrozenList(list[Any]):
    """A list that cannot be written; `copy.deepcopy` gives a plain one, all the way down."""

    __slots__ = ()

    if not TYPE_CHECKING:
        __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
        append = extend = insert = pop = remove = clear = sort = reverse = _refuse

    def __copy__(self) -> list[Any]:
        return list(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return [copy.deepcopy(value, memo) for value in self]

    def __reduce__(self) -> tuple[type[FrozenList], tuple[list[Any]]]:
        return FrozenList, (list(self),)


def frozen_mapping(mapping: Mapping[str, Any]) -> FrozenDict:
    """Return a read-only copy of `mapping`, its lists and mappings read-only as well."""
    if isinstance(mapping, FrozenDict):
        return mapping
    return FrozenDict({key: v if type(v) in _FROZEN else _frozen(v) for key, v in mapping.items()})


# Before anything is asked of an abstract class: most values are of these types.
_FROZEN = frozenset({str, int, float, bool, type(None), FrozenList})


def _frozen(value: object) -> object:
    if type(value) in _FROZEN:
        return value
    if isinstance(value, dict | Mapping):
        return frozen_mapping(cast("Mapping[str, object]", value))
    if isinstance(value, list):
        return FrozenList([_frozen(item) for item in cast("list[object]", value)])
    if isinstance(value, tuple):
        return tuple([_frozen(item) for item in cast("tuple[object, ...]", value)])
    return value


class ChunkKind(str, Enum):
    """Speaker of a row."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL_RESULT = "tool_result"


class RowId(Struct, frozen=True, order=True, array_like=True, gc=False):
    """Stable name of a row: the session where it was born and its index there."""

    session: UUID
    index: int


class _RowCache:
    """Cached values of a row; apart, so that they count in no comparison and no pickle."""

    __slots__ = ("_content", "_digest", "_json", "_raw")
    _content: Content
    _digest: bytes
    _json: Mapping[str, Any]
    """The payload, perhaps not read-only yet; nobody else holds it then."""

    _raw: bytes | None
    """The payload of a row without images as JSON, until somebody reads it."""


@dataclass(frozen=True, slots=True)
class ChunkRow(_RowCache):
    """One row of a transcript.

    Two rows are equal when kind and payload are; where a row was born does not count.
    """

    kind: ChunkKind | str
    """A plain string only for a kind that this version does not know."""

    payload: Mapping[str, Any]
    """Content of the row in the documented form; read-only, all the way down."""

    id: RowId | None = field(default=None, compare=False, repr=False)
    """Given when the row is appended to a session; kept by fork, merge and load."""

    def __post_init__(self) -> None:
        if not isinstance(self.kind, ChunkKind) and self.kind in _KINDS:
            object.__setattr__(self, "kind", _KINDS[self.kind])
        if not isinstance(self.payload, FrozenDict):
            object.__setattr__(self, "payload", frozen_mapping(self.payload))
        object.__setattr__(self, "_json", self.payload)
        object.__setattr__(self, "_raw", None)

    if not TYPE_CHECKING:  # Checkers would take any name for an attribute.

        def __getattr__(self, name: str) -> dict[str, Any]:
            if name == "payload":
                payload = frozen_mapping(self._json)
            elif name == "_json":
                raw = self._raw
                if raw is None:  # Another thread was here first.
                    return self._json
                payload = _parsed(raw)
            else:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            _set(self, name, payload)
            _set(self, "_raw", None)
            return payload

    @property
    def content(self) -> Content:
        """The typed content of the row; decoded once."""
        try:
            return self._content
        except AttributeError:
            content = decode_content(self.kind_name, self._json)
            if isinstance(content, Opaque):  # It is the payload itself.
                content = Opaque(self.payload)
            object.__setattr__(self, "_content", content)
            return content

    @property
    def digest(self) -> bytes:
        """sha256 over kind and payload; worked out once."""
        try:
            return self._digest
        except AttributeError:
            digest = row_digest(self.kind_name, self._json)
            object.__setattr__(self, "_digest", digest)
            return digest

    @property
    def kind_name(self) -> str:
        """The kind as it is written in files."""
        return str.__str__(self.kind)  # a kind is text, too, and an enum is slow to give its value

    @property
    def images(self) -> tuple[Image, ...]:
        """The pictures that a user or a tool shows in this row; the payload only names them."""
        # The payload is asked first: most rows have none and need not be decoded for that.
        if self._raw is not None or "images" not in self._json:
            return ()
        content = self.content
        return content.images if isinstance(content, UserText | ToolFeedback) else ()

    def with_id(self, row_id: RowId) -> ChunkRow:
        """Return the same row under the name `row_id`."""
        named = ChunkRow(self.kind, self.payload, row_id)
        # What was worked out for one name holds for every other.
        for name in _RowCache.__slots__:
            if hasattr(self, name):
                object.__setattr__(named, name, getattr(self, name))
        return named

    def with_images(self, images: tuple[Image, ...]) -> ChunkRow:
        """Return the same row with the bytes of its images, which a payload has no place for."""
        if not images:
            return self
        content = self.content
        assert isinstance(content, UserText | ToolFeedback)
        assert content.images == images
        row = ChunkRow(self.kind, self.payload, self.id)
        object.__setattr__(row, "_content", replace(content, images=images))
        return row

    def __reduce__(self) -> tuple[Callable[..., ChunkRow], tuple[Any, ...]]:
        bare = (self.kind, dict(self.payload), self.id)
        return (_row_with_images, (*bare, self.images)) if self.images else (ChunkRow, bare)


def _row_with_images(
    kind: ChunkKind | str, payload: Mapping[str, Any], row_id: RowId | None, images: Any
) -> ChunkRow:
    return ChunkRow(kind, payload, row_id).with_images(images)


_KINDS: dict[str, ChunkKind] = {kind.value: kind for kind in ChunkKind}
_set = object.__setattr__


def parsed_row(kind: str, payload: dict[str, Any], row_id: RowId | None) -> ChunkRow:
    """Return a row over a payload that nobody else holds, as a decoder has just made it.

    It is made read-only when somebody reads it, which of most rows of a log nobody does.
    """
    row = object.__new__(ChunkRow)
    _set(row, "kind", _KINDS.get(kind, kind))
    _set(row, "id", row_id)
    _set(row, "_raw", None)
    _set(row, "_json", payload)
    return row


def unparsed_row(kind: str, payload: bytes, row_id: RowId | None) -> ChunkRow:
    """Return a row over a payload that is parsed when somebody reads it.

    Args:
        kind: The kind of the row.
        payload: JSON, found to be an object that can be parsed, and names no images.
        row_id: The name of the row.
    """
    row = object.__new__(ChunkRow)
    _set(row, "kind", _KINDS.get(kind, kind))
    _set(row, "id", row_id)
    _set(row, "_raw", payload)
    return row


def _parsed(payload: bytes) -> dict[str, Any]:
    try:
        return _decode(payload)
    except MsgspecError:
        # A number that only the json module reads.
        fields: dict[str, Any] = json.loads(payload)
        return fields


_decode = Decoder(dict[str, Any]).decode


MANY_ROWS = 200
"""Above this a worker thread is used, at about 10 us a row the trip is short then, and what was
worked out over the rows is kept for the next run; a guess."""


class TableCache:
    """Work over the rows of a table that those which go on from it need not do again.

    Each part stands beside the rows that it was done for: a table takes what was done for its own
    front, found by identity, and for nothing else.
    """

    __slots__ = ("digest", "requests")

    def __init__(self) -> None:
        self.digest: RowsDigest = RowsDigest()
        self.requests: tuple[Vector[ChunkRow], Any] | None = None
        """What holds these rows as a model reads them; one run takes it and goes on with it."""


class ChunkTable:
    """The rows of a session: immutable, and sharing their front with what they came from.

    Appending is O(1), indexing O(log n), and forks of a table cost nothing.
    """

    __slots__ = ("_rows", "cache")

    cache: TableCache
    """Shared by the tables that were made of one another."""

    def __init__(
        self, rows: Iterable[ChunkRow] | Vector[ChunkRow] = (), *, cache: TableCache | None = None
    ) -> None:
        self._rows: Vector[ChunkRow] = rows if isinstance(rows, Vector) else Vector(rows)
        self.cache = TableCache() if cache is None else cache

    @property
    def rows(self) -> tuple[ChunkRow, ...]:
        """All rows as a tuple; O(len(table)), for users and tests."""
        return self._rows.since(0)

    @property
    def vector(self) -> Vector[ChunkRow]:
        """The persistent vector behind the table."""
        return self._rows

    def extend(self, *additional: ChunkRow) -> ChunkTable:
        """Return a table with rows added at the end."""
        return ChunkTable(self._rows.extend(additional), cache=self.cache)

    def born_in(self, session: UUID, rows: Iterable[ChunkRow]) -> ChunkTable:
        """Return a table with rows added; those without a name are named after `session`."""
        return self.extend(
            *(
                row if row.id is not None else row.with_id(RowId(session, index))
                for index, row in enumerate(rows, start=len(self))
            )
        )

    def named(self, session: UUID) -> ChunkTable:
        """Return a table of which each row has a name; it shares those before the first without."""
        rows = self.rows
        n_named = next((at for at, row in enumerate(rows) if row.id is None), len(rows))
        return self.prefix(n_named).born_in(session, rows[n_named:])

    def digest(self) -> str:
        """Return the `rows_digest` of the table; O(rows since it was asked of one in its front)."""
        if len(self) <= MANY_ROWS:
            return rows_digest(self._rows)
        return self.cache.digest.of(self._rows)

    def since(self, start: int) -> tuple[ChunkRow, ...]:
        """Return the rows from index `start` on; O(number returned)."""
        return self._rows.since(start)

    def prefix(self, size: int) -> ChunkTable:
        """Return a table of the first `size` rows, which it shares; O(log n)."""
        return ChunkTable(self._rows.prefix(size), cache=self.cache)

    def common_prefix(self, other: ChunkTable) -> int:
        """Return how many leading rows are the same rows in both tables, found by row id."""
        shared, limit = self._rows.common_prefix(other.vector), min(len(self), len(other))
        # Tables that were loaded from files share no memory; their rows still have names.
        while shared < limit:
            name = self._rows[shared].id
            if name is None or name != other.vector[shared].id:
                break
            shared += 1
        return shared

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[ChunkRow]:
        return iter(self._rows)

    def __reversed__(self) -> Iterator[ChunkRow]:
        return reversed(self._rows)

    @overload
    def __getitem__(self, index: int) -> ChunkRow: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[ChunkRow, ...]: ...
    def __getitem__(self, index: int | slice) -> ChunkRow | tuple[ChunkRow, ...]:
        return self.rows[index] if isinstance(index, slice) else self._rows[index]

    def __eq__(self, other: object) -> bool:
        return self._rows == other._rows if isinstance(other, ChunkTable) else NotImplemented

    def __hash__(self) -> int:
        return hash(len(self._rows))

    def __repr__(self) -> str:
        return f"ChunkTable(rows={self.rows!r})"

    def __reduce__(self) -> tuple[type[ChunkTable], tuple[tuple[ChunkRow, ...]]]:
        return ChunkTable, (self.rows,)


def make_row(kind: ChunkKind, content: Content) -> ChunkRow:
    """Return a row whose text is valid Unicode; what had to be replaced is noted in the row."""
    payload = encode_content(content)
    if is_plain(content):
        row = ChunkRow(kind, payload)
        # The payload would be decoded to the same.
        object.__setattr__(row, "_content", content)
        return row
    clean = {key: _valid(value) for key, value in payload.items()}
    if clean != payload:
        clean["unicode_replaced"] = True
    row = ChunkRow(kind, clean)
    return row.with_images(content.images) if isinstance(content, UserText | ToolFeedback) else row


def user_text_chunk(text: str, *, images: Sequence[ImageSource] | None = ()) -> ChunkRow:
    """Return a row in which the user says `text` and shows `images`.

    Args:
        text: What the user says.
        images: Paths of PNG, JPEG, GIF or WebP files, or their bytes, each at most
            `rath.llm.image.MAX_IMAGE_BYTES`. They are read now; paths are not kept.

    Raises:
        TypeError: `images` is no list of them.
        OSError: An image file is not there or cannot be read.
        ValueError: An image is of no such kind, or too large, or given as an address.
    """
    return make_row(ChunkKind.USER, UserText(text, read_images(images)))


def system_text_chunk(text: str) -> ChunkRow:
    """Return a row of instructions for the model."""
    return make_row(ChunkKind.SYSTEM, SystemText(text))


def assistant_turn_chunk(
    *, tool_calls: tuple[RathLLMToolCallPart, ...] | None, content: str | None = None
) -> ChunkRow:
    """Return a row with what the model said and the tool calls it asked for."""
    calls = tuple(
        ToolCall(part.id, part.function.name, part.function.arguments, part.type)
        for part in tool_calls or ()
    )
    return make_row(ChunkKind.ASSISTANT, AssistantTurn(content, calls))


def tool_feedback_chunk(
    tool_call_id: str, name: str, body: str, *, images: Sequence[ImageSource] | None = ()
) -> ChunkRow:
    """Return a row with the result of a tool call, as the model reads it.

    Args:
        tool_call_id: The call.
        name: The tool.
        body: What the model reads.
        images: What it is shown; see `user_text_chunk`, also for what is raised.
    """
    content_images = read_images(images) if images else ()
    return make_row(ChunkKind.TOOL_RESULT, ToolFeedback(tool_call_id, name, body, content_images))


def chunk_table_to_messages(tab: ChunkTable) -> tuple[RathLLMMessage, ...]:
    """Return one message per row of a known kind, in order, exactly as the rows say."""
    return tuple(message for row in tab if (message := _plain_message(row)) is not None)


def format_chunk_row_brief(index: int, row: ChunkRow, *, max_payload: int = 400) -> str:
    """Return one line that shows a row, its text cut in the middle at `max_payload` characters."""
    return show_row(index, row, max_payload)


def show_row(index: int, row: ChunkRow, max_chars: int, max_arguments: int | None = None) -> str:
    """Return one line that shows a row, its text cut in the middle at `max_chars` characters.

    With `max_arguments` calls are shown with as much of their arguments, and results by their id.
    """
    match row.content:
        case SystemText(text) | UserText(text):
            preview = show_images(row.images, max_chars) + repr(one_line_preview(text, max_chars))
        case AssistantTurn(text, calls):
            parts = [] if text is None else [f"text={one_line_preview(text, max_chars)!r}"]
            listed = [call.name for call in calls]
            if max_arguments is not None:
                arguments = (one_line_preview(call.arguments, max_arguments) for call in calls)
                listed = [f"{name}({each!r})" for name, each in zip(listed, arguments, strict=True)]
            parts += [f"tools=[{', '.join(listed)}]"] if listed else []
            preview = ", ".join(parts) or "(empty)"
        case ToolFeedback(call_id, name, body):
            text = one_line_preview(readable_json(body), max_chars)
            fields = f"name={name!r}, id={call_id!r}, body={text!r}"
            fields = f"name={name!r} body={text}" if max_arguments is None else fields
            preview = show_images(row.images, max_chars) + fields
        case other:
            preview = repr(one_line_preview(str(other.payload), max_chars))
    return f"[{index}] {row.kind_name}: {preview}"


def show_images(images: Sequence[Image], max_chars: int) -> str:
    """Return the text that precedes a row with images, "" when there are none."""
    labels = " ".join(image.label for image in images)
    return f"{one_line_preview(labels, max_chars)} " if labels else ""


def differing_row(before: Iterable[ChunkRow], now: Iterable[ChunkRow]) -> tuple[str, str]:
    """Return the first row in which two sequences differ, as each has it: short, and redacted."""
    sides = [*before], [*now]
    pairs = enumerate(zip(*sides, strict=False))
    ends = (index for index, (old, new) in pairs if old.digest != new.digest)
    at = next(ends, min(map(len, sides)))
    rows = [side[at] if at < len(side) else None for side in sides]
    payloads: list[Mapping[str, Any]] = [{} if row is None else row.payload for row in rows]
    contents = [payload.get("content", "") for payload in payloads]
    is_text = all(isinstance(text, str) for text in contents) and contents[0] != contents[1]
    texts = contents if is_text else [json.dumps(payload) for payload in payloads]
    shown: list[str] = [_redact_content(text) for text in texts]
    same = (index for index, (old, new) in enumerate(zip(*shown, strict=False)) if old != new)
    start = max(0, next(same, min(map(len, shown))) - _CHARS_BEFORE)
    gap = "..." if start else ""
    old, new = (
        f"no row {at}"
        if row is None
        else f"row {at} ({row.kind_name}) {gap + one_line_preview(text[start:], _MOST_CHARS)!r}"
        for row, text in zip(rows, shown, strict=True)
    )
    return old, new


_MOST_CHARS, _CHARS_BEFORE = 80, 20
"""Of a row that differs; so many of them stand before the first difference."""


def readable_json(body: str) -> str:
    r"""Return JSON text compactly, `\u` escapes as real characters; other text as it is."""
    try:
        return json.dumps(json.loads(body), ensure_ascii=False, separators=(",", ":"))
    except ValueError:
        return body


def _plain_message(row: ChunkRow) -> RathLLMMessage | None:
    content = row.content
    match content:
        case SystemText(text):
            return RathLLMMessage("system", text)
        case UserText(text, images):
            return RathLLMMessage("user", text, images=images or None)
        case AssistantTurn(text, calls):
            listed = tuple(encode_call(call) for call in calls) or None
            return RathLLMMessage("assistant", text, tool_calls=listed)
        case ToolFeedback(call_id, _, body, images):
            return RathLLMMessage("tool", body, tool_call_id=call_id, images=images or None)
        case Opaque():
            return None
        case _:
            assert_never(content)


def _valid(value: object) -> Any:
    if isinstance(value, str):
        return valid_unicode(value)
    if isinstance(value, list):
        return [_valid(item) for item in cast("list[object]", value)]
    if isinstance(value, dict):
        mapping = cast("dict[object, object]", value)
        return {_valid(key): _valid(item) for key, item in mapping.items()}
    return value
