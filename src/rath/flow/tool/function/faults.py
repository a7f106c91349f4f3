"""Why arguments do not fit, in words for the model that wrote them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pydantic

from rath._core.text import one_line_preview

MAX_FAULTS = 10
"""How many faults of one call the model is told."""

MAX_INPUT_CHARS = 60
"""How much of a faulty value is shown."""

_ABSENT = ("missing", "missing_argument", "missing_positional_only_argument")
_PREFIXES = ("Value error, ", "Assertion failed, ")


def in_words(error: pydantic.ValidationError, arguments: object, known: Sequence[str]) -> str:
    """Return what is wrong, place by place.

    Args:
        error: What pydantic found.
        arguments: The arguments as the model wrote them.
        known: Names of the arguments there are.
    """
    found = error.errors(include_url=False, include_context=False)
    listed = [
        _fault(cast("Mapping[str, Any]", fault), arguments, known) for fault in found[:MAX_FAULTS]
    ]
    if len(found) > MAX_FAULTS:
        listed.append(f"and {len(found) - MAX_FAULTS} more")
    return "; ".join(listed)


def _fault(fault: Mapping[str, Any], arguments: object, known: Sequence[str]) -> str:
    kind, steps = fault["type"], fault["loc"]
    is_absent = kind in _ABSENT
    place = _place(steps, arguments, is_absent=is_absent)
    if is_absent:
        return f"{place}: is required and missing"
    if kind == "extra_forbidden":
        there = ", ".join(known) or "none"
        return f"{place}: is not known" + (f"; there are: {there}" if len(steps) == 1 else "")
    message: str = fault["msg"]
    for prefix in _PREFIXES:
        message = message.removeprefix(prefix)
    return f"{place}: {message}, not {one_line_preview(repr(fault['input']), MAX_INPUT_CHARS)}"


def _written(step: int | str) -> str:
    return f"[{step}]" if isinstance(step, int) else f".{one_line_preview(step, MAX_INPUT_CHARS)}"


def _holds(value: Any, step: int | str) -> bool:
    if isinstance(value, list):
        return isinstance(step, int) and step < len(cast("list[object]", value))
    return isinstance(value, Mapping) and step in value


def _place(steps: Sequence[int | str], arguments: object, *, is_absent: bool) -> str:
    """Return a path such as `order.items[2]`; which case of a union was tried is said behind it."""
    at: Any = arguments
    path, cases = "", list[str]()
    for nr, step in enumerate(steps, 1):
        if _holds(at, step):
            path, at = path + _written(step), at[step]
        elif is_absent and nr == len(steps):
            path += _written(step)
        else:
            cases.append(str(step))
    told = f" (as {', '.join(cases)})" if cases else ""
    return (path.removeprefix(".") or "the arguments") + told
