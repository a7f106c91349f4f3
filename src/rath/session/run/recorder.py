"""A run written to its log: durability, plan, rows, results and streamed text."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, cast, get_args
from uuid import UUID

from rath import config
from rath._async.deferred import Deferred, runs_above
from rath._async.runtime import await_future
from rath._core.dataclasses import dataclass
from rath.config.env import env_value
from rath.config.paths import config_layer_paths
from rath.errors import ConfigError, PersistenceError, SessionChanged
from rath.session.autosave import is_autosaving
from rath.session.body import Body
from rath.session.events import (
    Event,
    Failed,
    Intent,
    OutcomeChange,
    Reopened,
)
from rath.session.log.ancestors import (
    AncestorWriter,
    OpenLogs,
    begin_writing,
    end_writing,
    is_beginning,
    lines_since,
    open_lines,
    open_logs_of,
    open_session_files,
    running_writer,
    trailer_of,
    writer_of,
    writers_of,
)
from rath.session.log.files import FileStore
from rath.session.log.header import Identity, LogStart, beginning
from rath.session.log.store import (
    SessionLog,
    SessionStore,
    StoredLog,
    default_store,
    open_store,
)
from rath.session.log.writer import LogWriter, find_complete_log, knows_open_calls
from rath.session.outcome import Cancelled
from rath.session.record import InnerLog
from rath.session.run.run_log import Durability as Durability
from rath.session.run.run_log import RunPlan
from rath.session.scope import current_replay, current_source, recording_scope, recording_store

_ENV = "OPENRATH_DURABILITY"


def default_durability() -> Durability:
    """Return the setting of the environment, else of the first config that has one, else `turn`.

    Raises:
        ConfigError: That is no durability.
    """
    value, origin = env_value(_ENV), f"env {_ENV}"
    if value is None and any(path.exists() for path in config_layer_paths()):
        for layer in config.config_layers():
            value, origin = layer.config.sessions.durability, str(layer.path)
            if value is not None:
                break
    if value is None:
        return "turn"
    if value not in get_args(Durability):
        choices = ", ".join(map(repr, get_args(Durability)))
        raise ConfigError(f"unknown durability {value!r} in {origin}; expected one of {choices}")
    return cast("Durability", value)  # one of its words


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
    def open_logs(self) -> OpenLogs:
        """The open logs of the store."""
        return open_session_files() if self.is_alone else open_logs_of(self.store)

    def recorder(self, plan: RunPlan, cell: Deferred[Body]) -> Recorder:
        """Return the recorder of a run, whose content `cell` holds."""
        who = Identity.of(
            plan.session,
            plan.provenance,
            plan.placement,
            provider=plan.session_provider,
            lineage=plan.lineage,
            sandbox_handle_id=self.sandbox_handle_id,
        )
        return Recorder(self, who, cell)

    def begin(self, store: SessionStore, session: UUID) -> SessionLog | StoredLog:
        """Return a new log, locked for its writer; blocks.

        What a run has left that was cut off, and is made anew, is kept aside. A finished log that
        is made anew is returned as it stands: the first lines take its place.

        Raises:
            SessionChanged: There is one already that is not made anew: where nobody has it open,
                another process has begun it since this one looked, and was cut off.
            PersistenceError: Somebody else writes it, or it cannot be opened.
        """
        if self.is_alone and isinstance(store, FileStore):
            return store.replace(session)
        log = store.read(session)
        is_outdated = session in self.open_logs.outdated
        self.open_logs.outdated.discard(session)
        if log is None or log.is_finished:
            return log if log is not None and is_outdated else store.create(session)
        if b"\n" in log.data and not is_outdated:
            store.require_free(session)
            raise SessionChanged(
                session,
                f"somebody else has begun session {session} in {store.where} meanwhile; load it "
                "again, or run it again by its key",
            )
        # A writer that was cut off in its first line has said nothing.
        return store.reopen(session, 0, size=len(log.data))


def plan_recording(
    session: UUID,
    *,
    persist: bool,
    path: Path | str | None,
    store: SessionStore | str | None = None,
    sandbox_handle_id: str | None = None,
    durability: Durability | None = None,
    goes_on_from: Deferred[Any] | None = None,
) -> RecordingPlan | None:
    """Return where a run that makes `session` is written, as home and working directory are now.

    Args:
        session: The session that is made.
        persist: Write to the default store, unless `path` is given; so does `rath.autosave()`.
        path: Write to this file.
        store: Write to this store, or the one of this URL.
        sandbox_handle_id: Identity of a remote sandbox, for the header.
        durability: How carefully; what the environment or the config says by default.
        goes_on_from: What a run that had begun before is given now; it is written where it was.
            Where that is the session itself, the log is meant that holds this very content.

    Raises:
        ValueError: There is no such durability, or both a path and a store were given.
    """
    if path is not None and store is not None:
        raise ValueError("give a path or a store to write the run to, not both")
    if durability is not None and durability not in get_args(Durability):
        choices = ", ".join(map(repr, get_args(Durability)))
        raise ValueError(f"unknown durability {durability!r}; expected one of {choices}")
    if current_replay() is not None:
        return None  # a replay writes nothing
    earlier_writer = None if goes_on_from is None else _writer_of_beginning(session, goes_on_from)
    program, recording_to = current_source(), recording_store()
    is_alone = False
    if earlier_writer is not None and earlier_writer.is_alone:
        chosen, is_alone = earlier_writer.store, True
    elif path and earlier_writer is None:
        chosen, is_alone = FileStore.at(path, session), True
    elif program is not None and program.store is not None:
        chosen = program.store
    elif earlier_writer is not None:
        chosen = earlier_writer.store
    elif store is not None:
        chosen = open_store(store) if isinstance(store, str) else store
    elif recording_to is not None:
        chosen = recording_to
    elif persist or is_autosaving():
        chosen = default_store()
    else:
        return None
    return RecordingPlan(
        store=chosen,
        is_alone=is_alone,
        durability=durability or default_durability(),
        sandbox_handle_id=sandbox_handle_id,
    )


def _writer_of_beginning(session: UUID, given: Deferred[Any]) -> LogWriter | None:
    """Return the log in which a run had begun, None where none is known."""
    own = next((writer for writer in writers_of(given) if writer.session == session), None)
    return own or writer_of(session)


MAX_WAITING = 256
"""Groups of lines that may wait for a slow disk before the run waits too; a guess."""

MAX_ERROR_CHARS = 4000
"""Longest text of an error that a log repeats; a guess."""


def recording_as(session: UUID) -> AbstractContextManager[None]:
    """Have what is made inside recorded as the run of `session` is.

    So a call that is made again when that run goes on finds what it had made. Nothing changes
    where that run is not recorded.
    """
    writer = running_writer(session)
    if writer is None:
        return contextlib.nullcontext()
    # A file of its own holds no other session: theirs are where all others are.
    return recording_scope(default_store() if writer.is_alone else writer.store)


class Recorder:
    """Writes one run to its log, in order, on worker threads.

    The run waits where durability demands it: before a tool call that is not idempotent, and at
    its end. A write that fails fails the run at the next of these calls, and the log gets no
    trailer. The methods are called on the runtime thread.

    Args:
        plan: Where the run is written.
        who: The session.
        cell: Its content.
    """

    def __init__(self, plan: RecordingPlan, who: Identity, cell: Deferred[Body]) -> None:
        self._plan = plan
        self._who = who
        self._cell = cell
        self._durability = plan.durability
        self._writer: LogWriter | None = None
        self._has_ended = False
        self.log: InnerLog | None = None
        """The log, for the run around this one; None as long as nothing is written."""

    @property
    def is_open(self) -> bool:
        """Whether events are written: from the opening of the log to its end."""
        return self._writer is not None and not self._has_ended

    async def open(
        self, start: Body, commit: Callable[[], object], *, goes_on: bool = False
    ) -> None:
        """Open the log and write what the session begins with; see `RunLog.open`.

        Args:
            start: The content with which it begins; for a run that goes on, with its open calls.
            commit: Hands over what the run has noted.
            goes_on: Whether the run had begun before, and what it had made is in the log.
        """
        plan = self._plan
        above = runs_above.get() - {self._who.session}
        earlier = running_writer(self._who.session)
        if earlier is not None:
            # A run that was cancelled may still be about to write its last line.
            with contextlib.suppress(PersistenceError):
                await await_future(earlier.settled())
        for session in above:
            # What runs inside it builds on what it has made by now.
            running = running_writer(session)
            if running is not None:
                await await_future(running.settled())
        ancestors = AncestorWriter(plan.store, open_logs=plan.open_logs, running=above)
        if not plan.is_alone:
            parents = self._who.provenance.parents
            await await_future(plan.open_logs.lane.put(partial(ancestors.keep_ancestors, parents)))
        writer, done = await (self._again if goes_on else self._new)(ancestors, start)
        # Before it is open: from now on whatever ends the run lets go of it.
        self._writer = writer
        self.log = InnerLog(partial(self._hand_over, writer, commit))
        plan.open_logs.put(self._cell, writer)
        begin_writing(writer)
        await await_future(done)

    def write(self, *events: Event, durable: bool = False) -> Future[None] | None:
        """Write events as one group.

        Args:
            events: What was added.
            durable: Have it survive a loss of power, unless that is not wanted at all.
        """
        if self._writer is None or self._has_ended:
            return None
        is_durable = self._durability == "row" or (durable and self._durability == "turn")
        written = self._writer.write(*events, durable=is_durable)
        self._report()
        return written

    def queue(self, *events: Event) -> None:
        """Hand over a group that is written with what comes next."""
        if self._durability == "row":
            self.write(*events)
        elif self._writer is not None:
            self._writer.queue(*events)

    async def write_intents(self, *events: Event) -> None:
        """Write intents, and wait where their calls must not be made before that."""
        written = self.write(*events, durable=True)
        intents = (event for event in events if isinstance(event, Intent))
        is_unsafe = any(intent.effects == "non_idempotent" for intent in intents)
        must_wait = self._durability == "row" or (self._durability == "turn" and is_unsafe)
        if written is not None and must_wait:
            await await_future(written)

    def write_after(self, other: Future[None]) -> None:
        """Write what comes from now on once a write to another log has ended."""
        if self._writer is not None:
            self._writer.write_after(other)

    async def hold_up(self) -> None:
        """Wait where every row is to survive, or too much waits for a slow disk.

        Raises:
            PersistenceError: A write failed.
        """
        writer = self._writer
        if writer is None:
            return
        if writer.error is not None:
            raise writer.error
        if self._durability == "row" or writer.n_waiting > MAX_WAITING:
            await await_future(writer.settled())

    async def finish(self, lines: Sequence[Event], body: Body) -> None:
        """Write the last lines of a run that has ended, and its trailer."""
        writer = self._writer
        assert writer is not None, "asked only of an open log"
        done = writer.finish(lambda: [*lines, trailer_of(body)])
        self._has_ended = True
        done.add_done_callback(lambda _: end_writing(writer))
        self._report()
        try:
            await await_future(done)
        except asyncio.CancelledError:
            # The trailer is on its way; what reads the log shall know what this process knows.
            writer.change_outcome(OutcomeChange(Cancelled(self._who.session)))
            raise

    async def leave_unfinished(self, error: BaseException) -> None:
        """Write why a run ended without an outcome."""
        writer = self._writer
        assert writer is not None, "asked only of an open log"
        is_cancelled = isinstance(error, asyncio.CancelledError)
        problem = f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARS]
        line = Failed("cancelled" if is_cancelled else "failed", problem, datetime.now(UTC))
        done = writer.leave_unfinished(line)
        self._has_ended = True
        done.add_done_callback(lambda _: end_writing(writer))
        self._report()
        if not is_cancelled:
            # A cancelled run must not be held up by a disk.
            with contextlib.suppress(PersistenceError):
                await await_future(done)

    async def _new(self, ancestors: AncestorWriter, start: Body) -> tuple[LogWriter, Future[None]]:
        """Return the writer of a new log, and the job that opens it."""
        plan, who = self._plan, self._who
        writer = LogWriter(plan.store, who.session, is_alone=plan.is_alone)

        def first() -> LogStart:
            parents = () if plan.is_alone else ancestors.stored(who.provenance.parents)
            start_lines = beginning(who, start, parents=parents)
            return replace(start_lines, lines=[*start_lines.lines, *open_lines(start.unfinished)])

        return writer, writer.open(plan.begin, first)

    async def _again(
        self, ancestors: AncestorWriter, start: Body
    ) -> tuple[LogWriter, Future[None]]:
        """Go on with the log of a run, or write what it had made where it has none."""
        plan, session = self._plan, self._who.session
        written = await await_future(
            plan.open_logs.lane.put(partial(find_complete_log, plan.store, session))
        )
        if written is None:
            return await self._new(ancestors, start)
        if not (is_beginning(written, start) and knows_open_calls(written, start)):
            raise SessionChanged(
                session,
                f"the run of session {session} goes on from what its log in {plan.store.where} "
                "does not hold any more: somebody else has gone on with it, or added to it; load "
                "the session again",
            )
        writer = LogWriter(plan.store, session, written=written, is_alone=plan.is_alone)
        size = written.reader.n_good

        def first() -> LogStart:
            reopened = Reopened(datetime.now(UTC))
            open_rest = open_lines(start.unfinished, known=written.unfinished)
            return LogStart(
                [reopened, *lines_since(written, start), *open_rest], 0, self._who.place
            )

        return writer, writer.open(
            lambda store, _: store.reopen(session, size, size=size + written.n_torn), first
        )

    def _hand_over(self, writer: LogWriter, commit: Callable[[], object]) -> Future[None]:
        commit()
        return writer.settled()

    def _report(self) -> None:
        """Let the run around this one write what it has of it: it is in the queue of this log."""
        if self.log is not None and self.log.on_write is not None:
            write, self.log.on_write = self.log.on_write, None
            write()
