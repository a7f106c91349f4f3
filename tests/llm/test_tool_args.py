"""Arguments of tool calls."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.llm.tool_args import parse_tool_arguments

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), VALUES))
def test_gives_back_any_object(arguments: dict[str, Any]) -> None:
    assert parse_tool_arguments(json.dumps(arguments)) == (arguments, False)


@pytest.mark.parametrize("text", [None, "", "  \n"])
def test_an_empty_text_is_no_error(text: str | None) -> None:
    assert parse_tool_arguments(text) == (None, False)


@pytest.mark.parametrize("text", ["{", "[1]", '"x"', "3", "null", "{'a': 1}", "[" * 100_000])
def test_anything_else_is_an_error(text: str) -> None:
    assert parse_tool_arguments(text) == (None, True)
