"""Storing a session beside its run: by hand, as a derivation, and what comes to it late."""

from __future__ import annotations

import contextlib
import logging
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

from rath._async.lazy import Deferred, runs_above
from rath._async.runtime import wait_interruptibly
from rath.errors import PersistenceError
from rath.llm.provider import Provider
from rath.session.autosave import is_autosaving_lately
from rath.session.body import Body
from rath.session.graph.legacy import SessionLineage
from rath.session.graph.provenance import Edge, Provenance
from rath.session.log.files import FileStore
from rath.session.log.store import SessionStore, default_store, open_store
from rath.session.persistence.lines import HeaderLine, Line, PlacementLine
from rath.session.persistence.paths import PARTIAL_SUFFIX
from rath.session.placement import Placement
from rath.session.record import Record
from rath.session.recorder.ancestors import Keeper, Whole, write_whole
from rath.session.recorder.beside import store_beside
from rath.session.recorder.header import Identity, beginning
from rath.session.recorder.log_writer import LogWriter
from rath.session.recorder.shelf import (
    being_written,
    shelf_of,
    shelf_of_files,
    writer_of,
    writers_of,
)
from rath.session.replay.stage import current_stage
from rath.session.resume.serving import known_run

_log = logging.getLogger("rath.session")


class Stored(Protocol):
    """What is asked of a session to store it."""

    @property
    def id(self) -> UUID: ...

    @property
    def body(self) -> Deferred[Body]: ...
    @property
    def provenance(self) -> Provenance: ...
    @property
    def placement(self) -> Placement: ...
    @property
    def provider(self) -> Provider | None: ...
    @property
    def lineage(self) -> SessionLineage | None: ...
    def as_parent(self) -> Edge: ...


def save(
    session: Stored, *, path: Path | str | None = None, store: SessionStore | str | None = None
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
    whole = _whole(session)
    if path is not None:
        alone = FileStore.at(path, session.id)
        shelf = shelf_of_files()
        writer = _result(shelf.lane.put(partial(_write_alone, whole, alone)))
        shelf.put(whole.cell, writer)
        return str(alone.path(session.id))
    where = open_store(store) if isinstance(store, str) else store or default_store()
    keeper = Keeper(where, running=runs_above.get())
    shelf = shelf_of(where)
    _result(shelf.lane.put(partial(keeper.keep, whole)))
    writer = shelf.get(whole.cell)
    if writer is not None and whole.cell.owner is not None:
        # What came to it at the end of its run may still be on its way.
        _result(writer.hold(whole.cell.result().record))
    return stands_at(where, session.id)


def stands_at(store: SessionStore, session: UUID) -> str:
    """Return where the log of a session stands once it is finished."""
    if isinstance(store, FileStore):
        return str(store.path(session))
    return f"{store.where}/{session}"


def keep_derivation(session: Stored) -> None:
    """Store a derivation as soon as its content is there, where every session is; never waits.

    A failure is logged: nobody waits for it.
    """
    program = known_run()
    given = (None if program is None else program.store) or store_beside()
    if (given is None and not is_autosaving_lately()) or current_stage() is not None:
        return
    try:
        store = given or default_store()
        put = partial(_put_aside, store, _whole(session), runs_above.get())
        if not session.body.at_end(put):
            put()
    except (PersistenceError, RuntimeError, ValueError, LookupError, OSError) as exc:
        _log.error("session %s is not stored: %s", session.id, exc)


def add_late(cell: Deferred[Any], record: Record, *lines: Line) -> None:
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


def add_late_aside(cell: Deferred[Any], session: UUID, record: Record) -> None:
    """Have what came late added to the logs that hold a session; never waits.

    A failure is logged: nobody waits for it.
    """
    for writer in writers_of(cell):
        writer.keep_up_with(record).add_done_callback(partial(_tell_late_failure, session))


def settle(session: UUID) -> None:
    """Wait until what this process has handed over for a log is written, or has failed."""
    writer = being_written(session) or writer_of(session)
    if writer is not None:
        with contextlib.suppress(PersistenceError):
            _result(writer.settled())


def remember_loaded(
    cell: Deferred[Any],
    session: UUID,
    where: SessionStore | Path,
    *,
    place: HeaderLine | PlacementLine,
) -> None:
    """Remember that content was loaded from a log, so that what comes late is added there.

    Args:
        cell: The content.
        session: Whose log it is.
        where: The store, or the file where that is named otherwise.
        place: Where the session works by that log.
    """
    if isinstance(where, SessionStore):
        shelf_of(where).put(cell, LogWriter.of_stored(where, session, place=place))
        return
    final = where.with_name(where.name.removesuffix(PARTIAL_SUFFIX))
    store = FileStore.at(final, session)
    shelf_of_files().put(cell, LogWriter.of_stored(store, session, is_alone=True, place=place))


def _put_aside(store: SessionStore, whole: Whole, above: frozenset[UUID]) -> None:
    if whole.cell.error() is not None:
        return
    keeper = Keeper(store, running=above)
    done = shelf_of(store).lane.put(partial(keeper.keep, whole))
    done.add_done_callback(partial(_tell_failure, whole.who.session))


def _tell_failure(session: UUID, done: Future[LogWriter]) -> None:
    error = done.exception()
    if error is not None:
        _log.error("session %s is not stored: %s", session, error)


def _tell_late_failure(session: UUID, done: Future[None]) -> None:
    error = done.exception()
    if error is not None:
        _log.error("what came late to session %s is not stored: %s", session, error)


def _whole(session: Stored) -> Whole:
    edge = session.as_parent()
    who = Identity.of(
        session.id,
        session.provenance,
        session.placement,
        provider=session.provider,
        lineage=session.lineage,
    )
    return Whole(who=who, cell=session.body, late=edge.late)


def _write_alone(whole: Whole, store: FileStore) -> LogWriter:
    session = whole.who.session
    writer = LogWriter(store, session, is_alone=True)
    first = beginning(whole.who, whole.body)
    return write_whole(writer, lambda _, __: store.replace(session), first, whole)


def _result(done: Future[Any]) -> Any:
    wait_interruptibly(done)
    return done.result()
