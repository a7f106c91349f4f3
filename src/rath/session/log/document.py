"""Entries and outcomes as JSON for readers of `rath show --json`, whatever the format of a log."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, cast
from uuid import UUID

from msgspec import NODEFAULT, Struct, structs

from rath._core.blobs import Blob
from rath.backend.effects import FileEffect
from rath.session.chunk import RowId
from rath.session.content import rows_digest
from rath.session.log.format import tools_digest
from rath.session.log.values import output_to_plain
from rath.session.outcome import Completed, Outcome, OutputMissing, OutputValue
from rath.session.record import Decision, Entry, ModelCall, Operation, ToolRun, Verdict

__all__ = ["entry_to_jsonable", "outcome_to_jsonable"]

Json = dict[str, Any]

_APART = frozenset({"head", "tools", "theirs"})
"""Members of an operation that are named by a digest, or by their number."""

_ALWAYS: Mapping[type, frozenset[str]] = {
    ToolRun: frozenset(
        (
            *("schema_digest", "arguments", "sandbox", "error_kind", "exit_code", "signal"),
            *("full", "file_effects"),
        )
    ),
    Verdict: frozenset({"score", "workspace_digest"}),
    Decision: frozenset({"call_id", "arguments"}),
    FileEffect: frozenset({"before", "after"}),
}
"""Members that stand there also where they are None or empty."""


def entry_to_jsonable(entry: Entry) -> Json:
    """Return an entry of the record as JSON."""
    said: Json = {"entry": type(entry).__struct_config__.tag, **_members(entry)}
    if isinstance(entry, Operation):
        if entry.head:
            said["head"] = rows_digest(entry.head)
        if entry.tools:
            said["tools"] = tools_digest(entry.tools)
        if entry.theirs is not None:
            said["n_theirs"] = len(entry.theirs)
    elif isinstance(entry, ModelCall):
        cost = entry.evidence.cost
        if cost is not None:
            said["evidence"]["cost"] = _members(cost)
    return said


def outcome_to_jsonable(outcome: Outcome) -> Json:
    """Return how a run ended as JSON."""
    said: Json = {"is": type(outcome).__name__}
    if not isinstance(outcome, Completed):
        return {**said, **_members(outcome)}
    match outcome.output:
        case OutputMissing(problem):
            said["output_problem"] = problem
        case OutputValue(value):
            said["output"] = output_to_plain(value)
        case None:
            pass
    return said


def _members(value: object) -> Json:
    """Return the fields of a value; one is left out where it has its default, None or ()."""
    always = _ALWAYS.get(type(value), frozenset())
    said: Json = {}
    for name, default in _defaults(type(value)):
        member = getattr(value, name)
        is_left_out = (member is None or member == ()) and member == default
        if not is_left_out or name in always:
            said[name] = _jsonable(member)
    return said


def _defaults(kind: type[Any]) -> tuple[tuple[str, object], ...]:
    if issubclass(kind, Struct):
        found = [(each.name, each.default) for each in structs.fields(kind)]
    else:
        found = [(each.name, each.default) for each in dataclasses.fields(kind)]
    apart = _APART if kind is Operation else ()
    absent = (NODEFAULT, dataclasses.MISSING)
    return tuple((name, ... if d in absent else d) for name, d in found if name not in apart)


def _jsonable(value: object) -> object:
    match value:
        case UUID() | Decimal():
            return str(value)
        case datetime():
            return value.isoformat()
        case RowId(session, index):
            return f"{session}:{index}"
        case Blob(digest, size):
            said: Json = {"sha256": digest, "size": size}
            return {**said, "kept": True} if value.is_kept else said
        case tuple():
            return [_jsonable(each) for each in cast("tuple[object, ...]", value)]
        case Struct():
            return _members(value)
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return _members(value)
        case _:
            return value
