"""Text at the borders of the program."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath._core.text import (
    cut_middle,
    decode_output,
    did_you_mean,
    nearest,
    one_line_preview,
    valid_unicode,
)

any_text = st.text(st.characters())  # surrogates included
clean_text = st.text(st.characters(exclude_categories=["Cs"]))


@given(any_text)
def test_valid_unicode_can_always_be_encoded(text: str) -> None:
    valid_unicode(text).encode("utf-8")


@given(clean_text)
def test_valid_unicode_gives_the_same_object_for_valid_text(text: str) -> None:
    assert valid_unicode(text) is text


@given(clean_text, st.characters(categories=["Cs"]), clean_text)
def test_valid_unicode_replaces_only_the_surrogate(head: str, bad: str, tail: str) -> None:
    assert valid_unicode(head + bad + tail) == f"{head}\ufffd{tail}"


def test_valid_unicode_joins_a_surrogate_pair() -> None:
    assert valid_unicode("a\ud83d\ude00b") == "a\U0001f600b"


@given(clean_text)
def test_decode_output_reads_utf8_exactly(text: str) -> None:
    assert decode_output(text.encode()) == text


@given(st.binary(), st.sampled_from([None, "cp1252", "ascii", "no-such-encoding"]))
def test_decode_output_never_fails(data: bytes, fallback: str | None) -> None:
    valid = decode_output(data, fallback=fallback)
    assert valid_unicode(valid) is valid


def test_decode_output_uses_the_fallback_for_what_is_not_utf8() -> None:
    assert decode_output(b"na\xef\xbfve \x80", fallback="cp1252") == "naï¿ve €"


def test_decode_output_uses_latin1_when_the_fallback_is_unknown() -> None:
    assert decode_output(b"na\xefve", fallback="no-such-encoding") == "naïve"


@given(clean_text, st.integers(min_value=9, max_value=60))
def test_preview_is_one_line_within_its_limit(text: str, max_chars: int) -> None:
    preview = one_line_preview(text, max_chars)
    assert len(preview) <= max_chars
    assert not {"\n", "\r"} & set(preview)


@pytest.mark.parametrize(
    ("text", "max_chars", "expected"),
    [
        pytest.param("a\r\nb\rc\nd", 100, r"a\nb\nc\nd", id="line-breaks"),
        pytest.param("abcdefghijklm", 11, "abc ... klm", id="cut"),
        pytest.param("abcdefghijklm", 12, "abc ... klm", id="cut-odd"),
        pytest.param("abcdefghijklm", 13, "abcdefghijklm", id="fits"),
        pytest.param("abcdefghijklm", 8, "abcdefghijklm", id="limit-too-small"),
        pytest.param("", 100, "", id="empty"),
    ],
)
def test_preview_rule(text: str, max_chars: int, expected: str) -> None:
    assert one_line_preview(text, max_chars) == expected


@given(clean_text, st.integers(min_value=0, max_value=200))
def test_cut_middle_stays_within_its_limit(text: str, max_chars: int) -> None:
    shown, left_out = cut_middle(text * 5, max_chars)
    assert len(shown) <= max_chars
    assert (shown == text * 5) == (left_out == 0)


def test_cut_middle_keeps_head_and_tail_and_says_what_is_missing() -> None:
    shown, left_out = cut_middle("<" * 500 + ">" * 500, 100)
    assert shown.startswith("<" * 25)
    assert shown.endswith(">" * 25)
    assert f"{left_out} characters left out" in shown
    assert shown.count("<") + shown.count(">") == 1000 - left_out


def test_cut_middle_keeps_only_the_head_without_room_for_a_note() -> None:
    assert cut_middle("abcdefgh", 3) == ("abc", 5)


def test_nearest_ignores_letter_case() -> None:
    assert nearest("OpenAi", ["anthropic", "openAI"]) == "openAI"


def test_nearest_gives_none_when_nothing_is_near() -> None:
    assert nearest("zzz", ["anthropic", "openai"]) is None


def test_did_you_mean_is_a_sentence_or_nothing() -> None:
    assert did_you_mean("locl", ["local"]) == " Did you mean 'local'?"
    assert did_you_mean("zzz", ["local"]) == ""
