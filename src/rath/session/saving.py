"""Sessions saved to logs, and what comes to them late."""

from __future__ import annotations

import contextlib
import logging
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

from rath._async.deferred import Deferred, runs_above
from rath._async.runtime import wait_interruptibly
from rath.errors import PersistenceError
from rath.session.autosave import is_autosaving_lately
from rath.session.events import Event, Header, PlacementChange
from rath.session.log.ancestors import AncestorWriter, CompleteSession, write_complete
from rath.session.log.files import FileStore
from rath.session.log.header import Identity, beginning
from rath.session.log.open_logs import (
    open_logs_of,
    open_session_files,
    running_writer,
    writer_of,
    writers_of,
)
from rath.session.log.paths import PARTIAL_SUFFIX
from rath.session.log.store import SessionStore, default_store, open_store
from rath.session.log.writer import LogWriter
from rath.session.record import Record
from rath.session.scope import current_replay, current_source, recording_store
from rath.session.session import Session

_log = logging.getLogger("rath.session")


def save(
    session: Session, *, path: Path | str | None = None, store: SessionStore | str | None = None
) -> str:
    """Store a session whose run has ended, and return where it stands; blocks.

    Args:
        session: What to store.
        path: A file that holds all of it, in place of a store.
        store: Where, or the URL of that; the default store where neither is given.

    Raises:
        ValueError: Both were given.
        PersistenceError: It cannot be written.
    """
    if path is not None and store is not None:
        raise ValueError("a session is saved to a path or to a store; give one of them")
    complete = _complete_session(session)
    if path is not None:
        alone = FileStore.at(path, session.id)
        open_logs = open_session_files()
        writer = _result(open_logs.lane.put(partial(_write_alone, complete, alone)))
        open_logs.put(complete.cell, writer)
        return str(alone.path(session.id))
    where = open_store(store) if isinstance(store, str) else store or default_store()
    ancestors = AncestorWriter(where, running=runs_above.get())
    open_logs = open_logs_of(where)
    _result(open_logs.lane.put(partial(ancestors.keep, complete)))
    writer = open_logs.get(complete.cell)
    if writer is not None and complete.cell.owner is not None:
        # What came to it at the end of its run may still be on its way.
        _result(writer.hold(complete.cell.result().record))
    return stands_at(where, session.id)


def stands_at(store: SessionStore, session: UUID) -> str:
    """Return where the log of a session stands once it is finished."""
    if isinstance(store, FileStore):
        return str(store.path(session))
    return f"{store.where}/{session}"


def keep_derivation(session: Session) -> None:
    """Store a derivation as soon as its content is there, where every session is; never waits.

    A failure is logged: nobody waits for it.
    """
    program = current_source()
    explicit = (None if program is None else program.store) or recording_store()
    if (explicit is None and not is_autosaving_lately()) or current_replay() is not None:
        return
    try:
        store = explicit or default_store()
        put = partial(_store_in_background, store, _complete_session(session), runs_above.get())
        if not session.body.at_end(put):
            put()
    except (PersistenceError, RuntimeError, ValueError, LookupError, OSError) as exc:
        _log.error("session %s is not stored: %s", session.id, exc)


def add_late(cell: Deferred[Any], record: Record, *lines: Event) -> None:
    """Add entries that came late to the logs that hold a session; blocks until they are durable.

    Args:
        cell: The content of the session.
        record: Its whole record.
        lines: What is written with them.

    Raises:
        PersistenceError: A log cannot be written, or was changed by somebody else; it is as it was.
    """
    for writer in writers_of(cell):
        _result(writer.keep_up_with(record, *lines))


def add_late_in_background(cell: Deferred[Any], session: UUID, record: Record) -> None:
    """Have what came late added to the logs that hold a session; never waits.

    A failure is logged: nobody waits for it.
    """
    for writer in writers_of(cell):
        writer.keep_up_with(record).add_done_callback(partial(_tell_late_failure, session))


def settle(session: UUID) -> None:
    """Wait until what this process has handed over for a log is written, or has failed."""
    writer = running_writer(session) or writer_of(session)
    if writer is not None:
        with contextlib.suppress(PersistenceError):
            _result(writer.settled())


def remember_loaded(
    cell: Deferred[Any],
    session: UUID,
    where: SessionStore | Path,
    *,
    place: Header | PlacementChange,
) -> None:
    """Remember that content was loaded from a log, so that what comes late is added there.

    Args:
        cell: The content.
        session: Whose log it is.
        where: The store, or the file where that is named otherwise.
        place: Where the session works by that log.
    """
    if isinstance(where, SessionStore):
        open_logs_of(where).put(cell, LogWriter.of_stored(where, session, place=place))
        return
    final = where.with_name(where.name.removesuffix(PARTIAL_SUFFIX))
    store = FileStore.at(final, session)
    open_session_files().put(cell, LogWriter.of_stored(store, session, is_alone=True, place=place))


def _store_in_background(
    store: SessionStore, complete: CompleteSession, above: frozenset[UUID]
) -> None:
    if complete.cell.error() is not None:
        return
    ancestors = AncestorWriter(store, running=above)
    done = open_logs_of(store).lane.put(partial(ancestors.keep, complete))
    done.add_done_callback(partial(_tell_failure, complete.who.session))


def _tell_failure(session: UUID, done: Future[LogWriter]) -> None:
    error = done.exception()
    if error is not None:
        _log.error("session %s is not stored: %s", session, error)


def _tell_late_failure(session: UUID, done: Future[None]) -> None:
    error = done.exception()
    if error is not None:
        _log.error("what came late to session %s is not stored: %s", session, error)


def _complete_session(session: Session) -> CompleteSession:
    edge = session.as_parent()
    who = Identity.of(
        session.id,
        session.provenance,
        session.placement,
        provider=session.provider,
        lineage=session.lineage,
    )
    return CompleteSession(who=who, cell=session.body, late=edge.late)


def _write_alone(complete: CompleteSession, store: FileStore) -> LogWriter:
    session = complete.who.session
    writer = LogWriter(store, session, is_alone=True)
    first = beginning(complete.who, complete.body)
    return write_complete(writer, lambda _, __: store.replace(session), first, complete)


def _result(done: Future[Any]) -> Any:
    wait_interruptibly(done)
    return done.result()
