"""Which provider answered? For each model call: who was asked, by whose word, and what it took."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from uuid import UUID

from rath.session.cost import CostSum, model_of, sum_costs
from rath.session.questions.lineage import lineage_of
from rath.session.questions.missing import Missing, find_missing
from rath.session.questions.turns import require_turn, turns_of
from rath.session.record import ModelCall
from rath.session.session import Session


@dataclass(frozen=True, slots=True)
class AnsweredCall:
    """One model call; its evidence tells all that is known of it."""

    turn: int | None
    call: ModelCall

    @property
    def model(self) -> str:
        """The model that answered, else the one that was asked."""
        return model_of(self.call.evidence)

    @property
    def n_retries(self) -> int:
        """Tries after the first one."""
        return max(0, len(self.call.evidence.attempts) - 1)


@dataclass(frozen=True, slots=True)
class WhoAnswered:
    """The answer."""

    session: UUID
    calls: tuple[AnsweredCall, ...]
    tokens: int
    """Of these calls."""

    cost: CostSum
    """Of these calls."""

    missing: tuple[Missing, ...]

    @property
    def models(self) -> tuple[tuple[str, int], ...]:
        """The models that answered, in the order in which they first did, and how often."""
        done = (each.model for each in self.calls if each.call.status == "done")
        return tuple(Counter(done).items())


def who_answered(session: Session, *, turn: int | None = None) -> WhoAnswered:
    """Return who answered each model call; O(rows and entries). Waits for the run.

    Args:
        session: In memory or loaded.
        turn: Only the calls of this turn.

    Raises:
        ValueError: There is no such turn.
    """
    lineage = lineage_of(session)
    require_turn(lineage, turn)
    turns = turns_of(lineage)
    calls = tuple(
        AnsweredCall(turns.get(entry.id), entry)
        for entry in lineage.record
        if isinstance(entry, ModelCall) and turn in (None, turns.get(entry.id))
    )
    usages = [each.call.evidence.usage for each in calls]
    return WhoAnswered(
        session=session.id,
        calls=calls,
        tokens=sum(usage.total_tokens for usage in usages if usage is not None),
        cost=sum_costs(each.call for each in calls),
        missing=find_missing(lineage, "provider"),
    )
