"""How frozen dataclasses become JSON and come back: worked out once from their annotations."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from typing import Any, Literal, Union, cast, get_args, get_origin
from uuid import UUID

from rath._core.blobs import Blob
from rath.session.chunk import RowId

Encode = Callable[[Any, list[Blob]], Any]
"""Returns a value as JSON, and adds the blobs in it to a list."""

MakeBlob = Callable[[str, int, bool], Blob]
"""Makes a blob of its digest, its size, and whether its bytes were kept."""

Decode = Callable[[Any, MakeBlob], Any]
"""Returns the value that JSON says; raises ValueError, TypeError or KeyError for what it cannot."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The two directions of one type."""

    encode: Encode
    decode: Decode


@dataclass(frozen=True, slots=True)
class _Member:
    name: str
    shape: Shape
    default: Any
    """What stands for a member that is left out; MISSING where it must be there."""


def shape_of_class(cls: type[Any], *, without: Sequence[str] = ()) -> Shape:
    """Return the shape of a dataclass as an object of its fields; some may be left out.

    A field is not written where it has its default, None or (); unknown members are ignored.
    """
    hints = typing.get_type_hints(cls)
    fields = [f for f in dataclasses.fields(cls) if f.init and f.name not in without]
    members = tuple(_Member(f.name, shape_of(hints[f.name]), _default(f)) for f in fields)

    def encode(value: Any, blobs: list[Blob]) -> dict[str, Any]:
        said: dict[str, Any] = {}
        for member in members:
            part = getattr(value, member.name)
            if (part is None or part == ()) and part == member.default:
                continue
            said[member.name] = member.shape.encode(part, blobs)
        return said

    def decode(said: Any, make_blob: MakeBlob) -> Any:
        if type(said) is not dict:
            raise TypeError(f"expected an object for {cls.__name__}, found {said!r:.60}")
        found = cast("dict[str, Any]", said)
        parts: dict[str, Any] = {}
        for member in members:
            if member.name in found:
                parts[member.name] = member.shape.decode(found[member.name], make_blob)
            elif member.default is MISSING:
                raise KeyError(f"{cls.__name__}.{member.name}")
        return cls(**parts)

    return Shape(encode, decode)


def _default(field: dataclasses.Field[Any]) -> Any:
    # What a factory makes is new each time, so that such a field is always written.
    return field.default


@cache
def shape_of(hint: Any) -> Shape:
    """Return the shape of a type: JSON types, ids, times, tuples, mappings, dataclasses, unions.

    Raises:
        TypeError: There is none.
    """
    if hint in _ATOMS:
        return _ATOMS[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _optional(arguments)
    if origin is Literal:
        return _literal(arguments)
    if origin is tuple:
        return _tuple(arguments)
    if hint is Any or (isinstance(origin or hint, type) and issubclass(origin or hint, Mapping)):
        return _AS_IT_IS
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return shape_of_class(hint)
    raise TypeError(f"{hint!r} has no form in a session file")


def _plainly(kind: type[Any], *more: type[Any]) -> Shape:
    kinds = (kind, *more)

    def decode(said: Any, _: MakeBlob) -> Any:
        if type(said) not in kinds:
            raise TypeError(f"expected {kind.__name__}, found {said!r:.60}")
        return said

    return Shape(lambda value, _: value, decode)


def _as_text(to_text: Callable[[Any], str], from_text: Callable[[str], Any]) -> Shape:
    def decode(said: Any, _: MakeBlob) -> Any:
        if type(said) is not str:
            raise TypeError(f"expected text, found {said!r:.60}")
        return from_text(said)

    return Shape(lambda value, _: to_text(value), decode)


def _row_id(text: str) -> RowId:
    session, _, index = text.rpartition(":")
    return RowId(UUID(session), int(index))


def utc(text: str) -> datetime:
    """Return the time that ISO text says, in UTC; text without a zone is UTC."""
    time = datetime.fromisoformat(text)
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


def _encode_blob(blob: Blob, blobs: list[Blob]) -> dict[str, Any]:
    said: dict[str, Any] = {"sha256": blob.digest, "size": blob.size}
    if blob.is_kept:
        said["kept"] = True
        blobs.append(blob)
    return said


def _decode_blob(said: Any, make_blob: MakeBlob) -> Blob:
    digest, size = said["sha256"], said["size"]
    if type(digest) is not str or type(size) is not int:
        raise TypeError(f"expected a sha256 and a size, found {said!r:.100}")
    return make_blob(digest, size, said.get("kept") is True)


_AS_IT_IS = Shape(lambda value, _: value, lambda said, _: said)

_ATOMS: dict[Any, Shape] = {
    str: _plainly(str),
    int: _plainly(int),
    float: _plainly(float, int),
    bool: _plainly(bool),
    UUID: _as_text(str, UUID),
    datetime: _as_text(datetime.isoformat, utc),
    Decimal: _as_text(str, Decimal),
    RowId: _as_text(lambda row: f"{row.session}:{row.index}", _row_id),
    Blob: Shape(_encode_blob, _decode_blob),
}


def _optional(arguments: tuple[Any, ...]) -> Shape:
    kinds = [kind for kind in arguments if kind is not type(None)]
    if len(kinds) == len(arguments) or len(kinds) != 1:
        raise TypeError(f"a union of {arguments!r} has no form in a session file")
    inner = shape_of(kinds[0])
    return Shape(
        lambda value, blobs: None if value is None else inner.encode(value, blobs),
        lambda said, make_blob: None if said is None else inner.decode(said, make_blob),
    )


def _literal(values: tuple[Any, ...]) -> Shape:
    def decode(said: Any, _: MakeBlob) -> Any:
        if said not in values:
            raise ValueError(f"expected one of {', '.join(map(repr, values))}, found {said!r:.60}")
        return said

    return Shape(lambda value, _: value, decode)


def _tuple(arguments: tuple[Any, ...]) -> Shape:
    is_open = len(arguments) == 2 and arguments[1] is Ellipsis
    inner = [shape_of(kind) for kind in (arguments[:1] if is_open else arguments)]

    def encode(value: Any, blobs: list[Blob]) -> list[Any]:
        shapes = inner * len(value) if is_open else inner
        return [shape.encode(item, blobs) for shape, item in zip(shapes, value, strict=True)]

    def decode(said: Any, make_blob: MakeBlob) -> tuple[Any, ...]:
        items = _listed(said)
        shapes = inner * len(items) if is_open else inner
        return tuple(shape.decode(i, make_blob) for shape, i in zip(shapes, items, strict=True))

    return Shape(encode, decode)


def _listed(said: Any) -> list[Any]:
    # Not `is`: a checker would take the items for something unknown.
    if type(said) not in (list,):
        raise TypeError(f"expected a list, found {said!r:.60}")
    return cast("list[Any]", said)
