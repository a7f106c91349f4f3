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
from rath._core.vector import Vector
from rath.config.env import env_value
from rath.config.paths import config_layer_paths
from rath.errors import ConfigError, PersistenceError
from rath.llm.chat_response import RathLLMStreamDelta
from rath.session.autosave import is_autosaving
from rath.session.body import Body
from rath.session.chunk import ChunkRow, ChunkTable, RowId
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
from rath.session.log.ancestors import (
    AncestorWriter,
    is_beginning,
    lines_since,
    open_lines,
    trailer_of,
)
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
from rath.session.outcome import Cancelled, Outcome
from rath.session.record import Entry, InnerLog, ModelCall, parent_sink
from rath.session.scope import current_replay, current_source
from rath.session.state import GrowingVector, State

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


class RunLog:
    """The log of one run: its state, and its lines where the run is recorded.

    An event is applied to the state at once. `commit` hands over what was added since, as one
    group that is written whole or not at all. All that blocks is done on worker threads, in order.
    The run waits where durability demands it: before a tool call that is not idempotent, and at its
    end. A write that fails fails the run at the next of these calls, and the log gets no trailer.
    The methods are called on the runtime thread.

    Args:
        plan: Where the run is recorded; None for nowhere.
        who: The session.
        cell: Gets the content after each event.
        on_call: Gets the model calls, also those of runs inside this one.
    """

    def __init__(
        self,
        plan: RecordingPlan | None,
        who: Identity,
        cell: Deferred[Body],
        on_call: Callable[[ModelCall], object] = lambda _: None,
    ) -> None:
        self._plan = plan
        self._who = who
        self._cell = cell
        self._on_call = on_call
        self._durability = "none" if plan is None else plan.durability
        self._writer: LogWriter | None = None
        # While runs inside report to this one the context names this one; above it is found here.
        self._tell_above = parent_sink()
        self._pending: list[Event] = []
        self._inner: set[InnerLog] = set()
        """Logs that have to have their entries before the next lines of this one are written."""

        self._known = frozenset[UUID]()
        self._has_ended = self._is_closed = False
        self._log: InnerLog | None = None
        """Where the run is written, for the run around it; None where it is not written."""

        self.body = Body(ChunkTable())
        """The content as it is now."""

    @property
    def is_recorded(self) -> bool:
        """Whether the run is written at all."""
        return self._writer is not None

    @property
    def state(self) -> State:
        """The fold of all events."""
        return self._state

    def start(
        self, content: Body, *, input_only: bool = False, earlier: Sequence[Entry] = ()
    ) -> None:
        """Begin with the content of the input, or with what the run had made before.

        Args:
            content: Rows, record, and the calls that were left open.
            input_only: Whether the rows are shown until the run has its own, and are none of them.
            earlier: Entries of the run from before, which the run around it may not know.
        """
        self._rows = GrowingVector(Vector[ChunkRow]() if input_only else content.table.vector)
        self._record = GrowingVector(content.record)
        self._input = content.table if input_only else None
        self._outcome, self._given = content.outcome, content.given
        self._state = State(self._who.session, self._rows, self._record)
        self._state.resume(content.unfinished)
        for entry in earlier:
            self._tell_above(entry, None)
        self._known = frozenset(entry.id for entry in earlier)
        self._report_content()

    async def open(self, *, goes_on: bool = False) -> None:
        """Open the log and write what the session begins with.

        Args:
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
        start = replace(self.body, table=ChunkTable(self._rows.vector))
        if goes_on:
            await self._open_again(plan, ancestors, start)
        else:
            await self._open_new(plan, ancestors, start)

    def add(self, *events: Event) -> None:
        """Add events; they are written with the next commit."""
        for event in events:
            self._state.apply(event)
        if self._plan is not None:
            self._pending += events
        self._report_content()

    def append(self, row: ChunkRow) -> None:
        """Add a row of this run."""
        self.add(self.row_event(row))

    def row_event(self, row: ChunkRow) -> Row:
        """Return the event that adds a row next, under its name in this session."""
        index = self._state.n_rows
        return Row(index, row.with_id(RowId(self._who.session, index)))

    def note(self, entry: Entry, inner: InnerLog | None = None) -> None:
        """Add an entry of this run, and tell the run that it happens in.

        Args:
            entry: The entry.
            inner: The log of the run inside this one that it came from.
        """
        self.add(entry)
        if isinstance(entry, ModelCall):
            self._on_call(entry)
        self._tell_above(entry, self._log or inner)

    def take(self, entry: Entry, inner: InnerLog | None) -> None:
        """Add an entry of a run inside this one, as long as this one goes on.

        It is written, but only once the log of the inner run has it. Else a process that is killed
        in between would leave a call that this log has as made, and that the inner run makes again
        when it goes on.
        """
        if self._is_closed or entry.id in self._known:
            return
        self.note(entry, inner)
        if self._writer is None:
            return
        # It was paid for, whatever becomes of the call that it was made in.
        is_paid = isinstance(entry, ModelCall)
        if inner is None:
            if is_paid:
                self.commit()
            return
        self._inner.add(inner)
        if is_paid:
            inner.on_write = self.commit

    def end(self, outcome: Outcome, inner: tuple[Any, ...] = ()) -> None:
        """Set how the run ends.

        Args:
            outcome: What came of it, or what it waits for.
            inner: Sessions inside its calls that wait.
        """
        self._outcome = outcome
        self._state.inner, self._state.has_ended = inner, True
        self._report_content()

    def commit(self, *, durable: bool = False) -> None:
        """Hand over what was added; it stands together or not at all.

        Args:
            durable: Have it survive a loss of power, unless that is not wanted at all.
        """
        is_durable = self._durability == "row" or (durable and self._durability == "turn")
        if self._writer is not None and self._pending and not self._has_ended:
            self._writer.write(*self._taken(self._writer), durable=is_durable)
            self._report_written()

    async def flush(self) -> None:
        """Commit, and wait where every row is to survive a loss of power.

        Raises:
            PersistenceError: This write failed, or one before it.
        """
        self.commit(durable=True)
        await self._hold_up()

    async def write_turn(self) -> None:
        """Hand over a turn of the model: it is written with what it leads to, a moment later.

        Raises:
            PersistenceError: A write before it failed.
        """
        if self._durability == "row":
            self.commit()
        elif self._writer is not None:
            self._writer.queue(*self._taken(self._writer))
        await self._hold_up()

    async def write_intents(self, intents: Sequence[Intent]) -> None:
        """Write that calls are about to be made; returns when it is safe to make them.

        Raises:
            PersistenceError: This write failed, or one before it.
        """
        self.add(*intents)
        writer = self._writer
        if writer is None or not intents:
            return
        is_durable = self._durability != "none"
        written = writer.write(*self._taken(writer), durable=is_durable)
        self._report_written()
        is_unsafe = any(intent.effects == "non_idempotent" for intent in intents)
        if is_durable and (is_unsafe or self._durability == "row"):
            await _wait(written)

    def add_result(self, result: PendingResult) -> None:
        """Write what became of a call while others of its round go on.

        What was noted meanwhile stands with it: a call whose result is known is not made again, so
        what runs inside it have noted, and paid, would be told to nobody.
        """
        # What no model reads is only told to end an intent.
        if result.shown is not None or self._state.is_begun(result.row, result.call):
            self.add(result)
            self.commit()

    def end_round(self, results: Sequence[PendingResult]) -> None:
        """Write that the calls of a row are done: what they came to are rows and entries now.

        Args:
            results: Of all calls of the row that had none before, in order.
        """
        self.commit()
        known = self._state.results
        if len(results) == 1 and not known:
            (result,) = results
            self._end_call(result)
            self.commit(durable=True)
            return
        new = [each for each in results if known.get((each.row, each.call)) != each]
        self.add(*new, RoundEnd(results[0].row, tuple(each.run.id for each in results)))
        for run in self._record.vector.since(len(self._record) - len(results)):
            self._tell_above(run, self._log)
        if self._writer is not None and not self._has_ended:
            is_durable = self._durability != "none"
            self._writer.write(*self._taken(self._writer), durable=is_durable)
            self._report_written()

    def add_partial(self, operation: UUID, text: str) -> None:
        """Write more text of an answer that is being streamed."""
        # The log alone needs it: what is whole becomes a row.
        if self._writer is not None:
            self._writer.write(PartialText(operation, text))
            self._report_written()

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
        if error is None:
            await self._finish(writer)
        else:
            await self._leave(writer, error)

    def close(self) -> None:
        """Take no more entries of runs inside this one."""
        self._is_closed = True

    def _end_call(self, result: PendingResult) -> None:
        """Add the only call of a round as a row and an entry."""
        run = result.run
        if result.shown is not None:
            row = self.row_event(result.shown)
            self.add(row)
            run = structs.replace(run, rows=(row.row.id,))
        self.note(run)

    async def _open_new(self, plan: RecordingPlan, ancestors: AncestorWriter, start: Body) -> None:
        writer = LogWriter(plan.store, self._who.session, is_alone=plan.is_alone)

        def first() -> Beginning:
            parents = () if plan.is_alone else ancestors.stored(self._who.provenance.parents)
            told = beginning(self._who, start, parents=parents)
            return replace(told, lines=[*told.lines, *open_lines(start.unfinished)])

        await self._opened(plan, writer, writer.open(plan.begin, first))

    async def _open_again(
        self, plan: RecordingPlan, ancestors: AncestorWriter, start: Body
    ) -> None:
        """Go on with the log of a run, or write what it had made where it has none."""
        session = self._who.session
        written = await _wait(plan.open_logs.lane.put(partial(find_whole_log, plan.store, session)))
        if written is None:
            await self._open_new(plan, ancestors, start)
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
            left = open_lines(start.unfinished, known=written.unfinished)
            return Beginning([reopened, *lines_since(written, start), *left], 0, self._who.place)

        opening = writer.open(
            lambda store, _: store.reopen(session, size, size=size + written.n_torn), first
        )
        await self._opened(plan, writer, opening)

    async def _opened(self, plan: RecordingPlan, writer: LogWriter, done: Future[None]) -> None:
        # Before it is open: from now on whatever ends the run lets go of it.
        self._writer = writer
        self._log = InnerLog(partial(self._hand_over, writer))
        plan.open_logs.put(self._cell, writer)
        begin_writing(writer)
        await _wait(done)

    async def _hold_up(self) -> None:
        writer = self._writer
        if writer is None:
            return
        if writer.error is not None:
            raise writer.error
        if self._durability == "row" or writer.n_waiting > MAX_WAITING:
            await _wait(writer.settled())

    def _taken(self, writer: LogWriter) -> list[Event]:
        """Take the events that were added, and have them wait for the logs that they came from.

        It waits for jobs that are in the queues of these logs already, and they for those of runs
        still deeper inside, so no wait is for itself.
        """
        inner, self._inner = self._inner, set()
        for log in inner:
            writer.write_after(log.flush())
        # Rows stand before the entries that name them.
        events = sorted(self._pending, key=lambda event: not isinstance(event, Row))
        self._pending = []
        return events

    def _hand_over(self, writer: LogWriter) -> Future[None]:
        self.commit()
        return writer.settled()

    def _report_written(self) -> None:
        """Let the run around this one write what it has of it: it is in the queue of this log."""
        if self._log is not None and self._log.on_write is not None:
            write, self._log.on_write = self._log.on_write, None
            write()

    def _report_content(self) -> None:
        left = self._state.unfinished if self._state.is_open else None
        table = self._input if self._input is not None and not len(self._rows) else None
        table = ChunkTable(self._rows.vector) if table is None else table
        self.body = Body(table, self._record.vector, self._outcome, self._given, left)
        self._cell.report(self.body)

    async def _finish(self, writer: LogWriter) -> None:
        lines, body = self._taken(writer), self.body
        done = writer.finish(lambda: [*lines, trailer_of(body)])
        self._has_ended = True
        done.add_done_callback(lambda _: end_writing(writer))
        self._report_written()
        try:
            await _wait(done)
        except asyncio.CancelledError:
            # The trailer is on its way; what reads the log shall know what this process knows.
            writer.change_outcome(OutcomeChange(Cancelled(self._who.session)))
            raise

    async def _leave(self, writer: LogWriter, error: BaseException) -> None:
        is_cancelled = isinstance(error, asyncio.CancelledError)
        self.commit()
        said = f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARS]
        line = Failed("cancelled" if is_cancelled else "failed", said, datetime.now(UTC))
        done = writer.leave(line)
        self._has_ended = True
        done.add_done_callback(lambda _: end_writing(writer))
        self._report_written()
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
    log: RunLog,
    operation: UUID,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> Sink | None:
    """Return `sink`, with what passes through it written; as it is where nothing is recorded."""
    if sink is None or not log.is_recorded:
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
                log.add_partial(operation, "".join(waiting))
                waiting.clear()
                n_chars, last = 0, now
        return sink(delta)

    return put
