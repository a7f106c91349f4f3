"""The SQLite tables of an index: schema, facts of a log, full text."""

from __future__ import annotations

import os
import re
import sqlite3
import weakref
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Final, Literal
from uuid import UUID

from rath._core.scripts import UNSPACED
from rath._core.sqlite_files import opening
from rath._core.text import valid_unicode
from rath.session.graph.kind import LineageKind

UNKNOWN_TIME = datetime(1970, 1, 1, tzinfo=UTC)
"""Stands for the times of a log whose first line cannot be believed."""

CallPrice = Literal["known", "unpriced", "uncounted", "nothing"]
"""What is known of the cost of a call; `nothing` for one that was refused or never sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFacts:
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
class SaidRow:
    """What a row says, as text."""

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
    calls: dict[UUID, CallFacts] = field(default_factory=dict[UUID, CallFacts])
    given: dict[UUID, int] = field(default_factory=dict[UUID, int])
    """Tokens that came without a call, by the session that they came with."""

    said: list[SaidRow] = field(default_factory=list[SaidRow])
    """Of its own rows, those that say anything."""

    backend: str | None = None
    state: str = "cut_off"
    is_open: bool = True
    """Whether its run has not ended, as far as the log says."""

    problem: str = ""

    @property
    def title(self) -> SaidRow | None:
        """Its own first row in which a user speaks."""
        return next((row for row in self.said if row.kind == "user"), None)


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
    """What these cost, as far as it is known."""

    is_priced: bool
    """Whether the cost of all of them is known."""

    models: tuple[str, ...]
    """That answered in its own run, each once."""

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
    """Return what is stored as it was said."""
    return text.replace(_GAP, "")


def match_of(question: str) -> str | None:
    """Return what FTS5 shall match: all words of a question, by their beginnings.

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


INDEX_VERSION = 2
"""Counts changes of what stands in it; an index of another version is made again."""

BUSY_SECONDS = 5.0
"""How long to wait for a writer in another process, unless told otherwise; a guess."""

_APPLICATION_ID = 0x52415349
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_SCHEMA = f"""
CREATE TABLE sessions (
    n INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE, stamp TEXT NOT NULL, place TEXT NOT NULL,
    created INTEGER NOT NULL, updated INTEGER NOT NULL,
    operator TEXT NOT NULL, kind TEXT NOT NULL, parents BLOB NOT NULL,
    run BLOB, path TEXT NOT NULL, ordinal INTEGER NOT NULL,
    title TEXT, title_at INTEGER, begins_with BLOB, begins_at INTEGER, begins_to INTEGER,
    n_rows INTEGER NOT NULL, n_calls INTEGER NOT NULL, n_tool_runs INTEGER NOT NULL,
    tokens INTEGER NOT NULL, usd TEXT NOT NULL, is_priced INTEGER NOT NULL, models TEXT NOT NULL,
    backend TEXT, state TEXT NOT NULL, is_open INTEGER NOT NULL, problem TEXT NOT NULL,
    size INTEGER NOT NULL, n_lines INTEGER NOT NULL);
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
PRAGMA application_id = {_APPLICATION_ID};
PRAGMA user_version = {INDEX_VERSION};
"""

_TITLE_CHARS = 200


class IndexMismatch(Exception):
    """The file is of another version, or no index of ours."""


class Database:
    """One connection; callers see to it that one thread uses it at a time.

    Args:
        path: The file, made when it is missing; None keeps all in memory.
        busy_seconds: How long to wait for a writer in another process.

    Raises:
        sqlite3.Error: The file cannot be opened, written or believed.
        OSError: Something else stands there, or it cannot be made.
        IndexMismatch: The file holds something else.
    """

    def __init__(self, path: Path | None, *, busy_seconds: float = BUSY_SECONDS) -> None:
        self.path = path
        if path is None:
            self._connect(":memory:", busy_seconds)
            return
        with opening(path, seconds=busy_seconds):
            # Made here, since SQLite would let others read it. What it makes beside it, it makes
            # with the same rights.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            self._connect(str(path), busy_seconds)

    def close(self) -> None:
        """Close the connection."""
        self._end()

    @contextmanager
    def writing(self) -> Generator[None]:
        """Hold the index for one writer among all threads and processes; all or nothing."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            # SQLite itself may have ended the transaction.
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[tuple[object, ...]]:
        """Return the rows of a query."""
        with closing(self._connection.execute(sql, tuple(values))) as cursor:
            return cursor.fetchall()

    def stamps(self) -> Mapping[bytes, str]:
        """Return by session in which state its log was read."""
        return dict(self._connection.execute("SELECT id, stamp FROM sessions"))

    def length(self, session: bytes) -> tuple[int, int] | None:
        """Return when a session was begun, and how many lines its log had when it was read."""
        sql = "SELECT created, n_lines FROM sessions WHERE id = ?"
        found: tuple[int, int] | None = self._connection.execute(sql, (session,)).fetchone()
        return found

    def forget(self, sessions: Iterable[bytes]) -> None:
        """Take sessions out; unknown ones are fine."""
        for session in sessions:
            sql = "DELETE FROM sessions WHERE id = ? RETURNING n"
            for (n,) in self._connection.execute(sql, (session,)).fetchall():
                rows = "SELECT id FROM said WHERE n = ?"
                self._connection.execute(f"DELETE FROM words WHERE rowid IN ({rows})", (n,))
                for table in ("edges", "calls", "given", "said"):
                    self._connection.execute(f"DELETE FROM {table} WHERE n = ?", (n,))

    def keep(self, facts: LogFacts, stamp: str) -> None:
        """Store what a log says, in place of what was known of it."""
        summary = _summary_row(facts, stamp)
        try:
            n = self._insert("sessions", summary)
        except sqlite3.IntegrityError:
            # Most logs are new, and then there is nothing to forget.
            self.forget([facts.session.bytes])
            n = self._insert("sessions", summary)
        run = self._connection.executemany
        edges = [(n, at, parent.bytes) for at, parent in enumerate(facts.parents)]
        run("INSERT INTO edges VALUES (?, ?, ?)", edges)
        run(f"INSERT INTO calls VALUES ({_marks(12)})", _call_rows(n, facts))
        given = [(n, session.bytes, tokens) for session, tokens in facts.given.items()]
        run("INSERT INTO given VALUES (?, ?, ?)", given)
        for row in facts.said:
            said = self._insert("said", (None, n, row.index, row.kind))
            sql = "INSERT INTO words (rowid, text) VALUES (?, ?)"
            self._connection.execute(sql, (said, stored(row.text)))

    def _insert(self, table: str, values: Sequence[object]) -> int:
        sql = f"INSERT INTO {table} VALUES ({_marks(len(values))})"
        made = self._connection.execute(sql, values).lastrowid
        assert made is not None
        return made

    def _connect(self, name: str, busy_seconds: float) -> None:
        self._connection = sqlite3.connect(
            name, timeout=busy_seconds, isolation_level=None, check_same_thread=False
        )
        # A connection that nobody closes would warn when it goes.
        self._end = weakref.finalize(self, self._connection.close)
        try:
            self._set_up()
        except BaseException:
            self.close()
            raise

    def _set_up(self) -> None:
        # The busy timeout also covers the change to WAL and the schema, where processes meet that
        # open a new index at the same time.
        self._connection.execute("PRAGMA journal_mode = WAL")
        # The logs are the truth; what a power cut takes from the index is read again from them.
        self._connection.execute("PRAGMA synchronous = NORMAL")
        if self._identity() == (0, 0):
            with self.writing():
                if self._identity() == (0, 0):
                    self._create()
        if self._identity() != (_APPLICATION_ID, INDEX_VERSION):
            raise IndexMismatch(f"{self.path} is no index of version {INDEX_VERSION}")

    def _create(self) -> None:
        if self.rows("SELECT 1 FROM sqlite_schema"):
            raise IndexMismatch(f"{self.path} is no index")
        for statement in filter(str.strip, _SCHEMA.split(";\n")):
            self._connection.execute(statement)

    def _identity(self) -> tuple[int, int]:
        (application,) = self._connection.execute("PRAGMA application_id").fetchone()
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        return application, version


def to_micros(time: datetime) -> int:
    """Return a time in microseconds since 1970."""
    return (time - _EPOCH) // timedelta(microseconds=1)


def from_micros(micros: int) -> datetime:
    """Return the time, in UTC, that `to_micros` made a number of."""
    return _EPOCH + timedelta(microseconds=micros)


def _marks(number: int) -> str:
    return ", ".join("?" * number)


def _summary_row(facts: LogFacts, stamp: str) -> tuple[object, ...]:
    calls, title = facts.calls.values(), facts.title
    begins = facts.begins_with[0] if facts.begins_with else None
    prices = [call.price for call in calls]
    usd = sum((call.usd for call in calls if call.usd is not None), Decimal(0))
    return (
        None,
        facts.session.bytes,
        stamp,
        facts.where,
        to_micros(facts.created_at),
        to_micros(facts.updated_at),
        facts.operator,
        facts.kind.value,
        b"".join(parent.bytes for parent in facts.parents),
        None if facts.run is None else facts.run.bytes,
        facts.path,
        facts.ordinal,
        None if title is None else " ".join(title.text.split())[:_TITLE_CHARS],
        None if title is None else title.index,
        None if begins is None else begins.session.bytes,
        None if begins is None else begins.start,
        None if begins is None else begins.stop,
        facts.n_rows,
        len(facts.calls),
        facts.n_tool_runs,
        sum(call.total_tokens for call in calls),
        str(usd),
        not facts.given and all(price in ("known", "nothing") for price in prices),
        "\n".join(dict.fromkeys(call.model for call in calls if call.status == "done")),
        facts.backend,
        facts.state,
        facts.is_open,
        facts.problem,
        facts.size,
        facts.n_lines,
    )


def _call_rows(n: int, facts: LogFacts) -> list[tuple[object, ...]]:
    return [
        (
            n,
            call.id.bytes,
            to_micros(call.at),
            call.model,
            call.purpose,
            call.status,
            call.prompt_tokens,
            call.cached_tokens,
            call.completion_tokens,
            call.total_tokens,
            None if call.usd is None else str(call.usd),
            call.price,
        )
        for call in facts.calls.values()
    ]


def ids_in(packed: bytes) -> tuple[UUID, ...]:
    """Return the ids of which each takes 16 bytes."""
    return tuple(UUID(bytes=packed[at : at + 16]) for at in range(0, len(packed), 16))


__all__ = ["BUSY_SECONDS", "INDEX_VERSION", "Database", "IndexMismatch", "from_micros", "to_micros"]
