"""Names of models that may mean the same one, and near names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.llm.refusal import may_mean_the_same, near_model

names = st.text("ab-/:@0*", max_size=8)


@given(names)
def test_a_name_means_itself(name: str) -> None:
    assert may_mean_the_same(name, name)


@given(names.filter(lambda name: "*" not in name), names, names)
def test_a_star_stands_for_anything(name: str, before: str, after: str) -> None:
    before, after = before.replace("*", ""), after.replace("*", "")
    assert may_mean_the_same(f"{before}{name}{after}", f"{before}*{after}")


@pytest.mark.parametrize(
    ("name", "listed"),
    [
        ("gpt-4o", "gpt-4o-2024-08-06"),
        ("gpt-4o-2024-08-06", "gpt-4o"),
        ("claude-3-7-sonnet-latest", "claude-3-7-sonnet-20250219"),
        ("claude-opus-4-0", "claude-opus-4-20250514"),
        ("claude-3-7-sonnet@20250219", "claude-3-7-sonnet"),
        ("gpt-4", "gpt-4-0613"),
        ("openai/gpt-4o:online", "openai/gpt-4o"),
        ("openai/gpt-4o:nitro", "openai/gpt-4o:free"),
        ("openai/gpt-oss-120b:some-vendor", "openai/gpt-oss-120b"),
        ("gpt-4o", "openai/gpt-4o"),
        ("openai/gpt-4o", "gpt-4o"),
        ("gemini-9", "models/gemini-9"),
        ("google/gemini-9", "models/gemini-9"),
        ("accounts/f/models/x", "models/x"),
        ("llama3", "llama3:latest"),
        ("Qwen/Qwen3-8B", "qwen3-8b"),
        ("openai/gpt-4o", "openai/*"),
        ("gpt-4o", "openai/gpt-*"),
        ("anything", "*"),
    ],
)
def test_names_that_may_mean_the_same(name: str, listed: str) -> None:
    assert may_mean_the_same(name, listed)


@pytest.mark.parametrize(
    ("name", "listed"),
    [
        ("gpt-9", "gpt-9-mini"),
        ("gpt-9-mini", "gpt-9"),
        ("gpt-9", "gpt-90"),
        ("gpt-9", "xgpt-9"),
        ("gpt-4o-2024-08-06", "gpt-4o-2024-05-13"),
        ("openai/gpt-9", "azure/gpt-9"),
        ("llama3", "llama3:70b"),
        ("llama3:8b", "llama3:latest"),
        ("ft:gpt-4o:org::1", "ft:gpt-4o:org::2"),
        ("claude-9", "openai/*"),
        ("ab", "ab*b"),
    ],
)
def test_names_that_mean_two_models(name: str, listed: str) -> None:
    assert not may_mean_the_same(name, listed)


def test_a_near_name_in_the_same_folder_comes_first() -> None:
    offered = ["a/model-12-instruct", "b/model-1-instruct", "model-12-instruct"]
    assert near_model("b/model-12-instruct", offered) == " Did you mean 'b/model-1-instruct'?"
    assert near_model("c/model-12-instruct", offered) == " Did you mean 'a/model-12-instruct'?"
    assert near_model("zzz", offered) == ""
