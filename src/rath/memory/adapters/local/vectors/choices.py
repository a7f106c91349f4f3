"""How a store ranks, as its options say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from rath.errors import MemoryBackendError

Mode = Literal["hybrid", "vectors", "bm25"]

MIN_SIMILARITY = 0.2
"""Least cosine of a hit that shares no word with the query.

Chosen with all-MiniLM-L6-v2 on 20 questions and 30 notes in four languages: with this and
`RELATIVE_FLOOR` 19 of the answers were kept, beside 0.65 other notes for each question, and nothing
was found for questions about other matters. Models differ: some give 0.7 to any two texts.
"""


@dataclass(frozen=True, slots=True)
class Choices:
    """Which lists make the order, and how close a vector must be."""

    mode: Mode
    min_similarity: float = MIN_SIMILARITY


def choices_of(options: Mapping[str, Any], *, has_embedding: bool) -> Choices:
    """Return the choices of a store's options.

    Raises:
        MemoryBackendError: One is out of its range, or needs an embedding model.
    """
    mode: Mode = options.get("ranking") or ("hybrid" if has_embedding else "bm25")
    if mode not in get_args(Mode):
        raise MemoryBackendError(
            f"ranking is {mode!r}; expected one of {', '.join(get_args(Mode))}"
        )
    if mode != "bm25" and not has_embedding:
        raise MemoryBackendError(
            f"the ranking {mode!r} needs vectors; name an embedding model by the option "
            "embedding_provider or embedding"
        )
    least = options.get("min_similarity")
    if least is None:
        return Choices(mode)
    if isinstance(least, bool) or not isinstance(least, int | float) or not 0 <= least <= 1:
        raise MemoryBackendError(f"min_similarity is {least!r}; expected a number from 0 to 1")
    return Choices(mode, float(least))
