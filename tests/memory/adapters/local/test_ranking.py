"""BM25 over the index, with words that are near those of the query."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from contextlib import closing
from importlib import import_module
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rath.memory.adapters.local.files import Stamp
from rath.memory.adapters.local.index import IndexEntry, NoteIndex
from rath.memory.adapters.local.search import (
    K1,
    MAX_POSTINGS,
    MAX_SCORED,
    MAX_VARIANTS,
    B,
    Variant,
    best,
    is_within,
    parts,
    variants,
)
from rath.memory.adapters.local.terms import index_terms, query_terms


def indexed(documents: list[list[str]], directory: str = "user") -> NoteIndex:
    """An index in memory with documents named by their position."""
    index = NoteIndex(None)
    with index.writing():
        for number, terms in enumerate(documents):
            index.put([IndexEntry(directory, f"{number:05}.md", "note", Stamp(1, 1), terms)])
    return index


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
    assert found[0].score == pytest.approx(
        max(theirs([" ".join(each) for each in documents], "tea").values())
    )


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
any_texts = st.lists(st.sampled_from(PIECES), max_size=12).map(" ".join)
corpora = st.lists(any_texts, min_size=1, max_size=MAX_SCORED).filter(lambda found: any(found))


def indexed_texts(corpus: Sequence[str]) -> NoteIndex:
    """An index in memory with texts named by their position."""
    index = NoteIndex(None)
    with index.writing():
        for number, text in enumerate(corpus):
            index.put([IndexEntry("user", f"{number:05}", "note", Stamp(1, 1), index_terms(text))])
    return index


def ours(corpus: Sequence[str], query: str, limit: int = 1000) -> dict[int, float]:
    """What ranking finds: numbers of texts with their scores, the best first."""
    with closing(indexed_texts(corpus)) as index:
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


@given(corpora, any_texts)
def test_scores_are_those_of_rank_bm25(corpus: list[str], query: str) -> None:
    assert ours(corpus, query) == pytest.approx(theirs(corpus, query))


@given(corpora, any_texts, st.integers(1, 8))
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


@given(st.integers(0), any_texts)
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


Knowing = Callable[..., NoteIndex]

words = st.text("abc", max_size=8)


@pytest.fixture
def knowing() -> Knowing:
    """Makes a vocabulary of words."""

    def make(*known: str) -> NoteIndex:
        index = NoteIndex(None)
        with index.writing():
            index.put([IndexEntry("user", "a.md", "note", Stamp(1, 1), list(known))])
        return index

    return make


def by_table(one: str, other: str) -> int:
    """The distance by the table of all pairs of beginnings."""
    table = [
        [max(i, j) if not i * j else 0 for j in range(len(other) + 1)] for i in range(len(one) + 1)
    ]
    for i in range(1, len(one) + 1):
        for j in range(1, len(other) + 1):
            table[i][j] = min(
                table[i - 1][j] + 1,
                table[i][j - 1] + 1,
                table[i - 1][j - 1] + (one[i - 1] != other[j - 1]),
            )
            if i > 1 and j > 1 and one[i - 2 : i] == other[j - 2 : j][::-1]:
                table[i][j] = min(table[i][j], table[i - 2][j - 2] + 1)
    return table[-1][-1]


@given(words, words, st.integers(0, 3))
def test_the_distance_is_that_of_the_table(one: str, other: str, edits: int) -> None:
    assert is_within(edits, one, other) == (by_table(one, other) <= edits)


@pytest.mark.parametrize(
    ("asked", "known"),
    [
        ("kuberntes", "kubernetes"),
        ("postgers", "postgres"),
        ("datbaase", "database"),
        ("lable", "label"),
        ("qeue", "queue"),
        ("birtday", "birthday"),
        ("eliot", "leiot"),
        ("getusrname", "getusername"),
        ("алергия", "аллергия"),
        ("ruckerstatung", "ruckerstattung"),
    ],
)
def test_a_misspelled_word_means_the_one_that_is_known(
    knowing: Knowing, asked: str, known: str
) -> None:
    found = variants(knowing(known, "something", "else"), asked, is_known=False)
    assert [variant.word for variant in found] == [known]
    assert 0 < found[0].weight < 1


def test_the_weight_of_a_corrected_word_falls_with_its_edits(knowing: Knowing) -> None:
    vocabulary = knowing("setlements", "xyz")
    assert variants(vocabulary, "sxtlements", is_known=False) == [Variant("setlements", 0.9)]
    assert variants(vocabulary, "sxxlements", is_known=False) == [Variant("setlements", 0.8)]


def test_fewer_edits_leave_out_more(knowing: Knowing) -> None:
    found = variants(knowing("abxdefgh", "abxdefgx"), "abcdefgh", is_known=False)
    assert [variant.word for variant in found] == ["abxdefgh"]


@pytest.mark.parametrize(
    ("asked", "known"),
    [
        pytest.param("cat", "car", id="too short"),
        pytest.param("table", "fable", id="another first letter"),
        pytest.param("marble", "maxbxe", id="two edits of a short word"),
        pytest.param("e4012", "e4013", id="not of letters alone"),
        pytest.param("喜欢喝茶", "喜欢喝水", id="unspaced"),
        pytest.param("a" * 33, "a" * 32, id="too long"),
    ],
)
def test_some_words_are_not_corrected(knowing: Knowing, asked: str, known: str) -> None:
    assert variants(knowing(known), asked, is_known=False) == []


def test_a_known_word_is_not_corrected(knowing: Knowing) -> None:
    vocabulary = knowing("kubernetes", "kuxernetes")
    assert variants(vocabulary, "kuxernetes", is_known=True) == []


@pytest.mark.parametrize(
    ("asked", "known", "weight"),
    [
        ("renewing", "renewed", 5 / 8),
        ("collection", "collections", 10 / 11),
        ("рыжие", "рыжии", 4 / 5),
        ("коты", "кот", 3 / 4),
        ("zertifikate", "zertifikat", 10 / 11),
    ],
)
def test_a_word_means_its_other_forms(
    knowing: Knowing, asked: str, known: str, weight: float
) -> None:
    vocabulary = knowing(known, asked, "something")
    assert variants(vocabulary, asked, is_known=True) == [Variant(known, weight)]


@pytest.mark.parametrize(
    ("asked", "other"), [("card", "carpet"), ("port", "portable"), ("mast", "mouse")]
)
def test_words_that_merely_begin_alike_are_not_forms(
    knowing: Knowing, asked: str, other: str
) -> None:
    assert variants(knowing(other), asked, is_known=True) == []


def test_a_word_means_the_longer_words_that_begin_with_it(knowing: Knowing) -> None:
    found = variants(knowing("datenbankverbindung"), "datenbank", is_known=False)
    assert found == [Variant("datenbankverbindung", 9 / 19)]


def test_the_likeliest_variants_are_preserved(knowing: Knowing) -> None:
    vocabulary = knowing(*(f"collect{ending}" for ending in ("s", "ed", "ing", "or", "ion", "ors")))
    found = variants(vocabulary, "collect", is_known=True)
    assert [variant.word for variant in found] == [
        "collects",
        "collected",
        "collector",
        "collecting",
    ]
    assert len(found) == MAX_VARIANTS


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("lieferantenvertrag", ["lieferanten", "vertrag"]),
        ("sicherheitsvertrag", ["sicherheit", "vertrag"]),
        ("vertragverlust", []),
        ("vertrag", []),
        ("e4012vertrag", []),
        ("vertrag" * 5, []),
    ],
)
def test_a_compound_is_two_known_words(knowing: Knowing, word: str, expected: list[str]) -> None:
    assert parts(knowing("lieferanten", "vertrag", "sicherheit"), word) == expected
