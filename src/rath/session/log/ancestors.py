"""Contents of sessions that are stored whole, and the logs that this process has open."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Container, Iterator, MutableMapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import UUID
from weakref import WeakKeyDictionary, WeakValueDictionary

from rath._async.deferred import Deferred
from rath._core.blobs import Blob
from rath._core.dataclasses import dataclass
from rath.backend.workspace import WorkspaceRef
from rath.errors import PersistenceError
from rath.session.bindings import PlacementRef
from rath.session.body import Body, Unfinished
from rath.session.events import Event, Finished, Reopened, Row
from rath.session.graph.recording import Edge
from rath.session.log.build import ParsedLog, parse_log
from rath.session.log.header import Identity, LogStart, beginning
from rath.session.log.reader import read_lines
from rath.session.log.store import CompleteLog, SessionLog, SessionStore, StoredLog
from rath.session.log.writer import LogWriter, Opening, SerialQueue
from rath.session.open_calls import own_operation
from rath.session.outcome import Suspended
from rath.session.record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteSession:
    """A session whose content is there, as it is stored at once."""

    who: Identity
    cell: Deferred[Any]
    """The content."""

    late: Record | None = None
    """The whole record, where entries came to it late."""

    @classmethod
    def of_parent(cls, edge: Edge) -> CompleteSession:
        """Return a parent; its content is there."""
        assert edge.body is not None
        return cls(who=Identity.of_parent(edge), cell=edge.body, late=edge.late)

    @property
    def body(self) -> Body:
        """The content."""
        body: Body = self.cell.result()
        return body


class LogBuffer(SessionLog):
    """The lines of a log in memory, to be stored with others."""

    def __init__(self, session: UUID, where: str) -> None:
        self.session: UUID
        self.where: str
        self.session, self.where = session, where
        self._data: list[bytes] = []
        self._blobs: list[Blob] = []
        self._is_closed = False

    @property
    def closed(self) -> bool:
        return self._is_closed

    def append(self, data: bytes, *, blobs: Collection[Blob] = (), durable: bool = False) -> None:
        self._data.append(data)
        self._blobs += blobs

    def finish(self) -> None:
        self._is_closed = True

    def abandon(self) -> None:
        self._is_closed = True

    def complete(self) -> CompleteLog:
        """Return what was appended."""
        return CompleteLog(self.session, b"".join(self._data), self._blobs)


class AncestorWriter:
    """Stores sessions and all that they came from, each once; its methods block.

    Args:
        store: Where.
        open_logs: What is known of it.
        running: Sessions whose runs go on: what is known of them is only a beginning.
    """

    def __init__(
        self,
        store: SessionStore,
        *,
        open_logs: OpenLogs | None = None,
        running: Collection[UUID] = (),
    ) -> None:
        self._store = store
        self._open_logs = open_logs_of(store) if open_logs is None else open_logs
        self._running = running

    def keep_ancestors(self, parents: Sequence[Edge]) -> None:
        """Store parents, and what they came from, unless they are there.

        Raises:
            PersistenceError: One cannot be written.
        """
        for edge in self._missing(parents):
            self._keep(CompleteSession.of_parent(edge))
        for edge in parents:
            if edge.body is not None:
                self._note_place(edge.body, edge.place)

    def keep(self, complete: CompleteSession) -> LogWriter:
        """Store a session and what it came from, and return what holds it.

        Raises:
            PersistenceError: It cannot be written.
        """
        self.keep_ancestors(complete.who.provenance.parents)
        writer = self._writer_of(complete.cell, complete.late)
        if writer is None:
            return self._keep(complete)
        self._note_place(complete.cell, complete.who.place)
        return writer

    def keep_many(self, sessions: Sequence[CompleteSession]) -> None:
        """Store sessions and all that they came from, in few round trips where the store can.

        Raises:
            PersistenceError: One cannot be written.
        """
        created = self._create_many(sessions) if self._store.writes_many else set[UUID]()
        for complete in sessions:
            if complete.who.session not in created:
                self.keep(complete)

    def _create_many(self, sessions: Sequence[CompleteSession]) -> set[UUID]:
        """Store those that have ended and are not known to be there, and their ancestors.

        Returns:
            Which are stored, here or before.
        """
        edges = [edge for complete in sessions for edge in complete.who.provenance.parents]
        unknown = [CompleteSession.of_parent(edge) for edge in self._missing(edges)]
        unknown += [each for each in sessions if self._writer_of(each.cell, each.late) is None]
        new = {each.who.session: each for each in unknown if self._is_creatable(each)}
        buffers: dict[UUID, tuple[LogWriter, LogBuffer]] = {}
        for session, complete in new.items():
            writer, log = LogWriter(self._store, session), LogBuffer(session, self._store.where)
            parents = self.stored(complete.who.provenance.parents, new)
            first = beginning(complete.who, complete.body, parents=parents)
            # What came late is added once the log is there.
            now = replace(complete, late=None)
            write_complete(writer, partial(_buffer, log), first, now)
            buffers[session] = writer, log
        created = self._store.create_many([log.complete() for _, log in buffers.values()])
        for session, (writer, _) in buffers.items():
            if session not in created:
                self._keep(new[session])
                continue
            self._open_logs.put(new[session].cell, writer)
            late = new[session].late
            if late is not None:
                writer.hold(late).result()
        return set(new)

    def _is_creatable(self, complete: CompleteSession) -> bool:
        """Tell whether a session is complete, and no log of it is known that is to be replaced."""
        session, unfinished = complete.who.session, complete.body.unfinished
        has_ended = session not in self._running and (unfinished is None or unfinished.has_ended)
        is_outdated = session in self._open_logs.outdated
        return has_ended and not is_outdated and running_writer(session) is None

    def stored(self, parents: Sequence[Edge], known: Container[UUID] = ()) -> list[Edge]:
        """Return the parents that are stored, of which ranges can be told.

        One may have been deleted since it was kept; what it held stands in the child then. One
        that only passes on that another waits is made anew when that goes on, with other rows: in
        its place those stand that it came from.

        Args:
            parents: Whose.
            known: Sessions that are stored, or will be at once with what is asked for.
        """
        edges: dict[UUID, Edge] = {}
        todo = list(parents[::-1])
        while todo:
            edge = todo.pop()
            if not _is_there(edge) or edge.id in edges:
                continue
            if _is_passed_on(edge):
                todo += edge.provenance.parents[::-1] if edge.provenance is not None else ()
            elif edge.id in known or self._store.holds(edge.id):
                edges[edge.id] = edge
        return list(edges.values())

    def _missing(self, parents: Sequence[Edge]) -> Iterator[Edge]:
        """Yield ancestors not known to be stored, a parent before its children; no recursion."""
        visited: set[int] = set()
        todo = [(edge, False) for edge in reversed(parents)]
        while todo:
            edge, is_next = todo.pop()
            if is_next:
                yield edge
            elif _is_there(edge) and id(edge.body) not in visited:
                assert edge.body is not None
                visited.add(id(edge.body))
                # What is stored was stored after all that it came from.
                if self._writer_of(edge.body, edge.late) is None:
                    todo.append((edge, True))
                    above = () if edge.provenance is None else edge.provenance.parents
                    todo += [(parent, False) for parent in reversed(above)]

    def _note_place(self, cell: Deferred[Any], place: PlacementRef | None) -> None:
        """Have a log tell where its session works: that may have changed since it was stored."""
        writer = self._open_logs.get(cell)
        if place is None or not isinstance(place.workspace, WorkspaceRef):
            return  # it has no place, or nobody has used it here
        if writer is not None and writer.error is None and writer.is_at_rest:
            writer.place(place)

    def _writer_of(self, cell: Deferred[Any], late: Record | None) -> LogWriter | None:
        """Return the writer that holds all of a session, None where none is known to."""
        writer = self._open_logs.get(cell)
        if writer is None or writer.error is not None:
            return None
        if not writer.is_at_rest:
            writer.settled().result()
            return writer
        if not self._store.holds(writer.session):
            return None  # it was deleted since
        if late is not None and len(late) != writer.n_entries:
            writer.hold(late).result()
        return writer

    def _keep(self, complete: CompleteSession) -> LogWriter:
        """Store a session, whose parents are stored, unless its log is there."""
        session = complete.who.session
        running = running_writer(session)
        if running is not None and running.store is self._store:
            running.settled().result()
            return running
        try:
            writer = self._existing_writer(complete) or self._write(complete)
        except PersistenceError:
            # Another process may have stored it meanwhile.
            existing = self._existing_writer(complete)
            if existing is None:
                raise
            writer = existing
        self._open_logs.put(complete.cell, writer)
        return writer

    def _existing_writer(self, complete: CompleteSession) -> LogWriter | None:
        """Return the writer of a log that is there and holds a session, None if there is none."""
        session = complete.who.session
        log = self._store.read(session)
        if log is None or (
            session in self._open_logs.outdated and not _is_same(log, complete.body)
        ):
            return None
        is_going_on = self._store.is_being_written(session)
        if not log.is_finished and not is_going_on and not self._holds(log, complete):
            return None
        writer = LogWriter.of_stored(self._store, session)
        if complete.late is not None and not is_going_on:
            writer.hold(complete.late).result()
        return writer

    def _holds(self, log: StoredLog, complete: CompleteSession) -> bool:
        """Tell whether a log that a writer has left unfinished holds all of a session."""
        body = complete.body
        if complete.who.session not in self._running and not isinstance(body.outcome, Suspended):
            return False  # its run has ended, and the log does not say so
        written = _readable(log)
        if written is None:
            return False
        return written.state.n_rows >= len(body.table) and written.n_entries >= len(body.record)

    def _write(self, complete: CompleteSession) -> LogWriter:
        session, body = complete.who.session, complete.body
        log = self._store.read(session)
        written = None if log is None else _readable(log)
        opening: Opening
        is_outdated = session in self._open_logs.outdated
        if written is None or is_outdated or not is_beginning(written, body):
            writer = LogWriter(self._store, session)
            parents = self.stored(complete.who.provenance.parents)
            first = beginning(complete.who, body, parents=parents)
            opening = partial(_new_log, log)
        else:
            writer = LogWriter(self._store, session, written=written)
            # Its writer may have been cut off after the trailer, before the log had its name.
            again = [Reopened(datetime.now(UTC))] if written.reader.is_over else []
            first = LogStart([*again, *lines_since(written, body)], 0, complete.who.place)
            size = written.reader.n_good
            opening = partial(_reopened, size, size + written.n_torn)
        has_ended = session not in self._running
        write_complete(writer, opening, first, complete, has_ended=has_ended)
        self._open_logs.outdated.discard(session)
        return writer


def write_complete(
    writer: LogWriter,
    opening: Opening,
    first: LogStart,
    complete: CompleteSession,
    *,
    has_ended: bool = True,
) -> LogWriter:
    """Write a session at once; blocks.

    Args:
        writer: Writes the log.
        opening: Gives the log.
        first: All rows and entries of the run that are not in the log yet.
        complete: The session.
        has_ended: Whether the run of the session has ended.

    Raises:
        PersistenceError: It cannot be written.
    """
    body = complete.body
    unfinished = body.unfinished
    first = replace(first, lines=[*first.lines, *open_lines(unfinished)])
    opened = writer.open(opening, lambda: first)
    if has_ended and (unfinished is None or unfinished.has_ended):
        writer.finish(lambda: [trailer_of(body)]).result()
    else:
        writer.leave_unfinished(None if unfinished is None else unfinished.failure).result()
        opened.result()
    if complete.late is not None:
        writer.hold(complete.late).result()
    return writer


def open_lines(unfinished: Unfinished | None, *, known: Unfinished | None = None) -> list[Event]:
    """Return the lines of calls that are open, but for those that are known."""
    if unfinished is None:
        return []
    there = () if known is None else (*known.intents, *known.results)
    lines: list[Event] = [*unfinished.intents, *unfinished.results]
    return [line for line in lines if line not in there]


def trailer_of(body: Body, *, n_rows: int | None = None) -> Finished:
    """Return the last line of a run that ended with `body`; O(entries).

    Args:
        body: The content.
        n_rows: How many of its rows were written; all by default.
    """
    return Finished(
        closed_at=datetime.now(UTC),
        n_rows=len(body.table) if n_rows is None else n_rows,
        n_entries=len(body.record),
        usage=body.usage(),
        outcome=body.outcome,
    )


def _is_there(edge: Edge) -> bool:
    """Tell whether the content of a parent is known."""
    return edge.body is not None and edge.body.done() and edge.body.error() is None


def _is_passed_on(edge: Edge) -> bool:
    """Tell whether a session says nothing of its own, since one that it came from waits."""
    assert edge.body is not None
    body: Body = edge.body.result()
    if not isinstance(body.outcome, Suspended):
        return False
    operation = own_operation(body.record, edge.id)
    return operation is None or operation.kind not in ("loop", "compress")


def _readable(log: StoredLog) -> ParsedLog | None:
    """Return the content of an unfinished log, None where it cannot be believed."""
    try:
        read = read_lines(log.data, log.where, is_finished=log.is_finished)
        return parse_log(read, is_finished=log.is_finished)
    except PersistenceError:
        return None


def is_beginning(written: ParsedLog, body: Body) -> bool:
    """Tell whether a log holds the beginning of a session."""
    if written.state.n_rows > len(body.table) or written.n_entries > len(body.record):
        return False
    own = body.record.since(written.n_inherited_entries)
    return all(mine.id == entry.id for mine, entry in zip(written.entries, own, strict=False))


def lines_since(written: ParsedLog, body: Body) -> list[Event]:
    """Return the rows and entries of a session that are not in its log yet."""
    rows = enumerate(body.table.since(written.state.n_rows), start=written.state.n_rows)
    return [
        *(Row(at, row) for at, row in rows),
        *body.record.since(written.n_entries),
    ]


def _is_same(log: StoredLog, body: Body) -> bool:
    """Tell whether a finished log holds this very content."""
    written = _readable(log)
    if written is None or not is_beginning(written, body):
        return False
    return (written.state.n_rows, written.n_entries) == (len(body.table), len(body.record))


def _new_log(log: StoredLog | None, store: SessionStore, session: UUID) -> SessionLog | StoredLog:
    if log is None:
        return store.create(session)
    return log if log.is_finished else store.reopen(session, 0, size=len(log.data))


def _buffer(log: LogBuffer, _store: SessionStore, _session: UUID) -> SessionLog:
    return log


def _reopened(keep: int, size: int, store: SessionStore, session: UUID) -> SessionLog:
    return store.reopen(session, keep, size=size)


_lock = threading.RLock()
"""Reentrant: a run that is started under it looks up where its content is stored."""

_continuations: WeakKeyDictionary[Deferred[Any], Deferred[Body]] = WeakKeyDictionary()
"""By the content with which a run went on: what that run makes."""

_same: WeakKeyDictionary[Deferred[Any], Deferred[Any]] = WeakKeyDictionary()
"""By content that only tells again what a run has left: what that left."""


_continued_sessions: WeakKeyDictionary[Deferred[Any], dict[UUID, Deferred[Body]]] = (
    WeakKeyDictionary()
)
"""By content from which a program that is stored nowhere went on: what it has begun since."""


def latest_run(cell: Deferred[Body]) -> Deferred[Body]:
    """Return the latest run that has gone on with this content; it itself where none has.

    A run that failed before it had anything counts for nothing.
    """
    with _lock:
        cell = original(cell)
        while (later := _continuations.get(cell)) is not None:
            if later.done() and later.error() is not None and later.latest is None:
                break
            cell = original(later)
        return cell


def original(cell: Deferred[Any]) -> Deferred[Any]:
    """Return the content of which this only tells again what is in it; it itself for any other."""
    with _lock:
        while (before := _same.get(cell)) is not None:
            cell = before
        return cell


def is_superseded(cell: Deferred[Body]) -> bool:
    """Tell whether a run has gone on with this content."""
    with _lock:
        return latest_run(cell) is not original(cell)


def require_waiting(cell: Deferred[Body], session: UUID) -> None:
    """Refuse to say something to a run that has gone on without it.

    Raises:
        ValueError: It has.
    """
    if is_superseded(cell):
        raise ValueError(
            f"the run of session {session} has gone on since, so what is said now comes too late; "
            "give the session to its agent again for what came of it, and say it to that one"
        )


def alias(cell: Deferred[Body], as_in: Deferred[Body]) -> None:
    """Note that content tells again what is in another cell, so that one run goes on with both."""
    if cell is not as_in:
        with _lock:
            _same[cell] = original(as_in)


def claim(cell: Deferred[Body], start: Callable[[], Deferred[Body]]) -> tuple[Deferred[Body], bool]:
    """Have a run go on with content, unless one has done so meanwhile.

    Args:
        cell: The content.
        start: Submits the run, and returns what it makes; must not wait.

    Returns:
        What the run makes, and whether it was started here.
    """
    with _lock:
        first = original(cell)
        run = latest_run(first)
        if run is not first:
            return run, False
        run = _continuations[first] = start()
        return run, True


def started_sessions(cell: Deferred[Body]) -> dict[UUID, Deferred[Body]]:
    """Return the sessions a program has begun that goes on from this content; see `begin`."""
    with _lock:
        return _continued_sessions.setdefault(original(cell), {})


def begin(
    started: MutableMapping[UUID, Deferred[Body]],
    session: UUID,
    start: Callable[[], Deferred[Body]],
    *,
    is_stored: bool = False,
) -> tuple[Deferred[Body], bool]:
    """Have a session made, unless it is among what was begun; see `claim`.

    Args:
        started: What was begun.
        session: What is made.
        start: Begins it.
        is_stored: Whether what has ended is looked for in a store instead.
    """
    with _lock:
        cell = started.get(session)
        if cell is not None and not (is_stored and cell.done()):
            return cell, False
        run = started[session] = start()
        return run, True


class OpenLogs:
    """The logs of one store that this process has written or seen, by the content they hold.

    It is forgotten with the content, so it grows with nothing but the sessions that are alive.
    Any thread may ask and tell: each step is one of a dict, which Python makes whole.
    """

    def __init__(self) -> None:
        self.lane: SerialQueue = SerialQueue()
        """For what is stored beside runs: ancestors, derivations, and what is saved by hand."""

        self.waiting: dict[UUID, Future[Any]] = {}
        """Derivations that wait in the lane."""

        self._writers: WeakKeyDictionary[Deferred[Any], LogWriter] = WeakKeyDictionary()
        self._by_session: WeakValueDictionary[UUID, LogWriter] = WeakValueDictionary()
        self.keyed_runs: WeakValueDictionary[UUID, Deferred[Any]] = WeakValueDictionary()
        """The content that runs with a key make in this process, by session."""

        self.outdated: set[UUID] = set()
        """Sessions whose log is to be replaced by the next content of that session.

        It stays until then: what was made of it stands on it, and somebody may know its id.
        """

    def put(self, cell: Deferred[Any], writer: LogWriter) -> None:
        """Remember which log holds the content of `cell`."""
        self._writers[original(cell)] = writer
        self._by_session[writer.session] = writer

    def get(self, cell: Deferred[Any]) -> LogWriter | None:
        """Return the log that holds the content of `cell`, None where none is known.

        What a resumed program gives again is in the log of the content that it gives again.
        """
        return self._writers.get(original(cell))

    def of_session(self, session: UUID) -> LogWriter | None:
        """Return the log of a session, None where none is known."""
        return self._by_session.get(session)


_by_store: dict[tuple[str, str], OpenLogs] = {}
_FILES = ("", "")
"""The key of the files that hold one session each, wherever they are."""

_writing: dict[UUID, LogWriter] = {}


def open_logs_of(store: SessionStore) -> OpenLogs:
    """Return the open logs of a store."""
    return _open_logs_at((store.name, store.where))


def open_session_files() -> OpenLogs:
    """Return the open logs of files that hold a whole session each."""
    return _open_logs_at(_FILES)


def _open_logs_at(key: tuple[str, str]) -> OpenLogs:
    # Looked up first: making one costs more than all else that a run asks of it.
    known = _by_store.get(key)
    return known if known is not None else _by_store.setdefault(key, OpenLogs())


def writers_of(cell: Deferred[Any]) -> tuple[LogWriter, ...]:
    """Return the logs that hold the content of `cell`, in whatever stores."""
    writers = [open_logs.get(cell) for open_logs in tuple(_by_store.values())]
    return tuple(writer for writer in writers if writer is not None and writer.error is None)


def writer_of(session: UUID) -> LogWriter | None:
    """Return the first log that is known of a session, None where none is."""
    writers = [open_logs.of_session(session) for open_logs in tuple(_by_store.values())]
    return next((writer for writer in writers if writer is not None), None)


def begin_writing(writer: LogWriter) -> None:
    """Remember that the run of a session is being written."""
    _writing[writer.session] = writer


def end_writing(writer: LogWriter) -> None:
    """Forget it; its last lines may still be on their way."""
    if _writing.get(writer.session) is writer:
        del _writing[writer.session]


def running_writer(session: UUID) -> LogWriter | None:
    """Return the writer of the run of a session in this process, None where there is none."""
    return _writing.get(session)


def _forget_after_fork() -> None:
    """Start afresh in a forked child, where the threads that write or hold the lock are not."""
    global _lock
    _lock = threading.RLock()
    _by_store.clear()
    _writing.clear()


if hasattr(os, "register_at_fork"):  # pragma: no branch  # Windows has no fork
    os.register_at_fork(after_in_child=_forget_after_fork)
