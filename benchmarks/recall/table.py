"""Recall at four of each system, by category, and the table of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import AbstractContextManager

from benchmarks.recall.records import Note, Query, read_notes, read_queries
from benchmarks.recall.systems import TOP_K, Ask, has_model, rank_bm25, store_with, vectors

Scores = dict[str, float]
"""Recall of each row of the table, 0 to 1."""

WORDS = ("rank-bm25", "rath, BM25")
MEANING = ("rath, vectors", "rath, hybrid")
"""The columns that need the embedding model."""

NOT_INSTALLED = "not installed"

_ALL, _TUNED, _HELD_OUT = "all", "tuned on", "held out"


def measure(columns: Sequence[str] = (*WORDS, *MEANING)) -> dict[str, Scores | None]:
    """Return the recall of each column; None for one whose model is not installed."""
    notes, queries = read_notes(), read_queries()
    found: dict[str, Scores | None] = {}
    for column in columns:
        if column in MEANING and not has_model():
            found[column] = None
            continue
        with _system(column, notes) as ask:
            found[column] = _scores(ask, queries)
    return found


def markdown(found: dict[str, Scores | None]) -> str:
    """Return the table, three digits a number."""
    counts: dict[str, int] = defaultdict(int)
    for query in read_queries():
        for row in _rows_of(query):
            counts[row] += 1
    rows = [row for row in counts if row not in {_ALL, _TUNED, _HELD_OUT}]
    lines = [
        ["queries", "number", *found],
        ["---", "--:", *("--:" for _ in found)],
        *(
            [row, str(counts[row]), *(_cell(scores, row) for scores in found.values())]
            for row in (*rows, _TUNED, _HELD_OUT, _ALL)
        ),
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _system(column: str, notes: Sequence[Note]) -> AbstractContextManager[Ask]:
    if column == "rank-bm25":
        return rank_bm25(notes)
    if column in MEANING:
        return store_with(notes, vectors(column.removeprefix("rath, ")))
    return store_with(notes, {})


def _scores(ask: Ask, queries: Sequence[Query]) -> Scores:
    """Return the mean share of the relevant notes that are among the first four."""
    shares: dict[str, list[float]] = defaultdict(list)
    for query in queries:
        found = query.relevant.intersection(ask(query.text)[:TOP_K])
        for row in _rows_of(query):
            shares[row].append(len(found) / len(query.relevant))
    return {row: sum(each) / len(each) for row, each in shares.items()}


def _rows_of(query: Query) -> tuple[str, str, str]:
    return query.category, _HELD_OUT if query.is_held_out else _TUNED, _ALL


def _cell(scores: Scores | None, row: str) -> str:
    return NOT_INSTALLED if scores is None else f"{scores[row]:.3f}"
