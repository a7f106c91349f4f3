"""The states of a session as they are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rath.session.log.index.database import OUTCOME_STATES

if TYPE_CHECKING:
    from rath.session.loading import Loaded

__all__ = ["STATES", "STATE_STYLES", "state_of"]

STATES = (
    "completed",
    "round_limit",
    "budget_exceeded",
    "deadline_exceeded",
    "cancelled",
    "needs_approval",
    "needs_input",
    "needs_decision",
    "failed",
    "cut_off",
    "running",
    "damaged",
)
STATE_STYLES = {
    "completed": "green",
    "running": "cyan",
    "failed": "red",
    "damaged": "bold red",
    "cut_off": "yellow",
    "needs_approval": "magenta",
    "needs_input": "magenta",
    "needs_decision": "magenta",
}


def state_of(loaded: Loaded, *, is_running: bool) -> str:
    """Return the state of a session that was read, as an index tells it."""
    left = loaded.unfinished
    if loaded.problem is not None:
        return "damaged"
    if left is None:
        return OUTCOME_STATES[type(loaded.session.outcome).__name__]
    if is_running:
        return "running"
    if left.failure is not None:
        return left.failure.how
    return "needs_decision" if left.unknown_calls else "cut_off"
