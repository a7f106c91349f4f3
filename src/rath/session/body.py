"""The content of a session: rows, record and outcome, frozen."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from uuid import UUID

from rath._core.vector import Vector
from rath.llm.chat_response import RathLLMTokenUsage, add_usage
from rath.session.chunk import ChunkTable
from rath.session.cost import CostSum, sum_costs
from rath.session.outcome import (
    Cancelled,
    Completed,
    Outcome,
    OutputMissing,
    OutputValue,
    Suspended,
)
from rath.session.record import Entry, ModelCall, Record, unite

if TYPE_CHECKING:
    # The lines of a file hold given usage, which is below.
    from rath.session.persistence.loading.unfinished import Unfinished


@dataclass(frozen=True, slots=True)
class GivenUsage:
    """Usage that came with a session and not from a model call in its record."""

    session: UUID
    usage: RathLLMTokenUsage


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
        """Return what the model calls of the record cost; O(entries), 0.1 ms for each new one."""
        given_tokens = sum(given.usage.total_tokens for given in self.given)
        return sum_costs(self.record, given_tokens=given_tokens)

    def with_entries(self, *entries: Entry) -> Body:
        """Return the content with record entries added."""
        return Body(self.table, self.record.extend(entries), self.outcome, self.given)

    def inheriting(self, other: Body) -> Body:
        """Return the content with the calls and given usage of `other` added, each once."""
        if not len(other.record) and not other.given:
            return self
        return replace(
            self,
            record=unite(self.record, other.record),
            given=_unite_given(self.given, other.given),
        )

    def cancelled(self, session: UUID) -> Body:
        """Return the content as a run of `session` that was cancelled leaves it."""
        return replace(self, outcome=Cancelled(session))

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
    """Return what became of a typed answer, None where none was asked for."""
    return body.outcome.output if isinstance(body.outcome, Completed) else None


def _unite_given(
    mine: tuple[GivenUsage, ...], theirs: tuple[GivenUsage, ...]
) -> tuple[GivenUsage, ...]:
    known = {given.session for given in mine}
    return mine + tuple(given for given in theirs if given.session not in known)
