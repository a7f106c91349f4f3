"""The SQLite tables of an index: schema, facts of a log, full text."""

from __future__ import annotations

import os
import re
import sqlite3
import weakref
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Sized,
)
from contextlib import closing, nullcontext
from dataclasses import field, fields
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, Literal
from uuid import UUID

import msgspec

from rath._core.dataclasses import dataclass
from rath._core.sqlite import DerivedDatabase, opening
from rath._core.text import UNSPACED, valid_unicode
from rath.session.graph.kind import LineageKind

UNKNOWN_TIME = datetime(1970, 1, 1, tzinfo=UTC)
"""Stands for the times of a log whose first line cannot be believed."""

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

CallPrice = Literal["known", "unpriced", "uncounted", "nothing"]
"""State of the cost of a call; `nothing` for one that was refused or never sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedCall:
    """One model call."""

    id: UUID
    """Of its entry in the record; one call may stand in the logs of several sessions."""

    at: datetime
    model: str
    """The one that answered, else the one that was asked for."""

    purpose: str
    status: str
    prompt_tokens: int
    cached_tokens: int
    """Of the prompt."""

    completion_tokens: int
    total_tokens: int
    usd: Decimal | None
    price: CallPrice


@dataclass(frozen=True, slots=True)
class RowText:
    """The text of a row."""

    index: int
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows of another session with which a table begins."""

    session: UUID
    start: int
    stop: int


@dataclass(slots=True, kw_only=True)
class LogFacts:
    """All that an index keeps of one log."""

    session: UUID
    size: int
    where: str = ""
    """Where the log stood when it was read, as `StoredLog` says."""

    created_at: datetime = UNKNOWN_TIME
    updated_at: datetime = UNKNOWN_TIME
    operator: str = ""
    kind: LineageKind = LineageKind.UNKNOWN
    parents: tuple[UUID, ...] = ()
    run: UUID | None = None
    path: str = ""
    ordinal: int = 0
    begins_with: tuple[RowRange, ...] = ()
    n_rows: int = 0
    n_lines: int = 0
    """Lines that count; a log that was cut has fewer than it had."""

    n_tool_runs: int = 0
    calls: dict[UUID, IndexedCall] = field(default_factory=dict[UUID, IndexedCall])
    given: dict[UUID, int] = field(default_factory=dict[UUID, int])
    """Tokens that came without a call, by the session that they came with."""

    title: RowText | None = None
    """Its own first row in which a user speaks."""

    texts: list[RowText] | None = None
    """Of its own rows, those that say anything; None where they were not asked for."""

    backend: str | None = None
    state: str = "cut_off"
    is_open: bool = True
    """Whether its run has not ended, as far as the log says."""

    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSummary:
    """One line of a listing."""

    id: UUID
    created_at: datetime
    """UTC."""

    updated_at: datetime
    """UTC; the time of the last line that has one."""

    operator: str
    kind: LineageKind
    parents: tuple[UUID, ...]
    run: UUID | None
    """The workflow call that it was made in."""

    path: str
    """The place in that call, such as "Team.planner"; "" outside of any."""

    ordinal: int
    title: str
    """The first words that a user said in it, on one line."""

    n_rows: int
    """Of the whole table, with what the session begins with."""

    n_calls: int
    """Model calls of its own run."""

    n_tool_runs: int
    """Tool calls of its own run."""

    tokens: int
    """Of the model calls of its own run."""

    usd: Decimal
    """Cost of these calls in dollars, as far as it is known."""

    is_priced: bool
    """Whether the cost of all of them is known."""

    models: tuple[str, ...]
    """Models that answered in its own run, each once."""

    backend: str | None
    state: str
    """`completed`, `round_limit`, `budget_exceeded`, `deadline_exceeded`, `cancelled`,
    `needs_approval`, `needs_input`, `needs_decision`, `failed`, `cut_off`, or `running` as long as
    its writer is at work; `damaged` for a log that cannot be believed."""

    problem: str
    """Why it failed or cannot be believed, "" for others."""

    size: int
    """Bytes of its log."""


_GAP: Final = "\u200b"
_PIECE = re.compile(r'"([^"]*)"|(\S+)')


def stored(text: str) -> str:
    """Return a text as it is stored; the same object for most."""
    if text.isascii():
        return text
    return UNSPACED.sub(lambda run: _GAP + _GAP.join(run[0]) + _GAP, valid_unicode(text))


def displayed_text(text: str) -> str:
    """Return stored text in its original form."""
    return text.replace(_GAP, "")


def match_of(question: str) -> str | None:
    """Return the FTS5 query: all words of a question, by their beginnings.

    Words in quotes are looked for as they stand there, next to each other.

    Returns:
        None for a question without a word: it finds nothing.
    """
    terms: list[str] = []
    for phrase, word in _PIECE.findall(stored(question).replace("\0", " ")):
        piece = phrase or word
        if any(char.isalnum() for char in piece):
            quoted = piece.replace('"', '""')
            terms.append(f'"{quoted}"' if phrase else f'"{quoted}"*')
    return " AND ".join(terms) or None


INDEX_VERSION = 3
"""Counts changes of what stands in it; an index of another version is made again."""

BUSY_SECONDS = 5.0
"""How long to wait for a writer in another process, unless told otherwise; a guess."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_SCHEMA = """
CREATE TABLE sessions (
    n INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE, stamp TEXT NOT NULL, place TEXT NOT NULL,
    created INTEGER NOT NULL, updated INTEGER NOT NULL,
    operator TEXT NOT NULL, kind TEXT NOT NULL, parents BLOB NOT NULL,
    run BLOB, path TEXT NOT NULL, ordinal INTEGER NOT NULL,
    title TEXT, title_at INTEGER, begins_with BLOB, begins_at INTEGER, begins_to INTEGER,
    n_rows INTEGER NOT NULL, n_calls INTEGER NOT NULL, n_tool_runs INTEGER NOT NULL,
    tokens INTEGER NOT NULL, usd TEXT NOT NULL, is_priced INTEGER NOT NULL, models TEXT NOT NULL,
    backend TEXT, state TEXT NOT NULL, is_open INTEGER NOT NULL, problem TEXT NOT NULL,
    size INTEGER NOT NULL, n_lines INTEGER NOT NULL, has_text INTEGER NOT NULL);
CREATE INDEX sessions_by_time ON sessions (created);
CREATE INDEX sessions_by_run ON sessions (run) WHERE run IS NOT NULL;
CREATE TABLE edges (
    n INTEGER NOT NULL, position INTEGER NOT NULL, parent BLOB NOT NULL,
    PRIMARY KEY (n, position)) WITHOUT ROWID;
CREATE INDEX edges_by_parent ON edges (parent);
CREATE TABLE calls (
    n INTEGER NOT NULL, id BLOB NOT NULL, at INTEGER NOT NULL, model TEXT NOT NULL,
    purpose TEXT NOT NULL, status TEXT NOT NULL, prompt INTEGER NOT NULL, cached INTEGER NOT NULL,
    completion INTEGER NOT NULL, total INTEGER NOT NULL, usd TEXT, price TEXT NOT NULL,
    PRIMARY KEY (n, id)) WITHOUT ROWID;
CREATE TABLE given (
    n INTEGER NOT NULL, session BLOB NOT NULL, tokens INTEGER NOT NULL,
    PRIMARY KEY (n, session)) WITHOUT ROWID;
CREATE TABLE said (id INTEGER PRIMARY KEY, n INTEGER NOT NULL, at INTEGER NOT NULL, kind TEXT);
CREATE INDEX said_by_session ON said (n);
CREATE VIRTUAL TABLE words USING fts5 (text, tokenize = 'unicode61 remove_diacritics 2');
"""

_TITLE_CHARS = 200


class Database(DerivedDatabase):
    """One connection to the index of a store; see `DerivedDatabase`.

    Raises:
        OSError: Something else stands there, or it cannot be made.
    """

    schema = _SCHEMA
    application_id = 0x52415349
    version = INDEX_VERSION

    def __init__(self, path: Path | None, *, busy_seconds: float = BUSY_SECONDS) -> None:
        with nullcontext() if path is None else opening(path, seconds=busy_seconds):
            if path is not None:
                # Made here, since SQLite would let others read it. What it makes beside it, it
                # makes with the same rights.
                os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            super().__init__(path, busy_seconds=busy_seconds)
        # A connection that nobody closes would warn when it goes.
        weakref.finalize(self, self._connection.close)

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[Any]:
        """Return the rows of a query, each a tuple."""
        with closing(self._connection.execute(sql, tuple(values))) as cursor:
            return cursor.fetchall()

    def stamps(self, *, with_text: bool = False) -> Mapping[bytes, str]:
        """Return by session in which state its log was read.

        Args:
            with_text: Give no state where the text of the rows was left out.
        """
        stamp = "iif(has_text, stamp, '')" if with_text else "stamp"
        return dict(self._connection.execute(f"SELECT id, {stamp} FROM sessions"))

    def has(self, session: bytes, stamp: str) -> bool:
        """Tell whether the log of a session was read in this state."""
        sql = "SELECT 1 FROM sessions WHERE id = ? AND stamp = ?"
        return bool(self.rows(sql, (session, stamp)))

    def length(self, session: bytes) -> tuple[int, int] | None:
        """Return when a session was begun, and how many lines its log had when it was read."""
        sql = "SELECT created, n_lines FROM sessions WHERE id = ?"
        row: tuple[int, int] | None = self._connection.execute(sql, (session,)).fetchone()
        return row

    def forget(self, sessions: Iterable[bytes]) -> None:
        """Take sessions out; unknown ones are fine."""
        for session in sessions:
            sql = "DELETE FROM sessions WHERE id = ? RETURNING n"
            for (n,) in self._connection.execute(sql, (session,)).fetchall():
                rows = "SELECT id FROM said WHERE n = ?"
                self._connection.execute(f"DELETE FROM words WHERE rowid IN ({rows})", (n,))
                for table in ("edges", "calls", "given", "said"):
                    self._connection.execute(f"DELETE FROM {table} WHERE n = ?", (n,))

    def keep(self, read: Collection[tuple[LogFacts, str]], gone: Collection[bytes] = ()) -> None:
        """Store what logs say, and their stamps, in place of what was known of them.

        Args:
            read: What is stored.
            gone: Sessions to take out.
        """
        if read or gone:
            with self.writing():
                self.forget(gone)
                sql = "SELECT coalesce(max(id), 0) FROM said"
                ((n_said,),) = self.rows(sql)
                for facts, stamp in read:
                    self._keep(facts, stamp, n_said + 1)
                    n_said += len(facts.texts or ())

    def _keep(self, facts: LogFacts, stamp: str, first_text: int) -> None:
        """Store the facts of a log.

        Args:
            facts: What was read from it.
            stamp: The state of its file when it was read.
            first_text: The number of the first of its texts; those from there on are free.
        """
        summary = to_row((None, facts.session, stamp, facts.where, *_summary(facts)))
        try:
            n = self._insert("sessions", summary)
        except sqlite3.IntegrityError:
            # Most logs are new, and then there is nothing to forget.
            session = facts.session.bytes
            if facts.texts is None and self.has(session, stamp):
                return  # Another process has read it meanwhile, perhaps with its text.
            self.forget([session])
            n = self._insert("sessions", summary)
        parents = ((n, at, parent.bytes) for at, parent in enumerate(facts.parents))
        self._insert_all("edges", parents)
        self._insert_all("calls", ((n, *to_row(_call(call))) for call in facts.calls.values()))
        given = ((n, session.bytes, tokens) for session, tokens in facts.given.items())
        self._insert_all("given", given)
        rows = list(enumerate(facts.texts or (), start=first_text))
        self._insert_all("said", ((number, n, row.index, row.kind) for number, row in rows))
        sql = "INSERT INTO words (rowid, text) VALUES (?, ?)"
        texts = ((number, stored(row.text)) for number, row in rows)
        self._connection.executemany(sql, texts)

    def _insert(self, table: str, values: Sequence[object]) -> int:
        sql = f"INSERT INTO {table} VALUES ({marks(values)})"
        return self._connection.execute(sql, values).lastrowid or 0

    def _insert_all(self, table: str, rows: Iterable[Sequence[object]]) -> None:
        listed = list(rows)
        if listed:
            sql = f"INSERT INTO {table} VALUES ({marks(listed[0])})"
            self._connection.executemany(sql, listed)


def to_micros(time: datetime) -> int:
    """Return a time in microseconds since 1970."""
    return (time - _EPOCH) // timedelta(microseconds=1)


def from_micros(micros: int) -> datetime:
    """Return the time, in UTC, that `to_micros` made a number of."""
    return _EPOCH + timedelta(microseconds=micros)


def marks(values: Sized) -> str:
    """Return a place for each value of a statement."""
    return ", ".join("?" * len(values))


CALL_FIELDS = tuple(each.name for each in fields(IndexedCall))
"""In the order of the columns of a call."""

_call = attrgetter(*CALL_FIELDS)


def to_row(values: Iterable[object]) -> list[object]:
    """Return values as columns have them."""
    return [
        value if (convert := _TO_COLUMN.get(type(value))) is None else convert(value)
        for value in values
    ]


def from_rows(names: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[dict[str, Any]]:
    """Yield the columns of each row as what the fields of these names hold."""
    columns = [(name, _FROM_COLUMN.get(name)) for name in names]
    for row in rows:
        yield {
            name: value if value is None or convert is None else convert(value)
            for (name, convert), value in zip(columns, row, strict=True)
        }


def unpacked_id(packed: bytes) -> UUID:
    """Return the UUID of 16 bytes; faster than the class itself, and a listing has many."""
    return msgspec.convert(packed, UUID)


_KINDS = {kind.value: kind for kind in LineageKind}
_TO_COLUMN: Mapping[type, Callable[[Any], object]] = {
    UUID: lambda value: value.bytes,
    datetime: to_micros,
    Decimal: str,
    LineageKind: lambda value: value.value,
    tuple: lambda value: b"".join(each.bytes for each in value),
}
_FROM_COLUMN: Mapping[str, Callable[[Any], object]] = {
    **dict.fromkeys(("id", "run", "session"), unpacked_id),
    **dict.fromkeys(("at", "created_at", "updated_at"), from_micros),
    "usd": Decimal,
    "kind": lambda value: _KINDS.get(value, LineageKind.UNKNOWN),
    # Each takes 16 bytes.
    "parents": lambda packed: tuple(
        unpacked_id(packed[at : at + 16]) for at in range(0, len(packed), 16)
    ),
    "models": lambda text: tuple(text.split("\n")) if text else (),
    "is_priced": bool,
    "is_open": bool,
}


def _summary(facts: LogFacts) -> Iterator[object]:
    """Yield the column values of a session, from its times on."""
    calls = facts.calls.values()
    yield from (facts.created_at, facts.updated_at, facts.operator, facts.kind, facts.parents)
    yield from (facts.run, facts.path, facts.ordinal)
    title = facts.title
    yield None if title is None else " ".join(title.text.split())[:_TITLE_CHARS]
    yield None if title is None else title.index
    begins = facts.begins_with[0] if facts.begins_with else None
    yield from (None,) * 3 if begins is None else (begins.session, begins.start, begins.stop)
    yield from (facts.n_rows, len(calls), facts.n_tool_runs)
    yield sum(call.total_tokens for call in calls)
    yield sum((call.usd for call in calls if call.usd is not None), Decimal(0))
    yield not facts.given and all(call.price in ("known", "nothing") for call in calls)
    yield "\n".join(dict.fromkeys(call.model for call in calls if call.status == "done"))
    yield from (facts.backend, facts.state, facts.is_open, facts.problem)
    yield from (facts.size, facts.n_lines, facts.texts is not None)


__all__ = ["BUSY_SECONDS", "INDEX_VERSION", "Database", "from_micros", "to_micros"]
