"""Whole answers of the Messages API as responses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from rath.errors import (
    AuthenticationError,
    InvalidRequestError,
    ModelNotFoundError,
    ProviderError,
    ProviderProtocolError,
    ProviderServerError,
    ProviderStatusError,
    QuotaExceededError,
    RateLimitError,
)
from rath.llm import RathLLMTokenUsage
from rath.llm.anthropic import normalize_anthropic_response
from rath.llm.anthropic.normalize import decode_message
from rath.llm.errors import retry_verdict
from tests.support import anthropic_replies as replies
from tests.support.odd_json import anthropic_answers
from tests.support.targets import request_target

ASKED = request_target("the server", secret="sk-canary-0123456789")
USED = replies.tool_use("weather", {"city": "Köln"}, id="toolu_01A")


def test_a_recorded_answer_is_read() -> None:
    payload = {
        "id": "msg_01XFDUDYJgAACzvnptvVoYEL",
        "type": "message",
        "role": "assistant",
        "model": "claude-scripted-1",
        "content": [
            {"type": "text", "text": "I look it up."},
            {"type": "tool_use", "id": "toolu_01A", "name": "weather", "input": {"city": "Köln"}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 20,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 100,
            "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
            "output_tokens": 30,
            "output_tokens_details": {"thinking_tokens": 12},
            "service_tier": "standard",
        },
    }
    response = normalize_anthropic_response(payload)
    choice = response.primary_choice
    assert (response.id, response.model, response.created) == (
        "msg_01XFDUDYJgAACzvnptvVoYEL",
        "claude-scripted-1",
        0,
    )
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I look it up.")
    assert choice.message.tool_calls is not None
    (part,) = choice.message.tool_calls
    assert (part.id, part.type, part.function.name) == ("toolu_01A", "function", "weather")
    assert part.function.arguments == '{"city": "Köln"}'
    assert part.function.arguments_parsed == {"city": "Köln"}
    assert response.usage == RathLLMTokenUsage(
        prompt_tokens=120,
        completion_tokens=30,
        total_tokens=150,
        completion_tokens_details={"reasoning_tokens": 12},
        prompt_tokens_details={"cached_tokens": 100, "cache_write_tokens": 0},
    )
    assert response.service_tier == "standard"
    assert response.raw == payload


@pytest.mark.parametrize(
    ("texts", "content"),
    [(["a", "b"], "a\nb"), (["", "b"], "b"), ([""], None), ([], None), (["\ud83d\ude00"], "😀")],
)
def test_texts_are_joined_by_line_feeds(texts: list[str], content: str | None) -> None:
    payload = replies.envelope(*(replies.text(text) for text in texts))
    assert normalize_anthropic_response(payload).primary_choice.message.content == content


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("tool_use", "tool_calls"),
        ("refusal", "refusal"),
        ("pause_turn", "pause_turn"),
        ("from_the_future", "stop"),
        (None, "stop"),
        ({}, "stop"),
    ],
)
def test_stop_reasons_are_translated_and_preserved(raw: object, reason: str) -> None:
    response, served = decode_message(replies.envelope(stop_reason=raw), ASKED)
    assert response.primary_choice.finish_reason == reason
    assert served.finish_reason == (raw if isinstance(raw, str) else None)


def test_a_refusal_says_why() -> None:
    details = {"type": "refusal", "category": "cyber", "explanation": "That could do harm."}
    payload = replies.envelope(stop_reason="refusal", stop_details=details)
    assert normalize_anthropic_response(payload).primary_choice.message.refusal == (
        "That could do harm."
    )


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"input_tokens": 1, "output_tokens": 2}, RathLLMTokenUsage(1, 2, 3)),
        ({"input_tokens": 0, "output_tokens": 0}, None),
        ({}, None),
        (None, None),
        (
            {"input_tokens": 1, "output_tokens": 2, "cache_creation_input_tokens": 4},
            RathLLMTokenUsage(5, 2, 7, prompt_tokens_details={"cache_write_tokens": 4}),
        ),
        (
            {
                "input_tokens": 1,
                "output_tokens": 2,
                "cache_creation_input_tokens": 4,
                "cache_creation": {"ephemeral_1h_input_tokens": 3, "ephemeral_5m_input_tokens": 1},
            },
            RathLLMTokenUsage(
                5,
                2,
                7,
                prompt_tokens_details={"cache_write_tokens": 4, "cache_write_1h_tokens": 3},
            ),
        ),
    ],
)
def test_cached_tokens_are_prompt_tokens(counts: Any, expected: RathLLMTokenUsage | None) -> None:
    assert normalize_anthropic_response(replies.envelope(usage=counts)).usage == expected


def test_thoughts_are_reasoning() -> None:
    payload = replies.envelope(
        replies.thinking("first"), replies.thinking(""), replies.thinking("then"),
        replies.redacted(), replies.text("so"),
    )  # fmt: skip
    message = normalize_anthropic_response(payload).primary_choice.message
    assert (message.reasoning_content, message.content) == ("first\nthen", "so")


def test_a_call_without_input_or_id_is_one() -> None:
    payload = replies.envelope({"type": "tool_use", "name": "now"})
    calls = normalize_anthropic_response(payload).primary_choice.message.tool_calls
    assert calls is not None
    assert (calls[0].id, calls[0].function.arguments) == ("call_0", "{}")


@pytest.mark.parametrize(
    "block",
    [replies.thinking("t"), replies.redacted(), replies.search("q"), {"type": "from_the_future"}],
    ids=lambda block: block["type"],
)
def test_content_that_is_more_than_text_and_calls_is_preserved_complete(
    block: dict[str, Any],
) -> None:
    _, served = decode_message(replies.envelope(block, replies.text("a"), USED), ASKED)
    assert served.blocks == (block, replies.text("a"), USED)


def test_content_of_text_and_calls_is_not_preserved() -> None:
    _, served = decode_message(replies.envelope(replies.text("a"), USED), ASKED)
    assert served.blocks == ()


def test_what_is_preserved_is_valid_text() -> None:
    block = {"type": "thinking", "thinking": "a\ud800", "more": [{"x\udfff": "\ud83d\ude00"}]}
    _, served = decode_message(replies.envelope(block), ASKED)
    json.dumps(served.blocks, ensure_ascii=False).encode()
    assert served.blocks[0]["more"] == [{"x\ufffd": "😀"}]


def test_what_is_no_block_is_left_out() -> None:
    response, served = decode_message(
        {**replies.envelope(), "content": ["?", None, replies.text("a")]}, ASKED
    )
    assert response.primary_choice.message.content == "a"
    assert served.blocks == ()


@pytest.mark.parametrize(
    ("kind", "expected", "status"),
    [
        ("invalid_request_error", InvalidRequestError, 400),
        ("authentication_error", AuthenticationError, 401),
        ("billing_error", QuotaExceededError, 402),
        ("permission_error", AuthenticationError, 403),
        ("not_found_error", ModelNotFoundError, 404),
        ("rate_limit_error", RateLimitError, 429),
        ("api_error", ProviderServerError, 500),
        ("timeout_error", ProviderServerError, 504),
        ("overloaded_error", ProviderServerError, 529),
        ("from_the_future", ProviderServerError, 500),
    ],
)
def test_an_error_in_the_body_is_an_error(
    kind: str, expected: type[ProviderError], status: int
) -> None:
    with pytest.raises(expected, match="it broke") as caught:
        decode_message(replies.error_event(kind, "it broke"), ASKED)
    assert (caught.value.status, caught.value.code) == (status, kind)


def test_the_code_of_an_error_is_its_cause_where_it_is_named() -> None:
    payload = replies.error_event("rate_limit_error", details={"error_code": "ramp_limit_exceeded"})
    with pytest.raises(RateLimitError) as caught:
        decode_message(payload, ASKED)
    assert caught.value.code == "ramp_limit_exceeded"


@pytest.mark.parametrize("error", ["it broke", {}, None])
def test_an_error_without_a_form_is_an_error(error: object) -> None:
    with pytest.raises(ProviderStatusError) as caught:
        decode_message({"type": "error", "error": error}, ASKED)
    assert retry_verdict(caught.value) is False


@pytest.mark.parametrize("content", [None, "text", {}])
def test_an_answer_without_content_is_an_error(content: object) -> None:
    with pytest.raises(ProviderProtocolError, match="without any content"):
        decode_message({**replies.envelope(), "content": content}, ASKED)


@given(anthropic_answers)
def test_whatever_answer_comes_it_is_one_or_an_error(payload: dict[str, Any]) -> None:
    try:
        response, served = decode_message(payload, ASKED)
    except ProviderError:
        return
    json.dumps(served.blocks)
    assert response.choices
