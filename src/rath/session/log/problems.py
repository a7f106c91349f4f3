"""Lines that are no JSON or no event: what is wrong with them, in words."""

from __future__ import annotations

import json
import re
from typing import Any, cast, get_args, get_type_hints

from rath.errors import PersistenceError

__all__ = ["decode_record", "problem_of"]

Json = dict[str, Any]


def decode_record(line: bytes) -> Json:
    """Return the JSON object on a line.

    Raises:
        PersistenceError: It is none, in UTF-8.
    """
    try:
        record: object = json.loads(line)
    except (ValueError, RecursionError) as exc:
        raise PersistenceError(f"invalid JSON: {exc}") from exc
    if not isinstance(record, dict):
        raise PersistenceError(f"expected a JSON object, found {type(record).__name__}")
    return cast("Json", record)


_PLACE = re.compile(r"(?P<problem>.*?)(?: - at `(?P<place>[^`]*)`)?\Z", re.DOTALL)
_EXPECTED = re.compile(r"[Ee]xpected (?P<what>.*?), got .*", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<name>[^`]*)`")
_STEP = re.compile(r"\.(?P<name>\w+)|\[(?P<index>\d+)\]")


def problem_of(exc: Exception, form: Any, record: object) -> str:
    """Return what is wrong with a line: where, what was found, and what was expected."""
    if isinstance(exc, RecursionError):
        return "it is nested too deeply"
    said = _PLACE.match(str(exc))
    assert said is not None, "every text fits"
    place = (said["place"] or "").removeprefix("$")
    problem, name = said["problem"].replace("`", ""), place.removeprefix(".")
    missing = _MISSING.search(said["problem"])
    if missing is not None:
        return f"member {'.'.join(filter(None, (name, missing['name'])))!r} is missing"
    found = "" if record is None else f", found {_at(record, place)!r:.60}"
    expected = _EXPECTED.match(problem)
    choices = get_args(get_type_hints(form, include_extras=False).get(name)) if name else ()
    if expected is not None:
        problem = f"expected {expected['what']}"
    elif problem.startswith("Invalid enum value") and choices:
        problem = f"expected one of {', '.join(map(repr, choices))}"
    return f"{name or 'the line'}: {problem}{found}"


def _at(value: Any, place: str) -> object:
    for step in _STEP.finditer(place):
        try:
            value = value[step["name"] or int(step["index"])]
        except (LookupError, TypeError):
            return "something else"
    return cast("object", value)
