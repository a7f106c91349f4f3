"""Schemas of a server, as far as it is safe to check by them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from rath.mcp.bounded_check import BoundedCheck

__all__ = ["SchemaCheck", "sound_schema"]

_log = logging.getLogger("rath.mcp")

MAX_DEPTH = 100
"""How deep a schema is read; what lies below checks nothing. A guess."""

_BY_NAME = frozenset({"properties", "$defs", "definitions", "dependentSchemas", "dependencies"})
"""Keywords whose table has names of the author's own, `pattern` among them."""

_DATA = frozenset({"const", "default", "enum", "examples"})

_LEFT = frozenset(
    {
        # A regular expression may be made so that it is never done.
        "pattern", "patternProperties",
        # They go through other schemas in ways that are not counted.
        "unevaluatedItems", "unevaluatedProperties", "$dynamicRef", "$recursiveRef",
        # Names of places, for which the whole schema is searched each time.
        "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$id", "id",
        # Of the third draft alone.
        "disallow", "extends",
    }
)  # fmt: skip
"""Keywords that are left to the server."""

_TURNING = frozenset({"not", "oneOf", "if", "contains"})
"""Keywords that refuse more where a schema in them refuses less."""


class SchemaCheck:
    """Checks arguments by the schema of a server, for a time that has a bound.

    What is left to the server: regular expressions, references to other places than a path in the
    schema itself, what lies deeper than `MAX_DEPTH`, a schema that cannot be used at all, and what
    is not decided after a number of steps, since a small schema may ask for more of them than
    anybody has time for.

    Args:
        schema: JSON Schema, as the server gave it.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema
        self._check: BoundedCheck | None = None
        self._is_made = False

    def problems(self, arguments: Mapping[str, Any]) -> list[str]:
        """Return where arguments do not fit and what was expected there, five places at most."""
        if not self._is_made:
            self._check, self._is_made = _made(self._schema), True
        return [] if self._check is None else self._check.errors(arguments)


def sound_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema that accepts all that `schema` accepts, and perhaps more.

    It has nothing that could run for ever, or be fetched from elsewhere. Where something was left
    out below `not`, `oneOf`, `if` or `contains`, so is that keyword, since it would refuse now
    what the whole one accepts.
    """
    reading = _Reading()
    found = reading.schema(schema, MAX_DEPTH)
    if reading.n_left:
        # References may lead to less than they did.
        found = _Reading(are_references_whole=False).schema(schema, MAX_DEPTH)
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _made(schema: Mapping[str, Any]) -> BoundedCheck | None:
    # Brings the schema library, which costs tens of milliseconds.
    from rath.mcp.bounded_check import BoundedCheck  # noqa: PLC0415

    try:
        return BoundedCheck(sound_schema(schema))
    except Exception as exc:  # noqa: BLE001  # a tool's lane: a broken schema has many errors
        _log.debug("the schema of an MCP tool cannot be used: %s", type(exc))
        return None


class _Reading:
    """One walk through a schema."""

    def __init__(self, *, are_references_whole: bool = True) -> None:
        self._are_references_whole = are_references_whole
        self._n_references = 0
        self.n_left = 0
        """How much was left out so far."""

    def schema(self, node: object, depth: int) -> object:
        """Return the sound part of what stands where schemas may."""
        if isinstance(node, list):
            return [self._below(each, depth) for each in cast("list[object]", node)]
        if not isinstance(node, Mapping):
            return node
        table = cast("Mapping[str, object]", node)
        if not self._is_usable(table, is_root=depth == MAX_DEPTH):
            self.n_left += 1
            return {}
        found: dict[str, object] = {}
        for key, value in table.items():
            if key in _LEFT or (key == "additionalProperties" and "patternProperties" in table):
                self.n_left += 1
                continue
            before = self._weakness
            sound = self._value(key, value, depth)
            if key not in _TURNING or self._weakness == before:
                found[key] = sound
            elif key == "oneOf" and "anyOf" not in table:
                found["anyOf"] = sound  # that more than one fits is not known
        return found

    @property
    def _weakness(self) -> int:
        return self.n_left + (0 if self._are_references_whole else self._n_references)

    def _value(self, key: str, value: object, depth: int) -> object:
        if key in _DATA:
            return value
        self._n_references += key == "$ref"
        if key in _BY_NAME and isinstance(value, Mapping):
            named = cast("Mapping[str, object]", value)
            return {name: self._below(each, depth) for name, each in named.items()}
        return self._below(value, depth)

    def _below(self, node: object, depth: int) -> object:
        if depth > 1 or not isinstance(node, list | Mapping):
            return self.schema(node, depth - 1)
        self.n_left += 1
        return {}

    def _is_usable(self, table: Mapping[str, object], *, is_root: bool) -> bool:
        """Tell whether all references in a schema, and from it, are paths from its root."""
        reference = table.get("$ref")
        if reference is not None and not _is_path(reference):
            return False
        return is_root or not any(isinstance(table.get(name), str) for name in ("$id", "id"))


def _is_path(reference: object) -> bool:
    return isinstance(reference, str) and (reference == "#" or reference.startswith("#/"))
