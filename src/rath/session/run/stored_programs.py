"""Stored workflow runs that are resumed, and sessions inside them that wait."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import get_args
from uuid import UUID, uuid5

from rath._async.deferred import Deferred
from rath.backend.abc import Backend, BackendSandboxSpec
from rath.backend.workspace import StoredWorkspace
from rath.errors import PersistenceError, ResumeMismatch, SessionDamaged
from rath.session.bindings import Placement, StoredSandbox, WorkspaceMode
from rath.session.body import Body
from rath.session.chunk import ChunkTable, differing_row
from rath.session.files.rebuild import SessionFileEntries, WorkspaceFiles, history_of
from rath.session.graph.recording import Edge, Provenance
from rath.session.loading import remember_loaded, session_of
from rath.session.log.ancestors import begin, open_logs_of, started_sessions, writers_of
from rath.session.log.build import (
    LoadedSession,
    LogSource,
    ParsedLog,
    build,
    closure,
    read_together,
)
from rath.session.log.store import SessionStore, default_store, open_store
from rath.session.open_calls import open_calls, own_operation
from rath.session.operation import Place
from rath.session.outcome import NeedsApproval, NeedsDecision, NeedsInput, Suspended
from rath.session.run.hook_calls import pass_on as pass_on
from rath.session.scope import CancelledRuns, RecordedSession, current_source, resuming_from
from rath.session.session import Session

_RUN_KEYS = UUID("c1f35a0e-6a0b-5d0e-9a44-2f6f2a1f7f10")
"""The namespace of keys that are texts; another one would start all runs anew."""


class StoredSource:
    """The sessions of a store, by id.

    Args:
        store: The store.
        workspace: What becomes of their workspaces when they go on; by default these have to be
            there, with whatever files.
    """

    def __init__(self, store: SessionStore, *, workspace: WorkspaceMode | None = None) -> None:
        self.store = store
        self.is_empty = False
        """Whether nothing is looked for, since nothing of the program was stored when it began."""

        self._mode: WorkspaceMode | None = workspace
        self._sandboxes: dict[UUID, StoredSandbox] = {}
        self._source = LogSource(store)
        self._contents: dict[UUID, ParsedLog | None] = {}
        self._built: dict[UUID, LoadedSession] = {}
        self._sessions: dict[UUID, Session] = {}
        # Tools that run side by side look for what they had made.
        self._busy = threading.RLock()

    @property
    def where(self) -> str:
        """Where the store is, for messages."""
        return self.store.where

    def find(self, session: UUID) -> RecordedSession | None:
        """Return a session that is stored, None where it is not; blocks.

        Raises:
            PersistenceError: It cannot be read.
            SessionDamaged: Its log, or that of one it came from, is not what was written.
        """
        if self.is_empty or session in open_logs_of(self.store).outdated:
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
        edge = loaded.core.as_parent()
        assert edge.body is not None
        return RecordedSession(
            session, edge.body, loaded.provenance, edge.late, loaded.core.placement
        )

    def workspace_of(self, session: UUID) -> UUID | None:
        """Return the workspace that the log of a session names, None where it names none."""
        with self._busy:
            content = self._content(session)
        stored = None if content is None else content.place.workspace
        return None if stored is None else stored.id

    def session(self, session: UUID) -> Session | None:
        """Return a session that is stored, placed as it was, None where it is not; blocks."""
        with self._busy:
            cached = self._sessions.get(session)
            if cached is not None:
                return cached
            built = self._build(session)
            if built is None:
                return None
            restore = StoredSandbox if self._mode is None else self._restored
            loaded = self._sessions[session] = session_of(built, restore)
            remember_loaded(loaded.core.body, session, self.store, place=built.content.place)
            return loaded

    def _restored(
        self, backend: Backend, spec: BackendSandboxSpec | None, stored: StoredWorkspace
    ) -> StoredSandbox:
        """Return the one sandbox of a workspace, whichever of its sessions goes on first."""
        assert self._mode is not None
        sandbox = self._sandboxes.get(stored.id)
        if sandbox is None or sandbox.closed:
            files = WorkspaceFiles(self._mode, partial(self._histories, stored.id))
            sandbox = StoredSandbox(backend, spec, stored, files=files)
            self._sandboxes[stored.id] = sandbox
        return sandbox

    def _histories(self, workspace: UUID) -> list[SessionFileEntries]:
        """Return what is recorded of files, with those first that work in a workspace."""
        with self._busy:
            found = list(self._sessions.values())
        histories: list[SessionFileEntries] = []
        for session in found:
            body = session.core.body.latest
            if body is not None:
                is_there = self.workspace_of(session.id) == workspace
                histories.append(history_of(session.record, body.unfinished, is_there=is_there))
        return sorted(histories, key=lambda history: not history.is_there)

    def forget_outdated(self, session: UUID) -> bool:
        """Forget a session if its log has changed since it was read; tell whether it has."""
        with self._busy:
            if not self._source.has_changed(session):
                return False
            self._source = LogSource(self.store)
            self._contents.clear()
            self._built.clear()
            self._sessions.pop(session, None)
        return True

    def drop(self, session: UUID) -> None:
        """Forget a session that is made anew; its log stays until the new one takes its place."""
        open_logs_of(self.store).outdated.add(session)
        with self._busy:
            for cache in (self._contents, self._sessions):
                cache.pop(session, None)
            # What came from it is built on what will be replaced.
            self._built.clear()

    def _build(self, session: UUID) -> LoadedSession | None:
        def read(source: LogSource) -> LoadedSession | None:
            if source is not self._source:
                # What was read before has grown since, and others begin with more of it.
                self._source = source
                self._contents.clear()
                self._built.clear()
            return self._build_once(session)

        return read_together(self.store, read, first=self._source)

    def _build_once(self, session: UUID) -> LoadedSession | None:
        content = self._content(session)
        if content is None:
            return None
        if session not in self._built:
            before = self._built
            self._built = build(closure(content, self._content, known=before), known=before)
        return self._built[session]

    def _passed_on(self, session: UUID) -> RecordedSession | None:
        """Return a session that says nothing of its own, without what it was made of.

        That may have been made anew since, so that the log stands on what is not there any more.
        """
        content = self._content(session)
        outcome = None if content is None else content.state.outcome
        if content is None or not isinstance(outcome, Suspended):
            return None
        operation = content.operation
        if operation is not None and operation.kind == "loop":
            return None
        return RecordedSession(
            session, Deferred.of(Body(ChunkTable(), outcome=outcome)), Provenance()
        )

    def _content(self, session: UUID) -> ParsedLog | None:
        if session not in self._contents:
            self._contents[session] = self._read(session)
        return self._contents[session]

    def _read(self, session: UUID) -> ParsedLog | None:
        log = self._source.read(session)
        # A writer that was cut off in its first line has said nothing.
        if log is None or not (log.is_finished or b"\n" in log.data):
            return None
        content = self._source.find_ancestor(session)
        if content is not None and content.state.trailer is not None:
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
    for writer in writers_of(session.core.body):
        return writer.store
    store = default_store()
    return store if store.read(session.id) is not None else None


class Program:
    """The earlier run of a program: in memory, behind a session of it, and in its store.

    Args:
        session: Any session of the run.
        stored: The store that it is in, if any.
        cancelled: What becomes of runs in it that were cancelled.
        has_key: Whether others in this process may do the same work at the same time: what they
            have begun is joined.
    """

    def __init__(
        self,
        session: Session,
        stored: StoredSource | None,
        *,
        cancelled: CancelledRuns = "keep",
        has_key: bool = False,
    ) -> None:
        self.cancelled: CancelledRuns = cancelled
        self.stored = stored
        self._session = session
        self._by_id = {
            found.id: found for found in _known([session.core.as_parent()], with_parents=True)
        }
        self._dropped: set[UUID] = set()
        # In a store whoever goes on finds there what another one has begun.
        self._started_sessions: MutableMapping[UUID, Deferred[Body]] | None = None
        if stored is None:
            self._started_sessions = started_sessions(session.core.body)
        elif has_key:
            self._started_sessions = open_logs_of(stored.store).keyed_runs

    @property
    def store(self) -> SessionStore | None:
        """Where the run is written, and goes on; None where it is nowhere."""
        return None if self.stored is None else self.stored.store

    def find(self, session: UUID) -> RecordedSession | None:
        """Find a session by its id; what this process holds of the given session first."""
        if session in self._dropped:
            return None
        held = self._by_id.get(session)
        if session == self._session.id and held is not None:
            is_moved = self._session.core.was_placed
            return replace(held, placement=self._placement(), is_moved=is_moved)
        if self.stored is None or (held is not None and not held.body.done()):
            return held or self._find_started(session)
        started = self._find_started(session)
        if started is not None:
            self.stored.is_empty = False
            if not started.body.done():
                return started
        found = self.stored.find(session)
        while found is not None and found.written.unfinished is not None:
            self.stored.store.require_free(session)
            if not self.stored.forget_outdated(session):
                break
            # Its writer has written more since it was read, and has let it go.
            found = self.stored.find(session)
        if found is None or not self._is_moved(session):
            return found or held
        return replace(found, placement=self._session.core.placement, is_moved=True)

    def _placement(self) -> Placement:
        """Return where the given session works; one that was loaded only, as the source says."""
        placement = self._session.core.placement
        if self.stored is None or self._session.core.was_placed or not placement.is_stored:
            return placement
        loaded = self.stored.session(self._session.id)
        return placement if loaded is None else loaded.core.placement

    def _is_moved(self, session: UUID) -> bool:
        """Tell whether a session goes along, where somebody has placed the given one elsewhere."""
        stored = self.stored
        if stored is None or not self._session.core.was_placed:
            return False
        return stored.workspace_of(session) == stored.workspace_of(self._session.id)

    def drop(self, session: UUID) -> None:
        """Forget a session that is made anew."""
        self._dropped.add(session)
        if self.stored is not None:
            self.stored.drop(session)

    def begin(
        self, session: UUID, start: Callable[[], Deferred[Body]]
    ) -> tuple[Deferred[Body], bool]:
        """Have a session made that was not found, unless that has begun meanwhile."""
        if self._started_sessions is None:
            return start(), True
        is_stored = self.stored is not None
        cell, is_new = begin(self._started_sessions, session, start, is_stored=is_stored)
        if self.stored is not None and not is_new:
            self.stored.is_empty = False  # somebody else does the same work, and may be ahead
        return cell, is_new

    def note_run(self, session: UUID, cell: Deferred[Body]) -> None:
        """Note a run that goes on, for others that do the same work in this process."""
        if self.stored is not None and self._started_sessions is not None:
            self._started_sessions[session] = cell

    def _find_started(self, session: UUID) -> RecordedSession | None:
        body = None if self._started_sessions is None else self._started_sessions.get(session)
        return None if body is None else RecordedSession(session, body, Provenance())

    def place(self) -> Place:
        """Return the place of the given session within its run.

        Of a session whose run has noted nothing yet it waits for that run.

        Raises:
            ValueError: It was made outside of any workflow, or its record does not say where.
        """
        place = self._outermost()
        if place is None and not self._session.core.body.done():
            self._session.synchronize()
            place = self._outermost()
        if place is not None:
            return place
        raise ValueError(
            f"session {self._session.id} was made by no workflow, so none can be run again for it; "
            "give it to its agent again, agent(session), or call the workflow on it"
        )

    def _outermost(self) -> Place | None:
        """Return the place within the run; what a tool made belongs to the run of its call."""
        found: RecordedSession | None = self._by_id[self._session.id]
        visited: set[UUID] = set()
        while found is not None and found.id not in visited:
            visited.add(found.id)
            place = self._place_of(found)
            if place is None or place.run is None:
                break
            if not _is_inside_call(place):
                return place
            found = None if place.root is None else self.find(place.root)
        return None

    def root(self, place: Place) -> Session:
        """Return the session with which the run began.

        Raises:
            PersistenceError: It is not there.
        """
        found = None if place.root is None else self.find(place.root)
        if found is None:
            where = "this process" if self.stored is None else self.stored.where
            raise PersistenceError(
                f"session {place.root}, with which the run of session {self._session.id} began, "
                f"is not in {where}; give the store that has it with store="
            )
        loaded = None if self.stored is None else self.stored.session(found.id)
        if loaded is not None:
            if found.is_moved:
                loaded.core.place_like(self._session.core)
            return loaded
        if found.id == self._session.id:
            return self._session
        session = Session.from_body(
            found.body,
            found.provenance,
            id=found.id,
            placement=self._session.core.placement.share(),
            provider=self._session.provider,
        )
        session.core.late = found.late
        return session

    def _place_of(self, found: RecordedSession) -> Place | None:
        """Return where a session was made; for one that passed on that another waits, that one's.

        A session that failed before it began has the place of the first parent that has one.
        """
        content = found.content
        if content is not None:
            outcome = content.outcome
            operation = own_operation(content.record, found.id)
            if operation is not None:
                return operation.place
            if isinstance(outcome, Suspended) and outcome.session != found.id:
                waiting = self.find(outcome.session)
                return None if waiting is None else self._place_of(waiting)
            return None
        for edge in found.provenance.parents:
            above = self._by_id.get(edge.id)
            place = None if above is None else self._place_of(above)
            if place is not None:
                return place
        return None


def check_cancelled(cancelled: str) -> None:
    """Refuse what `CancelledRuns` does not name."""
    if cancelled not in get_args(CancelledRuns):
        raise ValueError(f"unknown cancelled {cancelled!r}: expected 'keep' or 'go_on'")


def check_workspace(workspace: str) -> None:
    """Refuse what `WorkspaceMode` does not name."""
    if workspace not in get_args(WorkspaceMode):
        raise ValueError(
            f"unknown workspace {workspace!r}: expected 'require', 'rebuild' or 'none'"
        )


def program_of(
    session: Session,
    store: SessionStore | str | None = None,
    *,
    cancelled: CancelledRuns = "keep",
    workspace: WorkspaceMode = "require",
) -> Program:
    """Return the run of a program that a session belongs to.

    Args:
        session: Any session of it.
        store: Where it is stored, or the URL of that; by default where the session is, if it is.
        cancelled: What becomes of runs in it that were cancelled.
        workspace: What becomes of workspaces that are not there.
    """
    check_cancelled(cancelled)
    check_workspace(workspace)
    opened = open_store(store) if isinstance(store, str) else store or store_of(session)
    stored = None if opened is None else StoredSource(opened, workspace=workspace)
    if stored is not None:
        stored.session(session.id)
    return Program(session, stored, cancelled=cancelled)


def input_of(run: UUID, session: Session) -> Session:
    """Return the session with which the run of a key begins, under the id it has in a store."""
    cell = session.core.body
    return Session.from_body(
        # What is stored is known by its cell; this one is stored under an id of its own.
        Deferred.of(cell.result()) if cell.done() else cell,
        session.provenance.copied_from(session.id),
        id=uuid5(run, "input"),
        placement=session.core.placement.share(),
        provider=session.provider,
        lineage=session.lineage,
    )


def keyed_program(
    session: Session,
    run: UUID | str,
    store: SessionStore | str | None = None,
    *,
    cancelled: CancelledRuns = "keep",
    workspace: WorkspaceMode = "require",
) -> tuple[Program, Session, UUID]:
    """Return the run of a program that has a key, the session that it begins with, and its id.

    Args:
        session: With what it begins, the same in every process.
        run: Its key.
        store: Where it is stored, or the URL of that; by default the store of the home.
        cancelled: What becomes of runs in it that were cancelled.
        workspace: What becomes of workspaces that are not there.

    Raises:
        ResumeMismatch: It has begun with other rows.
    """
    check_cancelled(cancelled)
    check_workspace(workspace)
    if not isinstance(run, UUID | str):
        raise TypeError(f"run must be a UUID or a text, the key of the run, not {run!r:.80}")
    run = run if isinstance(run, UUID) else uuid5(_RUN_KEYS, run)
    opened = open_store(store) if isinstance(store, str) else store or default_store()
    stored, root_id = StoredSource(opened, workspace=workspace), uuid5(run, "input")
    root = stored.session(root_id)
    while root is not None and _is_cut_off(root, session):
        opened.require_free(root_id)
        if stored.forget_outdated(root_id):
            root = stored.session(root_id)
        else:
            stored.drop(root_id)
            root = None
    # What a run begins with is stored before all else of it.
    stored.is_empty = root is None
    if root is None:
        root = input_of(run, session)
    else:
        _check_same_input(run, root, session)
        here, there = session.core.placement, root.core.placement
        if session.core.was_placed and (here.backend, here.spec) != (
            there.backend,
            there.spec,
        ):
            root.core.place_like(session.core)
    return Program(root, stored, cancelled=cancelled, has_key=True), root, run


def _is_cut_off(root: Session, given: Session) -> bool:
    """Tell whether the writer of what a run begins with was cut off, so that nothing else is there.

    One that was given unfinished is stored so.
    """
    left = root.core.body.result().unfinished
    return left is not None and not left.has_ended and not isinstance(given.outcome, Suspended)


def _check_same_input(run: UUID, root: Session, session: Session) -> None:
    recorded, given = root.chunk_table, session.chunk_table
    if recorded.digest() != given.digest():
        expected, found = differing_row(recorded, given)
        raise ResumeMismatch(
            "the rows of the input are not those that the run began with",
            where=f"run {run}",
            expected=expected,
            found=found,
        )


class InsideCalls:
    """The sessions that calls of one run had made, which goes on without the program around it.

    Args:
        stored: The store in which that is.
        session: The session of the run, with what this process holds of its calls.
    """

    cancelled: CancelledRuns = "keep"
    store: SessionStore | None = None
    """None: what is made is written where it would be anyway."""

    def __init__(self, stored: StoredSource, session: Session) -> None:
        self._stored = stored
        self._by_id = {
            found.id: found
            for found in _known(_inner_edges(session.core.as_parent()), with_parents=False)
        }

    def find(self, session: UUID) -> RecordedSession | None:
        """Find a session by its id; what is stored first, where others may answer it."""
        return self._stored.find(session) or self._by_id.get(session)

    def drop(self, session: UUID) -> None:
        """Forget a session that is made anew."""
        self._by_id.pop(session, None)
        self._stored.drop(session)

    def begin(
        self, session: UUID, start: Callable[[], Deferred[Body]]
    ) -> tuple[Deferred[Body], bool]:
        """Have a session made that was not found."""
        return start(), True

    def note_run(self, session: UUID, cell: Deferred[Body]) -> None:
        """Do nothing: nobody else looks for it here."""


def inside_calls(session: Session) -> AbstractContextManager[None]:
    """Have the calls of a resumed run that is submitted here find what they had made before.

    Without that a call which is made again would make sessions anew under the ids they have.
    Nothing is done where a whole program is resumed.

    Args:
        session: The one that goes on.
    """
    if current_source() is not None:
        return contextlib.nullcontext()
    # A file of its own holds no other session: theirs are where all others are.
    of_all = (writer.store for writer in writers_of(session.core.body) if not writer.is_alone)
    return resuming_from(InsideCalls(StoredSource(next(of_all, None) or default_store()), session))


def _is_inside_call(place: Place) -> bool:
    """Tell whether a place is inside a tool call, which is a run of its own."""
    return place.trace is not None and place.trace != place.run


def _known(todo: list[Edge], *, with_parents: bool) -> Iterator[RecordedSession]:
    """Yield sessions and those inside their waiting calls, at any depth, each once.

    With parents also all that they came from, as far as this process holds it.
    """
    visited: set[UUID] = set()
    while todo:
        edge = todo.pop()
        if edge.id in visited or edge.body is None:
            continue
        visited.add(edge.id)
        provenance = edge.provenance or Provenance()
        yield RecordedSession(edge.id, edge.body, provenance, edge.late)
        todo += [*(provenance.parents if with_parents else ()), *_inner_edges(edge)]


def _inner_edges(edge: Edge) -> list[Edge]:
    body: object = None if edge.body is None else edge.body.latest
    unfinished = body.unfinished if isinstance(body, Body) else None
    return [] if unfinished is None else [session.core.as_parent() for session in unfinished.inner]


def waiting_sessions(session: Session) -> tuple[Session, ...]:
    """Return the sessions for whose sake one waits: itself, and those inside its calls.

    They are what is approved, answered and decided about. Those inside come from this process or
    from the store of `session`; one that is in neither is left out. Blocks while logs are read.

    Args:
        session: One that waits, or any other, for which there are none.
    """
    outcome = session.outcome
    if not isinstance(outcome, NeedsApproval | NeedsInput | NeedsDecision):
        return ()
    body = session.core.body.result()
    calls = open_calls(body, session.id, late=session.record)
    waiting = [session] if any(each.waits for each in calls) else []
    inner_by_id = {each.id: each for each in (body.unfinished.inner if body.unfinished else ())}
    wanted = [each.said.child for each in calls if each.said.child is not None and each.is_made]
    if outcome.session != session.id and outcome.session not in wanted:
        wanted.append(outcome.session)  # it only passes on that another one waits
    store = store_of(session) if wanted else None
    stored = None if store is None else StoredSource(store)
    inner: list[Session] = []
    for child in wanted:
        inner_session = None if stored is None else stored.session(child)
        inner += (
            [inner_session]
            if inner_session is not None
            else _find_waiting(child, tuple(inner_by_id.values()))
        )
    for each in inner:
        waiting += waiting_sessions(each)
    return tuple({each.id: each for each in waiting}.values())


def _find_waiting(wanted: UUID, held: tuple[Session, ...]) -> list[Session]:
    """Return the session of an id among those that wait inside calls, at any depth."""
    todo = list(held)
    while todo:
        each = todo.pop()
        if each.id == wanted:
            return [each]
        unfinished = each.core.body.result().unfinished
        todo.extend(unfinished.inner if unfinished is not None else ())
    return []
