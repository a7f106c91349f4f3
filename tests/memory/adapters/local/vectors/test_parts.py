"""Which texts of a document are embedded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rath.memory.adapters.local.vectors import MAX_PARTS, PART_CHARS, digest_of, parts_of

texts = st.lists(st.text(max_size=3000), max_size=6)


@given(texts)
def test_parts_are_few_short_and_never_blank(given_texts: list[str]) -> None:
    parts = parts_of(given_texts)
    assert len(parts) <= MAX_PARTS
    assert all(part.strip() and len(part) <= PART_CHARS for part in parts)


@given(texts)
def test_parts_hold_the_beginning_in_order(given_texts: list[str]) -> None:
    whole = "".join("".join(given_texts).split())
    joined = "".join("".join(parts_of(given_texts)).split())
    assert whole.startswith(joined)
    assert len(joined) == len(whole) or len(joined) > MAX_PARTS * PART_CHARS // 4


def test_a_short_note_is_one_part() -> None:
    assert parts_of([" Tea.\n\nNo coffee.\n"]) == ["Tea.\n\nNo coffee."]


def test_what_was_said_in_a_row_stands_together() -> None:
    assert parts_of(["Tea?", "Yes.", "x" * 999]) == ["Tea?\nYes.", "x" * 999]


def test_a_long_text_is_cut_between_words() -> None:
    parts = parts_of([" ".join(["word"] * 500)])
    assert len(parts) == 3
    assert set(" ".join(parts).split()) == {"word"}


def test_a_text_without_blanks_is_cut_anywhere() -> None:
    assert [len(part) for part in parts_of(["茶" * 1500])] == [1000, 500]


def test_a_lone_surrogate_has_a_digest() -> None:
    [part] = parts_of(["tea \ud800"])
    assert digest_of(part) == digest_of("tea \ufffd")
