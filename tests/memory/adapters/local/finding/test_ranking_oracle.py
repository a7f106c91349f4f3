"""BM25 beside rank-bm25, which is not ours."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from contextlib import closing
from importlib import import_module
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rath.memory.adapters.local.files import Stamp
from rath.memory.adapters.local.index import IndexEntry, NoteIndex
from rath.memory.adapters.local.search import K1, MAX_SCORED, B, best
from rath.memory.adapters.local.terms import index_terms, query_terms

# It has no types.
_rank_bm25: Any = import_module("rank_bm25")

# Of three letters at most, or not of letters alone: such terms stand for themselves only.
PIECES = [
    "tea",
    "cup",
    "TEA",
    "Ça",
    "код",
    "5.29",
    "get_x",
    "喜欢",
    "喝茶",
    "茶",
    "ชา",
    "데이터",
    "b12",
]
texts = st.lists(st.sampled_from(PIECES), max_size=12).map(" ".join)
corpora = st.lists(texts, min_size=1, max_size=MAX_SCORED).filter(lambda found: any(found))


def indexed(corpus: Sequence[str]) -> NoteIndex:
    """An index in memory with texts named by their position."""
    index = NoteIndex(None)
    with index.writing():
        for number, text in enumerate(corpus):
            index.put([IndexEntry("user", f"{number:05}", "note", Stamp(1, 1), index_terms(text))])
    return index


def ours(corpus: Sequence[str], query: str, limit: int = 1000) -> dict[int, float]:
    """What ranking finds: numbers of texts with their scores, the best first."""
    with closing(indexed(corpus)) as index:
        found = best(index, "note", query_terms(query), limit)
    return {int(hit.name): hit.score for hit in found}


def theirs(corpus: Sequence[str], query: str) -> dict[int, float]:
    """The same by rank-bm25: its term frequencies, lengths and sum, with the idf of Lucene.

    Without `delta`, its BM25Plus is the formula of Robertson & Zaragoza. Each of its variants has
    an idf of its own, so that is divided out and Lucene's put in, from its count of documents.
    """
    plus = _rank_bm25.BM25Plus(list(map(index_terms, corpus)), k1=K1, b=B, delta=0)
    scores = [0.0] * plus.corpus_size
    for term in query_terms(query):
        if term not in plus.idf:
            continue
        n = round((plus.corpus_size + 1) / math.exp(plus.idf[term]))
        idf = math.log(1 + (plus.corpus_size - n + 0.5) / (n + 0.5))
        for number, score in enumerate(plus.get_scores([term])):
            scores[number] += float(score) / plus.idf[term] * idf
    return {number: score for number, score in enumerate(scores) if score > 0}


@given(corpora, texts)
def test_scores_are_those_of_rank_bm25(corpus: list[str], query: str) -> None:
    assert ours(corpus, query) == pytest.approx(theirs(corpus, query))


@given(corpora, texts, st.integers(1, 8))
def test_the_best_are_the_best_of_all_where_few_documents_match(
    corpus: list[str], query: str, limit: int
) -> None:
    best = sorted(theirs(corpus, query).values(), reverse=True)[:limit]
    assert list(ours(corpus, query, limit).values()) == pytest.approx(best)


@given(corpora, st.sampled_from(["tea", "код", "茶", "b12"]))
def test_one_word_orders_documents_as_okapi_does_unchanged(corpus: list[str], word: str) -> None:
    okapi = _rank_bm25.BM25Okapi(list(map(index_terms, corpus)), k1=K1, b=B)
    scores = [float(score) for score in okapi.get_scores([word])]
    found = list(ours(corpus, word))
    if okapi.idf.get(word, 0) > 0:
        assert [scores[number] for number in found] == sorted(
            (score for score in scores if score), reverse=True
        )


@given(st.integers(0), texts)
@settings(max_examples=25)
def test_what_is_left_out_of_many_matches_has_no_high_score(seed: int, query: str) -> None:
    # A document's score is less than K1 + 1 times the sum of the idf of its terms, and those with
    # the highest sums are scored.
    corpus = many_texts(seed)
    everything = theirs(corpus, query)
    found = ours(corpus, query, MAX_SCORED)
    assert len(found) == min(len(everything), MAX_SCORED)
    assert found == pytest.approx({number: everything[number] for number in found})
    sums = sorted((each for each in sums_of_idf(corpus, query) if each), reverse=True)
    bound = (K1 + 1) * sums[MAX_SCORED] if len(sums) > MAX_SCORED else 0
    assert all(score < bound for number, score in everything.items() if number not in found)


def many_texts(seed: int) -> list[str]:
    """More texts than are scored; hypothesis would take long to draw them one by one."""
    generator = random.Random(seed)
    lengths = (generator.randint(1, 12) for _ in range(2 * MAX_SCORED))
    return [" ".join(generator.choices(PIECES, k=length)) for length in lengths]


def sums_of_idf(corpus: Sequence[str], query: str) -> list[float]:
    """For each text, the sum of Lucene's idf over the terms of the query that it has."""
    stored = [set(index_terms(text)) for text in corpus]
    counts = {term: sum(term in other for other in stored) for term in query_terms(query)}
    idf = {term: math.log(1 + (len(corpus) - n + 0.5) / (n + 0.5)) for term, n in counts.items()}
    return [sum(idf[term] for term in idf.keys() & terms) for terms in stored]
