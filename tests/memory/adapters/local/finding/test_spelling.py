"""Which words of the notes a word of a query may mean."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.memory.adapters.local.files import Stamp
from rath.memory.adapters.local.index import IndexEntry, NoteIndex
from rath.memory.adapters.local.search import MAX_VARIANTS, Variant, is_within, parts, variants

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


def test_the_likeliest_variants_are_kept(knowing: Knowing) -> None:
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
