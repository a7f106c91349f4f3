"""BM25 over the index."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.memory.adapters.local.files import Stamp
from rath.memory.adapters.local.index import IndexEntry, NoteIndex
from rath.memory.adapters.local.search import K1, MAX_POSTINGS, MAX_SCORED, B, best

WORDS = ["a", "b", "c", "d", "e", "文", "件"]
texts = st.lists(st.sampled_from(WORDS), max_size=12)


def indexed(documents: list[list[str]], directory: str = "user") -> NoteIndex:
    """An index in memory with documents named by their position."""
    index = NoteIndex(None)
    with index.writing():
        for number, terms in enumerate(documents):
            index.put([IndexEntry(directory, f"{number:05}.md", "note", Stamp(1, 1), terms)])
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
        found = best(index, "note", sorted(query), 100)
    expected = oracle(documents, sorted(query))
    assert {hit.name: hit.score for hit in found} == pytest.approx(expected)
    assert [hit.score for hit in found] == sorted((hit.score for hit in found), reverse=True)


def test_equal_scores_keep_the_order_of_their_paths() -> None:
    with closing(indexed([["x"]] * 5)) as index:
        found = best(index, "note", ["x"], 3)
    assert [hit.name for hit in found] == ["00000.md", "00001.md", "00002.md"]


def test_a_rare_word_is_found_among_many_documents_with_a_common_one() -> None:
    documents = [["common"]] * (MAX_POSTINGS + 500)
    documents[7] = ["common", "rare"]
    with closing(indexed(documents)) as index:
        found = best(index, "note", ["common", "rare"], 4)
    assert found[0].name == "00007.md"
    assert len(found) == 4


def test_only_what_is_below_a_directory_is_ranked() -> None:
    with closing(indexed([["x"]], "user/a")) as index:
        for directory in ("user/a/b", "user/a0", "user/a.b", "user"):
            index.put([IndexEntry(directory, "a.md", "note", Stamp(1, 1), ["x"])])
        below = best(index, "note", ["x"], 9, below="user/a")
        one = best(index, "note", ["x"], 9, below="user/a0/a")
    places = {f"{hit.directory}/{hit.name}" for hit in below}
    assert places == {"user/a/00000.md", "user/a/b/a.md", "user/a.md"}
    assert [hit.directory for hit in one] == ["user/a0"]


def test_kinds_are_ranked_apart() -> None:
    with closing(indexed([["x"]])) as index:
        index.put([IndexEntry("session/s", "m.json", "transcript", Stamp(1, 1), ["x"])])
        found = best(index, "transcript", ["x"], 9)
    assert [hit.name for hit in found] == ["m.json"]


def test_how_frequent_a_term_is_follows_the_index() -> None:
    with closing(indexed([["x"]] * 600)) as index:
        assert best(index, "note", ["x"], 1)[0].score < 0.01
        with index.writing():
            for number in range(599):
                index.remove("user", f"{number:05}.md")
        assert best(index, "note", ["x"], 1)[0].score == pytest.approx(math.log(1 + 0.5 / 1.5))


def numbers(documents: list[list[str]], *query: str) -> list[int]:
    """The numbers of the documents that a query finds, the best first."""
    with closing(indexed(documents)) as index:
        found = best(index, "note", list(query), 9)
    assert all(hit.score > 0 for hit in found)
    return [int(hit.name.removesuffix(".md")) for hit in found]


def test_a_misspelled_word_finds_what_it_means() -> None:
    assert numbers([["kubernetes", "runs"], ["something"]], "kuberntes") == [0]


def test_a_corrected_word_is_worth_less_than_an_exact_one() -> None:
    assert numbers([["kubernetes"], ["cluster"]], "kuberntes", "cluster") == [1, 0]


def test_a_word_that_some_document_has_is_not_corrected() -> None:
    documents = [["kubernetes"] * 5, ["kuberntes", *["long"] * 50]]
    assert numbers(documents, "kuberntes") == [1]


def test_an_exact_word_comes_before_another_form_of_it() -> None:
    assert numbers([["renewing"], ["renewed"]], "renewed") == [1, 0]


def test_forms_of_one_word_count_once() -> None:
    # The better of the two, and no sum.
    documents = [["renewal", "renewing"], ["renewing", "tea"], ["renewal", "tea"]]
    with closing(indexed(documents)) as index:
        found = {hit.name: hit.score for hit in best(index, "note", ["renewed"], 9)}
    assert found["00000.md"] == max(found["00001.md"], found["00002.md"])


def test_a_form_that_the_query_has_too_counts_for_itself_only() -> None:
    with closing(indexed([["renewed"], ["tea"]])) as index:
        (both,) = best(index, "note", ["renewed", "renewing"], 9)
        (alone,) = best(index, "note", ["renewed"], 9)
    assert both.score == pytest.approx(alone.score)


def test_a_compound_finds_its_parts() -> None:
    assert numbers([["vertrag"], ["lieferanten", "vertrag"]], "lieferantenvertrag") == [1, 0]


def test_a_common_word_means_itself_only() -> None:
    documents = [["renewed"]] * (MAX_SCORED + 1) + [["renewing", "tea"]]
    with closing(indexed(documents)) as index:
        found = best(index, "note", ["renewed", "tea"], 2)
    assert found[0].score == pytest.approx(max(oracle(documents, ["tea"]).values()))


def test_words_of_transcripts_do_not_answer_for_notes() -> None:
    with closing(indexed([["tea"]])) as index:
        index.put([IndexEntry("session/s", "m.json", "transcript", Stamp(1, 1), ["kubernetes"])])
        assert best(index, "note", ["kuberntes"], 9) == []
        assert len(best(index, "transcript", ["kuberntes"], 9)) == 1


def test_a_frequent_word_is_counted_once_for_many_queries() -> None:
    with closing(indexed([["x"], ["y"]] * 600)) as index:
        first = best(index, "note", ["x"], 1)[0].score
        index.put([IndexEntry("user", "one-more.md", "note", Stamp(1, 1), ["x"])])
        assert best(index, "note", ["x"], 1)[0].score == pytest.approx(first, rel=0.01)


def test_frequent_words_choose_nothing_where_rarer_ones_have_chosen_enough() -> None:
    documents = [["often", "seldom"]] * 1600 + [["often"]] * 1500
    with closing(indexed(documents)) as index:
        found = best(index, "note", ["often", "seldom"], 4)
    assert all(int(hit.name.removesuffix(".md")) < 1600 for hit in found)


def test_other_forms_choose_nothing_where_there_is_no_room() -> None:
    documents = [["renewed"], *[["renews"]] * MAX_POSTINGS, *[["renewing"]] * (MAX_POSTINGS + 9)]
    with closing(indexed(documents)) as index:
        found = best(index, "note", ["renewed"], 50)
    assert found[0].name == "00000.md"
    assert all(int(hit.name.removesuffix(".md")) <= MAX_POSTINGS for hit in found)


def test_very_long_documents_are_scored_until_there_is_no_room() -> None:
    documents = [["x", *["filler"] * 150_000]] * 4
    with closing(indexed(documents)) as index:
        assert len(best(index, "note", ["x"], 4)) == 2


def test_a_word_of_the_other_kind_is_not_corrected() -> None:
    with closing(indexed([["kubernetes"]])) as index:
        index.put([IndexEntry("session/s", "m.json", "transcript", Stamp(1, 1), ["kuberntes"])])
        assert best(index, "note", ["kuberntes"], 9) == []
