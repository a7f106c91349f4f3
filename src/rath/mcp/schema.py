"""Schemas of a server, as far as it is safe to check by them."""

from __future__ import annotations

import contextvars
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from rath._core.text import one_line_preview

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

__all__ = ["MAX_STEPS", "SchemaCheck", "sound_schema"]

_log = logging.getLogger("rath.mcp")

MAX_DEPTH = 100
"""How deep a schema is read; what lies below checks nothing. A guess."""

MAX_STEPS = 50_000
"""Cost of one check at most: a keyword is a step, and more where schema or value are long, since
each message quotes them. About a third of a second, measured."""

_CHARS_A_STEP = 500

_MAX_SHOWN = 5
_MAX_FOUND = 100
_MAX_MESSAGE_CHARS = 300

_ENCODER = json.JSONEncoder(default=str)

_BY_NAME = frozenset({"properties", "$defs", "definitions", "dependentSchemas", "dependencies"})
"""Keywords whose table has names of the author's own, `pattern` among them."""

_DATA = frozenset({"const", "default", "enum", "examples"})

_OMITTED = frozenset(
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

_NEGATING = frozenset({"not", "oneOf", "if", "contains"})
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
        self._checker: Any = None
        self._is_made = False
        self._n_chars = 0

    def problems(self, arguments: Mapping[str, Any]) -> list[str]:
        """Return where arguments do not fit, by JSON path, and what was expected there; at most 5.

        A check that costs too much, or finds the schema broken, ends with what it has found.
        """
        if not self._is_made:
            self._checker, self._is_made = self._make(), True
        if self._checker is None:
            return []
        value = dict(arguments)
        n_chars = self._n_chars + len(_ENCODER.encode(value))
        before = _budget.set(_StepBudget(1 + n_chars // _CHARS_A_STEP))
        found: list[ValidationError] = []
        try:
            for error in islice(self._checker.iter_errors(value), _MAX_FOUND):
                found.append(error)  # it stays found, whatever comes of the rest
        except Exception as exc:  # noqa: BLE001  # a tool's lane: a broken schema has many errors
            _log.debug("the schema of an MCP tool was not checked to its end: %s", type(exc))
        finally:
            _budget.reset(before)
        found.sort(key=lambda error: error.json_path)
        texts = (f"{error.json_path}: {error.message}" for error in found)
        lines = (one_line_preview(text, _MAX_MESSAGE_CHARS) for text in texts)
        return list(dict.fromkeys(lines))[:_MAX_SHOWN]

    def _make(self) -> Any:
        # Bring the schema library, which costs tens of milliseconds.
        from jsonschema import Draft202012Validator, validators  # noqa: PLC0415
        from referencing.jsonschema import EMPTY_REGISTRY  # noqa: PLC0415

        library = cast("Any", validators)  # which has no types
        try:
            schema = sound_schema(self._schema)
            kind = _counting(library.validator_for(schema, default=Draft202012Validator))
            self._n_chars = len(json.dumps(schema, default=str))
            # With a registry of its own the library never fetches a reference.
            return kind(schema, registry=EMPTY_REGISTRY)
        except Exception as exc:  # noqa: BLE001  # a tool's lane: a broken schema has many errors
            _log.debug("the schema of an MCP tool cannot be used: %s", type(exc))
            return None


class _TooManySteps(Exception):
    """A check has cost what it may cost."""


class _StepBudget:
    """Steps that a check may still take."""

    def __init__(self, cost_of_a_step: int) -> None:
        self._cost_of_a_step = cost_of_a_step
        self._rest = MAX_STEPS

    def pay(self, n_more: int = 0) -> None:
        """Count one step.

        Raises:
            _TooManySteps: It was one too many.
        """
        self._rest -= self._cost_of_a_step + n_more
        if self._rest < 0:
            raise _TooManySteps


_budget: contextvars.ContextVar[_StepBudget] = contextvars.ContextVar("rath_mcp_schema_check")


@cache
def _counting(kind: Any) -> Any:
    """Return a kind of validator that pays for each keyword."""
    from jsonschema import validators  # noqa: PLC0415

    table = cast("Mapping[str, _Keyword]", kind.VALIDATORS)
    counted = {name: _counted(name, keyword) for name, keyword in table.items()}
    return cast("Any", validators).extend(kind, counted)


_Keyword = Callable[[Any, Any, Any, Any], "Iterable[ValidationError] | None"]


def _counted(name: str, keyword: _Keyword) -> _Keyword:
    def check(checker: Any, value: Any, instance: Any, schema: Any) -> Iterable[ValidationError]:
        is_pairwise = name == "uniqueItems" and isinstance(instance, list)
        _budget.get().pay(len(cast("list[object]", instance)) ** 2 if is_pairwise else 0)
        return keyword(checker, value, instance, schema) or ()

    return check


def sound_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema that accepts all that `schema` accepts, and perhaps more.

    It has nothing that could run for ever, or be fetched from elsewhere. Where something was left
    out below `not`, `oneOf`, `if` or `contains`, so is that keyword, since it would refuse now
    what the whole one accepts.
    """
    reading = _SchemaWalk()
    found = reading.schema(schema, MAX_DEPTH)
    if reading.n_omitted:
        # References may lead to less than they did.
        found = _SchemaWalk(are_references_whole=False).schema(schema, MAX_DEPTH)
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


class _SchemaWalk:
    """One walk through a schema."""

    def __init__(self, *, are_references_whole: bool = True) -> None:
        self._are_references_whole = are_references_whole
        self._n_references = 0
        self.n_omitted = 0
        """How much was left out so far."""

    def schema(self, node: object, depth: int) -> object:
        """Return the sound part of what stands where schemas may."""
        if isinstance(node, list):
            return [self._below(each, depth) for each in cast("list[object]", node)]
        if not isinstance(node, Mapping):
            return node
        table = cast("Mapping[str, object]", node)
        if not self._is_usable(table, is_root=depth == MAX_DEPTH):
            self.n_omitted += 1
            return {}
        found: dict[str, object] = {}
        for key, value in table.items():
            if key in _OMITTED or (key == "additionalProperties" and "patternProperties" in table):
                self.n_omitted += 1
                continue
            before = self._weakness
            sound = self._value(key, value, depth)
            if key not in _NEGATING or self._weakness == before:
                found[key] = sound
            elif key == "oneOf" and "anyOf" not in table:
                found["anyOf"] = sound  # that more than one fits is not known
        return found

    @property
    def _weakness(self) -> int:
        return self.n_omitted + (0 if self._are_references_whole else self._n_references)

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
        self.n_omitted += 1
        return {}

    def _is_usable(self, table: Mapping[str, object], *, is_root: bool) -> bool:
        """Tell whether all references in a schema, and from it, are paths from its root."""
        reference = table.get("$ref")
        if reference is not None and not _is_path(reference):
            return False
        return is_root or not any(isinstance(table.get(name), str) for name in ("$id", "id"))


def _is_path(reference: object) -> bool:
    return isinstance(reference, str) and (reference == "#" or reference.startswith("#/"))
