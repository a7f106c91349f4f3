"""A made-up corpus of notes whose word frequencies fall as in real text, and recall from it."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import rath.memory
from rath.memory import MemoryFindResult, MemoryOpFind, MemoryStore, MemoryStoreSpec

TOP_K = 4
"""How many notes a query recalls at most."""

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


@contextmanager
def open_store(options: Mapping[str, Any]) -> Generator[MemoryStore]:
    """Open a local store, and wait until it is closed: leaving a store only starts its closing."""
    backend = rath.memory.get("local")
    with backend.open(MemoryStoreSpec(options=options)) as store:
        yield store
        backend.close(store)


def find(store: MemoryStore, query: str) -> int:
    """Return how many notes a query recalls; a few notes need not hold a rare word."""
    found = store.dispatch(MemoryOpFind(query, top_k=TOP_K))
    if not isinstance(found, MemoryFindResult):
        raise TypeError(f"recall of {query!r} gave {found!r}")
    return len(found.hits)


def times(ask: Callable[[str], object], *, repeats: int) -> list[float]:
    """Return the seconds of each query, the median of its repeats; one uncounted pass is first."""
    found: dict[str, list[float]] = {query: [] for query in queries()}
    for repeat in range(repeats + 1):
        for query, seconds in found.items():
            start = time.perf_counter()
            ask(query)
            if repeat:
                seconds.append(time.perf_counter() - start)
    return [statistics.median(seconds) for seconds in found.values()]


def _word(rank: int) -> str:
    """A word of letters only, different for each rank."""
    letters = ""
    while True:
        rank, digit = divmod(rank, 20)
        letters += "bcdfghjklmnpqrstvwxz"[digit] + "aeiou"[digit % 5]
        if not rank:
            return letters
