"""What a run had made, as its store has it: each log is read once."""

from __future__ import annotations

import contextlib
import threading
from uuid import UUID

from rath._async.lazy import Deferred
from rath.errors import PersistenceError, SessionDamaged
from rath.session.body import Body
from rath.session.chunk import ChunkTable
from rath.session.graph.provenance import Provenance
from rath.session.log.store import SessionStore, default_store
from rath.session.outcome import Suspended
from rath.session.persistence.loading.build import Built, build
from rath.session.persistence.loading.closure import closure
from rath.session.persistence.loading.content import Content
from rath.session.persistence.loading.load import session_of
from rath.session.persistence.loading.sources import MAX_READS, Source
from rath.session.recorder.shelf import shelf_of, writers_of
from rath.session.resume.serving import Found
from rath.session.saving import remember_loaded
from rath.session.session import Session


class Stored:
    """The sessions of a store, by id."""

    def __init__(self, store: SessionStore) -> None:
        self.store = store
        self._source = Source(store)
        self._contents: dict[UUID, Content | None] = {}
        self._built: dict[UUID, Built] = {}
        self._sessions: dict[UUID, Session] = {}
        # Tools that run side by side look for what they had made.
        self._busy = threading.RLock()

    @property
    def where(self) -> str:
        """Where the store is, for messages."""
        return self.store.where

    def find(self, session: UUID) -> Found | None:
        """Return a session that is stored, None where it is not; blocks.

        Raises:
            PersistenceError: It cannot be read.
            SessionDamaged: Its log, or that of one it came from, is not what was written.
        """
        if shelf_of(self.store).is_outdated(session):
            return None
        try:
            loaded = self.session(session)
        except SessionDamaged:
            passed_on = self._passed_on(session)
            if passed_on is None:
                raise
            return passed_on
        if loaded is None:
            return None
        edge = loaded.as_parent()
        assert edge.body is not None
        return Found(session, edge.body, loaded.provenance, edge.late, loaded.placement)

    def workspace_of(self, session: UUID) -> UUID | None:
        """Return the workspace that the log of a session names, None where it names none."""
        with self._busy:
            content = self._content(session)
        stored = None if content is None else content.place.workspace
        return None if stored is None else stored.id

    def session(self, session: UUID) -> Session | None:
        """Return a session that is stored, placed as it was, None where it is not; blocks."""
        with self._busy:
            known = self._sessions.get(session)
            if known is not None:
                return known
            built = self._build(session)
            if built is None:
                return None
            made = self._sessions[session] = session_of(built)
            remember_loaded(made.body, session, self.store, place=built.content.place)
            return made

    def drop(self, session: UUID) -> None:
        """Forget a session that is made anew; its log stays until the new one takes its place."""
        shelf_of(self.store).outdate(session)
        with self._busy:
            for known in (self._contents, self._sessions):
                known.pop(session, None)
            # What came from it is built on what will be replaced.
            self._built.clear()

    def _build(self, session: UUID) -> Built | None:
        for _ in range(MAX_READS - 1):
            try:
                return self._build_once(session)
            except SessionDamaged:
                if not self._source.has_changed():
                    raise
                # What was read before has grown since, and others begin with more of it.
                self._source = Source(self.store)
                self._contents.clear()
                self._built.clear()
        return self._build_once(session)

    def _build_once(self, session: UUID) -> Built | None:
        content = self._content(session)
        if content is None:
            return None
        if session not in self._built:
            before = self._built
            self._built = build(closure(content, self._content, known=before), known=before)
        return self._built[session]

    def _passed_on(self, session: UUID) -> Found | None:
        """Return a session that says nothing of its own, without what it was made of.

        That may have been made anew since, so that the log stands on what is not there any more.
        """
        content = self._content(session)
        outcome = None if content is None else content.stands()
        if content is None or not isinstance(outcome, Suspended):
            return None
        made = content.operation
        if made is not None and made.kind == "loop":
            return None
        return Found(session, Deferred.of(Body(ChunkTable(), outcome=outcome)), Provenance())

    def _content(self, session: UUID) -> Content | None:
        if session not in self._contents:
            self._contents[session] = self._read(session)
        return self._contents[session]

    def _read(self, session: UUID) -> Content | None:
        log = self.store.read(session)
        # A writer that was cut off in its first line has said nothing.
        if log is None or not (log.is_finished or b"\n" in log.data):
            return None
        content = self._source.find_ancestor(session)
        if content is not None and content.trailer is not None:
            is_cut_off = content.reader.n_good < len(log.data)
            if is_cut_off or not log.is_finished:
                self._finish(session, content.reader.n_good, len(log.data))
        return content

    def _finish(self, session: UUID, keep: int, size: int) -> None:
        """Finish a log whose writer was cut off after the end of its run."""
        # Where nothing can be written, what it says is served all the same.
        with contextlib.suppress(PersistenceError):
            if not self.store.is_being_written(session):
                self.store.reopen(session, keep, size=size).finish()


def store_of(session: Session) -> SessionStore | None:
    """Return the store in which a session is, None where it is in none that is known; blocks."""
    for writer in writers_of(session.body):
        return writer.store
    store = default_store()
    return store if store.read(session.id) is not None else None
