"""How the end of a run is told by the verbs that make one go on."""

from __future__ import annotations

from typing import Any

from rath.session.log.index.database import OUTCOME_STATES
from rath.session.outcome import Outcome, Suspended

__all__ = ["told_outcome"]


def told_outcome(outcome: Outcome) -> dict[str, Any]:
    """Return the state of a session that has ended or waits, as JSON."""
    state = OUTCOME_STATES[type(outcome).__name__]
    return {"state": state, "waits": isinstance(outcome, Suspended)}
