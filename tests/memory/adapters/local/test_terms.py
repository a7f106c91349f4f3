"""The terms under which texts are stored and found."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.memory.adapters.local.terms import MAX_TERM_CHARS, index_terms, is_word, query_terms

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
def test_terms_are_complete_tokens_of_the_index(text: str) -> None:
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
        ("用getUserName写代码", "user name"),
        ("Søren aus Łódź", "soren lodz"),
        ("Ærø", "aero"),
        ("ILIK", "ılık"),
        ("مُحَمَّد", "محمد"),
        ("أحمد", "احمد"),
        ("فاطمة", "فاطمه"),
        ("می\u200cخواهم", "میخواهم"),
        ("שָׁלוֹם", "שלום"),
        ("क़लम", "कलम"),
        ("co\u00adoperate", "cooperate"),
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


IDENTIFIERS = [
    "getUserName",
    "GetUserName",
    "get_user_name",
    "GET_USER_NAME",
    "get-user-name",
    "get.user.name",
    "get.userName",
    "get__user_name",
]


@pytest.mark.parametrize("written", IDENTIFIERS)
@pytest.mark.parametrize("asked", [*IDENTIFIERS, "user name", "name", "getusername", "USER"])
def test_an_identifier_is_found_by_its_parts_and_in_any_spelling(written: str, asked: str) -> None:
    assert set(query_terms(asked)) <= set(index_terms(f"call {written}() here"))


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("HTTPServerError", ["http", "server", "error", "httpservererror"]),
        ("foo.bar_baz", ["foo", "bar", "baz", "foobarbaz"]),
        ("kebab-case", ["kebab", "case", "kebabcase"]),
        ("parseXMLFile", ["parse", "xml", "file", "parsexmlfile"]),
        ("APIs", ["apis"]),
        ("Python", ["python"]),
        ("UPPER", ["upper"]),
        ("utf8 UTF-8", ["utf8", "utf", "8", "utf8"]),
        ("__init__", ["init"]),
        ("wait... what", ["wait", "what"]),
        ("a--b", ["a", "b"]),
        ("имяПользователя", ["имя", "пользователя", "имяпользователя"]),
        ("喜欢-茶", ["喜", "欢", "喜欢", "茶"]),
    ],
)
def test_identifiers_are_stored_with_their_parts(text: str, terms: list[str]) -> None:
    assert index_terms(text) == terms


@pytest.mark.parametrize("written", ["5.29.3", "v5.29.3", "V5.29.3"])
def test_a_version_is_one_term_and_its_numbers(written: str) -> None:
    assert index_terms(written) == ["5", "29", "3", "5ꞏ29ꞏ3"]


def test_versions_with_the_same_digits_differ_as_a_whole() -> None:
    assert set(index_terms("5.29.3")).isdisjoint({*index_terms("52.93"), "5293"})


def test_an_error_code_stays_complete() -> None:
    assert index_terms("Error E4012") == ["error", "e4012"]


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("Mara's", ["mara"]),
        ("MARA’S", ["mara"]),
        ("it's we'll they're I'm", ["it", "we", "they", "i"]),
        ("don't", ["dont"]),
        ("l'hôtel", ["l", "hotel", "lhotel"]),
        ("O’Brien", ["o", "brien", "obrien"]),
    ],
)
def test_an_apostrophe_belongs_to_its_word(text: str, terms: list[str]) -> None:
    assert index_terms(text) == terms


def test_encoded_data_is_read_in_linear_time() -> None:
    for piece in ("ab", "aB", "a_", "a'", "AAa", "a.9"):
        assert index_terms(piece * 60_000)


@pytest.mark.parametrize(
    ("term", "expected"),
    [("word", True), ("слово", True), ("e4012", False), ("5ꞏ29", False), ("喜欢", False)],
)
def test_a_word_has_letters_only(term: str, expected: bool) -> None:
    assert is_word(term) is expected
