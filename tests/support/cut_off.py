"""Runs as a crash leaves them: a whole run, cut off after one of its turns."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime

from rath._async.deferred import Deferred
from rath.session import Session
from rath.session.content import AssistantTurn
from rath.session.events import Intent, PendingResult
from rath.session.outcome import NeedsDecision
from rath.session.record import ModelCall, ToolRun
from tests.support.api import Body, Record, Unfinished, own_operation

NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)


def cut_off(
    session: Session,
    turn: int | None = None,
    *,
    begun: Collection[int] = (),
    known: Collection[int] = (),
) -> Session:
    """Return the run of a session as a crash after its `turn`-th answer left it.

    Args:
        session: A run that is done.
        turn: Which answer is the last one, from 0; None for a crash before the first.
        begun: Indices of the calls of that answer that had been begun.
        known: Indices of those whose result was there.
    """
    if turn is None:
        return _cut(session, _rows_before(session), Unfinished())
    own = own_operation(session.record, session.id)
    assert own is not None
    at = _turns(session)[turn]
    reply = session.chunk_table[at].content
    assert isinstance(reply, AssistantTurn)
    runs = [entry for entry in session.record if isinstance(entry, ToolRun)]
    rows = {entry.rows[0].index: entry for entry in runs if entry.rows}
    intents = [
        Intent(
            operation=own.operation,
            row=at,
            call=index,
            call_id=reply.calls[index].id,
            tool=reply.calls[index].name,
            effects=rows[at + 1 + index].effects_declared,
            at=NOON,
        )
        for index in sorted(begun)
    ]
    results = [
        PendingResult(
            row=at, call=index, run=rows[at + 1 + index], shown=session.chunk_table[at + 1 + index]
        )
        for index in sorted(known)
    ]
    left = Unfinished(intents=tuple(intents), results=tuple(results))
    return _cut(session, at + 1, left)


def _cut(session: Session, n_rows: int, left: Unfinished) -> Session:
    body = Body(
        session.chunk_table.prefix(n_rows),
        _record_until(session, n_rows),
        NeedsDecision(session.id, left.unknown_calls),
        unfinished=left,
    )
    return Session.from_body(
        Deferred.of(body), session.provenance, id=session.id, lineage=session.lineage
    )


def _record_until(session: Session, n_rows: int) -> Record:
    """Return the record up to the call that made the last row."""
    record = session.record
    own = own_operation(record, session.id)
    began = next(at for at, entry in enumerate(record, start=1) if entry is own)
    last = began
    for at, entry in enumerate(record, start=1):
        made = entry.rows if isinstance(entry, ModelCall | ToolRun) else ()
        if at > began and any(row.index < n_rows for row in made):
            last = at
    return record.prefix(last)


def _turns(session: Session) -> list[int]:
    return [
        at
        for at, row in enumerate(session.chunk_table)
        if isinstance(row.content, AssistantTurn)
        and row.id is not None
        and row.id.session == session.id
    ]


def _rows_before(session: Session) -> int:
    return _turns(session)[0]
