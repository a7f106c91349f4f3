"""Arguments for LiteLLM: what goes in, what is refused, what a provider says instead."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.llm import RathLLMMessage
from rath.llm.litellm.client import (
    encode_litellm_message,
    keyword_arguments,
    refuse_call_settings,
)

THOUGHT = {"type": "thinking", "thinking": "why", "signature": "sig"}
bodies = st.dictionaries(
    st.sampled_from(["model", "messages", "temperature", "tools", "seed"]),
    st.integers(),
    min_size=1,
)


@given(bodies)
def test_the_body_arrives_complete(body: dict[str, Any]) -> None:
    arguments = keyword_arguments(json.dumps(body).encode(), api_key="", api_base=None, timeout=5)
    assert {name: arguments[name] for name in body} == body


@given(bodies, st.text(max_size=3), st.one_of(st.none(), st.just("http://h/v1")))
def test_retries_are_never_left_to_litellm(
    body: dict[str, Any], api_key: str, api_base: str | None
) -> None:
    arguments = keyword_arguments(
        json.dumps(body).encode(), api_key=api_key, api_base=api_base, timeout=5
    )
    assert (arguments["num_retries"], arguments["max_retries"]) == (0, 0)
    assert ("api_key" in arguments, "api_base" in arguments) == (bool(api_key), bool(api_base))


def test_what_a_vendor_does_not_know_is_dropped_unless_asked_otherwise() -> None:
    by_default = keyword_arguments(b"{}", api_key="k", api_base=None, timeout=5)
    asked = keyword_arguments(b'{"drop_params":false}', api_key="k", api_base=None, timeout=5)
    assert (by_default["drop_params"], asked["drop_params"]) == (True, False)


def test_signed_thinking_goes_back_next_to_text_and_calls() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = RathLLMMessage("assistant", "hi", tool_calls=(call,), blocks=(THOUGHT,))
    assert encode_litellm_message(message) == {
        "role": "assistant",
        "content": "hi",
        "tool_calls": [call],
        "thinking_blocks": [THOUGHT],
    }


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("api_key", "api_key"),
        ("api_base", "base_url"),
        ("timeout", "timeout"),
        ("num_retries", "retry_max_attempts"),
        ("fallbacks", "fallbacks"),
    ],
)
def test_what_a_provider_has_a_field_for_is_refused(name: str, field: str) -> None:
    with pytest.raises(ValueError, match=rf"use Provider\({field}="):
        refuse_call_settings({name: "x"})


@pytest.mark.parametrize(
    "extra",
    [
        {"aws_secret_access_key": "x"},
        {"aws_session_token": "x"},
        {"azure_ad_token": "x"},
        {"vertex_credentials": "x"},
        {"extra_headers": {"Authorization": "x"}},
        {"headers": {"x-api-key": "x"}},
    ],
    ids=str,
)
def test_a_secret_is_refused_since_parameters_are_recorded(extra: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="it is a secret"):
        refuse_call_settings(extra)


def test_other_arguments_of_a_vendor_pass() -> None:
    refuse_call_settings(
        {
            "aws_region_name": "eu-central-1",
            "vertex_project": "p",
            "max_completion_tokens": 5,
            "prompt_cache_key": "k",
            "extra_headers": {"anthropic-beta": "b"},
        }
    )
