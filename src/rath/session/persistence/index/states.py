"""The states of a session by the outcome of its run."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["OUTCOME_STATES"]

OUTCOME_STATES: Mapping[str, str] = {
    "Completed": "completed",
    "RoundLimit": "round_limit",
    "BudgetExceeded": "budget_exceeded",
    "DeadlineExceeded": "deadline_exceeded",
    "Cancelled": "cancelled",
    "NeedsApproval": "needs_approval",
    "NeedsInput": "needs_input",
    "NeedsDecision": "needs_decision",
}
"""By the name of the class, which is what a log says."""
