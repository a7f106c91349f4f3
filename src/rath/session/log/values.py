"""Values of any shape as JSON: as the json module writes them, where msgspec has other forms."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from math import isfinite
from typing import Any, cast

import msgspec

from rath._core.blobs import Blob

Json = dict[str, Any]


def free_json(value: object) -> msgspec.Raw:
    """Return JSON of any shape as the json module writes it.

    msgspec has forms for values that are none of JSON's, such as bytes and dates.

    Raises:
        TypeError: It holds something that JSON has no form for.
    """
    return msgspec.Raw(dump(value))


def output_to_plain(value: object) -> object:
    """Return what can be read of a typed answer without its class."""
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
            said: Json = {"sha256": value.digest, "size": value.size}
            return {**said, "kept": True} if value.is_kept else said
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
