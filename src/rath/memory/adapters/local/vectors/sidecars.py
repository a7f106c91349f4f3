"""Vectors that OpenRath 1.3 left beside notes, as `<leaf>.vec`; they are read and never written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from rath.memory.adapters.local.layout import VECTOR_SUFFIX

_MAX_BYTES = 1_048_576


def sidecar_vector(note: Path, model: str) -> list[float] | None:
    """Return the vector that a model made of a whole note, if it is not older than the note."""
    path = note.with_suffix(VECTOR_SUFFIX)
    try:
        status = path.stat()
        if status.st_mtime_ns < note.stat().st_mtime_ns or status.st_size > _MAX_BYTES:
            return None
        told: object = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(told, Mapping):
        return None
    fields = cast("Mapping[str, Any]", told)
    vector = fields.get("vector")
    if fields.get("model") != model or not isinstance(vector, list) or not vector:
        return None
    numbers = cast("list[object]", vector)
    if not all(type(number) in {int, float} for number in numbers):
        return None
    try:
        return [float(cast("float", number)) for number in numbers]
    except OverflowError:
        return None
