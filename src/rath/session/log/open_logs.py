"""Logs that this process writes or has written, by the content they hold."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any
from uuid import UUID
from weakref import WeakKeyDictionary, WeakValueDictionary

from rath._async.deferred import Deferred
from rath.session.body import Body
from rath.session.log.store import SessionStore
from rath.session.log.writer import LogWriter, SerialQueue

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
    started: dict[UUID, Deferred[Body]], session: UUID, start: Callable[[], Deferred[Body]]
) -> tuple[Deferred[Body], bool]:
    """Have a session made, unless it is among what was begun; see `claim`."""
    with _lock:
        cell = started.get(session)
        if cell is not None:
            return cell, False
        run = started[session] = start()
        return run, True


class OpenLogs:
    """The logs of one store that this process has written or seen, by the content they hold.

    It is forgotten with the content, so it grows with nothing but the sessions that are alive.
    Any thread may ask and tell: each step is one of a dict, which Python makes whole.
    """

    def __init__(self) -> None:
        self.lane = SerialQueue()
        """For what is stored beside runs: ancestors, derivations, and what is saved by hand."""

        self._writers: WeakKeyDictionary[Deferred[Any], LogWriter] = WeakKeyDictionary()
        self._by_session: WeakValueDictionary[UUID, LogWriter] = WeakValueDictionary()
        self._outdated: set[UUID] = set()

    def put(self, cell: Deferred[Any], writer: LogWriter) -> None:
        """Remember which log holds the content of `cell`."""
        self._writers[original(cell)] = writer
        self._by_session[writer.session] = writer

    def get(self, cell: Deferred[Any]) -> LogWriter | None:
        """Return the log that holds the content of `cell`, None where none is known.

        What a resumed program gives again is in the log of the content that it gives again.
        """
        return self._writers.get(original(cell))

    def outdate(self, session: UUID) -> None:
        """Note that the log of a session is to be replaced by the next content of that session.

        It stays until then: what was made of it stands on it, and somebody may know its id.
        """
        self._outdated.add(session)

    def is_outdated(self, session: UUID) -> bool:
        """Tell whether the log of a session waits to be replaced."""
        return session in self._outdated

    def renew(self, session: UUID) -> None:
        """Note that the log of a session is replaced."""
        self._outdated.discard(session)

    def of_session(self, session: UUID) -> LogWriter | None:
        """Return the log of a session, None where none is known."""
        return self._by_session.get(session)


_by_store: dict[tuple[str, str], OpenLogs] = {}
_FILES = ("", "")
"""The key of the files that hold one session each, wherever they are."""

_writing: dict[UUID, LogWriter] = {}


def open_logs_of(store: SessionStore) -> OpenLogs:
    """Return the open logs of a store."""
    return _by_store.setdefault((store.name, store.where), OpenLogs())


def open_session_files() -> OpenLogs:
    """Return the open logs of files that hold a whole session each."""
    return _by_store.setdefault(_FILES, OpenLogs())


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
