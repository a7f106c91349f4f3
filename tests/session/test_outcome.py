"""How a run ended shows in the extras of its lineage."""

from __future__ import annotations

from uuid import uuid4

import pytest

from rath.session.outcome import (
    BudgetExceeded,
    Cancelled,
    Completed,
    DeadlineExceeded,
    NeedsApproval,
    NeedsDecision,
    NeedsInput,
    Outcome,
    RoundLimit,
    Suspended,
    outcome_extras,
)

ID = uuid4()


@pytest.mark.parametrize(
    ("outcome", "extras", "is_suspended"),
    [
        (Completed(), (), False),
        (RoundLimit(3), (("loop.truncated", True),), False),
        (BudgetExceeded(10, 11), (("loop.outcome", "budget_exceeded"),), False),
        (DeadlineExceeded(1.5), (("loop.outcome", "deadline_exceeded"),), False),
        (Cancelled(ID), (("loop.outcome", "cancelled"),), True),
        (NeedsApproval(ID, ("c1",)), (("loop.outcome", "suspended"),), True),
        (NeedsInput(ID, "which?"), (("loop.outcome", "suspended"),), True),
        (NeedsDecision(ID, ("c1",)), (("loop.outcome", "suspended"),), True),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, tuple | bool) else None,
)
def test_each_outcome_has_its_extras(
    outcome: Outcome, extras: tuple[tuple[str, object], ...], is_suspended: bool
) -> None:
    assert outcome_extras(outcome) == extras
    assert isinstance(outcome, Suspended) == is_suspended
