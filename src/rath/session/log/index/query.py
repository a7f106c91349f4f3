"""Queries of an index: listing, search, lineage, calls."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

from rath.session.graph.kind import LineageKind
from rath.session.log.index.database import (
    CallFacts,
    Database,
    SessionSummary,
    displayed_text,
    from_micros,
    ids_in,
    match_of,
    to_micros,
)

OUTCOME_STATES: Mapping[str, str] = {
    "Completed": "completed",
    "RoundLimit": "round_limit",
    "BudgetExceeded": "budget_exceeded",
    "DeadlineExceeded": "deadline_exceeded",
    "Cancelled": "cancelled",
    "NeedsApproval": "needs_approval",
    "NeedsInput": "needs_input",
    "NeedsDecision": "needs_decision",
}
"""By the name of the class, which is what a log says."""


_AT_ONCE = 500
"""Values in one statement; older versions of SQLite take 999."""

_COLUMNS = """id, created, updated, operator, kind, parents, run, path, ordinal, title, title_at,
    begins_with, begins_at, begins_to, n_rows, n_calls, n_tool_runs, tokens, usd, is_priced, models,
    backend, state, is_open, problem, size"""
_NO_END = 1 << 62
_KINDS = {kind.value: kind for kind in LineageKind}


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFilter:
    """Which sessions are asked for: those that fit in every respect."""

    states: Collection[str] = ()
    """Any of these, as in `SessionSummary.state`."""

    since: datetime | None = None
    """Begun then or later."""

    until: datetime | None = None
    """Begun before."""

    operator: str | None = None
    """Its operator, or the name of its kind."""

    model: str | None = None
    """One of its own calls was answered by a model with this in its name."""

    text: str | None = None
    """One of its own rows says this; see `StoreIndex.search`."""

    is_said: bool = False
    """Leave out where nobody was asked and nobody answered: instructions of agents, empty ones."""

    parent: UUID | None = None
    run: UUID | None = None
    limit: int | None = None
    order: Literal["newest", "oldest"] = "newest"
    """By when they were begun."""


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A row that says what was looked for."""

    session: UUID
    row: int
    """Its index in the table of the session."""

    kind: str
    snippet: str
    """What stands around the words, on one line."""


@dataclass(frozen=True, slots=True)
class FoundSession:
    """A summary, and whether its log says that the run may still go on."""

    summary: SessionSummary
    is_open: bool


@dataclass(frozen=True, slots=True)
class ListedLog:
    """The beginning and the end of a log that can be believed."""

    where: str
    """Where it stood when it was read, as `StoredLog` says."""

    created_at: datetime
    operator: str
    kind: LineageKind
    n_rows: int
    is_open: bool
    """Whether its run has not ended, as far as the log says."""


def listed(database: Database, stamps: Mapping[UUID, str]) -> dict[UUID, ListedLog | None]:
    """Return what is known of each of these logs; None where it was not read as it is stamped.

    A log that cannot be believed is not known either.
    """
    sql = """SELECT id, stamp, place, created, operator, kind, n_rows, is_open FROM sessions
             WHERE state != 'damaged'"""
    rows: list[Any] = database.rows(sql)
    known = {row[0]: row for row in rows}
    found: dict[UUID, ListedLog | None] = {}
    for session, stamp in stamps.items():
        row = known.get(session.bytes)
        found[session] = None
        if row is not None and row[1] == stamp:
            _, _, where, created, operator, kind, n_rows, is_open = row
            kind = _KINDS.get(kind, LineageKind.UNKNOWN)
            begun = from_micros(created)
            found[session] = ListedLog(where, begun, operator, kind, n_rows, bool(is_open))
    return found


def select(database: Database, asked: SessionFilter) -> list[FoundSession]:
    """Return the sessions that fit in all but their states, which change without their logs."""
    where, values = _where(asked)
    order = "DESC" if asked.order == "newest" else "ASC"
    limit = -1 if asked.limit is None or asked.states else asked.limit
    sql = f"SELECT {_COLUMNS} FROM sessions WHERE {where} ORDER BY created {order}, id LIMIT ?"
    return _found(database, database.rows(sql, [*values, limit]))


def count(database: Database, asked: SessionFilter) -> int:
    """Return how many sessions fit in all but their states."""
    where, values = _where(asked)
    found: list[Any] = database.rows(f"SELECT count(*) FROM sessions WHERE {where}", values)
    return int(found[0][0])


def by_ids(database: Database, sessions: Collection[UUID]) -> list[FoundSession]:
    """Return what is known of these sessions, in no order."""
    return [
        found
        for some in _some(sessions)
        for found in _found(
            database,
            database.rows(f"SELECT {_COLUMNS} FROM sessions WHERE id IN ({_marks(some)})", some),
        )
    ]


def hits(database: Database, question: str, limit: int) -> list[SearchHit]:
    """Return the rows that say what is asked for, the best first."""
    match = match_of(question)
    if match is None:
        return []
    sql = """SELECT sessions.id, said.at, said.kind, snippet(words, 0, '', '', ' … ', 24)
             FROM words JOIN said ON said.id = words.rowid JOIN sessions ON sessions.n = said.n
             WHERE words MATCH ? ORDER BY words.rank, sessions.created DESC, said.id LIMIT ?"""
    found: list[Any] = database.rows(sql, (match, limit))
    return [
        SearchHit(UUID(bytes=session), at, kind, " ".join(displayed_text(text).split()))
        for session, at, kind, text in found
    ]


def children(database: Database, session: UUID) -> list[UUID]:
    """Return what was made from a session, the oldest first."""
    sql = """SELECT DISTINCT id, created FROM edges JOIN sessions USING (n) WHERE parent = ?
             ORDER BY created, id"""
    found: list[Any] = database.rows(sql, (session.bytes,))
    return [UUID(bytes=child) for child, _ in found]


def children_of(database: Database, session: UUID) -> list[UUID]:
    """Return what was made from a session, or begins with rows of it, in no order."""
    sql = """SELECT id FROM edges JOIN sessions USING (n) WHERE parent = ?
             UNION SELECT id FROM sessions WHERE begins_with = ?"""
    found: list[Any] = database.rows(sql, (session.bytes, session.bytes))
    return [UUID(bytes=child) for (child,) in found]


def parents(database: Database, session: UUID) -> list[UUID]:
    """Return what a session was made from, in the order of the operation's arguments."""
    sql = "SELECT parent FROM edges JOIN sessions USING (n) WHERE id = ? ORDER BY position"
    found: list[Any] = database.rows(sql, (session.bytes,))
    return [UUID(bytes=parent) for (parent,) in found]


def runs(database: Database) -> list[UUID]:
    """Return the workflow calls of all sessions, the newest first."""
    sql = """SELECT run FROM sessions WHERE run IS NOT NULL
             GROUP BY run ORDER BY max(created) DESC, run"""
    found: list[Any] = database.rows(sql)
    return [UUID(bytes=run) for (run,) in found]


def calls(database: Database, sessions: Collection[UUID]) -> Iterator[tuple[UUID, CallFacts]]:
    """Yield the model calls in the logs of these sessions, with whose log it is."""
    for some in _some(sessions):
        sql = f"""SELECT sessions.id, calls.id, at, model, purpose, status, prompt, cached,
                         completion, total, calls.usd, price
                  FROM calls JOIN sessions USING (n)
                  WHERE sessions.id IN ({_marks(some)}) ORDER BY at, calls.id"""
        found: list[Any] = database.rows(sql, some)
        for session, call, at, model, purpose, status, *counts, usd, price in found:
            prompt, cached, completion, total = counts
            yield (
                UUID(bytes=session),
                CallFacts(
                    id=UUID(bytes=call),
                    at=from_micros(at),
                    model=model,
                    purpose=purpose,
                    status=status,
                    prompt_tokens=prompt,
                    cached_tokens=cached,
                    completion_tokens=completion,
                    total_tokens=total,
                    usd=None if usd is None else Decimal(usd),
                    price=price,
                ),
            )


def given(database: Database, sessions: Collection[UUID]) -> dict[UUID, int]:
    """Return the tokens that came without a call, by the session that they came with."""
    made: dict[UUID, int] = {}
    for some in _some(sessions):
        sql = f"""SELECT given.session, given.tokens FROM given JOIN sessions USING (n)
                  WHERE sessions.id IN ({_marks(some)})"""
        found: list[Any] = database.rows(sql, some)
        made |= {UUID(bytes=session): tokens for session, tokens in found}
    return made


def _where(asked: SessionFilter) -> tuple[str, list[object]]:
    conditions = list(_conditions(asked))
    values = [value for _, values in conditions for value in values]
    return " AND ".join(sql for sql, _ in conditions) or "1", values


def _conditions(asked: SessionFilter) -> Iterator[tuple[str, list[object]]]:
    if asked.states:
        states = list(asked.states)
        # What a writer is at work on is running, whatever its log says.
        yield f"(is_open OR state IN ({_marks(states)}))", [*states]
    if asked.since is not None:
        yield "created >= ?", [to_micros(asked.since)]
    if asked.until is not None:
        yield "created < ?", [to_micros(asked.until)]
    if asked.operator is not None:
        yield "(operator = ? OR kind = ?)", [asked.operator, asked.operator]
    if asked.model is not None:
        yield "instr(lower(models), lower(?))", [asked.model]
    if asked.run is not None:
        yield "run = ?", [asked.run.bytes]
    if asked.is_said:
        yield "NOT (n_calls = 0 AND title IS NULL AND parents = x'' AND state = 'completed')", []
    if asked.parent is not None:
        yield "n IN (SELECT n FROM edges WHERE parent = ?)", [asked.parent.bytes]
    if asked.text is not None:
        rows = "SELECT rowid FROM words WHERE words MATCH ?"
        match = match_of(asked.text)
        said = f"n IN (SELECT n FROM said WHERE id IN ({rows}))"
        yield ("0", []) if match is None else (said, [match])


def _found(database: Database, rows: Sequence[Any]) -> list[FoundSession]:
    titles = _Titles(database, rows)
    return [FoundSession(_summary(row, titles.of(row[0])), bool(row[23])) for row in rows]


def _summary(row: Any, title: str) -> SessionSummary:
    return SessionSummary(
        id=UUID(bytes=row[0]),
        created_at=from_micros(row[1]),
        updated_at=from_micros(row[2]),
        operator=row[3],
        kind=_KINDS.get(row[4], LineageKind.UNKNOWN),
        parents=ids_in(row[5]),
        run=None if row[6] is None else UUID(bytes=row[6]),
        path=row[7],
        ordinal=row[8],
        title=title,
        n_rows=row[14],
        n_calls=row[15],
        n_tool_runs=row[16],
        tokens=row[17],
        usd=Decimal(row[18]),
        is_priced=bool(row[19]),
        models=tuple(row[20].split("\n")) if row[20] else (),
        backend=row[21],
        state=row[22],
        problem=row[24],
        size=row[25],
    )


class _Titles:
    """The first words that a user said, also where they stand in what a session begins with."""

    def __init__(self, database: Database, rows: Sequence[Any]) -> None:
        self._database = database
        self._known: dict[bytes, Any] = {row[0]: row[9:14] for row in rows}

    def of(self, session: bytes) -> str:
        said, start, stop = "", 0, _NO_END
        seen: set[bytes] = set()
        while session not in seen:
            seen.add(session)
            title, at, begins_with, begins_at, begins_to = self._look_up(session)
            # What a session begins with was said before its own rows, so the last one found counts.
            if at is not None and start <= at < stop:
                said = title
            if begins_with is None:
                break
            start, stop = begins_at + start, min(begins_to, begins_at + stop)
            session = begins_with
        return said

    def _look_up(self, session: bytes) -> Any:
        known = self._known.get(session)
        if known is None:
            sql = """SELECT title, title_at, begins_with, begins_at, begins_to FROM sessions
                     WHERE id = ?"""
            found = self._database.rows(sql, (session,))
            known = self._known[session] = found[0] if found else (None,) * 5
        return known


def _some(sessions: Collection[UUID]) -> Iterator[list[bytes]]:
    listed = [session.bytes for session in dict.fromkeys(sessions)]
    for at in range(0, len(listed), _AT_ONCE):
        yield listed[at : at + _AT_ONCE]


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))


__all__ = ["SearchHit", "SessionFilter"]
