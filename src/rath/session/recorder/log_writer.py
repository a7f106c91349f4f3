"""The log of one session as this process writes it: while its run goes on, and afterwards."""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Literal
from uuid import UUID

from rath.backend.workspace import WorkspaceRef
from rath.errors import PersistenceError
from rath.session.log.store import SessionLog, SessionStore, StoredLog
from rath.session.persistence.codec import Batch, Encoder
from rath.session.persistence.lines import (
    EntryLine,
    FailureLine,
    HeaderLine,
    Line,
    OutcomeLine,
    PlacementLine,
    RoundLine,
)
from rath.session.placement import Whereabouts
from rath.session.record import Entry, Record
from rath.session.recorder.header import Beginning, is_same_place, placement_line
from rath.session.recorder.lane import Lane
from rath.session.recorder.reading import WrittenLog, find_whole_log, read_log

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
        written: WrittenLog | None = None,
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

        self._place: HeaderLine | PlacementLine | None = None
        """Where the session works by the log; None as long as a log that was there is not read."""

        self._followed: Whereabouts | None = None
        """The place of which the log tells what becomes of it."""

        self._size = self._n_torn = 0
        self._encoder: Encoder | None = Encoder(session)
        self._log: SessionLog | None = None
        self._replaced: tuple[StoredLog, Batch] | None = None
        """A log that stays until there is more than first lines to take its place, and these."""

        self._lane = Lane()
        self._lock = threading.Lock()
        self._waiting: list[tuple[tuple[Line, ...], bool] | Future[None]] = []
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
        place: HeaderLine | PlacementLine | None = None,
    ) -> LogWriter:
        """Return the writer of a log that is there; it is read when something is to be added."""
        made = cls(store, session, is_alone=is_alone)
        made._encoder = None  # a constructor of the same class
        made._state = "finished" if is_finished else "unfinished"
        made._place = place
        return made

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

    def open(self, opening: Opening, make: Callable[[], Beginning]) -> Future[None]:
        """Begin the log, or go on with it, and write the lines that `make` gives."""
        return self._lane.put(partial(self._guarded, partial(self._open, opening, make)))

    def queue(self, *lines: Line) -> None:
        """Hand over lines as one group, all or nothing; they are written with what comes next."""
        with self._lock:
            self._waiting.append((lines, False))

    def write(self, *lines: Line, durable: bool = False) -> Future[None]:
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
        """Return what is done when all that was handed over is written, or has failed."""
        return self._lane.put(partial(self._guarded, self._write_waiting))

    def finish(self, make: Callable[[], Sequence[Line]]) -> Future[None]:
        """Write the last lines, and give the log its final name; durable."""
        return self._lane.put(partial(self._guarded, partial(self._finish, make)))

    def leave(self, line: FailureLine | None = None) -> Future[None]:
        """Say why the run ended, if that can be written, and let the log stay unfinished."""
        return self._lane.put(partial(self._leave, line))

    def change_outcome(self, line: OutcomeLine) -> Future[None]:
        """Say how the session stands now, durably."""
        return self._lane.put(partial(self._guarded, partial(self._append, lambda: [line])))

    def keep_up_with(self, record: Record, *lines: Line) -> Future[None]:
        """Add the entries of `record` that came late and are not in the log yet, durably.

        It fails where the log holds entries that are not in `record`.

        Args:
            record: The whole record of the session.
            lines: What is written in one group with them, if there are any.
        """

        def make() -> list[Line]:
            if len(record) < self._n_entries:
                raise self._changed()
            late = [EntryLine(entry) for entry in self._missing(record)]
            return [*late, *lines] if late else []

        return self._lane.put(partial(self._guarded, partial(self._append, make)))

    def hold(self, record: Record) -> Future[None]:
        """Add the entries of `record` that are not in the log yet; it may hold more, durably."""

        def make() -> list[Line]:
            return [EntryLine(entry) for entry in self._missing(record)]

        return self._lane.put(partial(self._guarded, partial(self._append, make)))

    def place(self, place: Whereabouts) -> None:
        """Have the log tell where the session works, now and once a sandbox was opened there.

        A failure is logged: nobody waits for it.
        """
        if place is not self._followed:
            self.follow(place)

    def follow(self, place: Whereabouts) -> None:
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

    def _open(self, opening: Opening, make: Callable[[], Beginning]) -> None:
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

    def _note_place(self, place: Whereabouts) -> None:
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

    def _finish(self, make: Callable[[], Sequence[Line]]) -> None:
        self._write_waiting()
        self._put(make())
        assert self._log is not None
        self._log.finish()
        self._log = None
        self._state = "finished"

    def _leave(self, line: FailureLine | None) -> None:
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

    def _write_last(self, line: FailureLine | None) -> None:
        self._write_waiting()
        if line is not None or self._replaced is not None:
            self._put([] if line is None else [line])

    def _append(self, make: Callable[[], Sequence[Line]]) -> None:
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
        written = find_whole_log(self.store, self.session) or read_log(self.store, self.session)
        self._state = "finished" if written.is_finished else "unfinished"
        self._go_on_after(written)

    def _is_added(self, lines: Sequence[Line]) -> bool:
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

    def _append_reopened(self, lines: Sequence[Line]) -> None:
        """Add lines to a log without an end, or behind what a writer has left of its last ones."""
        whole = self._size + self._n_torn
        log = self._log = self.store.reopen(self.session, self._size, size=whole)
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
        known = (entry.id for entry in record.since(first)) if read else ()
        if any(mine != its for mine, its in zip(read, known, strict=False)):
            raise self._changed()
        return record.since(self._n_entries)

    def _changed(self) -> PersistenceError:
        return PersistenceError(
            f"the log of session {self.session} in {self.store.where} was changed by somebody "
            "else since this process wrote or read it; nothing was added. Load the session again "
            "and add to that one"
        )

    def _go_on_after(self, written: WrittenLog) -> None:
        self._encoder = Encoder.after(self.session, written.reader)
        self._size, self._n_torn = written.reader.n_good, written.n_torn
        self._n_entries = written.n_entries
        self._read = (written.n_entries - len(written.entries), written.entries)
        self._place = written.place

    def _put(self, lines: Sequence[Line], *, durable: bool = False) -> None:
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

    def _encoded(self, lines: Sequence[Line]) -> Batch:
        assert self._encoder is not None
        batch = self._encoder.add(*lines)
        for line in lines:
            if isinstance(line, EntryLine):
                self._n_entries += 1
            elif isinstance(line, RoundLine):
                self._n_entries += len(line.results)
            elif isinstance(line, HeaderLine | PlacementLine):
                self._place = line
        return batch


def _follow_again(writer: weakref.ref[LogWriter], place: Whereabouts) -> None:
    known = writer()
    if known is not None:
        known.follow(place)


def _tell_unplaced(session: UUID, done: Future[None]) -> None:
    error = done.exception()
    if error is not None:
        _log.error("where session %s works is not stored: %s", session, error)


def _joined(batches: Sequence[Batch]) -> Batch:
    if len(batches) == 1:
        return batches[0]
    blobs = tuple(blob for batch in batches for blob in batch.blobs)
    return Batch(b"".join(batch.data for batch in batches), blobs)
