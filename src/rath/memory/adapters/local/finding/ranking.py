"""Which documents fit a query best, by BM25.

    score(d) = sum over the query's words of the greatest of
                   w(t) idf(t) tf (k1 + 1) / (tf + k1 (1 - b + b |d|/avg))
               over the terms t that the word means: itself, with w = 1, and those near it
    idf(t)   = ln(1 + (N - n + 0.5) / (n + 0.5))    N documents, n of them with t or with the word

Robertson & Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond", 2009; with the idf
of Lucene, which is never negative. `spelling.py` says what is near, and how much it weighs. FTS5
has a bm25() too: it gives no weight to a term that half of the documents have, and takes 2 us for
each document that has any term at all.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from rath.memory.adapters.local.finding.spelling import parts, variants
from rath.memory.adapters.local.indexing.index import TABLES, NoteIndex, Stamp, Totals
from rath.memory.adapters.local.indexing.vocabulary import Vocabulary
from rath.memory.adapters.local.layout import Kind, note_path

K1 = 1.5
B = 0.75

MAX_QUERY_TERMS = 128
"""Further terms of a query do not count."""

MAX_POSTINGS = 3000
"""How many (term, document) pairs make candidates; each takes about 0.5 us."""

MAX_SCORED = 64
"""Of more matches, those are scored whose words are the rarest together."""

_MAX_SCORED_CHARS = 2_000_000
_MAX_WIDENED = 8
"""How many words of a query, the rarest, may mean others too, if no more than `MAX_SCORED`
documents have them; each takes up to 1 ms among 200,000 words."""

_FREQUENT = 500
_TOLERANCE = 0.1


@dataclass(frozen=True, slots=True)
class Ranked:
    """A document and its score, above 0."""

    directory: str
    name: str
    stamp: Stamp
    score: float


@dataclass(frozen=True, slots=True)
class _Word:
    """A term of the query with what it may also mean."""

    n_documents: int
    """How many have any of the terms, at most."""
    weights: dict[str, float]
    """What a match of each term is worth, the most first."""


@dataclass(frozen=True, slots=True)
class _Scope:
    """Among which documents a query looks, as SQL, and the values in it."""

    join: str
    of_join: tuple[str, ...]
    where: str
    of_where: tuple[float, ...]


class Ranking:
    """Ranks the documents of one index; keeps how frequent the frequent terms are."""

    def __init__(self, index: NoteIndex) -> None:
        self._index = index
        self._vocabulary = Vocabulary(index.rows)
        self._frequent: dict[tuple[Kind, str], tuple[int, int]] = {}

    def best(
        self,
        kind: Kind,
        terms: list[str],
        limit: int,
        *,
        below: str | None = None,
        now: float | None = None,
    ) -> list[Ranked]:
        """Return the documents with the highest scores, at most `limit`.

        Of many matches, those with the rarest terms are scored; which commoner terms they have
        counts in their scores.

        Args:
            kind: What to look for.
            terms: Distinct terms.
            limit: How many.
            below: Directory to look in, or the path of one note without suffix.
            now: Leaves out what has expired by then, in seconds since 1970.
        """
        totals = self._index.totals(kind)
        if not totals.documents:
            return []
        words = self._words(kind, terms, totals)
        rows = self._candidates(kind, words, limit=limit, scope=_scope(TABLES[kind], below, now))
        if not rows:
            return []
        ranked = self._scored(kind, rows, words, average=totals.terms / totals.documents)
        return sorted(ranked, key=lambda hit: (-hit.score, hit.directory, hit.name))[:limit]

    def _words(self, kind: Kind, terms: list[str], totals: Totals) -> list[_Word]:
        """Return what the terms of a query mean, the rarest first."""
        counts = {term: self._documents_with(kind, term, totals) for term in terms}
        missing = [term for term, n in counts.items() if not n][:_MAX_WIDENED]
        # What documents of the other kind have is no misspelling.
        unknown = set(missing) - self._vocabulary.known(missing)
        for part in [
            part for term in missing if term in unknown for part in parts(self._vocabulary, term)
        ]:
            counts[part] = self._documents_with(kind, part, totals)
        words: list[_Word] = []
        for place, term in enumerate(sorted(counts, key=lambda term: counts[term])):
            found = {term: counts[term]} if counts[term] else {}
            weights = dict.fromkeys(found, 1.0)
            if place < _MAX_WIDENED and counts[term] <= MAX_SCORED:
                for other, weight in variants(self._vocabulary, term, is_known=term not in unknown):
                    n_other = 0 if other in counts else self._documents_with(kind, other, totals)
                    if n_other:
                        found[other], weights[other] = n_other, weight
            if found:
                words.append(_word(found, weights, least=counts[term], totals=totals))
        return sorted(words, key=lambda word: word.n_documents)

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
        self, kind: Kind, words: list[_Word], *, limit: int, scope: _Scope
    ) -> list[int]:
        """Return the rows with the rarest words together, the most promising first."""
        table = TABLES[kind]
        sql = f"""SELECT {table}.rowid FROM {table} {scope.join}
                  WHERE {table} MATCH ? {scope.where}
                  ORDER BY {table}.rowid DESC LIMIT {MAX_POSTINGS}"""
        found: dict[int, float] = {}
        room = MAX_POSTINGS
        for word in words:
            if word.n_documents > room and len(found) >= limit:
                break
            worth: dict[int, float] = {}
            for term, weight in word.weights.items():
                if len(worth) >= room:
                    break
                values = (*scope.of_join, f'"{term}"', *scope.of_where)
                for (row,) in cast("list[tuple[int]]", self._index.rows(sql, *values)):
                    worth.setdefault(row, weight)
            if found:
                for row, weight in worth.items():
                    found[row] = found.get(row, 0.0) + weight
            else:
                found = worth
            room -= min(word.n_documents, MAX_POSTINGS)
        best = heapq.nlargest(max(limit, MAX_SCORED), zip(found.values(), found, strict=True))
        return [row for _, row in best]

    def _scored(
        self, kind: Kind, rows: list[int], words: list[_Word], *, average: float
    ) -> Iterator[Ranked]:
        sql = f"""SELECT directory, name, mtime_ns, size, terms
                  FROM files JOIN {TABLES[kind]} AS stored ON stored.rowid = files.id
                  WHERE files.id = ?"""
        meanings = _meanings(words)
        room = _MAX_SCORED_CHARS
        for row in rows:
            found = cast("list[tuple[str, str, int, int, str]]", self._index.rows(sql, row))
            directory, name, mtime_ns, size, stored = found[0]
            terms = stored.split(" ")
            score = _bm25(terms, meanings, average)
            yield Ranked(directory, name, Stamp(mtime_ns, size), score)
            room -= len(stored)
            if room < 0:
                return


def _scope(table: str, below: str | None, now: float | None) -> _Scope:
    where, of_where = "", cast("tuple[float, ...]", ())
    if now is not None:
        # Here, and not among what was found: they would fill the postings that are looked at.
        where = f"AND {table}.rowid NOT IN (SELECT id FROM files WHERE expires_at <= ?)"
        of_where = (now,)
    if below is None:
        return _Scope("", (), where, of_where)
    parent, _, name = note_path(below).rpartition("/")
    sql = f"""JOIN files AS f ON f.id = {table}.rowid AND (
                 f.directory = ? OR f.directory >= ? AND f.directory < ?
                 OR f.directory = ? AND f.name = ?)"""
    return _Scope(sql, (below, f"{below}/", f"{below}0", parent, name), where, of_where)


def _word(
    counts: dict[str, int], weights: dict[str, float], *, least: int, totals: Totals
) -> _Word:
    worth = {
        term: weights[term] * _idf(max(n, least), totals.documents) for term, n in counts.items()
    }
    best_first = sorted(worth.items(), key=lambda item: -item[1])
    return _Word(sum(counts.values()), dict(best_first))


def _idf(n_with_term: int, n_documents: int) -> float:
    return math.log(1 + (n_documents - n_with_term + 0.5) / (n_with_term + 0.5))


def _meanings(words: list[_Word]) -> dict[str, list[tuple[int, float]]]:
    """Return for each term which words of the query it may be, and what a match is worth there."""
    found: dict[str, list[tuple[int, float]]] = {}
    for number, word in enumerate(words):
        for term, weight in word.weights.items():
            found.setdefault(term, []).append((number, weight))
    return found


def _bm25(terms: list[str], meanings: dict[str, list[tuple[int, float]]], average: float) -> float:
    longer = K1 * (1 - B + B * len(terms) / average)
    scores: dict[int, float] = {}
    for term, times in Counter(filter(meanings.__contains__, terms)).items():
        saturated = times * (K1 + 1) / (times + longer)
        for word, weight in meanings[term]:
            scores[word] = max(scores.get(word, 0.0), weight * saturated)
    return sum(scores.values())
