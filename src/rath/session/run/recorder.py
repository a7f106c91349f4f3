"""A run written to its log: durability, plan, rows, results and streamed text."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, cast, get_args
from uuid import UUID

from msgspec import structs

from rath import config
from rath._async.lazy import Deferred, runs_above
from rath.config.env import env_value
from rath.config.paths import config_layer_paths
from rath.errors import ConfigError, PersistenceError
from rath.llm.chat_response import RathLLMStreamDelta
from rath.session.autosave import is_autosaving
from rath.session.body import Body
from rath.session.chunk import ChunkTable
from rath.session.events import (
    Event,
    Failed,
    Intent,
    OutcomeChange,
    PartialText,
    PendingResult,
    Reopened,
    RoundEnd,
    Row,
)
from rath.session.log.ancestors import AncestorWriter, is_beginning, lines_since, trailer_of
from rath.session.log.files import FileStore
from rath.session.log.header import Beginning, Identity, beginning
from rath.session.log.open_logs import (
    OpenLogs,
    begin_writing,
    end_writing,
    open_logs_of,
    open_session_files,
    recording_store,
    running_writer,
    writer_of,
    writers_of,
)
from rath.session.log.store import SessionLog, SessionStore, StoredLog, default_store
from rath.session.log.writer import LogWriter, find_whole_log, knows_open_calls
from rath.session.outcome import Cancelled
from rath.session.programs import current_source
from rath.session.record import InnerLog, ToolRun
from rath.session.replay_context import current_replay

Durability = Literal["turn", "row", "none"]
"""What survives a loss of power; whatever the choice, a process that is killed loses nothing that
was written.

`turn`: what stands before a tool call that is not idempotent, and all that came before a turn.
`row`: every row and entry, as soon as it is there. `none`: what the system has written by then.
"""

_ENV = "OPENRATH_DURABILITY"


def default_durability() -> Durability:
    """Return what the environment says, else the first config that says something, else `turn`.

    Raises:
        ConfigError: That is no durability.
    """
    said, origin = env_value(_ENV), f"env {_ENV}"
    if said is None and any(path.exists() for path in config_layer_paths()):
        for layer in config.config_layers():
            said, origin = layer.config.sessions.durability, str(layer.path)
            if said is not None:
                break
    if said is None:
        return "turn"
    if said not in get_args(Durability):
        known = ", ".join(map(repr, get_args(Durability)))
        raise ConfigError(f"unknown durability {said!r} in {origin}; expected one of {known}")
    return cast("Durability", said)  # one of its words


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
        """What is known of the store."""
        return open_session_files() if self.is_alone else open_logs_of(self.store)

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
        is_outdated = self.open_logs.is_outdated(session)
        self.open_logs.renew(session)
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
    if current_replay() is not None:
        return None  # a replay writes nothing
    begun = None if goes_on_from is None else _writer_of_beginning(session, goes_on_from)
    program, beside = current_source(), recording_store()
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


T = TypeVar("T")

MAX_WAITING = 256
"""Groups of lines that may wait for a slow disk before the run waits too; a guess."""

MAX_ERROR_CHARS = 4000
"""Longest text of an error that a log repeats; a guess."""


class Recorder:
    """Writes a run; does nothing without a plan.

    Everything that blocks is done on worker threads, in order. The run waits where durability
    demands it: before a tool call that is not idempotent, and at its end. A write that fails fails
    the run at the next of these calls, and the log gets no trailer. Its methods are called on the
    runtime thread.

    Args:
        plan: Where it is written.
        who: The session.
        cell: Its content.
        latest: Gives the content as it is now.
    """

    def __init__(
        self,
        plan: RecordingPlan | None,
        who: Identity,
        cell: Deferred[Body],
        latest: Callable[[], Body],
    ) -> None:
        self._plan = plan
        self._who = who
        self._cell = cell
        self._latest = latest
        self._durability = "none" if plan is None else plan.durability
        self._writer: LogWriter | None = None
        self._n_rows = self._n_entries = 0
        self._written_results: dict[UUID, ToolRun] = {}
        self._inner: set[InnerLog] = set()
        """Logs that have to have their entries before the next lines of this one are written."""

        self._has_ended = False
        self.log: InnerLog | None = None
        """Where the run is written, for the run around it; None where it is not written."""

    @property
    def is_on(self) -> bool:
        """Whether the run is written at all."""
        return self._writer is not None

    async def begin(
        self, start: Body, *, begins_with_rows: bool = True, goes_on: bool = False
    ) -> None:
        """Open the log and write what the session begins with.

        Args:
            start: The content with which it begins; for a run that goes on, with its open calls.
            begins_with_rows: Whether the rows of `start` are its first ones, not its input alone.
            goes_on: Whether the run had begun before, and what it had made is in the log.

        Raises:
            PersistenceError: Somebody else writes the log, or it cannot be written, or one of the
                sessions that this one came from cannot.
        """
        plan = self._plan
        if plan is None:
            return
        above = runs_above.get() - {self._who.session}
        for session in above:
            # What runs inside it builds on what it has made by now.
            running = running_writer(session)
            if running is not None:
                await _wait(running.settled())
        ancestors = AncestorWriter(plan.store, open_logs=plan.open_logs, running=above)
        if not plan.is_alone:
            parents = self._who.provenance.parents
            await _wait(plan.open_logs.lane.put(partial(ancestors.keep_ancestors, parents)))
        self._n_rows = len(start.table) if begins_with_rows else 0
        self._n_entries = len(start.record)
        if not begins_with_rows:
            start = replace(start, table=ChunkTable())
        if goes_on:
            await self._open_again(plan, ancestors, start)
        else:
            await self._open(plan, ancestors, start)

    def write(self, body: Body, *, durable: bool = False) -> None:
        """Hand over what came since; what it concerns stands together or not at all.

        Args:
            body: The content as it is now.
            durable: Have it survive a loss of power, unless that is not wanted at all.
        """
        if self._write(body, durable=durable):
            self._report()

    def follow(self, inner: InnerLog | None, *, is_paid: bool = False) -> None:
        """Have what a run inside has noted written, but only once its own log has it.

        Else a process that is killed in between would leave a call that the caller's log has as
        made, and that the inner run makes again when it goes on.

        Args:
            inner: The log of that run; None where there is nothing to wait for.
            is_paid: Whether it is written soon, and not with what the caller writes next.
        """
        if self._writer is None:
            return
        if inner is None:
            if is_paid:
                self.write(self._latest())
            return
        self._inner.add(inner)
        if is_paid:
            inner.on_write = lambda: self.write(self._latest())

    async def flush(self, body: Body) -> None:
        """Hand over what came since, and wait where every row is to survive a loss of power.

        Raises:
            PersistenceError: This write failed, or one before it.
        """
        writer = self._writer
        if writer is None:
            return
        self.write(body, durable=True)
        await self._hold_up(writer)

    async def write_turn(self, body: Body) -> None:
        """Hand over a turn of the model: it is written with what it leads to, a moment later.

        Raises:
            PersistenceError: A write before it failed.
        """
        writer = self._writer
        if writer is None:
            return
        if self._durability == "row":
            self.write(body)
        else:
            self._wait_for_inner(writer)
            writer.queue(*self._new_lines(body))
        await self._hold_up(writer)

    async def _hold_up(self, writer: LogWriter) -> None:
        if writer.error is not None:
            raise writer.error
        if self._durability == "row" or writer.n_waiting > MAX_WAITING:
            await _wait(writer.settled())

    async def write_intents(self, intents: Sequence[Intent]) -> None:
        """Write that calls are about to be made; returns when it is safe to make them.

        Raises:
            PersistenceError: This write failed, or one before it.
        """
        writer = self._writer
        if writer is None or not intents:
            return
        is_durable = self._durability != "none"
        written = writer.write(*intents, durable=is_durable)
        self._report()
        is_unsafe = any(intent.effects == "non_idempotent" for intent in intents)
        if is_durable and (is_unsafe or self._durability == "row"):
            await _wait(written)

    def write_result(self, line: PendingResult) -> None:
        """Write what became of a call while others of its round go on.

        What was noted meanwhile stands with it: a call whose result is known is not made again, so
        what runs inside it have noted, and paid, would be told to nobody.
        """
        assert self._writer is not None, "asked only where the run is written"
        self._written_results[line.run.id] = line.run
        self._wait_for_inner(self._writer)
        noted = self._new_lines(self._latest())
        self._writer.write(*noted, line, durable=self._durability == "row")
        self._report()

    def end_round(self, row: int, before: Body, after: Body, calls: Sequence[int]) -> None:
        """Write that the calls of a row are done: what they came to are rows and entries now.

        Args:
            row: Index of the row in which the model asked.
            before: The content before they were.
            after: The content with them, and nothing else that is new.
            calls: Which of the calls of that row they are, in order.
        """
        if self._writer is None:
            return
        self._write(before)
        told, self._written_results = self._written_results, {}
        if len(calls) > 1 or told:
            runs = after.record.since(len(before.record))
            shown = {
                new.id: new for new in after.table.since(len(before.table)) if new.id is not None
            }
            lines: list[Event] = []
            for call, run in zip(calls, runs, strict=True):
                assert isinstance(run, ToolRun)
                known = told.get(run.id)
                if known is None or structs.replace(known, rows=run.rows) != run:
                    row_of_it = shown[run.rows[0]] if run.rows else None
                    lines.append(PendingResult(row=row, call=call, run=run, shown=row_of_it))
            lines.append(RoundEnd(row, tuple(run.id for run in runs)))
            self._n_rows, self._n_entries = len(after.table), len(after.record)
            self._writer.write(*lines, durable=self._durability != "none")
        else:
            self._write(after, durable=True)
        # Only now: who is told may ask for all that was noted, which is in other lines above.
        self._report()

    def add_partial(self, operation: UUID, text: str) -> None:
        """Write more text of an answer that is being streamed."""
        assert self._writer is not None, "asked only where the run is written"
        self._writer.write(PartialText(operation, text))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        writer = self._writer
        if writer is None:
            return
        body = self._latest()
        if error is None:
            await self._finish(writer, body)
        else:
            await self._leave(writer, body, error)

    async def _open(self, plan: RecordingPlan, ancestors: AncestorWriter, start: Body) -> None:
        writer = LogWriter(plan.store, self._who.session, is_alone=plan.is_alone)

        def first() -> Beginning:
            parents = () if plan.is_alone else ancestors.stored(self._who.provenance.parents)
            return beginning(self._who, start, parents=parents)

        await self._opened(plan, writer, writer.open(plan.begin, first))

    async def _open_again(
        self, plan: RecordingPlan, ancestors: AncestorWriter, start: Body
    ) -> None:
        """Go on with the log of a run, or write what it had made where it has none."""
        session = self._who.session
        written = await _wait(plan.open_logs.lane.put(partial(find_whole_log, plan.store, session)))
        if written is None:
            await self._open(plan, ancestors, start)
            return
        if not (is_beginning(written, start) and knows_open_calls(written, start)):
            raise PersistenceError(
                f"the run of session {session} goes on from what its log in {plan.store.where} "
                "does not hold any more: somebody else has gone on with it, or added to it; load "
                "the session again"
            )
        writer = LogWriter(plan.store, session, written=written, is_alone=plan.is_alone)
        size = written.reader.n_good

        def first() -> Beginning:
            reopened = Reopened(datetime.now(UTC))
            return Beginning([reopened, *lines_since(written, start)], 0, self._who.place)

        opening = writer.open(
            lambda store, _: store.reopen(session, size, size=size + written.n_torn), first
        )
        await self._opened(plan, writer, opening)

    async def _opened(self, plan: RecordingPlan, writer: LogWriter, done: Future[None]) -> None:
        # Before it is open: from now on whatever ends the run lets go of it.
        self._writer = writer
        self.log = InnerLog(partial(self._hand_over, writer))
        plan.open_logs.put(self._cell, writer)
        begin_writing(writer)
        await _wait(done)

    def _write(self, body: Body, *, durable: bool = False) -> bool:
        """Hand over what came since; tell whether there was any."""
        writer = self._writer
        if writer is None or self._has_ended:
            return False
        self._wait_for_inner(writer)
        lines = self._new_lines(body)
        if lines:
            is_durable = self._durability == "row" or (durable and self._durability == "turn")
            writer.write(*lines, durable=is_durable)
        return bool(lines)

    def _wait_for_inner(self, writer: LogWriter) -> None:
        """Have the next lines wait for the logs of the runs inside that they hold entries of.

        It waits for jobs that are in the queues of these logs already, and they for those of runs
        still deeper inside, so no wait is for itself.
        """
        inner, self._inner = self._inner, set()
        for log in inner:
            writer.write_after(log.flush())

    def _hand_over(self, writer: LogWriter) -> Future[None]:
        self._write(self._latest())
        return writer.settled()

    def _report(self) -> None:
        """Let the run around this one write what it has of it: it is in the queue of this log."""
        if self.log is not None and self.log.on_write is not None:
            write, self.log.on_write = self.log.on_write, None
            write()

    def _new_lines(self, body: Body) -> list[Event]:
        first = self._n_rows
        rows = body.table.since(first)
        entries = body.record.since(self._n_entries)
        self._n_rows, self._n_entries = first + len(rows), self._n_entries + len(entries)
        lines: list[Event] = [Row(at, row) for at, row in enumerate(rows, start=first)]
        lines += entries
        return lines

    async def _finish(self, writer: LogWriter, body: Body) -> None:
        self._wait_for_inner(writer)
        lines = self._new_lines(body)
        done = writer.finish(lambda: [*lines, trailer_of(body)])
        self._has_ended = True
        done.add_done_callback(lambda _: end_writing(writer))
        self._report()
        try:
            await _wait(done)
        except asyncio.CancelledError:
            # The trailer is on its way; what reads the log shall know what this process knows.
            writer.change_outcome(OutcomeChange(Cancelled(self._who.session)))
            raise

    async def _leave(self, writer: LogWriter, body: Body, error: BaseException) -> None:
        is_cancelled = isinstance(error, asyncio.CancelledError)
        self._write(body)
        said = f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARS]
        line = Failed("cancelled" if is_cancelled else "failed", said, datetime.now(UTC))
        done = writer.leave(line)
        self._has_ended = True
        done.add_done_callback(lambda _: end_writing(writer))
        self._report()
        if not is_cancelled:
            # A cancelled run must not be held up by a disk.
            with contextlib.suppress(PersistenceError):
                await _wait(done)


async def _wait(done: Future[T]) -> T:
    """Wait for a job on a worker, which goes on when the wait is cancelled."""
    return await asyncio.wrap_future(done)


WRITE_SECONDS = 0.5
WRITE_CHARS = 4096
"""So much text, or so much time, goes by between two lines; guesses: at most half a second of an
answer is lost, and the lines take no more room than its row."""

Sink = Callable[[RathLLMStreamDelta], Awaitable[None] | None]


def watched(
    sink: Sink | None,
    recorder: Recorder,
    operation: UUID,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> Sink | None:
    """Return `sink`, with what passes through it written; as it is where nothing is recorded."""
    if sink is None or not recorder.is_on:
        return sink
    waiting: list[str] = []
    n_chars, last = 0, clock()

    def put(delta: RathLLMStreamDelta) -> Awaitable[None] | None:
        nonlocal n_chars, last
        text = delta.content_delta
        if text:
            waiting.append(text)
            n_chars += len(text)
            now = clock()
            if n_chars >= WRITE_CHARS or now - last >= WRITE_SECONDS:
                recorder.add_partial(operation, "".join(waiting))
                waiting.clear()
                n_chars, last = 0, now
        return sink(delta)

    return put
