"""Where a run is written, and how carefully."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args
from uuid import UUID

from rath._async.lazy import Deferred
from rath.session.autosave import is_autosaving
from rath.session.log.files import FileStore
from rath.session.log.store import SessionLog, SessionStore, StoredLog, default_store
from rath.session.recorder.beside import store_beside
from rath.session.recorder.durability import Durability, default_durability
from rath.session.recorder.log_writer import LogWriter
from rath.session.recorder.shelf import (
    Shelf,
    shelf_of,
    shelf_of_files,
    writer_of,
    writers_of,
)
from rath.session.replay.stage import current_stage
from rath.session.resume.serving import known_run


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingPlan:
    """Where a run is written, and how carefully."""

    store: SessionStore
    is_alone: bool = False
    """Whether the log holds all itself: what the session begins with stands in it, and its parents
    are not stored with it."""

    durability: Durability = "turn"
    sandbox_handle_id: str | None = None

    @property
    def shelf(self) -> Shelf:
        """What is known of the store."""
        return shelf_of_files() if self.is_alone else shelf_of(self.store)

    def begin(self, store: SessionStore, session: UUID) -> SessionLog | StoredLog:
        """Return a new log, locked for its writer; blocks.

        What a run has left that was cut off, and is made anew, is kept aside. A finished log that
        is made anew is returned as it stands: the first lines take its place.

        Raises:
            PersistenceError: There is one already, or somebody else writes it, or it cannot be
                opened.
        """
        if self.is_alone and isinstance(store, FileStore):
            return store.replace(session)
        log = store.read(session)
        is_outdated = self.shelf.is_outdated(session)
        self.shelf.renew(session)
        if log is not None and not log.is_finished:
            return store.reopen(session, 0, size=len(log.data))
        return log if log is not None and is_outdated else store.create(session)


def plan_recording(
    session: UUID,
    *,
    persist: bool,
    path: Path | str | None,
    sandbox_handle_id: str | None = None,
    durability: Durability | None = None,
    goes_on_from: Deferred[Any] | None = None,
) -> RecordingPlan | None:
    """Return where a run that makes `session` is written, as home and working directory are now.

    Args:
        session: The session that is made.
        persist: Write to the default store, unless `path` is given; so does `rath.autosave()`.
        path: Write to this file.
        sandbox_handle_id: Identity of a remote sandbox, for the header.
        durability: How carefully; what the environment or the config says by default.
        goes_on_from: What a run that had begun before is given now; it is written where it was.
            Where that is the session itself, the log is meant that holds this very content.

    Raises:
        ValueError: There is no such durability.
    """
    if durability is not None and durability not in get_args(Durability):
        known = ", ".join(map(repr, get_args(Durability)))
        raise ValueError(f"unknown durability {durability!r}; expected one of {known}")
    if current_stage() is not None:
        return None  # a replay writes nothing
    begun = None if goes_on_from is None else _writer_of_beginning(session, goes_on_from)
    program, beside = known_run(), store_beside()
    if begun is not None and begun.is_alone:
        store, is_alone = begun.store, True
    elif path and begun is None:
        store, is_alone = FileStore.at(path, session), True
    elif program is not None and program.store is not None:
        store, is_alone = program.store, False
    elif begun is not None:
        store, is_alone = begun.store, False
    elif beside is not None:
        store, is_alone = beside, False
    elif persist or is_autosaving():
        store, is_alone = default_store(), False
    else:
        return None
    return RecordingPlan(
        store=store,
        is_alone=is_alone,
        durability=durability or default_durability(),
        sandbox_handle_id=sandbox_handle_id,
    )


def _writer_of_beginning(session: UUID, given: Deferred[Any]) -> LogWriter | None:
    """Return the log in which a run had begun, None where none is known."""
    own = next((writer for writer in writers_of(given) if writer.session == session), None)
    return own or writer_of(session)
