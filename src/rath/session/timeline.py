"""The time line of runs: when each workflow, run, model call and tool call went on, and in what."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Literal, TypeAlias
from uuid import UUID

from rath._core.dataclasses import dataclass
from rath.session.chunk import ChunkTable, RowId
from rath.session.content import ToolFeedback
from rath.session.operation import call_id
from rath.session.record import Entry, Interrupt, ModelCall, Operation, ToolRun

_CALL = re.compile(r"call \d+\.\d+")

IntervalKind: TypeAlias = Literal["workflow", "run", "model", "tool"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A stretch of time in which one thing went on."""

    kind: IntervalKind
    id: UUID
    """A function of the record: the same for a session that is loaded later."""

    parent: UUID | None
    """The interval that it is a part of; perhaps of another session."""

    trace: UUID
    """The outermost workflow call, or the session, where there is none."""

    path: str
    """Module path; what a tool call contains stands behind `TOOL()`, whichever call it was."""

    start: datetime
    end: datetime
    operation: Operation
    """The run that it belongs to; of a workflow the first one in it."""

    entry: ModelCall | ToolRun | None = None
    waits: tuple[tuple[datetime, datetime], ...] = ()
    """Of a run: when it waited for somebody."""


def intervals_of(
    record: Iterable[Entry], table: ChunkTable, only: UUID | None = None
) -> tuple[Interval, ...]:
    """Return the intervals that a record tells, the outer ones first; O(entries + rows).

    A workflow is as long as its runs: from the first of them to the end of the last.

    Args:
        record: Entries of a session, in order.
        table: Its rows, by which the tool call is known that a run was made in.
        only: The session whose own run is meant; None for all that the record tells.
    """
    entries = tuple(record)
    operations = {
        entry.operation: entry
        for entry in entries
        if isinstance(entry, Operation) and only in (None, entry.session)
    }
    calls = call_ids_of(table)
    parts: dict[UUID, list[Interval]] = {run: [] for run in operations}
    for entry in entries:
        operation = operations.get(entry.operation)
        if operation is not None and isinstance(entry, ModelCall | ToolRun):
            parts[entry.operation].append(_of_entry(entry, operation, calls))
    waits = _waits(entries, parts)
    runs = [
        _of_run(operation, parts[run], waits.get(run, ()))
        for run, operation in operations.items()
        if parts[run] or operation.kind in ("loop", "compress", "check")
    ]
    inner = [part for run in runs for part in parts[run.id]]
    made = [*workflows_of(runs), *runs, *inner]
    return tuple(sorted(made, key=lambda each: (each.start, -each.end.timestamp())))


def workflows_of(runs: Iterable[Interval]) -> list[Interval]:
    """Return the outermost workflow calls that runs were made in, each around all of its runs."""
    grouped: dict[UUID, list[Interval]] = {}
    for run in runs:
        if run.kind == "run" and run.operation.place.run is not None:
            grouped.setdefault(run.trace, []).append(run)
    return [
        Interval(
            kind="workflow",
            id=trace,
            parent=None,
            trace=trace,
            path=members[0].operation.place.path.partition(".")[0],
            start=min(run.start for run in members),
            end=max(run.end for run in members),
            operation=first.operation,
        )
        for trace, members in grouped.items()
        if (first := next((run for run in members if run.parent == trace), None)) is not None
    ]


def name_paths(intervals: Sequence[Interval]) -> tuple[Interval, ...]:
    """Return the intervals with paths that name tools where places number their calls."""
    tools = {each.id: each for each in intervals if each.kind == "tool"}
    known: dict[UUID, str] = {}

    def path_of(operation: Operation) -> str:
        found = known.get(operation.operation)
        if found is not None:
            return found
        place = operation.place
        path = place.path
        call = tools.get(place.run) if place.run is not None else None
        if call is not None and isinstance(call.entry, ToolRun):
            rest = _CALL.split(path)[-1]
            path = ".".join(filter(None, (path_of(call.operation), f"{call.entry.tool}(){rest}")))
        else:
            path = _CALL.sub("call()", path)
        known[operation.operation] = path = path or operation.kind
        return path

    return tuple(
        each if each.kind == "workflow" else replace(each, path=path_of(each.operation))
        for each in intervals
    )


def trace_of(operation: Operation) -> UUID:
    """Return the outermost workflow call around a run, or its session, where there is none."""
    return operation.place.trace or operation.place.run or operation.session


def is_in_call(operation: Operation) -> bool:
    """Tell whether a run was made inside a tool call, which is what its place names as its run."""
    return operation.place.run not in (None, operation.place.trace)


def call_ids_of(table: ChunkTable) -> Mapping[RowId, UUID]:
    """Return by the row of its result which tool call it was; results stand in call order."""
    call_ids: dict[RowId, UUID] = {}
    turn, index = None, 0
    for row in table:
        if isinstance(row.content, ToolFeedback):
            if turn is not None and row.id is not None:
                call_ids[row.id] = call_id(turn.session, turn.index, index)
            index += 1
        else:
            turn, index = row.id, 0
    return call_ids


def _of_entry(
    entry: ModelCall | ToolRun, operation: Operation, calls: Mapping[RowId, UUID]
) -> Interval:
    if isinstance(entry, ModelCall):
        start = entry.evidence.started
        end = start + timedelta(milliseconds=entry.evidence.duration_ms)
        ident = entry.id
    else:
        start, end = entry.at - timedelta(milliseconds=entry.duration_ms), entry.at
        ident = next((calls[row] for row in entry.rows if row in calls), entry.id)
    return Interval(
        kind="model" if isinstance(entry, ModelCall) else "tool",
        id=ident,
        parent=operation.operation,
        trace=trace_of(operation),
        path=operation.place.path,
        start=start,
        end=end,
        operation=operation,
        entry=entry,
    )


def _of_run(
    operation: Operation,
    inner: Sequence[Interval],
    waits: tuple[tuple[datetime, datetime], ...],
) -> Interval:
    return Interval(
        kind="run",
        id=operation.operation,
        parent=operation.place.run,
        trace=trace_of(operation),
        path=operation.place.path,
        start=min([operation.at, *(part.start for part in inner)]),
        end=max([operation.at, *(part.end for part in inner)]),
        operation=operation,
        waits=waits,
    )


def _waits(
    entries: Sequence[Entry], parts: Mapping[UUID, Sequence[Interval]]
) -> dict[UUID, tuple[tuple[datetime, datetime], ...]]:
    """Return by run when it waited for somebody: from the interrupt until it went on."""
    waits: dict[UUID, tuple[tuple[datetime, datetime], ...]] = {}
    for entry in entries:
        if isinstance(entry, Interrupt):
            later = [part.start for part in parts.get(entry.operation, ()) if part.start > entry.at]
            if later:
                span = (entry.at, min(later))
                waits[entry.operation] = (*waits.get(entry.operation, ()), span)
    return waits
