"""The content of a session: rows, record, outcome, and the usage and cost they add up to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any
from uuid import UUID

from msgspec import structs

from rath._async.deferred import Deferred
from rath._core.text import short_id
from rath._core.vector import Vector
from rath.llm.chat_response import RathLLMTokenUsage, add_usage
from rath.llm.evidence import CallEvidence
from rath.session.chunk import ChunkTable
from rath.session.events import GivenUsage
from rath.session.outcome import (
    Cancelled,
    Completed,
    Outcome,
    OutputMissing,
    OutputValue,
    Suspended,
)
from rath.session.record import Entry, ModelCall, Operation, Record, unite
from rath.session.state import Unfinished


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
        elif evidence.was_sent and not _was_refused(evidence):
            uncounted[model_of(evidence)] += 1
    return CostSum(usd, n_priced, _sorted(unpriced), _sorted(uncounted), given_tokens)


def model_of(evidence: CallEvidence) -> str:
    """Return the name by which a model is told."""
    return evidence.served_model or evidence.requested_model or evidence.provider_kind


def _was_refused(evidence: CallEvidence) -> bool:
    """Tell whether every try ended with an error status of the endpoint."""
    tries = evidence.attempts
    return bool(tries) and all(one.status is not None for one in tries)


def _sorted(counts: Counter[str]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(counts.items()))


@dataclass(frozen=True, slots=True)
class Body:
    """Rows (what was said), record (what happened) and outcome (how it ended)."""

    table: ChunkTable
    record: Record = Vector()  # noqa: RUF009  # immutable, so one empty record serves all
    outcome: Outcome = Completed()  # noqa: RUF009  # immutable as well
    given: tuple[GivenUsage, ...] = ()
    unfinished: Unfinished | None = field(default=None, compare=False, repr=False)
    """What a run that was cut off had begun; only its own session has it."""

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


def merged(mine: Inheritor, others: Inheritor, entry: Operation, ours: Body, theirs: Body) -> Body:
    """Return the content of two parents; the entry says what of the record was whose."""
    first, second = mine(ours), others(theirs)
    entry = structs.replace(entry, n_ours=len(first.record), theirs=second.record)
    return first.merged(second).with_entries(entry)
