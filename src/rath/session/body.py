"""The content of a session: the state that events are applied to, and its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, ClassVar, Protocol, TypeVar, get_args
from uuid import UUID

from msgspec import structs

from rath._async.deferred import Deferred
from rath._core.dataclasses import dataclass
from rath._core.text import short_id
from rath._core.vector import Vector
from rath.errors import PersistenceError
from rath.llm.chat_response import RathLLMTokenUsage, add_usage
from rath.llm.evidence import CallEvidence
from rath.session.chunk import ChunkRow, ChunkTable, RowId
from rath.session.events import (
    AgentRows,
    CallSetup,
    Event,
    Failed,
    Finished,
    GivenUsage,
    Header,
    Intent,
    OutcomeChange,
    PartialText,
    PendingResult,
    PlacementChange,
    Reopened,
    RoundEnd,
    Row,
    ToolSchemas,
)
from rath.session.outcome import (
    Cancelled,
    Completed,
    NeedsDecision,
    Outcome,
    OutputMissing,
    OutputValue,
    Suspended,
)
from rath.session.record import Decision, Entry, ModelCall, Operation, Record, ToolRun, unite


@dataclass(frozen=True, slots=True)
class CostSum:
    """The cost of model calls, each counted once; an unknown one is named and not counted as free.

    A call that an endpoint refused by an error status, or that was never sent, cost nothing and is
    not mentioned.
    """

    usd: Decimal
    """US dollars of the calls whose cost is known."""

    n_priced: int
    """How many these are."""

    unpriced: tuple[tuple[str, int], ...] = ()
    """Model and number of calls that have no known price, by model."""

    uncounted: tuple[tuple[str, int], ...] = ()
    """Model and number of calls of which no endpoint said how many tokens they took, by model:
    they were cut off or cancelled, or it counts none."""

    given_tokens: int = 0
    """Tokens that came with a session and not from a call in its record, from a file of version 1
    for example."""

    @property
    def is_complete(self) -> bool:
        """Whether `usd` is the cost of all."""
        return not (self.unpriced or self.uncounted or self.given_tokens)


def sum_costs(entries: Iterable[Entry], *, given_tokens: int = 0) -> CostSum:
    """Sum the costs of the model calls among `entries`; O(entries)."""
    usd, n_priced = Decimal(0), 0
    unpriced: Counter[str] = Counter()
    uncounted: Counter[str] = Counter()
    for entry in entries:
        if not isinstance(entry, ModelCall):
            continue
        evidence = entry.evidence
        cost = evidence.cost
        if cost is not None:
            usd += cost.usd
            n_priced += 1
        elif evidence.usage is not None:
            unpriced[model_of(evidence)] += 1
        elif evidence.was_sent and not was_refused(evidence):
            uncounted[model_of(evidence)] += 1
    return CostSum(usd, n_priced, _sorted(unpriced), _sorted(uncounted), given_tokens)


def model_of(evidence: CallEvidence) -> str:
    """Return the name by which a model is told."""
    return evidence.served_model or evidence.requested_model or evidence.provider_kind


def was_refused(evidence: CallEvidence) -> bool:
    """Tell whether every try ended with an error status of the endpoint."""
    tries = evidence.attempts
    return bool(tries) and all(one.status is not None for one in tries)


def _sorted(counts: Counter[str]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(counts.items()))


@dataclass(frozen=True, slots=True)
class Body:
    """Rows (what was said), record (what happened) and outcome (how it ended)."""

    table: ChunkTable
    record: Record = Vector()  # immutable, so one empty record serves all
    outcome: Outcome = Completed()  # immutable as well
    given: tuple[GivenUsage, ...] = ()
    unfinished: Unfinished | None = field(default=None, compare=False, repr=False)
    """Open work of a run that was cut off; only its own session has it."""

    def usage(self) -> RathLLMTokenUsage | None:
        """Return the sum over the model calls of the record and what was given; O(entries)."""
        total: RathLLMTokenUsage | None = None
        for given in self.given:
            total = add_usage(total, given.usage)
        for entry in self.record:
            if isinstance(entry, ModelCall):
                total = add_usage(total, entry.evidence.usage)
        return total

    def cost(self) -> CostSum:
        """Sum the costs of the model calls of the record; O(entries), 0.1 ms for each new one."""
        given_tokens = sum(given.usage.total_tokens for given in self.given)
        return sum_costs(self.record, given_tokens=given_tokens)

    def with_entries(self, *entries: Entry) -> Body:
        """Return the content with record entries added."""
        return Body(self.table, self.record.extend(entries), self.outcome, self.given)

    def inheriting(self, other: Body) -> Body:
        """Return the content with the calls and given usage of `other` added, each once.

        It is the beginning of another session, so the open calls of this one are no part of it.
        """
        record, given = self.record, self.given
        if len(other.record) or other.given:
            record, given = unite(record, other.record), _unite_given(given, other.given)
        return Body(self.table, record, self.outcome, given)

    def cancelled(self, session: UUID) -> Body:
        """Return the content as a run of `session` that was cancelled leaves it."""
        unfinished = self.unfinished
        # It is an outcome like others: where it is stored, its log gets a trailer.
        unfinished = None if unfinished is None else replace(unfinished, has_ended=True)
        return replace(self, outcome=Cancelled(session), unfinished=unfinished)

    def merged(self, other: Body) -> Body:
        """Return the rows of the common prefix once, then ours, then theirs.

        The outcome is ours, unless theirs is the only one that must be passed on. Where our run was
        asked for no typed answer, that of their rows is the one of the merged session.
        """
        theirs = other.table.since(self.table.common_prefix(other.table))
        outcome = suspension(self, other) or self.outcome
        if theirs and outcome == Completed() and _output(self) is None:
            outcome = Completed(_output(other))
        return replace(self.inheriting(other), table=self.table.extend(*theirs), outcome=outcome)


def suspension(*bodies: Body) -> Suspended | None:
    """Return the first outcome that what is made of `bodies` passes on without a model call."""
    for body in bodies:
        if isinstance(body.outcome, Suspended):
            return body.outcome
    return None


def _output(body: Body) -> OutputValue | OutputMissing | None:
    """Return the outcome of a typed answer, None where none was asked for."""
    return body.outcome.output if isinstance(body.outcome, Completed) else None


def _unite_given(
    mine: tuple[GivenUsage, ...], theirs: tuple[GivenUsage, ...]
) -> tuple[GivenUsage, ...]:
    own_sessions = {given.session for given in mine}
    return mine + tuple(given for given in theirs if given.session not in own_sessions)


Inheritor = Callable[[Body], Body]
"""Returns the content of a parent with the late entries that came to it."""


def derived(
    cells: tuple[Deferred[Body], ...],
    derive: Callable[..., Body],
    owner: UUID,
    operation: str,
    *,
    after: tuple[Deferred[Any], ...] = (),
) -> Deferred[Body]:
    """Apply `derive` to the inputs: at once when they are there, else when they are.

    Args:
        cells: The inputs.
        derive: Makes the content of them.
        owner: The session that is made.
        operation: What makes it, for messages.
        after: What must be there before, and is no input.
    """
    if all(cell.done() and cell.error() is None for cell in (*after, *cells)):
        return Deferred.of(derive(*(cell.result() for cell in cells)))

    async def wait_and_derive(_: Deferred[Body]) -> Body:
        for cell in after:
            await cell
        return derive(*[await cell for cell in cells])

    return Deferred.start(
        wait_and_derive,
        owner=owner,
        label=f"session {short_id(owner)} ({operation})",
        inputs=(*after, *cells),
        on_cancel=lambda latest: latest or cancelled_body(owner, cells),
    )


def cancelled_body(session: UUID, inputs: tuple[Deferred[Body], ...]) -> Body:
    """Return the content of a run that was cancelled before it began: the rows of its input."""
    from_input = inputs[0].latest if inputs else None
    return replace(from_input or Body(ChunkTable()), unfinished=None).cancelled(session)


def branched(inherited: Inheritor, entry: Operation, body: Body) -> Body:
    """Return the content of a parent, and the operation that branched from it."""
    return inherited(body).with_entries(entry)


def delegated(rows: ChunkTable, inherited: Inheritor, entry: Operation, body: Body) -> Body:
    """Return new rows with the record of a parent; what that one waits for is passed on."""
    outcome = suspension(body) or Completed()
    return replace(inherited(body), table=rows, outcome=outcome).with_entries(entry)


def continued(row: ChunkRow, inherited: Inheritor, entry: Operation, body: Body) -> Body:
    """Return the content of a parent with a row that the user adds.

    What the parent waits for is passed on; any other end of its run is past.
    """
    before = inherited(body)
    table = before.table.born_in(entry.session, [row])
    outcome = suspension(body) or Completed()
    return replace(before, table=table, outcome=outcome).with_entries(entry)


def merged(mine: Inheritor, others: Inheritor, entry: Operation, ours: Body, theirs: Body) -> Body:
    """Return the content of two parents; the entry says what of the record was whose."""
    first, second = mine(ours), others(theirs)
    entry = structs.replace(entry, n_ours=len(first.record), theirs=second.record)
    return first.merged(second).with_entries(entry)


NON_IDEMPOTENT = "non_idempotent"
UNKNOWN_TIME = datetime(1970, 1, 1, tzinfo=UTC)
"""Stands for the times of a log whose first line cannot be believed."""

CallKey = tuple[int, int]
"""Index of the row in which a model asked, and which of its calls."""

T_contra = TypeVar("T_contra", contravariant=True)


class Growing(Protocol[T_contra]):
    """A list, or what grows like one."""

    def append(self, item: T_contra, /) -> None: ...
    def __len__(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """The calls and the text that a run has left open."""

    intents: tuple[Intent, ...] = ()
    """Calls that were about to be made and whose end is not known, in the order of their rows."""

    results: tuple[PendingResult, ...] = ()
    """Results of calls whose round was not done: they are no rows and no entries yet."""

    decided: tuple[str, ...] = ()
    """Ids of calls of `intents` about which a `Decision` has been made since."""

    partial_text: str = ""
    """The beginning of a streamed answer that broke off."""

    failure: Failed | None = None
    """Why the run ended, where its writer could still tell."""

    has_ended: bool = False
    """Whether the run has ended with an outcome, be it that it waits or was cancelled."""

    inner: tuple[Any, ...] = ()
    """Sessions inside its calls that wait, where this process has them."""

    @property
    def unknown_calls(self) -> tuple[str, ...]:
        """Ids of the calls that may have taken effect and must not be repeated undecided."""
        return tuple(
            intent.call_id
            for intent in self.intents
            if intent.effects == NON_IDEMPOTENT and intent.call_id not in self.decided
        )


class State:
    """The rows, the record and the open calls of a session; only `apply` changes it.

    A live run applies its events as it makes them, and a log that is read those of its lines: so
    what is loaded is what was there.

    Args:
        session: The session that the events make.
        rows: Takes the rows; empty, or with those that the session begins with.
        record: Takes the entries; likewise.
        n_before: How many rows the session begins with that are not in `rows`.
    """

    __slots__ = (
        "_decided",
        "_intents",
        "_outcome",
        "_results",
        "failure",
        "has_ended",
        "header",
        "inner",
        "last_at",
        "n_before",
        "n_of_run",
        "partial",
        "place",
        "record",
        "rows",
        "session",
        "trailer",
    )

    def __init__(
        self,
        session: UUID,
        rows: Growing[ChunkRow],
        record: Growing[Entry],
        *,
        n_before: int = 0,
    ) -> None:
        self.session: UUID = session
        self.rows: Growing[ChunkRow] = rows
        self.record: Growing[Entry] = record
        self.n_before: int = n_before
        self.n_of_run: int | None = None
        """How many entries there were when the run ended; what follows came late."""

        self.header: Header | None = None
        self.place: Header | PlacementChange | None = None
        """Where the session works, by the last event that tells it."""

        self.trailer: Finished | None = None
        self.has_ended: bool = False
        """Whether the run has ended, and perhaps waits."""

        self.failure: Failed | None = None
        self.partial: list[str] = []
        """The beginning of an answer that is being streamed."""

        self.last_at: datetime = UNKNOWN_TIME
        """The time of the last event that has one."""

        self.inner: tuple[Any, ...] = ()
        """Sessions inside calls that wait, where this process has them."""

        self._outcome: Outcome | None = None
        self._intents: dict[CallKey, Intent] = {}
        self._results: dict[CallKey, PendingResult] = {}
        self._decided: set[CallKey] = set()

    @property
    def n_rows(self) -> int:
        """Rows of the whole table."""
        return self.n_before + len(self.rows)

    @property
    def outcome(self) -> Outcome:
        """How the run ended, or what it waits for."""
        if self.trailer is not None:
            return self._outcome or self.trailer.outcome
        if self.failure is not None and self.failure.how == "cancelled":
            return Cancelled(self.session)
        return NeedsDecision(self.session, self.unfinished.unknown_calls)

    @property
    def results(self) -> Mapping[CallKey, PendingResult]:
        """Results without a row."""
        return self._results

    @property
    def is_open(self) -> bool:
        """Whether calls wait, or have begun, or have a result and no row."""
        return bool(self._intents or self._results or self.inner)

    def has_intent(self, row: int, call: int) -> bool:
        """Tell whether a call was begun, and has no result.

        Args:
            row: Index of the row in which the model asked for it.
            call: Which of the calls of that row it is.
        """
        return (row, call) in self._intents

    @property
    def unfinished(self) -> Unfinished:
        """The unfinished part of the run."""
        undecided = {
            each.call_id for key, each in self._intents.items() if key not in self._decided
        }
        decided = (self._intents[key].call_id for key in sorted(self._decided))
        return Unfinished(
            intents=tuple(self._intents[key] for key in sorted(self._intents)),
            results=tuple(self._results[key] for key in sorted(self._results)),
            decided=tuple(call_id for call_id in decided if call_id not in undecided),
            partial_text="".join(self.partial),
            failure=self.failure,
            has_ended=self.has_ended,
            inner=self.inner,
        )

    def apply(self, event: Event) -> None:
        """Add an event.

        Raises:
            PersistenceError: It contradicts the events before it.
        """
        self._appliers[type(event)](self, event)

    def resume(self, unfinished: Unfinished | None) -> None:
        """Take over the open calls that a run had left.

        Args:
            unfinished: As `unfinished` gave it; None where nothing is open.
        """
        for intent in () if unfinished is None else unfinished.intents:
            self._intents[intent.row, intent.call] = intent
            if unfinished is not None and intent.call_id in unfinished.decided:
                self._decided.add((intent.row, intent.call))
        for result in () if unfinished is None else unfinished.results:
            self._results[result.row, result.call] = result
        self.inner = () if unfinished is None else unfinished.inner

    def _begin(self, event: Header) -> None:
        if self.header is not None:
            raise PersistenceError("duplicate header")
        self.header = self.place = event
        self.last_at = event.created_at

    def _add_row(self, event: Row) -> None:
        if event.index != self.n_rows:
            raise PersistenceError(f"row {event.index} stands where row {self.n_rows} is expected")
        self.rows.append(event.row)
        self.partial.clear()
        self.inner = ()

    def _add_entry(self, entry: Entry) -> None:
        self.record.append(entry)
        self.last_at = entry.at

    def _add_model_call(self, entry: ModelCall) -> None:
        self._add_entry(entry)
        self.partial.clear()

    def _add_tool_run(self, run: ToolRun) -> None:
        """Add a call, which is closed unless the entry says that it was cut off."""
        self._add_entry(run)
        for key in [key for key, line in self._results.items() if line.run.id == run.id]:
            del self._results[key]
        if run.status == "interrupted" and not run.rows:
            return
        for key in sorted(self._intents):
            intent = self._intents[key]
            # A run inside a call has calls of its own, perhaps under the same ids.
            if (intent.operation, intent.call_id) == (run.operation, run.call_id):
                self._close(key)
                return

    def _add_decision(self, decision: Decision) -> None:
        self._add_entry(decision)
        if decision.choice not in ("retry", "skip", "done"):
            return
        for key, intent in self._intents.items():
            about = decision.tool in (None, intent.tool) and decision.call in (None, intent.call)
            same_row = not decision.rows or RowId(self.session, intent.row) in decision.rows
            if about and same_row and decision.call_id == intent.call_id:
                self._decided.add(key)

    def _intend(self, event: Intent) -> None:
        """Open a call, perhaps once more; a decision on it is used up."""
        key = event.row, event.call
        self._intents[key] = event
        # One that had stopped to wait is made from its start.
        self._results.pop(key, None)
        self._decided.discard(key)
        self.last_at = event.at

    def _add_result(self, event: PendingResult) -> None:
        key = event.row, event.call
        self._close(key)
        self._results[key] = event

    def _end_round(self, event: RoundEnd) -> None:
        lines = {line.run.id: line for line in self._results.values()}
        for name in event.results:
            if name not in lines:
                raise PersistenceError(
                    f"the round of row {event.row} names result {name!r}, which is in no line "
                    "before"
                )
        for key in [key for key in {*self._intents, *self._results} if key[0] == event.row]:
            self._results.pop(key, None)
            self._close(key)
        self.inner = ()
        for result in (lines[name] for name in event.results):
            run = result.run
            if result.shown is not None:
                # Which row it becomes is known only now, when all calls of the round are done.
                named, row = RowId(self.session, self.n_rows), result.shown
                self.rows.append(row if row.id == named else row.with_id(named))
                run = run if run.rows == (named,) else structs.replace(run, rows=(named,))
            self._add_entry(run)

    def _add_text(self, event: PartialText) -> None:
        self.partial.append(event.text)

    def _move(self, event: PlacementChange) -> None:
        self.place = event

    def _fail(self, event: Failed) -> None:
        self.failure = event
        self.last_at = event.at

    def _reopen(self, event: Reopened) -> None:
        self.trailer = self._outcome = self.n_of_run = self.failure = None
        self.has_ended = False
        self.partial.clear()
        self.last_at = event.at

    def _change_outcome(self, event: OutcomeChange) -> None:
        self._outcome = event.outcome

    def _finish(self, event: Finished) -> None:
        self.trailer, self.has_ended = event, True
        self.n_of_run = len(self.record)
        self.last_at = event.closed_at

    def _define(self, event: AgentRows | ToolSchemas | CallSetup) -> None:
        """Pass over a definition: the entries that name it hold it."""

    def _close(self, key: CallKey) -> None:
        self._intents.pop(key, None)
        self._decided.discard(key)

    _appliers: ClassVar[Mapping[type[Any], Callable[..., None]]] = {
        **dict.fromkeys(get_args(Entry), _add_entry),
        ModelCall: _add_model_call,
        ToolRun: _add_tool_run,
        Decision: _add_decision,
        Header: _begin,
        Row: _add_row,
        Intent: _intend,
        PendingResult: _add_result,
        RoundEnd: _end_round,
        PartialText: _add_text,
        PlacementChange: _move,
        Failed: _fail,
        Reopened: _reopen,
        OutcomeChange: _change_outcome,
        Finished: _finish,
        **dict.fromkeys((AgentRows, ToolSchemas, CallSetup), _define),
    }
