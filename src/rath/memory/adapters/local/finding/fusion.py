"""One order from several: reciprocal rank fusion.

    score(d) = sum over the lists that have d of  1 / (60 + rank of d in the list)

Cormack, Clarke & Buettcher, "Reciprocal Rank Fusion outperforms Condorcet and individual Rank
Learning Methods", SIGIR 2009, with their constant. Ranks count from 1; the scores of the lists do
not matter, so lists whose scores do not compare can be fused.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

K = 60

T = TypeVar("T", bound=Hashable)


def fused(orders: Iterable[Sequence[T]]) -> dict[T, float]:
    """Return the scores of all that stand in any list; each list has the best first, each once."""
    scores: dict[T, float] = {}
    for order in orders:
        for rank, each in enumerate(order, start=1):
            scores[each] = scores.get(each, 0.0) + 1 / (K + rank)
    return scores
