"""A store in memory that can be had as it was after each of its writes."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Collection, Iterator, Mapping
from typing import Literal, NamedTuple
from uuid import UUID

from rath._core.blobs import Blob
from rath.errors import PersistenceError
from rath.session.persistence.store import SessionLog, SessionStore, StoredLog, stores

_names = itertools.count(1)


class Event(NamedTuple):
    """One change of a store."""

    kind: Literal["append", "cut", "restart", "finish", "delete"]
    session: UUID
    data: bytes = b""
    size: int = 0


class JournalStore(SessionStore):
    """Logs in memory, and all that was done to them, in order."""

    name = "journal"

    def __init__(self, events: Collection[Event] = (), blobs: Mapping[str, bytes] = {}) -> None:
        number = next(_names)
        self.where = f"journal://{number}"
        self.events: list[Event] = []
        self.blobs = dict(blobs)
        self._logs: dict[UUID, bytes] = {}
        self.finished: set[UUID] = set()
        self.writers: set[UUID] = set()
        self._lock = threading.RLock()
        stores.register(f"journal{number}", lambda _: self)
        self.url = f"journal{number}://"
        for event in events:
            self.do(event)

    def after(self, n_writes: int, *, torn: bool = False) -> JournalStore:
        """Return the store as it was after its first writes, the last one perhaps only half."""
        events = self.events[:n_writes]
        last = events[-1] if events else None
        # Other lines take the place of those that were there at once, or not at all.
        if torn and last is not None and last.kind == "append":
            events[-1] = last._replace(data=last.data[: len(last.data) // 2])
        return JournalStore(events, self.blobs)

    def do(self, event: Event) -> None:
        """Make a change."""
        with self._lock:
            self.events.append(event)
            session = event.session
            match event.kind:
                case "append":
                    self._logs[session] = self._logs.get(session, b"") + event.data
                case "cut":
                    self._logs[session] = self._logs[session][: event.size]
                    self.finished.discard(session)
                case "restart":
                    self._logs[session] = event.data
                    self.finished.discard(session)
                case "finish":
                    self.finished.add(session)
                case "delete":
                    del self._logs[session]
                    self.finished.discard(session)

    def create(self, session: UUID) -> SessionLog:
        if session in self._logs:
            raise PersistenceError(f"there is a log of session {session}")
        return _Log(self, session)

    def reopen(self, session: UUID, keep: int, *, size: int | None = None) -> SessionLog:
        data = self._logs[session]
        if len(data) < keep or size not in (None, len(data)):
            raise PersistenceError(f"the log of session {session} is another one")
        self.do(Event("cut", session, size=keep))
        return _Log(self, session)

    def append_to_finished(
        self, session: UUID, size: int, data: bytes, *, blobs: Collection[Blob] = ()
    ) -> bool:
        if len(self._logs[session]) != size:
            return False
        self.keep(blobs)
        self.do(Event("append", session, data))
        return True

    def restart(
        self, session: UUID, data: bytes, *, size: int, blobs: Collection[Blob] = ()
    ) -> SessionLog:
        assert (session in self.finished, len(self._logs[session])) == (True, size)
        self.keep(blobs)
        self.do(Event("restart", session, data))
        return _Log(self, session)

    def read(self, session: UUID) -> StoredLog | None:
        with self._lock:
            data, is_finished = self._logs.get(session), session in self.finished
        if data is None:
            return None
        return StoredLog(session, data, is_finished, f"{self.where}/{session}")

    def stamps(self) -> Mapping[UUID, str]:
        with self._lock:
            return {session: str(len(data)) for session, data in self._logs.items()}

    def is_being_written(self, session: UUID) -> bool:
        return session in self.writers

    def delete(self, session: UUID) -> bool:
        is_there = session in self._logs
        if is_there:
            self.do(Event("delete", session))
        return is_there

    def restore(self, session: UUID) -> bool:
        return False

    def empty_trash(self) -> int:
        return 0

    def blob(self, digest: str) -> bytes | None:
        return self.blobs.get(digest)

    def follow(self, session: UUID, start: int) -> Iterator[bytes]:
        yield self._logs[session][start:]

    def keep(self, blobs: Collection[Blob]) -> None:
        """Keep the bytes of blobs."""
        self.blobs |= {blob.digest: blob.data for blob in blobs if blob.data is not None}


class _Log(SessionLog):
    def __init__(self, store: JournalStore, session: UUID) -> None:
        self.session = session
        self.where = f"{store.where}/{session}"
        self._store = store
        self._is_closed = False

    def append(self, data: bytes, *, blobs: Collection[Blob] = (), durable: bool = False) -> None:
        self._store.keep(blobs)
        self._store.do(Event("append", self.session, data))

    def finish(self) -> None:
        if not self._is_closed:
            self._store.do(Event("finish", self.session))
        self._is_closed = True

    def abandon(self) -> None:
        self._is_closed = True

    @property
    def closed(self) -> bool:
        return self._is_closed
