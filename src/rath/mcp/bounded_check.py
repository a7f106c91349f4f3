"""A check by a schema of somebody else that ends after a number of steps, whatever it says."""

from __future__ import annotations

import contextvars
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import islice
from typing import Any, cast

from jsonschema import Draft202012Validator, validators
from jsonschema.exceptions import ValidationError
from referencing.jsonschema import EMPTY_REGISTRY

from rath._core.text import one_line_preview

__all__ = ["MAX_STEPS", "BoundedCheck"]

MAX_STEPS = 50_000
"""What one check may cost: a keyword is a step, and more where schema or value are long, since
each message quotes them. About a third of a second, measured."""

_CHARS_A_STEP = 500

_MAX_SHOWN = 5
_MAX_FOUND = 100
_MAX_MESSAGE_CHARS = 300

_ENCODER = json.JSONEncoder(default=str)

_library = cast("Any", validators)  # which has no types

_log = logging.getLogger("rath.mcp")

_Keyword = Callable[[Any, Any, Any, Any], Iterable[ValidationError] | None]


class _TooMuch(Exception):
    """A check has cost what it may cost."""


class _Account:
    """What a check may still cost."""

    def __init__(self, cost_of_a_step: int) -> None:
        self._cost_of_a_step = cost_of_a_step
        self._left = MAX_STEPS

    def pay(self, n_more: int = 0) -> None:
        """Count one step.

        Raises:
            _TooMuch: It was one too many.
        """
        self._left -= self._cost_of_a_step + n_more
        if self._left < 0:
            raise _TooMuch


_account: contextvars.ContextVar[_Account] = contextvars.ContextVar("rath_mcp_schema_check")


class BoundedCheck:
    """A check by one schema, made once; many threads may use it at once.

    Args:
        schema: Without regular expressions, and with references to its own parts alone.

    Raises:
        Exception: It cannot be used; which class says so, the library leaves open.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        kind = _counting(_library.validator_for(schema, default=Draft202012Validator))
        # With a registry of its own the library never fetches a reference.
        self._checker = kind(schema, registry=EMPTY_REGISTRY)
        self._n_chars = len(json.dumps(schema, default=str))

    def errors(self, value: Mapping[str, Any]) -> list[str]:
        """Return what does not fit in a value, with the place, by JSON path; at most five of them.

        A check that costs too much, or finds the schema broken, ends with what it has found.

        Args:
            value: JSON.
        """
        given = dict(value)
        n_chars = self._n_chars + len(_ENCODER.encode(given))
        before = _account.set(_Account(1 + n_chars // _CHARS_A_STEP))
        found: list[ValidationError] = []
        try:
            for error in islice(self._checker.iter_errors(given), _MAX_FOUND):
                found.append(error)  # it stays found, whatever comes of the rest
        except Exception as exc:  # noqa: BLE001  # a tool's lane: a broken schema has many errors
            _log.debug("the schema of an MCP tool was not checked to its end: %s", type(exc))
        finally:
            _account.reset(before)
        found.sort(key=lambda error: error.json_path)
        return list(dict.fromkeys(map(_told, found)))[:_MAX_SHOWN]


def _told(error: ValidationError) -> str:
    return one_line_preview(f"{error.json_path}: {error.message}", _MAX_MESSAGE_CHARS)


@cache
def _counting(kind: Any) -> Any:
    """Return a kind of validator that pays for each keyword."""
    table = cast("Mapping[str, _Keyword]", kind.VALIDATORS)
    return _library.extend(kind, {name: _paid(name, keyword) for name, keyword in table.items()})


def _paid(name: str, keyword: _Keyword) -> _Keyword:
    def check(checker: Any, value: Any, given: Any, schema: Any) -> Iterable[ValidationError]:
        _account.get().pay()
        return keyword(checker, value, given, schema) or ()

    def check_pairs(checker: Any, value: Any, given: Any, schema: Any) -> Iterable[ValidationError]:
        n_items = len(cast("list[object]", given)) if isinstance(given, list) else 0
        _account.get().pay(n_items**2)
        return keyword(checker, value, given, schema) or ()

    return check_pairs if name == "uniqueItems" else check
