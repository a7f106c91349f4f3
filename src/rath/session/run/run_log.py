"""The log of a run: its state, its events, and what it tells the runs around it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self
from uuid import UUID

from msgspec import structs

from rath._async.deferred import Deferred
from rath._core.dataclasses import dataclass
from rath._core.vector import GrowingVector, Vector
from rath.llm.chat_response import RathLLMStreamDelta
from rath.llm.provider import Provider
from rath.session.bindings import Placement
from rath.session.body import Body, State, cancelled_body
from rath.session.chunk import ChunkRow, ChunkTable, RowId
from rath.session.events import Event, Intent, PartialText, PendingResult, RoundEnd, Row
from rath.session.graph.legacy import SessionLineage
from rath.session.graph.recording import Provenance
from rath.session.operation import Place
from rath.session.outcome import Outcome
from rath.session.record import Entry, InnerLog, ModelCall, parent_sink
from rath.session.scope import RecordedServing
from rath.session.session import Session

if TYPE_CHECKING:
    from rath.session.run.recorder import Recorder, RecordingPlan

Durability = Literal["turn", "row", "none"]
"""Guarantee against a loss of power. Whatever the choice, a killed process loses nothing that
was written, and a run whose end can be read is on disk.

`turn`: all up to a tool call that is not idempotent, before it is made; other turns and the results
of a round soon, beside what comes next. `row`: every row and entry, before anything comes next.
`none`: what the system has written by then.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """The session that a run makes, where it comes from, and where it is written."""

    session: UUID
    cells: tuple[Deferred[Body], Deferred[Body]]
    """Content of the user's and of the agent's session."""

    placement: Placement
    provenance: Provenance
    session_provider: Provider | None
    lineage: SessionLineage
    place: Place
    started_at: str
    """File, line and function of the call that submitted the run."""

    recording: RecordingPlan | None
    served: RecordedServing | None = None
    """The recorded run that answers in a replay."""

    def recorder(self, cell: Deferred[Body]) -> Recorder | None:
        """Return the recorder of the run; None where it is not recorded."""
        return None if self.recording is None else self.recording.recorder(self, cell)

    def made(self, cell: Deferred[Body], placement: Placement) -> Session:
        """Return the session with what the run makes, or has made so far."""
        return Session.from_body(
            cell,
            self.provenance,
            id=self.session,
            placement=placement,
            provider=self.session_provider,
            lineage=self.lineage,
        )

    def cut_off(self, latest: Body | None) -> Body:
        """Return the content of the session when its run is cancelled with `latest`."""
        if latest is None:
            return cancelled_body(self.session, self.cells)
        if self.served is not None:
            return self.served.cut_off(latest, self.session)
        return latest.cancelled(self.session)


_NO_LOGS: frozenset[InnerLog] = frozenset()
_NO_IDS: frozenset[UUID] = frozenset()


class RunLog:
    """The log of one run: its state, and its lines where the run is recorded.

    An event is applied to the state at once. `commit` hands over what was added since, as one
    group that is written whole or not at all. A write that fails fails the run at the next call
    that waits. The methods are called on the runtime thread.

    Args:
        session: The session that the run makes.
        cell: Gets the content after each event.
        recorder: Writes the run; None where it is not recorded.
        on_call: Gets the model calls, also those of runs inside this one.
    """

    def __init__(
        self,
        session: UUID,
        cell: Deferred[Body],
        recorder: Recorder | None,
        on_call: Callable[[ModelCall], object] = lambda _: None,
    ) -> None:
        self._session = session
        self._cell = cell
        self._recorder = recorder
        self._on_call = on_call
        # While runs inside report to this one the context names this one; above it is found here.
        self._tell_above = parent_sink()
        self._pending: list[Event] = []
        self._inner: frozenset[InnerLog] = _NO_LOGS
        """Logs that have to have their entries before the next lines of this one are written."""

        self._earlier_ids = _NO_IDS
        self._is_closed = False
        self.body: Body = Body(ChunkTable())
        """The content as it is now."""

    @property
    def is_recorded(self) -> bool:
        """Whether the run is written at all."""
        return self._recorder is not None and self._recorder.is_open

    @property
    def is_watched(self) -> bool:
        """Whether somebody reads along."""
        return self._cell.is_watched

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
        self._cache = content.table.cache
        self._outcome, self._prior_usage = content.outcome, content.given
        self._state = State(self._session, self._rows, self._record)
        self._state.resume(content.unfinished)
        for entry in earlier:
            self._tell_above(entry, None)
        if earlier:
            self._earlier_ids = frozenset(entry.id for entry in earlier)
        self._report_content()

    async def open(self, *, goes_on: bool = False) -> None:
        """Open the log and write what the session begins with.

        Args:
            goes_on: Whether the run had begun before, and what it had made is in the log.

        Raises:
            PersistenceError: Somebody else writes the log, or it cannot be written, or one of the
                sessions that this one came from cannot.
        """
        if self._recorder is not None:
            start = replace(self.body, table=ChunkTable(self._rows.vector))
            await self._recorder.open(start, self.commit, goes_on=goes_on)

    def add(self, *events: Event) -> None:
        """Add events; they are written with the next commit."""
        for event in events:
            self._state.apply(event)
        if self._recorder is not None:
            self._pending += events
        self._report_content()

    def append(self, row: ChunkRow) -> None:
        """Add a row of this run."""
        self.add(self.row_event(row))

    def row_event(self, row: ChunkRow) -> Row:
        """Return the event that adds a row next, under its name in this session."""
        index = self._state.n_rows
        return Row(index, row.with_id(RowId(self._session, index)))

    def note(self, entry: Entry, inner: InnerLog | None = None) -> None:
        """Add an entry of this run, and tell the run that it happens in.

        Args:
            entry: The entry.
            inner: The log of the run inside this one that it came from.
        """
        self.add(entry)
        if isinstance(entry, ModelCall):
            self._on_call(entry)
        self._tell(entry, inner)

    def take(self, entry: Entry, inner: InnerLog | None) -> None:
        """Add an entry of a run inside this one, as long as this one goes on.

        It is written, but only once the log of the inner run has it. Else a process that is killed
        in between would leave a call that this log has as made, and that the inner run makes again
        when it goes on.
        """
        if self._is_closed or entry.id in self._earlier_ids:
            return
        self.note(entry, inner)
        # A call of a model was paid for, whatever becomes of the call that it was made in.
        is_paid = isinstance(entry, ModelCall)
        if not self.is_recorded:
            return
        if inner is not None:
            self._inner |= {inner}
            if is_paid:
                inner.on_write = self.commit
        elif is_paid:
            self.commit()

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
            durable: Have it survive a loss of power, where the run is written like that.
        """
        recorder = self._recorder
        if recorder is not None and recorder.is_open and self._pending:
            recorder.write(*self._take_lines(), durable=durable)

    async def flush(self) -> None:
        """Commit, and wait where every row is to survive a loss of power.

        Raises:
            PersistenceError: This write failed, or one before it.
        """
        self.commit(durable=True)
        if self._recorder is not None:
            await self._recorder.hold_up()

    async def write_turn(self) -> None:
        """Hand over a turn of the model: it is written with what it leads to, a moment later.

        Raises:
            PersistenceError: A write before it failed.
        """
        if self._recorder is not None:
            self._recorder.queue(*self._take_lines())
            await self._recorder.hold_up()

    async def write_intents(self, intents: Sequence[Intent]) -> None:
        """Write that calls are about to be made; returns when it is safe to make them.

        Raises:
            PersistenceError: This write failed, or one before it.
        """
        self.add(*intents)
        if self._recorder is not None and intents:
            await self._recorder.write_intents(*self._take_lines())

    def add_result(self, result: PendingResult) -> None:
        """Write what became of a call while others of its round go on.

        What was noted meanwhile stands with it: a call whose result is known is not made again, so
        what runs inside it have noted, and paid, would be told to nobody.
        """
        # A result that no model reads only ends an intent.
        if result.shown is not None or self._state.has_intent(result.row, result.call):
            self.add(result)
            self.commit()

    def end_round(self, results: Sequence[PendingResult]) -> None:
        """Write that the calls of a row are done: what they came to are rows and entries now.

        Args:
            results: Of all calls of the row that had none before, in order.
        """
        self.commit()
        earlier = self._state.results
        if len(results) == 1 and not earlier:
            (result,) = results
            self._end_call(result)
        else:
            new = [each for each in results if earlier.get((each.row, each.call)) != each]
            self.add(*new, RoundEnd(results[0].row, tuple(each.run.id for each in results)))
            for run in self._record.vector.since(len(self._record) - len(results)):
                self._tell(run)
        self.commit(durable=True)

    def show_partial(self, operation: UUID, text: str) -> None:
        """Show more text of an answer that is being streamed to those who read along."""
        self._state.apply(PartialText(operation, text))
        if self.is_watched:
            self._report_content()

    def write_partial(self, operation: UUID, text: str) -> None:
        """Write more text of an answer that is being streamed; what is whole becomes a row."""
        if self._recorder is not None:
            self._recorder.write(PartialText(operation, text))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # What the trailer counts is all that there is: an abandoned call may still go on.
        self._is_closed = True
        if not self.is_recorded or self._recorder is None:
            return
        if error is None:
            await self._recorder.finish(self._take_lines(), self.body)
        else:
            self.commit()
            await self._recorder.leave_unfinished(error)

    def _end_call(self, result: PendingResult) -> None:
        """Add the only call of a round as a row and an entry."""
        run = result.run
        if result.shown is None:
            self.add(run)
        else:
            row = self.row_event(result.shown)
            run = structs.replace(run, rows=(row.row.id,))
            self.add(row, run)
        self._tell(run)

    def _tell(self, entry: Entry, inner: InnerLog | None = None) -> None:
        """Tell the run around this one of an entry, and of the log that has it first."""
        own = None if self._recorder is None else self._recorder.log
        self._tell_above(entry, own or inner)

    def _take_lines(self) -> list[Event]:
        """Take the events that were added, and have them wait for the logs that they came from.

        It waits for jobs that are in the queues of these logs already, and they for those of runs
        still deeper inside, so no wait is for itself.
        """
        inner, self._inner = self._inner, _NO_LOGS
        for log in inner:
            if self._recorder is not None:
                self._recorder.write_after(log.flush())
        # Rows stand before the entries that name them.
        events = sorted(self._pending, key=lambda event: not isinstance(event, Row))
        self._pending = []
        return events

    def _report_content(self) -> None:
        is_shown = self.is_watched and self._state.partial
        unfinished = self._state.unfinished if self._state.is_open or is_shown else None
        table = ChunkTable(self._rows.vector, cache=self._cache)
        if self._input is not None and not len(self._rows):
            table = self._input
        self.body = Body(table, self._record.vector, self._outcome, self._prior_usage, unfinished)
        self._cell.report(self.body)


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
    """Return `sink`, with the text that passes through it shown, and written now and then."""
    if sink is None:
        return None
    waiting: list[str] = []
    n_chars, last = 0, clock()

    def put(delta: RathLLMStreamDelta) -> Awaitable[None] | None:
        nonlocal n_chars, last
        text = delta.content_delta
        if text:
            log.show_partial(operation, text)
        if text and log.is_recorded:
            waiting.append(text)
            n_chars += len(text)
            now = clock()
            if n_chars >= WRITE_CHARS or now - last >= WRITE_SECONDS:
                log.write_partial(operation, "".join(waiting))
                waiting.clear()
                n_chars, last = 0, now
        return sink(delta)

    return put
