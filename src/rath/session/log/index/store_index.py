"""The index of a store: where it lies, and how it follows the logs."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar
from uuid import UUID

from rath._core.late import late_function
from rath._core.sqlite_files import identity_of, take_away
from rath._core.text import valid_unicode
from rath.config.paths import resolve_config_dir
from rath.errors import PersistenceError
from rath.session.log.files import FileStore
from rath.session.log.index import query
from rath.session.log.index.database import (
    BUSY_SECONDS,
    CallFacts,
    Database,
    IndexMismatch,
    LogFacts,
    SessionSummary,
    to_micros,
)
from rath.session.log.index.query import FoundSession, ListedLog, SearchHit, SessionFilter
from rath.session.log.paths import INDEX_FILE_NAME
from rath.session.log.store import SessionStore

# Listing needs no reader of logs, as long as none has changed.
_facts_of = late_function("rath.session.log.index.decode", "facts_of")

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


@dataclass(frozen=True, slots=True)
class IndexMemory:
    """What an index said of one log when it was brought up to date last."""

    begun: int | None = None
    """When the session was begun, in microseconds; None where the index does not know it."""

    n_lines: int = 0
    """How many lines its log had."""

    children: frozenset[UUID] = frozenset()
    """The sessions that came from it, or begin with rows of it."""

    stamps: Mapping[UUID, str] = field(default_factory=dict[UUID, str])
    """In which state each log was read."""


def index_memory(store: SessionStore, session: UUID) -> IndexMemory:
    """Return what the index of a store says of one session as it is; no log is read for that.

    Where there is no index, or it cannot be used now, that is nothing.
    """
    path = index_file(store)
    if path is None or not path.is_file():
        return IndexMemory()
    try:
        database = Database(path, busy_seconds=_MEMORY_SECONDS)
    except (sqlite3.Error, IndexMismatch, OSError):
        return IndexMemory()
    try:
        begun, n_lines = database.length(session.bytes) or (None, 0)
        children = frozenset(query.children_of(database, session))
        stamps = {UUID(bytes=each): stamp for each, stamp in database.stamps().items()}
        return IndexMemory(begun, n_lines, children, stamps)
    except sqlite3.Error:
        return IndexMemory()
    finally:
        database.close()


def lines_are_missing(n_lines: int, n_known: int) -> str:
    """Return why a log is damaged that has fewer lines than it had."""
    return (
        f"the log has {n_lines} lines, and had {n_known} when the index read it: its end was cut "
        "off. Bring it back from a backup; with recover=True what stands before can be read"
    )


class StoreIndex:
    """What the logs of a store say, without reading them at each question.

    The first question reads the logs that were written since the last time; `refresh` does it
    again. Several processes may use one index. One that is damaged or of another version is made
    again; where that cannot be, or the place cannot be written to, it is made in memory, and `note`
    says why. All methods block; they may be called by any thread.

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
        self.path = path or index_file(store)
        """The file; None where there is no place for one."""

        self.note = ""
        """Why the index is kept in memory, "" where it is not, or nothing is lost by it."""

        self._progress = progress
        self._busy_seconds = busy_seconds
        self._lock = threading.RLock()
        self._database: Database | None = None
        self._identity: int | None = None
        self._is_fresh = False
        self._stamps: Mapping[UUID, str] = {}

    def refresh(self, progress: Progress | None = None) -> None:
        """Read the logs that have changed, and forget those that are gone.

        Args:
            progress: Is told how far that is.

        Raises:
            PersistenceError: The store cannot be read.
        """
        with self._lock:
            self._is_fresh = False
            self._progress = progress or self._progress
            self._ask(lambda database: None)

    def summaries(self, asked: SessionFilter | None = None) -> tuple[SessionSummary, ...]:
        """Return what is known of the sessions that fit, by default of all, the newest first.

        Raises:
            PersistenceError: The store cannot be read.
        """
        asked = asked or SessionFilter()
        found = self._standing(self._ask(lambda database: query.select(database, asked)))
        if asked.states:
            found = [each for each in found if each.state in asked.states]
        return tuple(found[: asked.limit])

    def logs(self) -> dict[UUID, ListedLog | None]:
        """Return what is known of each log in the order of the store, None where it must be read.

        That is a log that cannot be believed, or that another process has read meanwhile.

        Raises:
            PersistenceError: The store cannot be read.
        """
        return self._ask(lambda database: query.listed(database, self._stamps))

    def count(self, asked: SessionFilter) -> int:
        """Return how many sessions fit, whatever the limit."""
        if asked.states:
            return len(self.summaries(replace(asked, limit=None)))
        return self._ask(lambda database: query.count(database, asked))

    def summary(self, session: UUID) -> SessionSummary | None:
        """Return what is known of one session, None where the store has no log of it."""
        found = self._standing(self._ask(lambda database: query.by_ids(database, [session])))
        return found[0] if found else None

    def known(self, sessions: Collection[UUID]) -> list[SessionSummary]:
        """Return what is known of those of these sessions of which the store has a log."""
        return self._standing(self._ask(lambda database: query.by_ids(database, sessions)))

    def search(self, text: str, *, limit: int = 100) -> tuple[SearchHit, ...]:
        """Return the rows in which something was said, the best first.

        A row is found where it was said, and not again in what was made from that session. Case and
        accents do not count, words are found by their beginnings, and what stands in double quotes
        as it is.
        """
        return tuple(self._ask(lambda database: query.hits(database, text, limit)))

    def children(self, session: UUID) -> tuple[UUID, ...]:
        """Return the sessions that were made from one, the oldest first."""
        return tuple(self._ask(lambda database: query.children(database, session)))

    def ancestors(self, session: UUID) -> tuple[UUID, ...]:
        """Return all that a session came from, the nearest first, also what has no log."""
        return tuple(self._ask(lambda database: _reached(database, session, query.parents)))

    def descendants(self, session: UUID) -> tuple[UUID, ...]:
        """Return all that came from a session, the nearest first."""
        return tuple(self._ask(lambda database: _reached(database, session, query.children)))

    def made_in(self, run: UUID) -> tuple[SessionSummary, ...]:
        """Return the sessions that were made in a workflow call, the oldest first."""
        return self.summaries(SessionFilter(run=run, order="oldest"))

    def runs(self) -> tuple[UUID, ...]:
        """Return the workflow calls in which sessions of the store were made, the newest first."""
        return tuple(self._ask(query.runs))

    def calls(self, sessions: Collection[UUID]) -> tuple[tuple[UUID, CallFacts], ...]:
        """Return the model calls in the logs of these sessions, with whose log it is, by time.

        A call of a run inside a run stands in the logs of both, under one id.
        """
        return tuple(self._ask(lambda database: list(query.calls(database, sessions))))

    def given_tokens(self, sessions: Collection[UUID]) -> dict[UUID, int]:
        """Return the tokens that came without a call, by the session that they came with."""
        return self._ask(lambda database: query.given(database, sessions))

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

    def _standing(self, found: Iterable[FoundSession]) -> list[SessionSummary]:
        return [self._now(each) for each in found]

    def _now(self, found: FoundSession) -> SessionSummary:
        # Whether somebody is at work stands in no log.
        if found.is_open and self.store.is_being_written(found.summary.id):
            return replace(found.summary, state="running", problem="")
        return found.summary

    def _ask(self, question: Callable[[Database], T]) -> T:
        """Return the answer of an index that is up to date, by whatever way there is one."""
        with self._lock:
            for repair in (self._recover, self._go_to_memory):
                try:
                    return self._answer(question)
                except (sqlite3.Error, IndexMismatch, OSError) as exc:
                    if self._is_in_memory():
                        raise
                    repair(exc)
            return self._answer(question)

    def _answer(self, question: Callable[[Database], T]) -> T:
        database = self._opened()
        if not self._is_fresh:
            self._stamps = _Update(self.store, database, self._progress).run()
            self._is_fresh = True
        return question(database)

    def _opened(self) -> Database:
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


class _Update:
    """Reads the logs that have changed since they were read last."""

    def __init__(self, store: SessionStore, database: Database, progress: Progress | None) -> None:
        self._store = store
        self._database = database
        self._progress = progress

    def run(self) -> Mapping[UUID, str]:
        """Bring the index up to date, and return the stamps that the logs have now."""
        # In this order: what another process adds meanwhile is not taken for gone.
        known = self._database.stamps()
        found = self._store.stamps()
        stamps = {session.bytes: stamp for session, stamp in found.items()}
        gone = known.keys() - stamps.keys()
        changed = [session for session, stamp in stamps.items() if known.get(session) != stamp]
        read: list[tuple[LogFacts, str]] = []
        n_bytes = 0
        for number, session in enumerate(changed, start=1):
            facts = self._read(UUID(bytes=session))
            if facts is None:
                gone.add(session)
            else:
                read.append((facts, stamps[session]))
                n_bytes += facts.size
            if self._progress and (number % _REPORT_EVERY == 0 or number == len(changed)):
                self._progress(number, len(changed))
            if len(read) >= _LOGS_AT_ONCE or n_bytes > _BYTES_AT_ONCE:
                self._keep(read)
                read, n_bytes = [], 0
        self._keep(read, gone)
        return found

    def _read(self, session: UUID) -> LogFacts | None:
        try:
            log = self._store.read(session)
        except PersistenceError as exc:
            return LogFacts(
                session=session, size=0, state="damaged", is_open=False, problem=str(exc)
            )
        if log is None:
            return None
        # What reads a log is loaded with the first one: most questions need none.
        facts: LogFacts = _facts_of(session, log.data, is_finished=log.is_finished)
        facts.where = valid_unicode(log.where)
        self._compare(facts)
        return facts

    def _compare(self, facts: LogFacts) -> None:
        """Tell of a log that has become shorter, and remember how long it was."""
        begun, n_lines = self._database.length(facts.session.bytes) or (None, 0)
        # Another log under the same id begins at another time.
        if begun != to_micros(facts.created_at) or facts.n_lines >= n_lines:
            return
        if facts.state != "damaged":
            facts.state, facts.is_open = "damaged", False
            facts.problem = lines_are_missing(facts.n_lines, n_lines)
        facts.n_lines = n_lines

    def _keep(self, read: list[tuple[LogFacts, str]], gone: Collection[bytes] = ()) -> None:
        # The logs were read before, so that no other process waits for that.
        if read or gone:
            with self._database.writing():
                self._database.forget(gone)
                for facts, stamp in read:
                    self._database.keep(facts, stamp)


def _reached(
    database: Database, session: UUID, step: Callable[[Database, UUID], list[UUID]]
) -> list[UUID]:
    """Return what can be reached from a session by steps, each once, the nearest first."""
    found: dict[UUID, None] = {}
    frontier = [session]
    while frontier:
        nearer = [other for each in frontier for other in step(database, each)]
        frontier = [each for each in dict.fromkeys(nearer) if each not in found and each != session]
        found |= dict.fromkeys(frontier)
    return list(found)


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
