"""Saving sessions, loading them back into what they were, and following them elsewhere."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from rath._async.deferred import Deferred, runs_above
from rath._async.runtime import runtime, wait_interruptibly
from rath._core.dataclasses import dataclass
from rath._core.references import not_portable
from rath._core.text import short_id
from rath._core.vector import GrowingVector
from rath.backend import registry as backends
from rath.backend.abc import Backend, BackendSandbox, BackendSandboxSpec
from rath.backend.persistence.registry import PersistentSandboxRegistry, Reattachable
from rath.backend.workspace import StoredWorkspace, live_sandbox
from rath.errors import BackendNotFound, PersistenceError, RathError, SessionDamaged, WorkspaceLost
from rath.session.autosave import is_autosaving_lately
from rath.session.bindings import Placement, StoredSandbox
from rath.session.body import Body, State, Unfinished
from rath.session.chunk import ChunkTable
from rath.session.events import Event, Header, PlacementChange
from rath.session.graph.legacy import SessionLineage
from rath.session.log.ancestors import (
    AncestorWriter,
    CompleteSession,
    OpenLogs,
    open_logs_of,
    open_session_files,
    running_writer,
    write_complete,
    writer_of,
    writers_of,
)
from rath.session.log.build import (
    LoadedSession,
    LogSource,
    ParsedLog,
    built_from,
    missing,
    read_together,
)
from rath.session.log.files import FileStore, read_consistent
from rath.session.log.header import Identity, beginning, provider_from_jsonable
from rath.session.log.paths import (
    PARTIAL_SUFFIX,
    checked_id,
    os_errors,
)
from rath.session.log.reader import LineReader
from rath.session.log.store import (
    SessionStore,
    default_store,
    find_store,
    open_store,
    portable_url,
)
from rath.session.log.writer import LogWriter
from rath.session.record import Record
from rath.session.scope import current_replay, current_source, recording_store
from rath.session.session import Session

_logger = logging.getLogger(__name__)


Place = Header | PlacementChange
"""Place of a session by its log."""


class AwaySandbox(BackendSandbox):
    """A remote sandbox that is attached to on first use, by its id in the registry.

    It is left alone at interpreter exit, like one that is attached to directly.
    """

    def __init__(self, backend: Backend, spec: BackendSandboxSpec | None, known_as: str) -> None:
        super().__init__(backend, "", spec)
        self.registry_id: str | None
        self._known_as = self.registry_id = known_as
        self._attached: BackendSandbox | None = None

    async def aopen_native(self) -> Any:
        """Attach to it and return the backend's own object for it.

        Raises:
            WorkspaceLost: It is not there any more, or cannot be reached.
        """
        try:
            attached = await runtime().call_in_worker(partial(_attach, self._known_as))
        except (RathError, KeyError, OSError) as exc:
            expected = f"the sandbox {self._known_as!r} of the registry"
            description = f"none that can be attached ({_reason(exc)})"
            raise WorkspaceLost(self._known_as, self.backend.name, expected, description) from exc
        self._attached = attached
        return attached.native

    async def aopened(self) -> Any:
        native = await super().aopened()
        runtime().forget(self)
        return native

    async def aclose(self) -> None:
        try:
            await super().aclose()
        finally:
            if self._attached is not None:
                self._attached.closed = True


Restore = Callable[[Backend, BackendSandboxSpec | None, StoredWorkspace], StoredSandbox]
"""Makes the sandbox of a stored workspace."""


def lazy_placement(place: Place, restore: Restore = StoredSandbox) -> Placement:
    """Return the placement that a log tells; a sandbox is attached to, or opened, on first use.

    Where that fails, the use is an error that says so. It never becomes another sandbox by itself.

    Args:
        place: What the log tells.
        restore: Makes the sandbox of a workspace that this process has not open.
    """
    known_as, backend = place.sandbox_handle_id, _backend_of(place)
    if backend is None:
        return Placement(place.sandbox_backend, place.sandbox_spec)
    if known_as and isinstance(backend, Reattachable):
        return Placement(sandbox=AwaySandbox(backend, place.sandbox_spec, known_as))
    return _place_again(place, backend, restore)


def placement_of(header: Place) -> Placement:
    """Return the placement that a log tells, attached to its remote sandbox; may wait for that.

    Where the sandbox cannot be attached, the placement is closed: its first use is an error that
    says so. It never becomes another sandbox by itself.
    """
    known_as, backend = header.sandbox_handle_id, _backend_of(header)
    if not known_as or backend is None or not isinstance(backend, Reattachable):
        return lazy_placement(header)
    try:
        return Placement(sandbox=_attach(known_as))
    except (RathError, KeyError, OSError) as exc:
        _logger.warning(
            "a stored session ran in the %s sandbox %s, which cannot be attached: %s; place the "
            "session again with .to(...) before it uses tools",
            header.sandbox_backend,
            known_as,
            _reason(exc),
        )
    lost = backend.lazy(header.sandbox_spec)
    placement = Placement(sandbox=lost)
    lost.closed = True
    return placement


def _attach(known_as: str) -> BackendSandbox:
    """Attach to the sandbox that a header names; 1.3 took any text for that.

    Raises:
        KeyError: It is no id of the registry, or of no sandbox there.
    """
    try:
        sandbox_id = UUID(known_as)
    except ValueError:
        raise KeyError(f"{known_as!r} is no id of the registry of sandboxes") from None
    return PersistentSandboxRegistry().reattach_remote(sandbox_id)


def _reason(exc: Exception) -> object:
    return exc.args[0] if isinstance(exc, KeyError) else exc


def _backend_of(place: Place) -> Backend | None:
    """Return the backend of a place when it is here."""
    if place.sandbox_backend is None:
        return None
    with contextlib.suppress(BackendNotFound):
        return backends.get(place.sandbox_backend)
    return None


def _place_again(place: Place, backend: Backend, restore: Restore) -> Placement:
    """Return a placement in the workspace that a log names: as it is open here, or as it was."""
    stored, spec = place.workspace, place.sandbox_spec
    if stored is None:
        return Placement(backend.name, spec)
    live = live_sandbox(stored.id) if stored.directory is None else None
    if live is not None:
        return Placement(sandbox=live)
    is_named = spec is not None and spec.working_dir is not None
    is_by_spec = stored.directory is None and is_named and not stored.is_copy
    if is_by_spec or not stored.has_files:
        # Nothing was there, or the backend of somebody else finds it by its spec.
        means = backend.workspace_directory(backend.lazy(spec))
        if stored.directory is not None and stored.directory != means:
            # It was named from another working directory.
            spec = replace(spec or BackendSandboxSpec(), working_dir=stored.directory)
        return Placement(backend.name, spec)
    return Placement(sandbox=restore(backend, spec, stored))


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A session that was read, and all that is needed to go on in its log."""

    session: Session
    header: Header
    place: Place
    """Place of the session."""

    unfinished: Unfinished | None
    """Open work of its run; None once the run has ended."""

    is_finished: bool
    """Whether its writer has finished the log; one without may be at work."""

    where: str
    """Place of the log, for messages."""

    size: int
    """Bytes of the log that count: `store.reopen(session.id, keep=size)` goes on after them."""

    n_torn: int
    """Bytes behind them that a writer has left which was cut off."""

    reader: LineReader
    """Where the log was read up to: `reader.encoder()` goes on there."""

    problem: SessionDamaged | None = None
    """Reason for a session that is only a beginning, where it was loaded with `recover`."""

    @property
    def sum(self) -> str:
        """The checksum of the last line that counts."""
        return self.reader.sum


def load(store: SessionStore, session: UUID | str, *, recover: bool = False) -> Loaded:
    """Read a session and all that it came from.

    Its rows and entries are those of its ancestors where it has them from there, so that what was
    made of one another shares its beginning as it did before. Contents that entries and images
    name are read when somebody wants them. A remote sandbox is attached to when it is used.

    Args:
        store: Where it is.
        session: Its id.
        recover: Where a log cannot be believed, take what stands before.

    Raises:
        ValueError: `session` is no UUID.
        PersistenceError: There is no such session, or it cannot be read.
        SessionDamaged: Its log or that of an ancestor is not what was written.
    """
    wanted = checked_id(session)
    settle(wanted, store)

    def find(source: LogSource) -> ParsedLog:
        log = source.read(wanted)
        if log is None:
            raise missing(wanted, store)
        content = source.content(log.data, log.where, is_finished=log.is_finished)
        content.require(wanted)
        return content

    return _load(find, store, store, recover=recover)


def load_file(path: Path, store: SessionStore, *, recover: bool = False) -> Loaded:
    """Read a session from a file, and what it came from out of `store`; see `load`.

    Raises:
        PersistenceError: It cannot be read.
        SessionDamaged: It, or the log of an ancestor, is not what was written.
    """

    def find(source: LogSource) -> ParsedLog:
        is_finished = not path.name.endswith(PARTIAL_SUFFIX)
        return source.content(read_file(path), str(path), is_finished=is_finished)

    return _load(find, store, path, recover=recover)


def read_file(path: Path) -> bytes:
    """Return the log that a file holds.

    Raises:
        PersistenceError: It is not there or cannot be read.
    """
    with os_errors(path, "cannot be read"), contextlib.suppress(FileNotFoundError):
        return read_consistent(path)
    raise PersistenceError(
        f"session file not found: {path}; list_persisted_sessions() tells what is there"
    )


def _load(
    find: Callable[[LogSource], ParsedLog],
    store: SessionStore,
    where: SessionStore | Path,
    *,
    recover: bool,
) -> Loaded:
    """Return the session of a log that `find` reads."""

    def read(source: LogSource) -> Loaded:
        content = find(source)
        built = built_from(content, source)
        return Loaded(
            session=session_of(built),
            header=content.header,
            place=content.place,
            unfinished=None if content.state.trailer else content.unfinished,
            is_finished=content.is_finished,
            where=content.where,
            size=content.reader.n_good,
            n_torn=content.n_torn,
            reader=content.reader,
            problem=built.problem,
        )

    loaded = read_together(
        store, read, recover=recover, is_sound=lambda build: build.problem is None
    )
    if loaded.problem is None and loaded.reader.takes_more:
        # So that what comes to the session late is added to its log.
        session = loaded.session
        remember_loaded(session.core.body, session.id, where, place=loaded.place)
    return loaded


def session_of(built: LoadedSession, restore: Restore = StoredSandbox) -> Session:
    """Return a session over what was built, placed where it was; waits for nothing.

    Args:
        built: What was built.
        restore: Makes the sandbox of its workspace, see `lazy_placement`.
    """
    header = built.content.header
    return Session.from_body(
        Deferred.of(built.body),
        built.provenance,
        id=header.session,
        placement=lazy_placement(built.content.place, restore),
        provider=None if header.provider is None else provider_from_jsonable(header.provider),
        lineage=None if header.lineage is None else SessionLineage(*header.lineage),
    )


def load_stored(
    session: UUID | str | Path,
    *,
    store: SessionStore | str | None = None,
    recover: bool = False,
) -> Loaded:
    """Read a session by its id, or from a file.

    Args:
        session: Its id, or the path of its file: text that is no UUID is a path.
        store: Where it is, or the URL of that; by default the store of the home. For a path:
            where its parents are, by default beside it.
        recover: Where a log cannot be believed, take what stands before.

    Raises:
        PersistenceError: It is not there or cannot be read.
        SessionDamaged: Its log, or that of one it came from, is not what was written.
    """
    named: UUID | str | Path = session
    if isinstance(session, str):
        with contextlib.suppress(ValueError):
            named = UUID(session)
    opened = open_store(store) if isinstance(store, str) else store
    if isinstance(named, UUID):
        return load(opened or default_store(), named, recover=recover)
    path = Path(named)
    return load_file(path, opened or FileStore(path.parent), recover=recover)


def stored_at(session: Session) -> tuple[str, UUID]:
    """Return the URL of the store that holds a session, and its id; waits until all is written.

    Raises:
        TypeError: Its run goes on, or it is in no store that another process can open.
        PersistenceError: It cannot be written.
    """
    if session.is_pending:
        raise not_portable(
            f"session {session.id} is pending: its run goes on in this process",
            "pickle it once it was awaited, or send its id, which Session.load(id) takes",
        )
    writing = running_writer(session.id)
    writers = (*writers_of(session.core.body), *((writing,) if writing is not None else ()))
    own = [each for each in writers if each.session == session.id and not each.is_alone]
    urls = ((each.store, portable_url(each.store)) for each in own)
    store, url = next(((store, url) for store, url in urls if url is not None), (None, None))
    if store is None or url is None:
        where = f"; it is in {own[0].store.where}, which no URL leads to" if own else ""
        raise not_portable(
            f"session {session.id} is stored nowhere that another process can load it from{where}",
            "call session.save() before, or run it with persist=True",
        )
    if session.core.body.error() is None:
        save(session, store=store)
    else:
        settle(session.id, store)
    return url, session.id


def load_reference(url: str, session: UUID) -> Session:
    """Return a session by what `stored_at` gave; blocks while its log is read.

    Raises:
        PersistenceError: It is not there or cannot be read.
        SessionDamaged: Its log, or that of one it came from, is not what was written.
    """
    return load(find_store(url), session).session


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
    _hold_late(open_logs, complete.cell)
    return stands_at(where, session.id)


def save_many(sessions: Iterable[Session], *, store: SessionStore | str | None = None) -> list[str]:
    """Store sessions and all they came from, and return where each stands; waits for their runs.

    As `Session.save` does it with each; a store far away, such as PostgreSQL, is told of many in
    one round trip.

    Args:
        sessions: What to store.
        store: Where, or the URL of that; by default the store of the home.

    Raises:
        PersistenceError: One cannot be written; those before it may be stored.
    """
    if isinstance(sessions, Session):  # type: ignore[unreachable]  # a wrong call
        raise TypeError("save_many takes sessions, and one was given; write session.save()")
    given = list(sessions)
    complete = [_complete_session(each.synchronize()) for each in given]
    where = open_store(store) if isinstance(store, str) else store or default_store()
    ancestors = AncestorWriter(where, running=runs_above.get())
    open_logs = open_logs_of(where)
    _result(open_logs.lane.put(partial(ancestors.keep_many, complete)))
    for each in complete:
        _hold_late(open_logs, each.cell)
    return [stands_at(where, each.id) for each in given]


def _hold_late(open_logs: OpenLogs, cell: Deferred[Any]) -> None:
    """Add what came to a session at the end of its run, which may still be on its way."""
    writer = open_logs.get(cell)
    if writer is not None and cell.owner is not None:
        _result(writer.hold(cell.result().record))


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
        if not session.core.body.at_end(put):
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


def settle(session: UUID, store: SessionStore) -> None:
    """Wait until what this process has handed over for a log is written, or has failed."""
    writer = running_writer(session) or writer_of(session)
    if writer is None:
        # A derivation may still wait for its log.
        waiting = open_logs_of(store).waiting.get(session)
        if waiting is not None:
            wait_interruptibly(waiting)
            writer = writer_of(session)
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
    open_logs, session = open_logs_of(store), complete.who.session
    done = open_logs.lane.put(partial(ancestors.keep, complete))
    open_logs.waiting[session] = done
    done.add_done_callback(partial(_tell_failure, session))
    done.add_done_callback(lambda _: open_logs.waiting.pop(session, None))


def _tell_failure(session: UUID, done: Future[LogWriter]) -> None:
    error = done.exception()
    if error is not None:
        _log.error("session %s is not stored: %s", session, error)


def _tell_late_failure(session: UUID, done: Future[None]) -> None:
    error = done.exception()
    if error is not None:
        _log.error("what came late to session %s is not stored: %s", session, error)


def _complete_session(session: Session) -> CompleteSession:
    edge = session.core.as_parent()
    who = Identity.of(
        session.id,
        session.provenance,
        session.core.placement,
        provider=session.provider,
        lineage=session.lineage,
    )
    return CompleteSession(who=who, cell=session.core.body, late=edge.late)


def _write_alone(complete: CompleteSession, store: FileStore) -> LogWriter:
    session = complete.who.session
    writer = LogWriter(store, session, is_alone=True)
    first = beginning(complete.who, complete.body)
    return write_complete(writer, lambda _, __: store.replace(session), first, complete)


def _result(done: Future[Any]) -> Any:
    wait_interruptibly(done)
    return done.result()


def follow(session: UUID | str, store: SessionStore | str | None = None) -> Session:
    """Return a session that grows as its log does; see `Session.follow`."""
    opened = open_store(store) if isinstance(store, str) else store or default_store()
    loaded = load(opened, session)
    known = loaded.session
    if not opened.is_being_written(known.id):
        return load(opened, known.id).session  # it may have ended just now
    body: Deferred[Body] = Deferred.start(
        partial(_read_along, opened, loaded),
        owner=uuid4(),
        label=f"reading session {short_id(known.id)} as it comes",
        on_cancel=lambda latest: latest or known.core.body.result(),
        at_exit="leave",
    )
    followed = Session.from_body(
        body,
        known.provenance,
        id=known.id,
        placement=known.core.placement.share(),
        provider=known.provider,
        lineage=known.lineage,
    )
    return followed


async def _read_along(store: SessionStore, loaded: Loaded, cell: Deferred[Body]) -> Body:
    """Apply the events of a log as they come, and return the session when nobody writes it."""
    content, session = loaded.session.core.body.result(), loaded.session.id
    rows = GrowingVector(content.table.vector)
    record = GrowingVector(content.record)
    state = State(session, rows, record)
    state.resume(loaded.unfinished)
    if loaded.unfinished is not None and loaded.unfinished.partial_text:
        state.partial.append(loaded.unfinished.partial_text)
    cell.report(content)
    lines = store.follow(session, loaded.size)
    while (data := await runtime().call_in_worker(partial(_next, lines))) is not None:
        for event in loaded.reader.feed(data):
            state.apply(event)
        cell.report(
            Body(
                ChunkTable(rows.vector),
                record.vector,
                content.outcome,
                content.given,
                state.unfinished,
            )
        )
    whole = await runtime().call_in_worker(partial(load, store, session))
    return whole.session.core.body.result()


def _next(lines: Iterator[bytes]) -> bytes | None:
    return next(lines, None)
