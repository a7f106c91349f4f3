"""A store of sessions in memory, which fails when it is told to."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import field
from uuid import UUID

from rath._core.blobs import Blob
from rath._core.dataclasses import dataclass
from rath.errors import PersistenceError, SessionBusy, SessionChanged
from rath.session.log.store import SessionLog, SessionStore, StoredLog

__all__ = ["FakeSessionStore"]

_FOLLOW_SECONDS = 0.005


@dataclass(slots=True)
class MemoryLog:
    """A log in memory."""

    data: bytearray = field(default_factory=bytearray)
    is_finished: bool = False
    n_changes: int = 0


class FakeSessionStore(SessionStore):
    """Keeps logs in memory, as long as the object lives; its locks hold between threads.

    Args:
        fail_at: Which write fails as on a full disk, the first is 1; 0 for none. Each `append` to
            any log counts, and so does each `append_to_finished`.

    Example:
        ```python
        store = FakeSessionStore(fail_at=3)
        log = store.create(session_id)
        ```
    """

    name = "fake"
    where = "memory"

    def __init__(self, *, fail_at: int = 0) -> None:
        self.fail_at = fail_at
        self.n_writes: int = 0
        """How many writes there were so far."""

        self.n_durable: int = 0
        """How many of them were to survive a loss of power."""

        self.logs: dict[UUID, MemoryLog] = {}
        self.trash: list[tuple[UUID, MemoryLog]] = []
        """Deleted logs, the last at the end."""

        self.asides: list[bytes] = []
        """Lines that were cut off when logs were gone on with."""

        self.blobs: dict[str, bytes] = {}
        self.writers: dict[UUID, SessionLog] = {}
        """The logs that are open."""

        self.busy: threading.RLock = threading.RLock()

    def create(self, session: UUID) -> SessionLog:
        with self.busy:
            if self.find_log(session) is not None:
                raise SessionChanged(
                    session, f"a log of session {session} is there already; reopen it"
                )
            return self.open(session, MemoryLog())

    def reopen(self, session: UUID, keep: int, *, size: int | None = None) -> SessionLog:
        with self.busy:
            entry = self.find_log(session)
            if entry is None:
                raise PersistenceError(f"session not found: {session}; there is no log of it")
            log = self.open(session, entry)
            if len(entry.data) < keep or size not in {None, len(entry.data)}:
                log.abandon()
                raise SessionChanged(
                    session,
                    f"the log of session {session} has {len(entry.data)} bytes, not as many as "
                    "when it was read; load it again",
                )
            if entry.data[keep:]:
                self.asides.append(bytes(entry.data[keep:]))
            del entry.data[keep:]
            entry.is_finished = False
            entry.n_changes += 1
            return log

    def append_to_finished(
        self, session: UUID, size: int, data: bytes, *, blobs: Collection[Blob] = ()
    ) -> bool:
        with self.busy:
            entry = self.logs.get(session)
            if entry is None or not entry.is_finished:
                raise PersistenceError(f"there is no finished log of session {session}")
            if len(entry.data) != size:
                return False
            self.write(session, entry, data, blobs, durable=True)
            return True

    def rewrite(self, session: UUID, data: bytes, *, size: int) -> None:
        with self.busy:
            self.check_free(session)
            entry = self.find_log(session)
            if entry is None or len(entry.data) != size:
                raise PersistenceError(
                    f"there is no log of session {session} with {size} bytes; load it again"
                )
            entry.data = bytearray(data)
            entry.n_changes += 1

    def restart(
        self, session: UUID, data: bytes, *, size: int, blobs: Collection[Blob] = ()
    ) -> SessionLog:
        with self.busy:
            return super().restart(session, data, size=size, blobs=blobs)

    def holds(self, session: UUID) -> bool:
        return self.find_log(session) is not None

    def read(self, session: UUID) -> StoredLog | None:
        with self.busy:
            entry = self.find_log(session)
            if entry is None:
                return None
            return StoredLog(session, bytes(entry.data), entry.is_finished, f"memory: {session}")

    def stamps(self) -> Mapping[UUID, str]:
        with self.busy:
            return {
                session: f"{entry.n_changes}-{len(entry.data)}"
                for session, entry in self.logs.items()
                if entry.data
            }

    def is_being_written(self, session: UUID) -> bool:
        return session in self.writers

    def delete(self, session: UUID) -> bool:
        with self.busy:
            self.check_free(session)
            entry = self.find_log(session)
            if entry is not None:
                del self.logs[session]
                self.trash.append((session, entry))
            return entry is not None

    def restore(self, session: UUID) -> bool:
        with self.busy:
            found = [each for each in self.trash if each[0] == session]
            if not found:
                return False
            if self.find_log(session) is not None:
                raise PersistenceError(f"a log of session {session} is there again; delete it")
            self.trash.remove(found[-1])
            self.logs[session] = found[-1][1]
            return True

    def empty_trash(self) -> int:
        with self.busy:
            n_removed = len(self.trash)
            self.trash.clear()
            entry = b"".join([*(log.data for log in self.logs.values()), *self.asides])
            for digest in [each for each in self.blobs if each.encode() not in entry]:
                del self.blobs[digest]
            return n_removed

    def blob(self, digest: str) -> bytes | None:
        return self.blobs.get(digest)

    def follow(self, session: UUID, start: int) -> Iterator[bytes]:
        while True:
            is_open = self.is_being_written(session)
            log = self.read(session)
            data = b"" if log is None else log.data
            if len(data) < start:
                raise PersistenceError(f"the log of session {session} was cut; read it again")
            if len(data) > start:
                yield data[start:]
                start = len(data)
            elif not is_open:
                return
            else:
                time.sleep(_FOLLOW_SECONDS)

    def open(self, session: UUID, entry: MemoryLog) -> SessionLog:
        """Return a log that nobody else writes."""
        self.check_free(session)
        log = self.writers[session] = FakeSessionLog(self, session, entry)
        return log

    def find_log(self, session: UUID) -> MemoryLog | None:
        """Return a log that holds something: one that was cut to nothing is none."""
        entry = self.logs.get(session)
        return entry if entry is not None and entry.data else None

    def check_free(self, session: UUID) -> None:
        """Raise SessionBusy where somebody writes the log."""
        if session in self.writers:
            raise SessionBusy(session, where=self.where)

    def write(
        self,
        session: UUID,
        entry: MemoryLog,
        data: bytes,
        blobs: Collection[Blob],
        *,
        durable: bool,
    ) -> None:
        """Add to a log, or fail where it is the turn of that write."""
        with self.busy:
            self.n_writes += 1
            if self.n_writes == self.fail_at:
                raise PersistenceError(
                    f"the log of session {session} cannot be written: No space left on device; "
                    "what was written before can still be read"
                )
            self.n_durable += durable
            self.blobs.update({each.digest: each.data for each in blobs if each.data is not None})
            entry.data += data
            entry.n_changes += 1
            self.logs[session] = entry


class FakeSessionLog(SessionLog):
    """A log of a `FakeSessionStore`."""

    def __init__(self, store: FakeSessionStore, session: UUID, entry: MemoryLog) -> None:
        self.store = store
        self.session = session
        self.where: str = f"memory: {session}"
        self.entry = entry
        self.is_broken: bool = False

    @property
    def closed(self) -> bool:
        return self.store.writers.get(self.session) is not self

    def append(self, data: bytes, *, blobs: Collection[Blob] = (), durable: bool = False) -> None:
        if self.closed:
            raise RuntimeError(f"the log of session {self.session} is closed; reopen it")
        self.check_intact()
        try:
            self.store.write(self.session, self.entry, data, blobs, durable=durable)
        except PersistenceError:
            self.is_broken = True
            raise

    def finish(self) -> None:
        if self.closed:
            return
        try:
            self.check_intact()
            self.entry.is_finished = bool(self.entry.data)
            self.entry.n_changes += 1
        finally:
            self.abandon()

    def abandon(self) -> None:
        with self.store.busy:
            if not self.closed:
                del self.store.writers[self.session]

    def check_intact(self) -> None:
        """Raise a PersistenceError where an earlier write failed."""
        if self.is_broken:
            raise PersistenceError(
                f"the log of session {self.session} stays unfinished: an earlier write failed"
            )
