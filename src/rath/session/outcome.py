"""How a run ended: a closed union, readable from the session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Completed:
    """The model gave an answer without tool calls, or nothing had to run."""


@dataclass(frozen=True, slots=True)
class RoundLimit:
    """The run used all its model calls and still wanted tools."""

    max_tool_rounds: int


@dataclass(frozen=True, slots=True)
class BudgetExceeded:
    """The chain has used its budget; no further model call was made."""

    budget_total_tokens: int
    used_tokens: int


@dataclass(frozen=True, slots=True)
class DeadlineExceeded:
    """The run took longer than it was given."""

    timeout: float
    """Seconds."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The run was ended from outside; what was written by then stays."""

    session: UUID
    """The session whose run was cancelled; later sessions pass this on unchanged."""


@dataclass(frozen=True, slots=True)
class NeedsApproval:
    """The run waits for somebody to allow these tool calls."""

    session: UUID
    calls: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NeedsInput:
    """The run waits for an answer to a question."""

    session: UUID
    question: str


@dataclass(frozen=True, slots=True)
class NeedsDecision:
    """It is not known whether these tool calls took effect; somebody must decide."""

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
