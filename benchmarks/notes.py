"""A made-up corpus of notes whose word frequencies fall as in real text."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import accumulate

_VOCABULARY = 20_000
_WORDS_PER_NOTE = 20
_EVERYWHERE = "project"
_QUERY_RANKS = ((19_000,), (3_000,), (500,), (50,), (4_000, 9_000), (200, 3_000, 12_000))
"""Frequency ranks of each query's words: from a rare word to a sentence of mixed ones."""


def iter_notes(n_notes: int) -> Iterator[tuple[str, str]]:
    """Yield (name, text); the same for the same number, and one word stands in every note."""
    generator = random.Random(20261121)
    words = [_word(rank) for rank in range(_VOCABULARY)]
    # Zipf's law, exponent 1
    sums = list(accumulate(1 / (rank + 1) for rank in range(_VOCABULARY)))
    for i in range(n_notes):
        text = " ".join(generator.choices(words, cum_weights=sums, k=_WORDS_PER_NOTE))
        yield f"note{i:06}", f"{_EVERYWHERE} {text}\n"


def queries() -> list[str]:
    """From one rare word to one that stands in every note."""
    mixed = [" ".join(_word(rank) for rank in ranks) for ranks in _QUERY_RANKS]
    return [*mixed, _EVERYWHERE]


def _word(rank: int) -> str:
    """A word of letters only, different for each rank."""
    letters = ""
    while True:
        rank, digit = divmod(rank, 20)
        letters += "bcdfghjklmnpqrstvwxz"[digit] + "aeiou"[digit % 5]
        if not rank:
            return letters
