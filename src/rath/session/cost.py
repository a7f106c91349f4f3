"""What the model calls behind a session cost, as far as it is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from rath.llm.exchange import CallEvidence
from rath.session.record import Entry, ModelCall


@dataclass(frozen=True, slots=True)
class CostSum:
    """What model calls cost, each counted once; what is not known is told and not counted as free.

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
    """Return what the model calls among `entries` cost together; O(entries)."""
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
