"""Lists of models and bodies of errors in the forms that vendors give them; pure functions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

__all__ = ["ModelsPage", "decode_error_body", "decode_models"]


@dataclass(frozen=True, slots=True)
class ModelsPage:
    """A page of the models that an endpoint offers."""

    names: tuple[str, ...]
    last: str | None
    """Where the next page begins, or None when this is the last one."""


def decode_models(content: bytes) -> ModelsPage:
    """Return the names of a list of models.

    The list stands under `data` or `models`, or alone; an entry has an `id` or a `name`, or is one.

    Raises:
        ValueError: The content holds no list of models.
    """
    payload: object = json.loads(content)
    fields = _fields(payload)
    found = fields.get("data", fields.get("models")) if fields else payload
    if not isinstance(found, list):
        raise ValueError("no list of models")  # noqa: TRY004  # the content is wrong, not its type
    names = tuple(name for entry in cast("list[object]", found) if (name := _name(entry)))
    last = fields.get("last_id") if fields.get("has_more") is True else None
    return ModelsPage(names, last if isinstance(last, str) else None)


def decode_error_body(content: bytes) -> tuple[str | None, str | None]:
    """Return the message and the code of an error, as far as its body holds them.

    The error stands under `error` or alone; its details or its type stand in for a code.
    """
    try:
        fields = _fields(json.loads(content))
    except (ValueError, RecursionError):
        return None, None
    inner = fields.get("error")
    if isinstance(inner, str):
        return inner.strip() or None, None
    fields = _fields(inner) or fields
    message = fields.get("message") or fields.get("detail")
    codes = (fields.get("code"), _fields(fields.get("details")).get("error_code"))
    code = next((code for code in codes if code is not None), fields.get("type"))
    return None if message is None else str(message), None if code is None else str(code)


def _name(entry: object) -> str | None:
    fields = _fields(entry)
    name = (fields.get("id") or fields.get("name")) if fields else entry
    return name if isinstance(name, str) and name else None


def _fields(value: object) -> Mapping[str, object]:
    """Return the fields of a JSON object, and none of anything else."""
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}
