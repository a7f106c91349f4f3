"""The terms by which notes are found."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.memory.adapters.local.terms import MAX_TERM_CHARS, index_terms, query_terms

han = st.text(st.characters(min_codepoint=0x4E00, max_codepoint=0x9FFF), min_size=1)


@given(st.text())
def test_a_text_is_found_by_itself(text: str) -> None:
    assert set(query_terms(text)) <= set(index_terms(text))


@given(st.text(), st.text())
def test_a_text_is_found_by_the_words_that_are_in_it(one: str, other: str) -> None:
    assert set(query_terms(one)) <= set(index_terms(f"{other} {one}"))


@given(before=han, piece=han, after=han)
def test_an_unspaced_text_is_found_by_any_piece_of_it(before: str, piece: str, after: str) -> None:
    assert set(query_terms(piece)) <= set(index_terms(before + piece + after))


@given(st.text())
def test_terms_are_whole_tokens_of_the_index(text: str) -> None:
    # What SQLite's `ascii` tokenizer takes for a token: ASCII letters and digits, and all above.
    for term in index_terms(text):
        assert 0 < len(term) <= MAX_TERM_CHARS
        assert all(char.isalnum() or not char.isascii() for char in term)
        assert not any(char.isspace() or char == "\0" for char in term)


@pytest.mark.parametrize(
    ("written", "asked"),
    [
        ("Die Straße ist naß", "STRASSE NASS"),
        ("Café crème", "cafe creme"),
        ("ёлка", "ЕЛКА"),
        ("ΟΔΟΣ", "οδός"),
        ("ＡＢＣ１２３", "abc123"),
        ("ﬁle", "FILE"),
        ("İstanbul", "istanbul"),
        ("snake_case_name", "Snake Name"),
        ("e-mail/list", "list mail"),
        ("한국어를 배운다", "한국어"),
        ("データを保存する", "保存"),
        ("ผมชอบกาแฟ", "กาแฟ"),
        ("हिन्दी में", "हिन्दी"),
        ("用Python写代码", "python"),
    ],
)
def test_folded_words_meet(written: str, asked: str) -> None:
    assert query_terms(asked)
    assert set(query_terms(asked)) <= set(index_terms(written))


@pytest.mark.parametrize("text", ["", " \n", "?!…", '"*^:()', "\0"])
def test_a_text_without_words_has_no_terms(text: str) -> None:
    assert index_terms(text) == query_terms(text) == []


def test_a_query_asks_for_each_term_once_and_in_order() -> None:
    assert query_terms("b a B 喜欢 a") == ["b", "a", "喜欢"]


def test_unspaced_runs_are_stored_as_characters_and_bigrams() -> None:
    assert index_terms("我喜欢x") == ["我", "喜", "欢", "我喜", "喜欢", "x"]
    assert query_terms("我喜欢") == ["我喜", "喜欢"]
    assert query_terms("喜") == ["喜"]
