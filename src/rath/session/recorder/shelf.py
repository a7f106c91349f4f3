"""What this process knows to be stored, and in which stores."""

from __future__ import annotations

import os
import threading
from typing import Any
from uuid import UUID
from weakref import WeakKeyDictionary, WeakValueDictionary

from rath._async.lazy import Deferred
from rath.session.log.store import SessionStore
from rath.session.recorder.lane import Lane
from rath.session.recorder.log_writer import LogWriter
from rath.session.resume.claims import original


class Shelf:
    """The logs of one store that this process has written or seen, by the content they hold.

    It is forgotten with the content, so it grows with nothing but the sessions that are alive.
    """

    def __init__(self) -> None:
        self.lane = Lane()
        """For what is stored beside runs: ancestors, derivations, and what is saved by hand."""

        self._lock = threading.Lock()
        self._writers: WeakKeyDictionary[Deferred[Any], LogWriter] = WeakKeyDictionary()
        self._by_session: WeakValueDictionary[UUID, LogWriter] = WeakValueDictionary()
        self._outdated: set[UUID] = set()

    def put(self, cell: Deferred[Any], writer: LogWriter) -> None:
        """Remember which log holds the content of `cell`."""
        cell = original(cell)
        with self._lock:
            self._writers[cell] = writer
            self._by_session[writer.session] = writer

    def get(self, cell: Deferred[Any]) -> LogWriter | None:
        """Return the log that holds the content of `cell`, None where none is known.

        What a resumed program gives again is in the log of the content that it gives again.
        """
        cell = original(cell)
        with self._lock:
            return self._writers.get(cell)

    def outdate(self, session: UUID) -> None:
        """Note that the log of a session is to be replaced by the next content of that session.

        It stays until then: what was made of it stands on it, and somebody may know its id.
        """
        with self._lock:
            self._outdated.add(session)

    def is_outdated(self, session: UUID) -> bool:
        """Tell whether the log of a session waits to be replaced."""
        with self._lock:
            return session in self._outdated

    def renew(self, session: UUID) -> None:
        """Note that the log of a session is replaced."""
        with self._lock:
            self._outdated.discard(session)

    def of_session(self, session: UUID) -> LogWriter | None:
        """Return the log of a session, None where none is known."""
        with self._lock:
            return self._by_session.get(session)


_lock = threading.Lock()
_shelves: dict[tuple[str, str], Shelf] = {}
_FILES = ("", "")
"""The key of the shelf of files that hold one session each, wherever they are."""

_writing: dict[UUID, LogWriter] = {}


def shelf_of(store: SessionStore) -> Shelf:
    """Return what is known of a store."""
    with _lock:
        return _shelves.setdefault((store.name, store.where), Shelf())


def shelf_of_files() -> Shelf:
    """Return what is known of files that hold a whole session each."""
    with _lock:
        return _shelves.setdefault(_FILES, Shelf())


def writers_of(cell: Deferred[Any]) -> tuple[LogWriter, ...]:
    """Return the logs that hold the content of `cell`, in whatever stores."""
    found = (shelf.get(cell) for shelf in _all_shelves())
    return tuple(writer for writer in found if writer is not None and writer.error is None)


def writer_of(session: UUID) -> LogWriter | None:
    """Return the first log that is known of a session, None where none is."""
    found = (shelf.of_session(session) for shelf in _all_shelves())
    return next((writer for writer in found if writer is not None), None)


def _all_shelves() -> list[Shelf]:
    with _lock:
        return list(_shelves.values())


def begin_writing(writer: LogWriter) -> None:
    """Remember that the run of a session is being written."""
    _writing[writer.session] = writer


def end_writing(writer: LogWriter) -> None:
    """Forget it; its last lines may still be on their way."""
    if _writing.get(writer.session) is writer:
        del _writing[writer.session]


def being_written(session: UUID) -> LogWriter | None:
    """Return what writes the run of a session in this process, None where nothing does."""
    return _writing.get(session)


def _forget_after_fork() -> None:
    """Start afresh in a forked child: the threads that write are not in it."""
    global _lock
    _lock = threading.Lock()
    _shelves.clear()
    _writing.clear()


if hasattr(os, "register_at_fork"):  # pragma: no branch  # Windows has no fork
    os.register_at_fork(after_in_child=_forget_after_fork)
