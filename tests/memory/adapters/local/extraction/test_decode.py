"""Memos in the answers of models: whatever those wrote, few, short and plain."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rath.memory.adapters.local.extraction import (
    DEFAULT_CATEGORY,
    MAX_ANSWER_CHARS,
    MAX_MEMO_BYTES,
    MAX_MEMOS,
    MAX_ROWS,
    Memo,
    category_of,
    decode_memos,
)
from rath.memory.adapters.local.layout import relative_path

TEA = '[{"content": "The user drinks tea.", "category": "preferences", "rows": [1, 0]}]'
THE_MEMO = (Memo("The user drinks tea.", "preferences", (0, 1)),)

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
fields = st.fixed_dictionaries(
    {},
    optional={
        "content": st.text() | anything,
        "category": st.text() | anything,
        "uri": st.text() | anything,
        "rows": st.lists(st.integers(-3, 9)) | anything,
    },
)
answers = st.text() | st.lists(fields | anything).map(json.dumps) | anything.map(json.dumps)


def memos(*items: Any, numbers: range = range(3)) -> tuple[Memo, ...]:
    """What an answer with these elements gives."""
    found = decode_memos(json.dumps(items), numbers)
    assert found is not None
    return found


def contents(*items: Any) -> list[str]:
    """The texts of the memos of these elements."""
    return [memo.content for memo in memos(*items)]


@given(answers)
@example("[" * 100_000)
@example('[{"content": "a", "rows": [' + "1" * 5000 + "]}]")
@example('[{"content": "a", "rows": [NaN, 1e999, -0]}]')
@example('[{"content": "\\ud800", "category": "\\udfff"}]')
@example("```json\n```")
def test_any_answer_gives_bounded_memos_or_none(answer: str) -> None:
    found = decode_memos(answer, range(5)) or ()
    assert len(found) <= MAX_MEMOS
    assert len({memo.content for memo in found}) == len(found)
    for memo in found:
        assert 0 < len(memo.content.encode()) <= MAX_MEMO_BYTES
        assert memo.content.strip()
        assert set(memo.messages) <= set(range(5))
        assert "/" not in memo.category
        relative_path(f"memory://user/memories/extracted/{memo.category}/{'0' * 8}")


@pytest.mark.parametrize(
    "answer",
    [
        TEA,
        f"```json\n{TEA}\n```",
        f"```\n{TEA}\n```",
        f"Here is what I found:\n{TEA}\nI hope this helps.",
        f'{{"memos": {TEA}}}',
        TEA[1:-1],
    ],
    ids=["bare", "fenced", "fenced without a name", "in words", "in an object", "one object"],
)
def test_an_array_is_found_wherever_it_stands(answer: str) -> None:
    assert decode_memos(answer, range(2)) == THE_MEMO


@pytest.mark.parametrize(
    "answer", ["", "I cannot do that.", "[", "[{]", '{"a": 1}', "3", "null", '[{"content": "cut of']
)
def test_an_answer_without_an_array_is_told_from_an_empty_one(answer: str) -> None:
    assert decode_memos(answer, range(2)) is None
    assert decode_memos("[]", range(2)) == ()


@pytest.mark.parametrize("content", [None, 3, True, ["a"], {"a": "b"}, "", " \n\t", "\0\x07"])
def test_what_is_no_text_is_no_memo(content: object) -> None:
    assert contents({"content": content}, {"content": "a"}, "b", [], 4) == ["a"]


def test_text_is_plain_and_valid() -> None:
    assert contents({"content": " a\0\x1b[31mb\r\n\tc\ud800\x7f "}) == ["a[31mb\n\tc\ufffd"]


def test_a_long_memo_is_cut_between_characters() -> None:
    [content] = contents({"content": "é" * MAX_MEMO_BYTES})
    assert content == "é" * (MAX_MEMO_BYTES // 2)
    [content] = contents({"content": "a" + "é" * MAX_MEMO_BYTES})
    assert len(content.encode()) == MAX_MEMO_BYTES - 1


def test_of_ten_thousand_memos_the_first_count() -> None:
    found = contents(*({"content": f"memo {number}"} for number in range(10_000)))
    assert found == [f"memo {number}" for number in range(MAX_MEMOS)]


def test_an_endless_answer_is_cut() -> None:
    assert decode_memos(" " * MAX_ANSWER_CHARS + TEA, range(2)) is None


def test_the_same_memo_is_one_with_the_rows_of_all() -> None:
    found = memos(
        {"content": "Tea is  good.", "rows": [2]},
        {"content": "tea\nis good.", "category": "x", "rows": [0]},
    )
    assert found == (Memo("Tea is  good.", DEFAULT_CATEGORY, (0, 2)),)


def test_rows_that_are_none_are_dropped() -> None:
    [memo] = memos({"content": "a", "rows": [7, -1, 1, 1, "2", 0.0, True, None, [2]]})
    assert memo.messages == (1,)


@pytest.mark.parametrize("rows", [None, 1, "1", {"1": 1}])
def test_rows_that_are_no_list_are_dropped(rows: object) -> None:
    [memo] = memos({"content": "a", "rows": rows})
    assert memo.messages == ()


def test_a_memo_names_a_few_rows() -> None:
    [memo] = memos({"content": "a", "rows": list(range(1000))}, numbers=range(1000))
    assert memo.messages == tuple(range(MAX_ROWS))


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("preferences", "preferences"),
        ("What they Prefer!", "what-they-prefer"),
        ("../../etc/passwd", "etc-passwd"),
        ("..", DEFAULT_CATEGORY),
        ("/", DEFAULT_CATEGORY),
        ("", DEFAULT_CATEGORY),
        ("\0\ud800", DEFAULT_CATEGORY),
        ("偏好", "偏好"),
        ("ﬁle.md", "file-md"),
        ("x" * 500, "x" * 32),
    ],
)
def test_a_category_is_one_plain_segment(name: str, category: str) -> None:
    assert category_of(name) == category


@pytest.mark.parametrize(
    ("uri", "category"),
    [
        ("memory://user/memories/preferences/tea", "preferences"),
        ("memory://user/../../etc/passwd", "etc"),
        ("memory://resources", DEFAULT_CATEGORY),
        ("viking://agent/x", "agent"),
        ("/etc/passwd", "etc"),
        ("C:\\Windows\\x", DEFAULT_CATEGORY),
        ("", DEFAULT_CATEGORY),
    ],
)
def test_of_a_uri_only_a_category_is_taken(uri: str, category: str) -> None:
    [memo] = memos({"content": "a", "uri": uri})
    assert memo.category == category


def test_a_category_goes_before_a_uri() -> None:
    [memo] = memos({"content": "a", "category": "facts", "uri": "memory://user/b/c"})
    assert memo.category == "facts"
