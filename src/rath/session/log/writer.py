"""One log written by this process: a serial queue, and what stands in it already."""

from __future__ import annotations

import contextlib
import contextvars
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import datetime
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar
from uuid import UUID

from rath._async.runtime import runtime
from rath._async.workers import tame
from rath.backend.workspace import WorkspaceRef
from rath.errors import PersistenceError, SessionDamaged
from rath.session.bindings import PlacementRef
from rath.session.body import Body
from rath.session.events import (
    Event,
    Failed,
    Header,
    OutcomeChange,
    PlacementChange,
    RoundEnd,
)
from rath.session.log import index
from rath.session.log.build import ParsedLog, parse_log
from rath.session.log.files import FileStore
from rath.session.log.format import Batch, Encoder
from rath.session.log.header import LogStart, is_same_place, placement_line
from rath.session.log.paths import INDEX_FILE_NAME
from rath.session.log.reader import read_lines
from rath.session.log.store import (
    SessionLog,
    SessionStore,
    StoredLog,
)
from rath.session.record import Entry, Record, RecordEntry

T = TypeVar("T")


class SerialQueue:
    """A queue of jobs of which one at a time is made, in the order in which they came.

    The end of the program waits for what is in it.
    """

    __slots__ = ("__weakref__", "_is_running", "_jobs", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._is_running = False

    def put(self, job: Callable[[], T]) -> Future[T]:
        """Have `job` made after those before it; returns at once."""
        done: Future[T] = Future()
        # A running future refuses cancel(): whoever stops waiting for a write does not stop it.
        done.set_running_or_notify_cancel()
        with self._lock:
            self._jobs.append((job, done))
            if self._is_running:
                return done
            self._is_running = True
        # In no context: jobs may wait for the run in which they were put, and belong to none.
        start = contextvars.Context().run
        runtime().promise(start(runtime().start_in_worker, self._work))
        return done

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._is_running = False
                    return
                job, done = self._jobs.popleft()
            try:
                result = job()
            except BaseException as exc:  # noqa: BLE001  # it belongs to whoever reads the future
                done.set_exception(tame(exc))
            else:
                done.set_result(result)
            del job, done


class IndexQueue:
    """Logs that have ended, to be read into the index of their store in the background.

    One batch at a time; what comes meanwhile is the next one. A question to an index looks at all
    logs, so nothing is lost by what is left out here: long logs, those that are too many at a time,
    and all where nobody has asked an index yet.
    """

    def __init__(self) -> None:
        self._lane = SerialQueue()
        self._lock = threading.Lock()
        self._waiting: dict[str, tuple[FileStore, set[UUID]]] = {}
        """By the directory of their store."""

    def put(self, store: SessionStore, session: UUID, size: int) -> None:
        """Have a log read; never waits.

        Args:
            store: Where it is.
            session: Whose log.
            size: How many bytes it has.
        """
        # An index of another store stands elsewhere, and its logs far away.
        if not isinstance(store, FileStore) or size > _MAX_INDEXED_BYTES:
            return
        with contextlib.suppress(OSError, RuntimeError):  # It must not keep a log from its end.
            (store.directory / INDEX_FILE_NAME).stat()
            with self._lock:
                is_first = not self._waiting
                _, sessions = self._waiting.setdefault(store.where, (store, set()))
                if len(sessions) < _MAX_INDEXED_LOGS:
                    sessions.add(session)
            if is_first:
                self._lane.put(self._read)

    def settled(self) -> Future[None]:
        """Return a future that is done when all that was put is read, or given up."""
        return self._lane.put(lambda: None)

    def _read(self) -> None:
        with self._lock:
            batch, self._waiting = self._waiting, {}
        for store, sessions in batch.values():
            try:
                with index.StoreIndex(store, busy_seconds=_INDEX_SECONDS) as opened:
                    opened.add(sessions)
            except Exception as exc:  # noqa: BLE001  # nobody waits for it, and a question reads it
                _log.debug("the index of %s is not brought up to date: %s", store.where, exc)


_MAX_INDEXED_BYTES = 1 << 20
_MAX_INDEXED_LOGS = 100
_INDEX_SECONDS = 0.5
"""How long to wait for others who write to the index; with those above a bound of what the end of
the program waits for. Guesses."""

index_queue: IndexQueue = IndexQueue()


def _forget_after_fork() -> None:
    """Start afresh in a forked child: the thread that worked on the queue is not in it."""
    global index_queue
    index_queue = IndexQueue()


if hasattr(os, "register_at_fork"):  # pragma: no branch  # Windows has no fork
    os.register_at_fork(after_in_child=_forget_after_fork)


def read_log(store: SessionStore, session: UUID) -> ParsedLog:
    """Read the log of a session; blocks.

    Raises:
        PersistenceError: It is gone, or cannot be read, or takes no more lines.
        SessionDamaged: It cannot be believed.
    """
    written = find_log(store, session)
    if written is None:
        raise PersistenceError(
            f"the log of session {session} is not in {store.where} any more; nothing was added"
        )
    return written


def find_log(store: SessionStore, session: UUID) -> ParsedLog | None:
    """Read the log of a session, None where there is none; blocks.

    Raises:
        PersistenceError: It cannot be read, or takes no more lines.
        SessionDamaged: It cannot be believed.
    """
    log = store.read(session)
    if log is None:
        return None
    read = read_lines(log.data, log.where, is_finished=log.is_finished)
    if not read.reader.takes_more:
        raise PersistenceError(
            f"{log.where} is of schema version {read.reader.version}, to which nothing is added; "
            "fork the session and add to the fork"
        )
    return parse_log(read, is_finished=log.is_finished)


def find_complete_log(store: SessionStore, session: UUID) -> ParsedLog | None:
    """Read the log of a session that is gone on with, None where there is none; blocks.

    A log that has lost its last lines is a beginning of itself: calls that these told of would be
    made once more. So others are asked how much it had: the index, and those that came from it.

    Raises:
        PersistenceError: It cannot be read, or takes no more lines.
        SessionDamaged: It cannot be believed, or something knows more of it than it holds.
    """
    memory = index.index_memory(store, session)
    written = find_log(store, session)
    if written is None:
        return None
    reader = written.reader
    extent = LogExtent(written.state.n_rows, written.n_entries, reader.n_lines, reader.created_at)
    problem = lost_lines(store, session, extent, memory)
    if problem is not None:
        raise SessionDamaged(problem, where=reader.where, line=reader.n_lines)
    return written


class LogExtent(NamedTuple):
    """How much a log holds."""

    n_rows: int
    """Of the whole table, with what the session begins with."""

    n_entries: int
    """Of the whole record."""

    n_lines: int
    started_at: datetime
    """When the session was begun."""


def lost_lines(
    store: SessionStore, session: UUID, extent: LogExtent, memory: index.IndexMemory
) -> str | None:
    """Return who knows more of a session than its log holds, None where nobody does.

    Cost: the first line of each log that came from it is read; without an index, of all logs.

    Args:
        store: Where it is.
        session: Which one.
        extent: How much its log holds.
        memory: What the index said of it before the log was read.
    """
    # Another log under the same id was begun at another time.
    if index.to_micros(extent.started_at) == memory.started_at and extent.n_lines < memory.n_lines:
        return index.lines_are_missing(extent.n_lines, memory.n_lines)
    for child, stamp in store.stamps().items():
        is_known = memory.stamps.get(child) == stamp
        if child == session or (is_known and child not in memory.children):
            continue
        header = _first_line(store, child, session)
        if header is None:
            continue
        for what, n_stored, parts in (
            ("rows", extent.n_rows, header.rows),
            ("entries", extent.n_entries, header.entries),
        ):
            stop = max((part.stop for part in parts if part.session == session), default=0)
            if stop > n_stored:
                return (
                    f"session {child} begins with {what} of it up to {stop}, and it has only "
                    f"{n_stored}: its end was cut off. Bring it back from a backup; with "
                    "recover=True what stands before can be read"
                )
    return None


def _first_line(store: SessionStore, session: UUID, other: UUID) -> Header | None:
    """Return the first line of a log that may name another session; None for others."""
    try:
        log = store.read(session)
        first = b"" if log is None else log.data.partition(b"\n")[0]
        # Before it is decoded: most logs have nothing to do with it.
        if log is None or str(other).encode() not in first:
            return None
        return read_lines(first + b"\n", log.where).header
    except PersistenceError:
        return None  # what cannot be believed says nothing of others


def knows_open_calls(written: ParsedLog, body: Body) -> bool:
    """Tell whether what a log says last of open calls is what a session knows of them.

    One that has made rows or entries since the log was written knows more than that.
    """
    state, unfinished = written.state, body.unfinished
    if (state.n_rows, written.n_entries) != (len(body.table), len(body.record)):
        return True
    intent_keys = {
        (each.row, each.call, each.at) for each in (unfinished.intents if unfinished else ())
    }
    ended = {each.run.id for each in (unfinished.results if unfinished else ())}
    last = state.unfinished
    return all((each.row, each.call, each.at) in intent_keys for each in last.intents) and all(
        each.run.id in ended for each in last.results
    )


_log = logging.getLogger("rath.session")

Opening = Callable[[SessionStore, UUID], SessionLog | StoredLog]
"""Gives the log of a session, locked for its writer; or a finished one that is to be replaced."""

_State = Literal["new", "open", "finished", "unfinished"]


class LogWriter:
    """Writes one log, on one worker thread at a time; none of its methods waits.

    What is handed over while a write goes on is written together. The first write of a run that
    fails is its last one: the log is let go of as it is, and all that follows gives the same error.

    Args:
        store: Where the log is.
        session: Whose log it is.
        written: What stands there already, to go on with it.
        is_alone: Whether the log is a file that holds everything itself.
    """

    def __init__(
        self,
        store: SessionStore,
        session: UUID,
        *,
        written: ParsedLog | None = None,
        is_alone: bool = False,
    ) -> None:
        self.store = store
        self.session = session
        self.is_alone = is_alone
        self.error: PersistenceError | None = None
        """Why nothing can be written any more, None as long as all went well."""

        self._state: _State = "new"
        self._n_entries = 0
        self._read: tuple[int, Sequence[UUID]] = (0, ())
        """Entries that were read, from which on; what this process wrote need not be compared."""

        self._place: Header | PlacementChange | None = None
        """Where the session works by the log; None as long as a log that was there is not read."""

        self._followed: PlacementRef | None = None
        """The place of which the log tells what becomes of it."""

        self._size = self._n_torn = 0
        self._encoder: Encoder | None = Encoder(session)
        self._log: SessionLog | None = None
        self._replaced: tuple[StoredLog, Batch] | None = None
        """A log that stays until there is more than first lines to take its place, and these."""

        self._lane = SerialQueue()
        self._lock = threading.Lock()
        self._waiting: list[tuple[tuple[Event, ...], bool] | Future[None]] = []
        """Groups of lines, and writes to other logs that come before the groups behind them."""

        self._writing: Future[None] | None = None
        """The job that will write what waits."""

        if written is not None:
            self._go_on_after(written)

    @classmethod
    def of_stored(
        cls,
        store: SessionStore,
        session: UUID,
        *,
        is_finished: bool = True,
        is_alone: bool = False,
        place: Header | PlacementChange | None = None,
    ) -> LogWriter:
        """Return the writer of a log that is there; it is read when something is to be added."""
        writer = cls(store, session, is_alone=is_alone)
        writer._encoder = None  # a constructor of the same class
        writer._state = "finished" if is_finished else "unfinished"
        writer._place = place
        return writer

    @property
    def is_at_rest(self) -> bool:
        """Whether the run that the log is of has ended, and all of it is written."""
        return self._state in ("finished", "unfinished")

    @property
    def n_entries(self) -> int:
        """Entries of the whole record in the log; 0 as long as a log that was there is not read."""
        return self._n_entries

    @property
    def n_waiting(self) -> int:
        """How many groups of lines were handed over and are not being written yet."""
        return len(self._waiting)

    def open(self, opening: Opening, make: Callable[[], LogStart]) -> Future[None]:
        """Begin the log, or go on with it, and write the lines that `make` gives."""
        return self._lane.put(partial(self._guarded, partial(self._open, opening, make)))

    def queue(self, *lines: Event) -> None:
        """Hand over lines as one group, all or nothing; they are written with what comes next."""
        with self._lock:
            self._waiting.append((lines, False))

    def write(self, *lines: Event, durable: bool = False) -> Future[None]:
        """Add lines as one group, all or nothing, after what was queued; they are written soon."""
        with self._lock:
            self._waiting.append((lines, durable))
            if self._writing is None:
                self._writing = self._lane.put(partial(self._guarded, self._write_waiting))
            return self._writing

    def write_after(self, other: Future[None]) -> None:
        """Write what is handed over from now on once a write to another log has ended.

        Args:
            other: That write; where it fails, these lines are written all the same.
        """
        with self._lock:
            self._waiting.append(other)

    def settled(self) -> Future[None]:
        """Return a future that is done when all that was handed over is written, or has failed."""
        return self._lane.put(partial(self._guarded, self._write_waiting))

    def finish(self, make: Callable[[], Sequence[Event]]) -> Future[None]:
        """Write the last lines, and give the log its final name; durable."""
        return self._lane.put(partial(self._guarded, partial(self._finish, make)))

    def leave_unfinished(self, line: Failed | None = None) -> Future[None]:
        """Say why the run ended, if that can be written, and let the log stay unfinished."""
        return self._lane.put(partial(self._leave, line))

    def change_outcome(self, line: OutcomeChange) -> Future[None]:
        """Say how the session stands now, durably."""
        return self._lane.put(partial(self._guarded, partial(self._append, lambda: [line])))

    def keep_up_with(self, record: Record, *lines: Event) -> Future[None]:
        """Add the entries of `record` that came late and are not in the log yet, durably.

        It fails where the log holds entries that are not in `record`.

        Args:
            record: The whole record of the session.
            lines: What is written in one group with them, if there are any.
        """

        def make() -> list[Event]:
            if len(record) < self._n_entries:
                raise self._changed()
            late = self._missing(record)
            return [*late, *lines] if late else []

        return self._lane.put(partial(self._guarded, partial(self._append, make)))

    def hold(self, record: Record) -> Future[None]:
        """Add the entries of `record` that are not in the log yet; it may hold more, durably."""

        def make() -> Sequence[Event]:
            return self._missing(record)

        return self._lane.put(partial(self._guarded, partial(self._append, make)))

    def place(self, place: PlacementRef) -> None:
        """Have the log tell where the session works, now and once a sandbox was opened there.

        A failure is logged: nobody waits for it.
        """
        if place is not self._followed:
            self.follow(place)

    def follow(self, place: PlacementRef) -> None:
        """Do so also where the log tells of that place already; it may have changed."""
        done = self._lane.put(partial(self._guarded, partial(self._note_place, place)))
        done.add_done_callback(partial(_tell_unplaced, self.session))

    # On a worker thread, one after another.

    def _guarded(self, job: Callable[[], None]) -> None:
        if self.error is not None:
            raise self.error
        try:
            job()
        except PersistenceError as exc:
            self._give_up(exc)
            raise
        except Exception as exc:
            # How a value becomes JSON may be anybody's code: a model of the user, for example.
            error = PersistenceError(
                f"the log of session {self.session} in {self.store.where} cannot hold what it is "
                f"given: {type(exc).__name__}: {exc}"
            )
            self._give_up(error)
            raise error from exc

    def _give_up(self, error: PersistenceError) -> None:
        """Let go of the log; a late line that was refused leaves it as it was."""
        if self.is_at_rest:
            # Lines were counted that were not written: what is there is read when more comes.
            self._encoder, self._n_entries = None, 0
            return
        self.error = error
        self._let_go()

    def _let_go(self) -> None:
        if self._log is not None:
            self._log.abandon()
            self._log = None
            self._state = "unfinished"

    def _open(self, opening: Opening, make: Callable[[], LogStart]) -> None:
        opened = opening(self.store, self.session)
        self._state = "open"
        if not isinstance(opened, StoredLog):
            self._log = opened
        first = make()
        self._n_entries += first.n_entries
        if isinstance(opened, StoredLog):
            self._replaced = opened, self._encoded(first.lines)
        else:
            self._put(first.lines)
        if first.place is not None:
            self._note_place(first.place)

    def _note_place(self, place: PlacementRef) -> None:
        line = placement_line(place)
        if self._state == "open":
            self._write_waiting()
        elif self._place is None:
            self._read_again()
        if self._place is None or not is_same_place(self._place, line):
            if self._replaced is not None:
                log, first = self._replaced
                self._replaced = log, _joined([first, self._encoded([line])])
            elif self._state == "open":
                self._put([line])
            else:
                self._append(lambda: [line])
        self._followed = place
        if isinstance(place.workspace, WorkspaceRef) and line.workspace is not None:
            me: weakref.ref[LogWriter] = weakref.ref(self)
            tell = partial(_follow_again, me, place)
            place.workspace.when_changed(line.workspace, tell, whom=me)

    def _write_waiting(self) -> None:
        with self._lock:
            waiting, self._waiting, self._writing = self._waiting, [], None
        batches: list[Batch] = []
        is_durable = False
        try:
            for group in waiting:
                if isinstance(group, Future):
                    group.exception()  # waits; its failure is that of another run
                    continue
                lines, durable = group
                batches.append(self._encoded(lines))  # one that fails leaves those before it
                is_durable |= durable
        finally:
            if batches:
                self._put_batch(_joined(batches), durable=is_durable)

    def _finish(self, make: Callable[[], Sequence[Event]]) -> None:
        self._write_waiting()
        self._put(make())
        assert self._log is not None
        self._log.finish()
        self._log = None
        self._state = "finished"
        if not self.is_alone:
            index_queue.put(self.store, self.session, self._size)

    def _leave(self, line: Failed | None) -> None:
        if self._replaced is not None and line is not None and line.how == "failed":
            # What failed before it had anything takes the place of nothing.
            self._replaced, self._state, self._place = None, "finished", None
            self._encoder, self._n_entries = None, 0
            with self._lock:
                self._waiting = []
        if self._log is None and self._replaced is None:
            return
        with contextlib.suppress(PersistenceError):
            self._guarded(partial(self._write_last, line))
        self._let_go()

    def _write_last(self, line: Failed | None) -> None:
        self._write_waiting()
        if line is not None or self._replaced is not None:
            self._put([] if line is None else [line])

    def _append(self, make: Callable[[], Sequence[Event]]) -> None:
        if self._encoder is None:
            self._read_again()
        for _ in range(2):
            lines = make()
            if not lines or self._is_added(lines):
                return
            # It may say the same in other lines: a parent was deleted, whose rows it has now.
            self._read_again()
        raise self._changed()

    def _read_again(self) -> None:
        # A log that lost its end would take a decision on a call that was made already.
        written = find_complete_log(self.store, self.session) or read_log(self.store, self.session)
        self._state = "finished" if written.is_finished else "unfinished"
        self._go_on_after(written)

    def _is_added(self, lines: Sequence[Event]) -> bool:
        """Add lines; False where the log is finished and has not the size that is known."""
        if self._state != "finished" or self._n_torn:
            assert self.is_at_rest, "what its run adds goes another way"
            self._append_reopened(lines)
            return True
        batch = self._encoded(lines)
        is_there = self.store.append_to_finished(
            self.session, self._size, batch.data, blobs=batch.blobs
        )
        if is_there:
            self._size += len(batch.data)
        return is_there

    def _append_reopened(self, lines: Sequence[Event]) -> None:
        """Add lines to a log without an end, or behind what a writer has left of its last ones."""
        full_size = self._size + self._n_torn
        log = self._log = self.store.reopen(self.session, self._size, size=full_size)
        self._n_torn = 0
        try:
            self._put(lines, durable=True)
            if self._state == "finished":
                log.finish()
                self._log = None
        finally:
            if self._log is not None:
                self._log.abandon()
                self._log = None

    def _missing(self, record: Record) -> Sequence[Entry]:
        """Return the entries of a record that the log lacks; what it has must be in the record."""
        first, read = self._read
        ids = (entry.id for entry in record.since(first)) if read else ()
        if any(mine != its for mine, its in zip(read, ids, strict=False)):
            raise self._changed()
        return record.since(self._n_entries)

    def _changed(self) -> PersistenceError:
        return PersistenceError(
            f"the log of session {self.session} in {self.store.where} was changed by somebody "
            "else since this process wrote or read it; nothing was added. Load the session again "
            "and add to that one"
        )

    def _go_on_after(self, written: ParsedLog) -> None:
        self._encoder = written.reader.encoder()
        self._size, self._n_torn = written.reader.n_good, written.n_torn
        self._n_entries = written.n_entries
        self._read = written.n_inherited_entries, tuple(each.id for each in written.entries)
        self._place = written.place

    def _put(self, lines: Sequence[Event], *, durable: bool = False) -> None:
        self._put_batch(self._encoded(lines), durable=durable)

    def _put_batch(self, batch: Batch, *, durable: bool) -> None:
        if self._replaced is not None:
            log, first = self._replaced
            self._replaced, batch = None, _joined([first, batch])
            size = len(log.data)
            self._log = self.store.restart(self.session, batch.data, size=size, blobs=batch.blobs)
        else:
            assert self._log is not None
            self._log.append(batch.data, blobs=batch.blobs, durable=durable)
        self._size += len(batch.data)

    def _encoded(self, lines: Sequence[Event]) -> Batch:
        assert self._encoder is not None
        batch = self._encoder.add(*lines)
        for line in lines:
            if isinstance(line, RecordEntry):
                self._n_entries += 1
            elif isinstance(line, RoundEnd):
                self._n_entries += len(line.results)
            elif isinstance(line, Header | PlacementChange):
                self._place = line
        return batch


def _follow_again(writer: weakref.ref[LogWriter], place: PlacementRef) -> None:
    log_writer = writer()
    if log_writer is not None:
        log_writer.follow(place)


def _tell_unplaced(session: UUID, done: Future[None]) -> None:
    error = done.exception()
    if error is not None:
        _log.error("where session %s works is not stored: %s", session, error)


def _joined(batches: Sequence[Batch]) -> Batch:
    if len(batches) == 1:
        return batches[0]
    blobs = tuple(blob for batch in batches for blob in batch.blobs)
    return Batch(b"".join(batch.data for batch in batches), blobs)
