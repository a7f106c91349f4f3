"""Three-way merge of texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.backend.parts import split_lines
from rath.session.files.merge import merge_texts

lines = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "\n"]), max_size=8)
texts = st.tuples(lines, st.sampled_from(["", "z", "a"])).map(
    lambda made: "".join(made[0]) + made[1]
)


@given(base=texts, ours=texts)
def test_a_side_without_changes_takes_the_other_one(base: str, ours: str) -> None:
    assert merge_texts(base, ours, base) == ours
    assert merge_texts(base, base, ours) == ours


@given(base=texts, both=texts)
def test_the_same_change_on_both_sides_is_that_change(base: str, both: str) -> None:
    assert merge_texts(base, both, both) == both


@given(base=texts, ours=texts, theirs=texts)
def test_sides_may_be_exchanged(base: str, ours: str, theirs: str) -> None:
    assert merge_texts(base, ours, theirs) == merge_texts(base, theirs, ours)


@given(text=st.text())
def test_lines_make_up_the_text(text: str) -> None:
    assert "".join(split_lines(text)) == text
    assert all(line.find("\n") in (-1, len(line) - 1) for line in split_lines(text))


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        pytest.param("1\nb\nc\nd\n", "a\nb\nc\n4\n", "1\nb\nc\n4\n", id="far apart"),
        pytest.param("a\nb\nc\nd\ne", "0\na\nb\nc\nd\n", "0\na\nb\nc\nd\ne", id="at both ends"),
        pytest.param("a\nc\nd\n", "a\nb\nc\nd\nd\n", "a\nc\nd\nd\n", id="taken away and added"),
        pytest.param("a\n2\nc\nd\n", "a\nzwei\nc\nd\n", None, id="the same line"),
        pytest.param("a\n2\nc\nd\n", "a\nb\n3\nd\n", None, id="lines that touch"),
        pytest.param("a\nb\nc\nd\ne\n", "a\nb\nc\nd\nf\n", None, id="at the same place"),
    ],
)
def test_what_two_sides_come_to(ours: str, theirs: str, expected: str | None) -> None:
    assert merge_texts("a\nb\nc\nd\n", ours, theirs) == expected
