r"""JSON of any shape as bytes, lines of it whose checksums are chained, and their problems.

So a changed line is named and never believed. A line is a JSON object whose last member is `"sum"`:
the first 16 hex digits of the sha256 over the sum of the line before (ASCII, "" for the first line)
and the bytes of this line without that member, from `{` to the last value.

    {"event":"row","index":0,...,"sum":"0f3a..."}\n

Logs of version 2 and bundles have a space after each comma and colon.
"""

from __future__ import annotations

import dataclasses
import json
import re
import threading
from collections.abc import Iterable, Mapping
from functools import cache
from hashlib import sha256
from math import isfinite
from typing import Any, cast, get_args, get_type_hints

import msgspec

from rath._core.blobs import Blob
from rath.errors import PersistenceError

Json = dict[str, Any]

CURRENT_SCHEMA_VERSION = 3
"""Version 1: header, rows and trailer. Version 2: also what happened, and checksums. Version 3: the
same in half the bytes; what repeats is said once."""


_looking = threading.Lock()


def look_at_types(*kinds: Any) -> None:
    """Have msgspec look at types before they are needed.

    It crashes where two threads are the first ones to need a type at the same time.
    """
    with _looking:
        _look_at_types(kinds)


@cache
def _look_at_types(kinds: tuple[Any, ...]) -> None:
    for kind in kinds:
        msgspec.json.Decoder(kind)


def free_json(value: object) -> msgspec.Raw:
    """Return JSON of any shape as the json module writes it.

    msgspec has forms for values that are none of JSON's, such as bytes and dates.

    Raises:
        TypeError: It holds something that JSON has no form for.
    """
    return msgspec.Raw(dump(value))


def output_to_plain(value: object) -> object:
    """Return the readable part of a typed answer without its class."""
    to_json: object = getattr(value, "model_dump", None)
    if callable(to_json):
        return to_json(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return value


def dump(value: object) -> bytes:
    """Return compact JSON, in UTF-8 but for lone surrogates, which are escaped."""
    try:
        return _dump(value).encode()
    except UnicodeEncodeError:
        return json.dumps(value, default=to_json_value, separators=(",", ":")).encode()


def to_json_value(value: object) -> object:
    """Return a value that encoders know in the place of one that they do not.

    Raises:
        TypeError: JSON has no form for it.
    """
    match value:
        case Blob():
            fields: Json = {"sha256": value.digest, "size": value.size}
            return {**fields, "kept": True} if value.is_kept else fields
        case Mapping():
            return dict(cast("Mapping[str, Any]", value))
        case set() | frozenset():
            return sorted(cast("set[Any]", value))
        case msgspec.Raw():
            return json.loads(bytes(value))
        # Classes of somebody else that are text or numbers: the json module writes them as such.
        case str():
            return str.__str__(value)
        case float():
            return float(value)
        case int():
            return int(value)
        case _:
            kind = type(value).__name__
            raise TypeError(f"{kind} has no JSON form; use text, numbers, lists or objects")


# Made once: `json.dumps` with options makes an encoder at each call.
_dump = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=to_json_value).encode


def has_odd_number(value: object) -> bool:
    """Tell whether there is a number in a value that is none: msgspec writes null for it."""
    if isinstance(value, float):
        return not isfinite(value)
    if isinstance(value, dict):
        return any(map(has_odd_number, cast("dict[Any, object]", value).values()))
    if isinstance(value, list | tuple):
        return any(map(has_odd_number, cast("list[object]", value)))
    return False


SUM_DIGITS = 16
"""64 bits: a change goes unseen once in 10^19 times."""

_TAIL = re.compile(rb', ?"sum": ?"[0-9a-f]{16}"\}')
_COMPACT, _SPACED = b',"sum":"%s"}', b', "sum": "%s"}'
SUM_BYTES = len(_COMPACT % b"") + SUM_DIGITS
"""How long the end of a compact line is."""


def chained(lines: Iterable[bytes], after: str, *, is_compact: bool = False) -> tuple[bytes, str]:
    """Return lines with their sums, each ending in a line feed, and the sum of the last one.

    Args:
        lines: JSON objects with at least one member, without sum and line feed.
        after: The sum of the line before, "" at the beginning.
        is_compact: Whether no spaces stand between members.
    """
    form = b"%s" + (_COMPACT if is_compact else _SPACED) + b"\n"
    chunks: list[bytes] = []
    for line in lines:
        after = _sum(after, line[:-1])
        chunks.append(form % (line[:-1], after.encode()))
    return b"".join(chunks), after


def checked_sum(line: bytes, after: str, *, is_compact: bool = False) -> str:
    """Return the sum of a line, without its line feed, that stands after one with sum `after`.

    Raises:
        PersistenceError: It has no sum, or was changed, or does not stand where it was written.
    """
    form, n_bytes = (_COMPACT, SUM_BYTES) if is_compact else (_SPACED, SUM_BYTES + 2)
    expected = sha256(after.encode() + line[:-n_bytes]).hexdigest()[:SUM_DIGITS]
    if line.endswith(form % expected.encode()):
        return expected
    if _TAIL.fullmatch(line[-n_bytes:]) is None:
        raise PersistenceError("the line has no checksum at its end; it was cut or changed")
    raise PersistenceError(
        "the checksum does not fit: this line was changed, or one before it was changed, "
        "removed or added"
    )


def _sum(after: str, body: bytes) -> str:
    # The last value and not the closing brace: so that nothing has to be put together again.
    return sha256(after.encode() + body).hexdigest()[:SUM_DIGITS]


def decode_record(line: bytes) -> Json:
    """Return the JSON object on a line.

    Raises:
        PersistenceError: It is none, in UTF-8.
    """
    try:
        record: object = json.loads(line)
    except (ValueError, RecursionError) as exc:
        raise PersistenceError(f"invalid JSON: {exc}") from exc
    if not isinstance(record, dict):
        raise PersistenceError(f"expected a JSON object, found {type(record).__name__}")
    return cast("Json", record)


_PLACE = re.compile(r"(?P<problem>.*?)(?: - at `(?P<place>[^`]*)`)?\Z", re.DOTALL)
_EXPECTED = re.compile(r"[Ee]xpected (?P<what>.*?), got .*", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<name>[^`]*)`")
_STEP = re.compile(r"\.(?P<name>\w+)|\[(?P<index>\d+)\]")


def problem_of(exc: Exception, form: Any, record: object) -> str:
    """Return the problem of a line: where it is, the value found, and the one expected."""
    if isinstance(exc, RecursionError):
        return "it is nested too deeply"
    match = _PLACE.match(str(exc))
    assert match is not None, "every text fits"
    place = (match["place"] or "").removeprefix("$")
    problem, name = match["problem"].replace("`", ""), place.removeprefix(".")
    missing = _MISSING.search(match["problem"])
    if missing is not None:
        return f"member {'.'.join(filter(None, (name, missing['name'])))!r} is missing"
    actual = "" if record is None else f", found {_at(record, place)!r:.60}"
    expected = _EXPECTED.match(problem)
    choices = get_args(get_type_hints(form, include_extras=False).get(name)) if name else ()
    if expected is not None:
        problem = f"expected {expected['what']}"
    elif problem.startswith("Invalid enum value") and choices:
        problem = f"expected one of {', '.join(map(repr, choices))}"
    return f"{name or 'the line'}: {problem}{actual}"


def _at(value: Any, place: str) -> object:
    for step in _STEP.finditer(place):
        try:
            value = value[step["name"] or int(step["index"])]
        except (LookupError, TypeError):
            return "something else"
    return cast("object", value)
