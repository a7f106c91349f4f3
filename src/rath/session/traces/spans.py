"""Spans of a session, made from its record."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from rath.session.chunk import ChunkTable, RowId
from rath.session.content import ToolFeedback
from rath.session.operation import call_id
from rath.session.record import Entry, ModelCall, Operation, ToolRun
from rath.session.session import Session
from rath.session.traces.encode import encode_call, encode_operation, encode_tool
from rath.session.traces.span import Span


def spans_of(session: Session) -> tuple[Span, ...]:
    """Return the spans of all runs that the record of a session tells, oldest first; waits for it.

    Those of its ancestors are among them. A run has a span, and below it one for each model call
    and each tool call; a run inside a tool call stands below that one.
    """
    return _spans(tuple(session.record), session.chunk_table, None)


def own_spans(session: Session) -> tuple[Span, ...]:
    """Return the spans of the run that made a session, and no others; never waits.

    Of a run that failed they are those of what it had done.
    """
    return _spans(tuple(session.partial_record), session.partial_table, session.id)


def _spans(record: Sequence[Entry], table: ChunkTable, only: UUID | None) -> tuple[Span, ...]:
    operations = {
        entry.operation: entry
        for entry in record
        if isinstance(entry, Operation) and only in (None, entry.session)
    }
    calls = _calls_of_rows(table)
    of_runs: dict[UUID, list[Span]] = {run: [] for run in operations}
    for entry in record:
        operation = operations.get(entry.operation)
        if operation is not None and isinstance(entry, ModelCall | ToolRun):
            of_runs[entry.operation].append(_span_of(entry, operation, calls))
    latest = {operation.session: operation for operation in operations.values()}
    made: list[Span] = []
    for run, operation in operations.items():
        inner = of_runs[run]
        if inner or operation.kind in ("loop", "compress"):
            made += [_of_run(operation, inner, latest), *inner]
    return tuple(sorted(made, key=lambda span: span.start))


def _of_run(operation: Operation, inner: Sequence[Span], known: dict[UUID, Operation]) -> Span:
    place = operation.place
    root = None if place.root is None else known.get(place.root)
    links = () if root is None or _is_in_call(operation) else ((_trace(root), root.operation),)
    failed = next((span.error for span in reversed(inner) if span.kind == "client"), None)
    name = place.path.rpartition(".")[2] if place.path else operation.kind
    return Span(
        name=f"invoke_agent {name}",
        kind="internal",
        trace=_trace(operation),
        id=operation.operation,
        parent=place.run if _is_in_call(operation) else None,
        links=links,
        start=min([operation.at, *(span.start for span in inner)]),
        end=max([operation.at, *(span.end for span in inner)]),
        attributes=encode_operation(operation),
        error=failed,
    )


def _span_of(entry: ModelCall | ToolRun, operation: Operation, calls: dict[RowId, UUID]) -> Span:
    if isinstance(entry, ModelCall):
        model = entry.evidence.requested_model or entry.evidence.served_model
        start, elapsed_ms = entry.evidence.started, entry.evidence.duration_ms
        return Span(
            name=f"chat {model}" if model else "chat",
            kind="client",
            trace=_trace(operation),
            id=entry.id,
            parent=operation.operation,
            start=start,
            end=start + timedelta(milliseconds=elapsed_ms),
            attributes=encode_call(entry, operation),
            error=(entry.evidence.error or entry.status) if entry.status != "done" else None,
        )
    return Span(
        name=f"execute_tool {entry.tool}",
        kind="internal",
        trace=_trace(operation),
        id=next((calls[row] for row in entry.rows if row in calls), entry.id),
        parent=operation.operation,
        start=_began(entry),
        end=entry.at,
        attributes=encode_tool(entry, operation),
        error=(entry.error_kind or entry.status) if entry.status != "done" else None,
    )


def _began(run: ToolRun) -> datetime:
    return run.at - timedelta(milliseconds=run.duration_ms)


def _trace(operation: Operation) -> UUID:
    return operation.place.trace or operation.place.run or operation.session


def _is_in_call(operation: Operation) -> bool:
    """Tell whether a run was made inside a tool call, which is what its place names as its run."""
    return operation.place.run not in (None, operation.place.trace)


def _calls_of_rows(table: ChunkTable) -> dict[RowId, UUID]:
    """Return by the row of its result which tool call it was; results stand in call order."""
    found: dict[RowId, UUID] = {}
    turn, index = None, 0
    for row in table:
        if isinstance(row.content, ToolFeedback):
            if turn is not None and row.id is not None:
                found[row.id] = call_id(turn.session, turn.index, index)
            index += 1
        else:
            turn, index = row.id, 0
    return found
