"""Server-sent events."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.llm.stream import EventParser

LINE = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=12)
EVENTS = st.lists(st.lists(LINE, min_size=1, max_size=3), max_size=5)


def parse(stream: bytes, cuts: list[int]) -> list[str]:
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    parser = EventParser()
    found: list[str] = []
    for start, end in itertools.pairwise(edges):
        found += parser.feed(stream[start:end])
    return found


@given(EVENTS, st.sampled_from(["\n", "\r\n", "\r"]), st.lists(st.integers(0, 200)))
def test_pieces_and_line_ends_make_no_difference(
    events: list[list[str]], end: str, cuts: list[int]
) -> None:
    text = "".join("".join(f"data: {line}{end}" for line in lines) + end for lines in events)
    assert parse(text.encode(), cuts) == ["\n".join(lines) for lines in events]


@given(EVENTS, st.lists(st.integers(0, 200)))
def test_comments_and_other_fields_are_left_out(events: list[list[str]], cuts: list[int]) -> None:
    text = "".join(
        ": keep-alive\n\nevent: message\nid: 7\nretry: 10\n"
        + "".join(
            f"data:{line}\n" if not line.startswith(" ") else f"data: {line}\n" for line in lines
        )
        + "\n"
        for lines in events
    )
    assert parse(text.encode(), cuts) == ["\n".join(lines) for lines in events]


@pytest.mark.parametrize(
    ("line", "data"), [("data:x", "x"), ("data: x", "x"), ("data:  x", " x"), ("data", "")]
)
def test_one_space_after_the_colon_is_no_data(line: str, data: str) -> None:
    assert parse(f"{line}\n\n".encode(), []) == [data]


def test_an_event_without_its_empty_line_comes_at_the_end() -> None:
    parser = EventParser()
    assert parser.feed(b"data: [DONE]") == []
    assert parser.close() == ["[DONE]"]
    assert parser.close() == []
