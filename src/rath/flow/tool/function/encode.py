"""What a function returned, as values that JSON holds."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Generator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, cast

import pydantic
import pydantic_core

from rath.backend.results import ToolResult
from rath.llm.image import Image

_PLAIN = (str, int, float, bool, type(None))
_BYTES = (bytes, bytearray)
_OURS = (Image, *_BYTES)


def plain_result(value: object) -> Any:
    """Return `value` with models, dataclasses, dates, enums, bytes and sets made plain.

    Bytes become base64, but for those of models, which say themselves how they are written.
    Images, and what sandboxes answer, stay what they are, also inside of other values. What cannot
    be made plain is returned as it is.
    """
    # By exact type: an enum may be a str too.
    if type(value) in _PLAIN or isinstance(value, Image | ToolResult):
        return value
    if isinstance(value, _BYTES):
        # Pydantic writes the alphabet of URLs, which `base64 -d` and most decoders refuse.
        return base64.b64encode(value).decode()
    found = list(cast("Generator[object]", value)) if isinstance(value, Generator) else value
    return _split(found) if _holds_ours(found) else _jsonable(found)


def _jsonable(value: object) -> Any:
    try:
        return pydantic_core.to_jsonable_python(
            value, by_alias=False, bytes_mode="base64", fallback=str
        )
    except (ValueError, RecursionError):
        return value


def _split(value: object) -> Any:
    """Return a value part by part."""
    parts = _parts(value)
    if isinstance(parts, dict):
        return {_key(key): plain_result(part) for key, part in parts.items()}
    return [plain_result(part) for part in parts]


def _key(key: object) -> str:
    written: object = _jsonable({key: None})
    return str(next(iter(cast("dict[object, None]", written))))


def _holds_ours(value: object) -> bool:
    """Tell whether there is an image in it, or bytes outside of a model."""
    todo: list[object] = [value]
    met: dict[int, object] = {}
    while todo:
        one = todo.pop()
        if type(one) in _PLAIN or id(one) in met:
            continue
        if isinstance(one, _OURS):
            return True
        met[id(one)] = one
        parts = _parts(one)
        listed = parts.values() if isinstance(parts, dict) else parts
        is_model = isinstance(one, pydantic.BaseModel)
        todo += [part for part in listed if not (is_model and isinstance(part, _BYTES))]
    return False


def _parts(value: object) -> dict[object, object] | list[object]:
    """Return what a value holds; nothing of one that is looked into by pydantic alone."""
    if isinstance(value, list | tuple):
        return list(cast("list[object]", value))
    if isinstance(value, dict | Mapping):
        return dict(cast("Mapping[object, object]", value))
    if isinstance(value, AbstractSet):
        return list(cast("AbstractSet[object]", value))
    if isinstance(value, pydantic.BaseModel):
        return dict(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type | ToolResult):
        return {each.name: getattr(value, each.name, None) for each in dataclasses.fields(value)}
    return []
