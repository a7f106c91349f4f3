"""Schemas of a server, as far as it is safe to check by them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

__all__ = ["without_patterns"]

_PATTERNS = frozenset({"pattern", "patternProperties"})
_BY_NAME = frozenset({"properties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose table has names of the author's own, `pattern` among them."""

_DATA = frozenset({"const", "default", "enum", "examples"})
MAX_DEPTH = 100
"""How deep a schema is read; what lies below checks nothing. A guess."""


def without_patterns(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON Schema without regular expressions: a hostile one is never done."""
    return cast("dict[str, Any]", _cleaned(schema, MAX_DEPTH))


def _cleaned(node: object, depth: int) -> object:
    if depth == 0:
        return True
    if isinstance(node, list):
        return [_cleaned(each, depth - 1) for each in cast("list[object]", node)]
    if not isinstance(node, Mapping):
        return node
    table = cast("Mapping[str, object]", node)
    found: dict[str, object] = {}
    for key, value in table.items():
        if key in _BY_NAME and isinstance(value, Mapping):
            named = cast("Mapping[str, object]", value)
            found[key] = {name: _cleaned(each, depth - 1) for name, each in named.items()}
        elif key == "additionalProperties" and "patternProperties" in table:
            continue  # it is about the names that no pattern takes
        elif key not in _PATTERNS:
            found[key] = value if key in _DATA else _cleaned(value, depth - 1)
    return found
