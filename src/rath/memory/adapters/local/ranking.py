"""Which documents fit a query best, by BM25.

    score(d) = sum over the query's terms t of  idf(t) tf (k1 + 1) / (tf + k1 (1 - b + b |d|/avg))
    idf(t)   = ln(1 + (N - n + 0.5) / (n + 0.5))    N documents, n of them with t

Robertson & Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond", 2009; with the idf
of Lucene, which is never negative. FTS5 has a bm25() too: it gives no weight to a term that half
of the documents have, and takes 2 us for each document that has any term at all.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from rath.memory.adapters.local.index import TABLES, NoteIndex, Stamp, Totals
from rath.memory.adapters.local.layout import Kind, note_path

K1 = 1.5
B = 0.75

MAX_QUERY_TERMS = 128
"""Further terms of a query do not count."""

MAX_POSTINGS = 3000
"""How many (term, document) pairs make candidates; each takes about 0.5 us."""

_MAX_SCORED = 64
_MAX_SCORED_CHARS = 2_000_000
_FREQUENT = 500
_TOLERANCE = 0.1


@dataclass(frozen=True, slots=True)
class Ranked:
    """A document and its score, above 0."""

    directory: str
    name: str
    stamp: Stamp
    score: float


class Ranking:
    """Ranks the documents of one index; keeps how frequent the frequent terms are."""

    def __init__(self, index: NoteIndex) -> None:
        self._index = index
        self._frequent: dict[tuple[Kind, str], tuple[int, int]] = {}

    def best(
        self, kind: Kind, terms: list[str], limit: int, *, below: str | None = None
    ) -> list[Ranked]:
        """Return the documents with the highest scores, at most `limit`.

        Of many matches, those with the rarest terms are scored; which commoner terms they have
        counts in their scores.

        Args:
            kind: What to look for.
            terms: Distinct terms.
            limit: How many.
            below: Directory to look in, or the path of one note without suffix.
        """
        totals = self._index.totals(kind)
        counts = {term: self._documents_with(kind, term, totals) for term in terms}
        weights = {term: _idf(n, totals.documents) for term, n in counts.items() if n}
        rows = self._candidates(kind, weights, counts, limit=limit, below=below)
        if not rows:
            return []
        ranked = self._scored(kind, rows, weights, average=totals.terms / totals.documents)
        return sorted(ranked, key=lambda hit: (-hit.score, hit.directory, hit.name))[:limit]

    def _documents_with(self, kind: Kind, term: str, totals: Totals) -> int:
        count, n_then = self._frequent.get((kind, term), (0, 0))
        if count and abs(n_then - totals.documents) <= _TOLERANCE * n_then:
            return min(count, totals.documents)
        found = self._index.rows(f"SELECT doc FROM {TABLES[kind]}_terms WHERE term = ?", term)
        count = cast("int", found[0][0]) if found else 0
        if count >= _FREQUENT:
            self._frequent[kind, term] = count, totals.documents
        return count

    def _candidates(
        self,
        kind: Kind,
        weights: dict[str, float],
        counts: dict[str, int],
        *,
        limit: int,
        below: str | None,
    ) -> list[int]:
        """Return the rows with the rarest terms together, the most promising first."""
        table = TABLES[kind]
        join, values = _scope(table, below)
        sql = f"""SELECT {table}.rowid FROM {table} {join}
                  WHERE {table} MATCH ? ORDER BY {table}.rowid DESC LIMIT {MAX_POSTINGS}"""
        found: dict[int, float] = {}
        room = MAX_POSTINGS
        for term in sorted(weights, key=lambda term: counts[term]):
            if counts[term] > room and len(found) >= limit:
                break
            weight = weights[term]
            for (row,) in cast("list[tuple[int]]", self._index.rows(sql, *values, f'"{term}"')):
                found[row] = found.get(row, 0.0) + weight
            room -= min(counts[term], MAX_POSTINGS)
        best = heapq.nlargest(
            max(limit, _MAX_SCORED), found.items(), key=lambda item: (item[1], item[0])
        )
        return [row for row, _ in best]

    def _scored(
        self, kind: Kind, rows: list[int], weights: dict[str, float], *, average: float
    ) -> Iterator[Ranked]:
        sql = f"""SELECT directory, name, mtime_ns, size, terms
                  FROM files JOIN {TABLES[kind]} AS stored ON stored.rowid = files.id
                  WHERE files.id = ?"""
        room = _MAX_SCORED_CHARS
        for row in rows:
            found = cast("list[tuple[str, str, int, int, str]]", self._index.rows(sql, row))
            directory, name, mtime_ns, size, terms = found[0]
            score = _bm25(terms.split(" "), weights, average)
            yield Ranked(directory, name, Stamp(mtime_ns, size), score)
            room -= len(terms)
            if room < 0:
                return


def _scope(table: str, below: str | None) -> tuple[str, tuple[str, ...]]:
    if below is None:
        return "", ()
    parent, _, name = note_path(below).rpartition("/")
    sql = f"""JOIN files AS f ON f.id = {table}.rowid AND (
                 f.directory = ? OR f.directory >= ? AND f.directory < ?
                 OR f.directory = ? AND f.name = ?)"""
    return sql, (below, f"{below}/", f"{below}0", parent, name)


def _idf(n_with_term: int, n_documents: int) -> float:
    return math.log(1 + (n_documents - n_with_term + 0.5) / (n_with_term + 0.5))


def _bm25(terms: list[str], weights: dict[str, float], average: float) -> float:
    counted = Counter(filter(weights.__contains__, terms))
    longer = K1 * (1 - B + B * len(terms) / average)
    return sum(
        weights[term] * times * (K1 + 1) / (times + longer) for term, times in counted.items()
    )
