"""Output becomes texts of lines, in whatever pieces it arrives."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from tests.support.opensandbox_server.execd.lines import Lines

PIECES = st.lists(st.text("ab\r\n", max_size=5).map(str.encode), max_size=8)


def texts(pieces: Iterable[bytes]) -> list[str]:
    lines = Lines()
    return [text for piece in pieces for text in lines.feed(piece)] + lines.rest()


@given(PIECES)
def test_pieces_do_not_matter(pieces: list[bytes]) -> None:
    assert texts(pieces) == texts([b"".join(pieces)])


@given(st.lists(st.text("ab", min_size=1)))
def test_lines_with_something_in_them_come_as_they_are(lines: list[str]) -> None:
    assert texts([f"{line}\n".encode() for line in lines]) == lines


def test_the_recorded_cases() -> None:
    assert texts([b"a\nb\n\nc"]) == ["a", "b", "\n", "c"]


def test_ends_of_lines_are_lost_and_empty_lines_are_told() -> None:
    assert texts([b"A\r\nB\n\n\nC\r\r"]) == ["A", "B", "\n", "\n", "C", "\n"]


def test_what_is_no_text_is_replaced() -> None:
    assert texts([b"\xff\n"]) == ["�"]
