"""What a function returned, as values that JSON holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pydantic_core

from rath.backend.results import ToolResult
from rath.llm.image import Image

_PLAIN = (str, int, bool, type(None))


def plain_result(value: object) -> Any:
    """Return `value` with models, dataclasses, dates, enums, bytes and sets made plain.

    Bytes become base64. Images, and what sandboxes answer, stay what they are, also in lists and
    mappings. What cannot be made plain is returned as it is.
    """
    # By exact type: an enum may be a str too.
    if type(value) in _PLAIN or isinstance(value, Image | ToolResult):
        return value
    if _holds_image(value):
        return _parts(value)
    try:
        return pydantic_core.to_jsonable_python(
            value, by_alias=False, bytes_mode="base64", fallback=str
        )
    except (ValueError, RecursionError):
        return value


def _parts(value: object) -> Any:
    if isinstance(value, Mapping):
        given = cast("Mapping[Any, object]", value)
        return {str(key): plain_result(part) for key, part in given.items()}
    return [plain_result(part) for part in cast("list[object] | tuple[object, ...]", value)]


def _holds_image(value: object, depth: int = 8) -> bool:
    if isinstance(value, Image):
        return True
    if depth and isinstance(value, Mapping):
        given = cast("Mapping[Any, object]", value)
        return any(_holds_image(part, depth - 1) for part in given.values())
    if depth and isinstance(value, list | tuple):
        given_parts = cast("list[object] | tuple[object, ...]", value)
        return any(_holds_image(part, depth - 1) for part in given_parts)
    return False
