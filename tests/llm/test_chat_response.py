"""Responses and token counts."""

from __future__ import annotations

import pytest

from rath.llm import RathLLMChatResponse, RathLLMTokenUsage, add_usage


def test_usage_adds_up_without_details() -> None:
    a = RathLLMTokenUsage(1, 2, 3, completion_tokens_details={"reasoning_tokens": 1})
    assert add_usage(a, RathLLMTokenUsage(10, 20, 30)) == RathLLMTokenUsage(11, 22, 33)


def test_nothing_and_nothing_is_nothing() -> None:
    assert add_usage(None, None) is None


def test_one_count_alone_stays_the_same_object() -> None:
    usage = RathLLMTokenUsage(1, 2, 3)
    assert add_usage(usage, None) is usage
    assert add_usage(None, usage) is usage


def test_primary_choice_needs_a_choice() -> None:
    with pytest.raises(IndexError):
        _ = RathLLMChatResponse(id="", choices=(), created=0, model="").primary_choice
