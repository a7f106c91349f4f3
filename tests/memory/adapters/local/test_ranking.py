"""BM25 over the index."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.memory.adapters.local.index import NoteIndex, Stamp
from rath.memory.adapters.local.ranking import K1, MAX_POSTINGS, B, Ranking

WORDS = ["a", "b", "c", "d", "e", "文", "件"]
texts = st.lists(st.sampled_from(WORDS), max_size=12)


def indexed(documents: list[list[str]], directory: str = "user") -> NoteIndex:
    """An index in memory with documents named by their position."""
    index = NoteIndex(None)
    with index.writing():
        for number, terms in enumerate(documents):
            index.put(directory, f"{number:05}.md", "note", stamp=Stamp(1, 1), terms=terms)
    return index


def oracle(documents: list[list[str]], query: list[str]) -> dict[str, float]:
    """Scores above 0 by the formula as it is written down."""
    average = sum(map(len, documents)) / len(documents)
    scores: dict[str, float] = {}
    for number, terms in enumerate(documents):
        counted = Counter(terms)
        score = 0.0
        for term in query:
            n = sum(term in other for other in documents)
            idf = math.log(1 + (len(documents) - n + 0.5) / (n + 0.5))
            length = K1 * (1 - B + B * len(terms) / average) if average else K1
            score += idf * counted[term] * (K1 + 1) / (counted[term] + length)
        if score:
            scores[f"{number:05}.md"] = score
    return scores


@given(st.lists(texts, min_size=1, max_size=30), st.sets(st.sampled_from(WORDS), min_size=1))
def test_scores_are_those_of_the_formula(documents: list[list[str]], query: set[str]) -> None:
    with closing(indexed(documents)) as index:
        best = Ranking(index).best("note", sorted(query), 100)
    expected = oracle(documents, sorted(query))
    assert {hit.name: hit.score for hit in best} == pytest.approx(expected)
    assert [hit.score for hit in best] == sorted((hit.score for hit in best), reverse=True)


def test_equal_scores_keep_the_order_of_their_paths() -> None:
    with closing(indexed([["x"]] * 5)) as index:
        best = Ranking(index).best("note", ["x"], 3)
    assert [hit.name for hit in best] == ["00000.md", "00001.md", "00002.md"]


def test_a_rare_word_is_found_among_many_documents_with_a_common_one() -> None:
    documents = [["common"]] * (MAX_POSTINGS + 500)
    documents[7] = ["common", "rare"]
    with closing(indexed(documents)) as index:
        best = Ranking(index).best("note", ["common", "rare"], 4)
    assert best[0].name == "00007.md"
    assert len(best) == 4


def test_only_what_is_below_a_directory_is_ranked() -> None:
    with closing(indexed([["x"]], "user/a")) as index:
        for directory in ("user/a/b", "user/a0", "user/a.b", "user"):
            index.put(directory, "a.md", "note", stamp=Stamp(1, 1), terms=["x"])
        ranking = Ranking(index)
        below = ranking.best("note", ["x"], 9, below="user/a")
        one = ranking.best("note", ["x"], 9, below="user/a0/a")
    places = {f"{hit.directory}/{hit.name}" for hit in below}
    assert places == {"user/a/00000.md", "user/a/b/a.md", "user/a.md"}
    assert [hit.directory for hit in one] == ["user/a0"]


def test_kinds_are_ranked_apart() -> None:
    with closing(indexed([["x"]])) as index:
        index.put("session/s", "m.json", "transcript", stamp=Stamp(1, 1), terms=["x"])
        best = Ranking(index).best("transcript", ["x"], 9)
    assert [hit.name for hit in best] == ["m.json"]


def test_how_frequent_a_term_is_follows_the_index() -> None:
    with closing(indexed([["x"]] * 600)) as index:
        ranking = Ranking(index)
        assert ranking.best("note", ["x"], 1)[0].score < 0.01
        with index.writing():
            for number in range(599):
                index.remove("user", f"{number:05}.md")
        assert ranking.best("note", ["x"], 1)[0].score == pytest.approx(math.log(1 + 0.5 / 1.5))
