"""The index of a store: where it lies, and how it follows the logs."""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
from collections.abc import (
    Callable,
    Collection,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import closing, contextmanager
from dataclasses import field, fields, replace
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar
from uuid import UUID

import msgspec

from rath._core.dataclasses import dataclass
from rath._core.lazy_imports import lazy_function
from rath._core.sqlite import IndexMismatch, identity_of, take_away
from rath._core.text import valid_unicode
from rath.config.paths import resolve_config_dir
from rath.errors import PersistenceError
from rath.session.graph.kind import LineageKind
from rath.session.log.files import FileStore
from rath.session.log.index.database import (
    BUSY_SECONDS,
    CALL_FIELDS,
    INDEX_VERSION,
    Database,
    IndexedCall,
    LogFacts,
    SessionSummary,
    displayed_text,
    from_rows,
    marks,
    match_of,
    to_micros,
    to_row,
    unpacked_id,
)
from rath.session.log.paths import INDEX_FILE_NAME
from rath.session.log.store import SessionStore

# Listing needs no reader of logs, as long as none has changed.
_facts_of = lazy_function("rath.session.log.index.decode", "facts_of")

_CACHE_DIR_NAME = "cache"
_DIGITS = 32


def index_file(store: SessionStore) -> Path | None:
    """Return where the index of a store stands or would be made; creates nothing.

    That of a store of files stands beside them, so that it goes where they go. Others have theirs
    in the home of rath, under a digest of where they are.

    Returns:
        None where there is no place for one, as in a container without a home.
    """
    if isinstance(store, FileStore):
        return store.directory / INDEX_FILE_NAME
    digest = sha256(f"{store.name} {store.where}".encode()).hexdigest()[:_DIGITS]
    try:
        return resolve_config_dir() / _CACHE_DIR_NAME / f"sessions-{digest}.sqlite3"
    except FileNotFoundError:
        return None


T = TypeVar("T")

Progress = Callable[[int, int], None]
"""Is told how many logs were read, and how many are to be."""

_LOGS_AT_ONCE = 500
_BYTES_AT_ONCE = 16 << 20
_REPORT_EVERY = 50
_MEMORY_SECONDS = 0.5
"""How long to wait for a writer where the index is only one of several witnesses; a guess."""

_logger = logging.getLogger(__name__)

_AT_ONCE = 500
"""Values in one statement; older versions of SQLite take 999."""

_NO_END = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFilter:
    """Filter of sessions: those that fit in every respect."""

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
    runs: Collection[UUID] | None = None
    """It was made in any of these."""

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
    """The text around the words, on one line."""


@dataclass(frozen=True, slots=True)
class ListedLog:
    """The beginning and the end of a log that can be believed."""

    where: str
    """Location at the time of reading, as in `StoredLog`."""

    created_at: datetime
    operator: str
    kind: LineageKind
    n_rows: int
    is_open: bool
    """Whether its run has not ended, as far as the log says."""


_MEMBERS = (*(each.name for each in fields(SessionSummary) if each.name != "title"), "is_open")
_COLUMNS = ", ".join(name.removesuffix("_at") for name in _MEMBERS)
_TITLE = "title, title_at, begins_with, begins_at, begins_to"
_SELECT = f"SELECT {_COLUMNS}, {_TITLE} FROM sessions"
_CONDITIONS = {
    "since": "created >= ?",
    "until": "created < ?",
    "operator": "? IN (operator, kind)",
    "model": "instr(lower(models), lower(?))",
    "run": "run = ?",
    "parent": "n IN (SELECT n FROM edges WHERE parent = ?)",
}
"""By the member of a filter that gives the one value."""

_SAYS = "n IN (SELECT n FROM said WHERE id IN (SELECT rowid FROM words WHERE words MATCH ?))"


@dataclass(frozen=True, slots=True)
class IndexMemory:
    """The facts of one log when its index was brought up to date last."""

    started_at: int | None = None
    """Start of the session in microseconds; None where the index does not know it."""

    n_lines: int = 0
    """How many lines its log had."""

    children: frozenset[UUID] = frozenset()
    """The sessions that came from it, or begin with rows of it."""

    stamps: Mapping[UUID, str] = field(default_factory=dict[UUID, str])
    """In which state each log was read."""


def index_memory(store: SessionStore, session: UUID) -> IndexMemory:
    """Return the index's facts of one session as it is; no log is read for that.

    Where there is no index, or it cannot be used now, that is nothing.
    """
    path = index_file(store)
    if path is None or not path.is_file():
        return IndexMemory()
    sql = """SELECT id FROM edges JOIN sessions USING (n) WHERE parent = ?
             UNION SELECT id FROM sessions WHERE begins_with = ?"""
    try:
        with closing(Database(path, busy_seconds=_MEMORY_SECONDS)) as database:
            started_at, n_lines = database.length(session.bytes) or (None, 0)
            rows = database.rows(sql, (session.bytes, session.bytes))
            children = frozenset(unpacked_id(child) for (child,) in rows)
            stamps = {unpacked_id(each): stamp for each, stamp in database.stamps().items()}
    except (sqlite3.Error, IndexMismatch, OSError):
        return IndexMemory()
    return IndexMemory(started_at, n_lines, children, stamps)


def lines_are_missing(n_lines: int, n_known: int) -> str:
    """Return why a log is damaged that has fewer lines than it had."""
    return (
        f"the log has {n_lines} lines, and had {n_known} when the index read it: its end was cut "
        "off. Bring it back from a backup; with recover=True what stands before can be read"
    )


class SharedFacts:
    """The facts of logs that a store keeps for all machines, so that each log is read once.

    They are what reading the log gives; a store that does not answer here is read.

    Args:
        store: Where; nothing happens where it shares nothing.
        stamps: The state of each log.
        with_text: Whether the facts have the text of the rows.
    """

    def __init__(self, store: SessionStore, stamps: Mapping[UUID, str], *, with_text: bool) -> None:
        self._store = store
        self._stamps = stamps
        self._kind = f"{'text' if with_text else 'facts'}-{INDEX_VERSION}"
        self._taken: set[UUID] = set()
        self._new: dict[UUID, tuple[str, bytes]] = {}

    def take(self, sessions: Iterable[UUID]) -> Iterator[LogFacts | None]:
        """Yield the facts of each session, None where there are none."""
        if not self._store.shares_facts:
            yield from (None for _ in sessions)
            return
        waiting = list(sessions)
        for start in range(0, len(waiting), _AT_ONCE):
            part = waiting[start : start + _AT_ONCE]
            found: Mapping[UUID, bytes] = {}
            with self._quietly():
                found = self._store.shared_facts(
                    self._kind, {each: self._stamps[each] for each in part}
                )
            for session in part:
                facts = _decoded(session, found.get(session))
                if facts is not None:
                    # Each machine may reach the store by another name.
                    facts.where = f"{self._store.where}{facts.where}"
                    self._taken.add(session)
                yield facts

    def put(self, facts: LogFacts) -> None:
        """Have facts kept that were read here, unless the log could not be."""
        session = facts.session
        place = facts.where.removeprefix(self._store.where)
        if self._store.shares_facts and session not in self._taken and place != facts.where:
            data = msgspec.msgpack.encode(replace(facts, where=place))
            self._new[session] = self._stamps[session], data

    def flush(self) -> None:
        """Write what was put."""
        new, self._new = self._new, {}
        if new:
            with self._quietly():
                self._store.share_facts(self._kind, new)

    @contextmanager
    def _quietly(self) -> Generator[None]:
        try:
            yield
        except PersistenceError as exc:
            _logger.debug("the index of %s is not shared: %s", self._store.where, exc)


def _decoded(session: UUID, data: bytes | None) -> LogFacts | None:
    """Return shared facts, None where they cannot be understood."""
    if data is None:
        return None
    try:
        facts = msgspec.msgpack.decode(data, type=LogFacts)
    except (msgspec.MsgspecError, ValueError):
        return None
    return facts if facts.session == session else None


class StoreIndex:
    """The index of a store: answers questions without reading its logs each time.

    The first question reads the logs that were written since the last time; `refresh` does it
    again. Text of rows is indexed by questions that search it: the index tells in which logs that
    was left out so far. Several processes may use one index. One that is damaged or of another
    version is made again; where that cannot be, or the place cannot be written to, it is made in
    memory, and `note` says why. All methods block; they may be called by any thread.

    Args:
        store: The logs.
        path: Where the index stands; by default see `index_file`.
        progress: Is told how far reading is, about every 50 logs.
        busy_seconds: How long to wait for another process that writes.
    """

    def __init__(
        self,
        store: SessionStore,
        *,
        path: Path | None = None,
        progress: Progress | None = None,
        busy_seconds: float = BUSY_SECONDS,
    ) -> None:
        self.store = store
        self.path: Path | None = path or index_file(store)
        """The file; None where there is no place for one."""

        self.note: str = ""
        """Why the index is kept in memory, "" where it is not, or nothing is lost by it."""

        self._progress = progress
        self._busy_seconds = busy_seconds
        self._lock = threading.RLock()
        self._database: Database | None = None
        self._identity: int | None = None
        self._is_fresh = self._has_text = False
        self._stamps: Mapping[UUID, str] = {}

    def refresh(self, progress: Progress | None = None, *, with_text: bool = False) -> None:
        """Read the logs that have changed, and forget those that are gone.

        Args:
            progress: Is told how far that is.
            with_text: Read also the text of rows, where that was left out before.

        Raises:
            PersistenceError: The store cannot be read.
        """
        with self._lock:
            self._is_fresh = False
            self._progress = progress or self._progress
            self._ask(lambda database: None, with_text=with_text)

    def add(self, sessions: Iterable[UUID]) -> None:
        """Read the logs of some sessions of a store of files, as far as they have changed.

        A question reads what was left out. Only an index that is there is written to.

        Raises:
            PersistenceError, OSError: A log cannot be read.
            sqlite3.Error, IndexMismatch, OSError: The index cannot be written.
        """
        assert isinstance(self.store, FileStore)
        assert self.path is not None
        if not self.path.is_file():
            return
        with self._lock:
            database = self._open()
            read: list[tuple[LogFacts, str]] = []
            for session in sessions:
                stamp = self.store.stamp(session)
                if stamp is not None and not database.has(session.bytes, stamp):
                    facts = self._read(session, with_text=False)
                    read += [] if facts is None else [(self._checked(facts, database), stamp)]
            database.keep(read)

    def summaries(self, asked: SessionFilter | None = None) -> tuple[SessionSummary, ...]:
        """Return summaries of the sessions that fit, by default of all, the newest first.

        Raises:
            PersistenceError: The store cannot be read.
        """
        asked = asked or SessionFilter()
        where, values = _where(asked)
        order = "DESC" if asked.order == "newest" else "ASC"
        # The states of those that are open change without their logs.
        limit = -1 if asked.limit is None or asked.states else asked.limit
        sql = f"{_SELECT} WHERE {where} ORDER BY created {order}, id LIMIT ?"
        rows = self._rows(sql, [*values, limit], with_text=asked.text is not None)
        fitting = self._summaries(rows)
        if asked.states:
            fitting = [each for each in fitting if each.state in asked.states]
        return tuple(fitting[: asked.limit])

    def logs(self) -> dict[UUID, ListedLog | None]:
        """Return the facts of each log in the order of the store, None where it must be read.

        That is a log that cannot be believed, or that another process has read meanwhile.

        Raises:
            PersistenceError: The store cannot be read.
        """
        names = ("where", "created_at", "operator", "kind", "n_rows", "is_open")
        sql = """SELECT id, stamp, place, created, operator, kind, n_rows, is_open FROM sessions
                 WHERE state != 'damaged'"""
        rows = self._rows(sql)
        logs = from_rows(names, (row[2:] for row in rows))
        facts = {row[:2]: ListedLog(**log) for row, log in zip(rows, logs, strict=True)}
        return {each: facts.get((each.bytes, stamp)) for each, stamp in self._stamps.items()}

    def count(self, asked: SessionFilter) -> int:
        """Return how many sessions fit, whatever the limit."""
        if asked.states:
            return len(self.summaries(replace(asked, limit=None)))
        where, values = _where(asked)
        sql = f"SELECT count(*) FROM sessions WHERE {where}"
        return int(self._rows(sql, values, with_text=asked.text is not None)[0][0])

    def summary(self, session: UUID) -> SessionSummary | None:
        """Return the summary of one session, None where the store has no log of it."""
        return next(iter(self.known([session])), None)

    def known(self, sessions: Collection[UUID]) -> list[SessionSummary]:
        """Return the summaries of those of these sessions of which the store has a log."""
        return self._summaries(self._rows_of(f"{_SELECT} WHERE id IN ({{}})", sessions))

    def search(self, text: str, *, limit: int = 100) -> tuple[SearchHit, ...]:
        """Return the rows in which something was said, the best first.

        A row is found where it was said, and not again in what was made from that session. Case and
        accents do not count, words are found by their beginnings, and what stands in double quotes
        as it is.
        """
        match = match_of(text)
        if match is None:
            return ()
        sql = """SELECT sessions.id, said.at, said.kind, snippet(words, 0, '', '', ' … ', 24)
                 FROM words JOIN said ON said.id = words.rowid JOIN sessions ON sessions.n = said.n
                 WHERE words MATCH ? ORDER BY words.rank, sessions.created DESC, said.id LIMIT ?"""
        return tuple(
            SearchHit(unpacked_id(session), at, kind, " ".join(displayed_text(snippet).split()))
            for session, at, kind, snippet in self._rows(sql, (match, limit), with_text=True)
        )

    def children(self, session: UUID) -> tuple[UUID, ...]:
        """Return the sessions that were made from one, the oldest first."""
        sql = """SELECT DISTINCT id, created FROM edges JOIN sessions USING (n) WHERE parent = ?
                 ORDER BY created, id"""
        return self._ids(sql, session.bytes)

    def ancestors(self, session: UUID) -> tuple[UUID, ...]:
        """Return all that a session came from, the nearest first, also what has no log."""
        return _reached(session, self._parents)

    def descendants(self, session: UUID) -> tuple[UUID, ...]:
        """Return all that came from a session, the nearest first."""
        return _reached(session, self.children)

    def made_in(self, run: UUID) -> tuple[SessionSummary, ...]:
        """Return the sessions that were made in a workflow call, the oldest first."""
        return self.summaries(SessionFilter(run=run, order="oldest"))

    def runs(self) -> tuple[UUID, ...]:
        """Return the workflow calls in which sessions of the store were made, the newest first."""
        sql = """SELECT run FROM sessions WHERE run IS NOT NULL
                 GROUP BY run ORDER BY max(created) DESC, run"""
        return self._ids(sql)

    def calls(self, sessions: Collection[UUID]) -> tuple[tuple[UUID, IndexedCall], ...]:
        """Return the model calls in the logs of these sessions, with whose log it is, by time.

        A call of a run inside a run stands in the logs of both, under one id.
        """
        sql = """SELECT sessions.id, calls.id, at, model, purpose, status, prompt, cached,
                        completion, total, calls.usd, price
                 FROM calls JOIN sessions USING (n)
                 WHERE sessions.id IN ({}) ORDER BY at, calls.id"""
        rows = self._rows_of(sql, sessions)
        calls = from_rows(CALL_FIELDS, (row[1:] for row in rows))
        return tuple(
            (unpacked_id(row[0]), IndexedCall(**call))
            for row, call in zip(rows, calls, strict=True)
        )

    def given_tokens(self, sessions: Collection[UUID]) -> dict[UUID, int]:
        """Return the tokens that came without a call, by the session that they came with."""
        sql = """SELECT given.session, given.tokens FROM given JOIN sessions USING (n)
                 WHERE sessions.id IN ({})"""
        return {unpacked_id(each): tokens for each, tokens in self._rows_of(sql, sessions)}

    def close(self) -> None:
        """Close the index; the next question opens it again."""
        with self._lock:
            self._drop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _parents(self, session: UUID) -> tuple[UUID, ...]:
        sql = "SELECT parent FROM edges JOIN sessions USING (n) WHERE id = ? ORDER BY position"
        return self._ids(sql, session.bytes)

    def _ids(self, sql: str, *values: object) -> tuple[UUID, ...]:
        return tuple(unpacked_id(row[0]) for row in self._rows(sql, values))

    def _rows(
        self, sql: str, values: Sequence[object] = (), *, with_text: bool = False
    ) -> list[Any]:
        return self._ask(lambda database: database.rows(sql, values), with_text=with_text)

    def _rows_of(self, sql: str, sessions: Collection[UUID]) -> list[Any]:
        """Return the rows of a query that asks for some sessions."""
        ids = [session.bytes for session in dict.fromkeys(sessions)]
        parts = [ids[at : at + _AT_ONCE] for at in range(0, len(ids), _AT_ONCE)]
        return [row for part in parts for row in self._rows(sql.format(marks(part)), part)]

    def _summaries(self, rows: Sequence[Any]) -> list[SessionSummary]:
        """Return the summaries of rows of sessions."""
        n_members = len(_MEMBERS)
        titles = {row[0]: row[n_members:] for row in rows}
        summaries: list[SessionSummary] = []
        for row, members in zip(
            rows, from_rows(_MEMBERS, (row[:n_members] for row in rows)), strict=True
        ):
            is_open = members.pop("is_open")
            # Whether somebody is at work stands in no log.
            if is_open and self.store.is_being_written(members["id"]):
                members |= {"state": "running", "problem": ""}
            summaries.append(SessionSummary(**members, title=self._title(row[0], titles)))
        return summaries

    def _title(self, session: bytes, columns: dict[bytes, Any]) -> str:
        """Return the first words of a user, also where a session begins with them.

        Args:
            session: Of which session.
            columns: The columns that tell it by session; is kept up to date.
        """
        text, start, stop = "", 0, _NO_END
        visited: set[bytes] = set()
        while session not in visited:
            visited.add(session)
            if session not in columns:
                rows = self._rows(f"SELECT {_TITLE} FROM sessions WHERE id = ?", (session,))
                columns[session] = rows[0] if rows else (None,) * 5
            title, at, begins_with, begins_at, begins_to = columns[session]
            # What a session begins with was said before its own rows, so the last one found counts.
            if at is not None and start <= at < stop:
                text = title
            if begins_with is None:
                break
            start, stop = begins_at + start, min(begins_to, begins_at + stop)
            session = begins_with
        return text

    def _ask(self, question: Callable[[Database], T], *, with_text: bool = False) -> T:
        """Return the answer of an index that is up to date, by whatever way there is one."""
        with self._lock:
            for repair in (self._recover, self._go_to_memory):
                try:
                    return self._answer(question, with_text=with_text)
                except (sqlite3.Error, IndexMismatch, OSError) as exc:
                    if self._is_in_memory():
                        raise
                    repair(exc)
            return self._answer(question, with_text=with_text)

    def _answer(self, question: Callable[[Database], T], *, with_text: bool) -> T:
        database = self._open()
        if not self._is_fresh or (with_text and not self._has_text):
            self._stamps = self._update(database, with_text=with_text)
            self._is_fresh, self._has_text = True, with_text
        return question(database)

    def _update(self, database: Database, *, with_text: bool) -> Mapping[UUID, str]:
        """Bring the index up to date, and return the stamps that the logs have now."""
        # In this order: what another process adds meanwhile is not taken for gone.
        indexed = database.stamps(with_text=with_text)
        stamp_of = self.store.stamps()
        stamps = {session.bytes: stamp for session, stamp in stamp_of.items()}
        gone = indexed.keys() - stamps.keys()
        changed = [session for session, stamp in stamps.items() if indexed.get(session) != stamp]
        read: list[tuple[LogFacts, str]] = []
        n_bytes = 0
        share = SharedFacts(self.store, stamp_of, with_text=with_text)
        shared = share.take(unpacked_id(session) for session in changed)
        for number, session in enumerate(changed, start=1):
            facts = next(shared) or self._read(unpacked_id(session), with_text=with_text)
            if facts is None:
                gone.add(session)
            else:
                share.put(facts)
                read.append((self._checked(facts, database), stamps[session]))
                n_bytes += facts.size
            if self._progress and (number % _REPORT_EVERY == 0 or number == len(changed)):
                self._progress(number, len(changed))
            if len(read) >= _LOGS_AT_ONCE or n_bytes > _BYTES_AT_ONCE:
                database.keep(read)
                share.flush()
                read, n_bytes = [], 0
        # The logs were read before, so that no other process waits for that.
        database.keep(read, gone)
        share.flush()
        return stamp_of

    def _read(self, session: UUID, *, with_text: bool) -> LogFacts | None:
        try:
            log = self.store.read(session)
        except PersistenceError as exc:
            problem = str(exc)
            return LogFacts(
                session=session, size=0, texts=[], state="damaged", is_open=False, problem=problem
            )
        if log is None:
            return None
        # What reads a log is loaded with the first one: most questions need none.
        facts: LogFacts = _facts_of(
            session, log.data, is_finished=log.is_finished, with_text=with_text
        )
        facts.where = valid_unicode(log.where)
        return facts

    def _checked(self, facts: LogFacts, database: Database) -> LogFacts:
        """Return the facts of a log; it is damaged where it has lost lines that were read here."""
        started_at, n_lines = database.length(facts.session.bytes) or (None, 0)
        # One that became shorter; another log under the same id begins at another time.
        if started_at == to_micros(facts.created_at) and facts.n_lines < n_lines:
            if facts.state != "damaged":
                facts.state, facts.is_open = "damaged", False
                facts.problem = lines_are_missing(facts.n_lines, n_lines)
            facts.n_lines = n_lines
        return facts

    def _open(self) -> Database:
        if self._database is None:
            path = self._place()
            # Before it is opened, so that one that cannot be is known by it.
            self._identity = None if path is None else identity_of(path)
            self._database = Database(path, busy_seconds=self._busy_seconds)
            self._is_fresh = False
        return self._database

    def _place(self) -> Path | None:
        """Return where the index is opened; None for memory."""
        if self.path is None or self.note:
            return None
        if isinstance(self.store, FileStore):
            # A question makes no store.
            return self.path if self.path.parent.is_dir() else None
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self.path

    def _is_in_memory(self) -> bool:
        return self._database is not None and self._database.path is None

    def _recover(self, exc: Exception) -> None:
        """Make way for another index: a new file, or where that cannot be, memory."""
        assert self.path is not None
        identity = self._identity
        self._drop()
        is_gone = _is_unusable(exc) and take_away(self.path, identity, seconds=self._busy_seconds)
        if is_gone:
            _logger.info("the index %s is made again: %s", self.path, exc)
        else:
            self._go_to_memory(exc)

    def _go_to_memory(self, exc: Exception) -> None:
        self._drop()
        self.note = f"the index {self.path} cannot be used ({exc}), so all logs were read"

    def _drop(self) -> None:
        if self._database is not None:
            self._database.close()
        self._database, self._identity, self._is_fresh = None, None, False


def _reached(session: UUID, step: Callable[[UUID], Iterable[UUID]]) -> tuple[UUID, ...]:
    """Return the sessions within reach of one by steps, each once, the nearest first."""
    reached: dict[UUID, None] = {}
    frontier = [session]
    while frontier:
        nearer = [other for each in frontier for other in step(each)]
        frontier = [
            each for each in dict.fromkeys(nearer) if each not in reached and each != session
        ]
        reached |= dict.fromkeys(frontier)
    return tuple(reached)


def _where(session_filter: SessionFilter) -> tuple[str, list[object]]:
    """Return the condition of a filter, and its values."""
    simple = {
        name: value for name in _CONDITIONS if (value := getattr(session_filter, name)) is not None
    }
    conditions, values = [_CONDITIONS[name] for name in simple], to_row(simple.values())
    if session_filter.states:
        # What a writer is at work on is running, whatever its log says.
        conditions.append(f"(is_open OR state IN ({marks(session_filter.states)}))")
        values += session_filter.states
    if session_filter.runs is not None:
        conditions.append("hex(run) IN (SELECT value FROM json_each(?))")
        values.append(json.dumps([run.bytes.hex().upper() for run in session_filter.runs]))
    if session_filter.is_said:
        conditions.append(
            "NOT (n_calls = 0 AND title IS NULL AND parents = x'' AND state = 'completed')"
        )
    if session_filter.text is not None:
        match = match_of(session_filter.text)
        conditions.append("0" if match is None else _SAYS)
        values += [] if match is None else [match]
    return " AND ".join(conditions) or "1", values


def _is_unusable(exc: Exception) -> bool:
    """Tell whether the file itself is wrong, and not its place or the moment."""
    if isinstance(exc, IndexMismatch):
        return True
    if not isinstance(exc, sqlite3.DatabaseError):
        return False
    code = getattr(exc, "sqlite_errorcode", None)
    is_of_the_file = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}
    return code is None or (code & 0xFF) in is_of_the_file


__all__ = ["IndexMemory", "Progress", "StoreIndex", "index_memory", "lines_are_missing"]
