"""Outcomes of runs: a closed union, readable from the session."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, assert_never
from uuid import UUID

from msgspec import Struct


class OutputValue(Struct, frozen=True, tag_field="is", tag="value"):
    """The answer came in the type that was asked for."""

    value: Any


class OutputMissing(Struct, frozen=True, tag_field="is", tag="missing"):
    """No answer came in the type that was asked for."""

    problem: str
    """Number of tries, and what was wrong with the answer."""


class _Outcome(Struct, frozen=True, tag_field="is", omit_defaults=True):
    pass


class Completed(_Outcome, frozen=True, tag=True):
    """The model gave its answer, or nothing had to run."""

    output: OutputValue | OutputMissing | None = None
    """Result of the typed answer, None where none was asked for; it counts in no
    comparison, since the object need not have any."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Completed) or NotImplemented

    def __hash__(self) -> int:
        return hash(Completed)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class RoundLimit(_Outcome, frozen=True, tag=True):
    """The run used all its model calls and still wanted tools."""

    max_tool_rounds: int


class BudgetExceeded(_Outcome, frozen=True, tag=True):
    """The chain has used its budget, or would have with the next call: that was not made."""

    budget_total_tokens: int | None
    used_tokens: int
    next_tokens: int | None = None
    """Tokens that the next call would have taken at least, where the run stopped before it."""

    budget_usd: Decimal | None = None
    used_usd: Decimal | None = None
    """US dollars; set where there is a budget in money."""

    next_usd: Decimal | None = None
    """US dollars that the next call would have cost at least, where the run stopped before it."""

    unpriced: str | None = None
    """The model whose last answer has no known cost, so that `budget_usd` cannot be counted."""

    def __str__(self) -> str:
        parts: list[str] = []
        if self.budget_total_tokens is not None:
            parts.append(f"budget_total_tokens={self.budget_total_tokens}, {self.used_tokens} used")
        if self.budget_usd is not None:
            parts.append(f"budget_usd={_plain(self.budget_usd)}, {_plain(self.used_usd)} used")
        if self.next_tokens is not None:
            money = "" if self.next_usd is None else f" and {_plain(self.next_usd)} US dollars"
            parts.append(
                f"the next call would have taken at least {self.next_tokens} tokens{money}"
            )
        if self.unpriced is not None:
            parts.append(f"what {self.unpriced!r} answered last has no known cost")
        return "; ".join(parts)


class DeadlineExceeded(_Outcome, frozen=True, tag=True):
    """The run took longer than it was given."""

    timeout: float | int
    """Seconds."""


class Cancelled(_Outcome, frozen=True, tag=True):
    """The run was ended from outside; what was written by then stays."""

    session: UUID
    """The session whose run was cancelled; later sessions pass this on unchanged."""


class NeedsApproval(_Outcome, frozen=True, tag=True):
    """The run waits for somebody to allow these tool calls."""

    session: UUID
    calls: tuple[str, ...]


class NeedsInput(_Outcome, frozen=True, tag=True):
    """The run waits for an answer to a question."""

    session: UUID
    question: str


class NeedsDecision(_Outcome, frozen=True, tag=True):
    """Tool calls of which it is not known whether they took effect; somebody must decide."""

    session: UUID
    calls: tuple[str, ...]


Outcome = (
    Completed
    | RoundLimit
    | BudgetExceeded
    | DeadlineExceeded
    | Cancelled
    | NeedsApproval
    | NeedsInput
    | NeedsDecision
)

Suspended = Cancelled | NeedsApproval | NeedsInput | NeedsDecision
"""Outcomes that pass through later operations unchanged, without a model call."""


def _plain(usd: Decimal | None) -> str:
    """Return an amount without an exponent and without zeros at its end."""
    return f"{(usd or Decimal(0)).normalize():f}"


def outcome_extras(outcome: Outcome) -> tuple[tuple[str, object], ...]:
    """Return the lineage extras that show an outcome; none for a completed run."""
    match outcome:
        case Completed():
            return ()
        case RoundLimit():
            return (("loop.truncated", True),)
        case BudgetExceeded():
            return (("loop.outcome", "budget_exceeded"),)
        case DeadlineExceeded():
            return (("loop.outcome", "deadline_exceeded"),)
        case Cancelled():
            return (("loop.outcome", "cancelled"),)
        case NeedsApproval() | NeedsInput() | NeedsDecision():
            return (("loop.outcome", "suspended"),)
        case _:
            assert_never(outcome)
