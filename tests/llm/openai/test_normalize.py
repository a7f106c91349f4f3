"""Chat completions and their chunks as typed values."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion

from rath.errors import ProviderError, ProviderProtocolError, RateLimitError
from rath.llm import RathLLMStreamDelta, RathLLMTokenUsage
from rath.llm.errors import retry_verdict
from rath.llm.openai import normalize_chat_completion
from rath.llm.openai.normalize import OpenAIChunkDecoder, chunk_to_deltas, decode_completion
from rath.llm.stream import StreamFold
from tests.support.odd_json import openai_answers, openai_chunks
from tests.support.targets import request_target

ASKED = request_target("http://h/v1/chat/completions", secret="sk-canary-012345")
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
WHOLE: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1_700_000_000,
    "model": "m-2026",
    "service_tier": "default",
    "system_fingerprint": "fp_1",
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "logprobs": {"content": [], "refusal": None},
            "message": {
                "role": "assistant",
                "content": "I look.",
                "refusal": None,
                "reasoning_content": "why",
                "tool_calls": [CALL],
                "annotations": [{"type": "url_citation", "url_citation": {
                    "start_index": 0, "end_index": 1, "title": "t", "url": "u"}}],
            },
        }
    ],
    "usage": {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "total_tokens": 15,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 2},
    },
}  # fmt: skip


def with_message(**message: Any) -> dict[str, Any]:
    return {"choices": [{"finish_reason": "stop", "message": message}]}


def test_a_complete_answer_is_read() -> None:
    response = normalize_chat_completion(WHOLE)
    message = response.primary_choice.message
    assert (response.id, response.model, response.created) == (
        "chatcmpl-1",
        "m-2026",
        1_700_000_000,
    )
    assert (response.service_tier, response.system_fingerprint) == ("default", "fp_1")
    assert (message.content, message.reasoning_content) == ("I look.", "why")
    assert message.tool_calls is not None
    assert message.tool_calls[0].function.arguments_parsed == {"a": 1}
    assert response.usage == RathLLMTokenUsage(
        10, 5, 15, {"reasoning_tokens": 2}, {"cached_tokens": 4}
    )
    assert response.raw == WHOLE


def test_objects_of_the_sdk_are_read_too() -> None:
    response = normalize_chat_completion(ChatCompletion.model_validate(WHOLE))
    assert response.primary_choice.message.content == "I look."
    assert response.primary_choice.message.reasoning_content == "why"
    assert response.primary_choice.finish_reason == "tool_calls"


@pytest.mark.parametrize("reason", [None, "eos", 3])
def test_an_unknown_finish_reason_is_stop(reason: object) -> None:
    answer = {"choices": [{"finish_reason": reason, "message": {"content": "x"}}]}
    assert normalize_chat_completion(answer).primary_choice.finish_reason == "stop"


def test_content_that_is_no_text_is_none() -> None:
    message = normalize_chat_completion(with_message(content=[{"type": "text"}]))
    assert message.primary_choice.message.content is None


def test_reasoning_under_its_other_name_is_preserved() -> None:
    response = normalize_chat_completion(with_message(content="x", reasoning="why"))
    assert response.primary_choice.message.reasoning_content == "why"


def test_calls_without_an_id_get_one() -> None:
    calls = [{"function": {"name": "f"}}, {"id": "call_0", "function": {"name": "g"}}]
    response = normalize_chat_completion(with_message(tool_calls=calls))
    assert [call.id for call in response.primary_choice.message.tool_calls or ()] == [
        "call_1",
        "call_0",
    ]


@pytest.mark.parametrize(
    ("given", "text"), [(None, ""), ("", ""), ({"a": 1}, '{"a": 1}'), ("{", "{")]
)
def test_arguments_become_text(given: object, text: str) -> None:
    call = {"id": "c", "function": {"name": "f", "arguments": given}}
    response = normalize_chat_completion(with_message(tool_calls=[call]))
    calls = response.primary_choice.message.tool_calls
    assert calls is not None
    assert [call.function.arguments for call in calls] == [text]


def test_lone_surrogates_are_replaced() -> None:
    response = normalize_chat_completion(json.loads(json.dumps(with_message(content="a\ud800"))))
    assert response.primary_choice.message.content == "a\ufffd"


def test_deepseek_counts_of_the_cache_are_read() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 1, "prompt_cache_hit_tokens": 8}
    response = normalize_chat_completion({**with_message(content="x"), "usage": usage})
    assert response.usage == RathLLMTokenUsage(9, 1, 10, None, {"cached_tokens": 8})


@pytest.mark.parametrize(
    ("payload", "is_retried"),
    [
        ({"type": "error"}, False),
        ({"type": "error", "error": "it broke"}, False),
        ({"type": "error", "error": "overloaded, try again"}, True),
        ({"error": {"message": "it broke"}}, False),
        ({"error": {"message": "it broke", "code": "odd"}}, True),
        ({"error": {"message": "it broke", "type": "server_error"}}, True),
    ],
)
def test_an_error_without_a_code_is_retried_only_when_overloaded(
    payload: dict[str, Any], is_retried: bool
) -> None:
    with pytest.raises(ProviderError) as caught:
        decode_completion(payload, ASKED)
    assert (retry_verdict(caught.value) is True) == is_retried


def test_an_answer_without_choices_breaks_the_protocol() -> None:
    with pytest.raises(ProviderProtocolError, match="without any choices"):
        decode_completion({"id": "x", "choices": []}, ASKED)


def test_an_error_in_the_body_of_a_good_status_is_an_error() -> None:
    with pytest.raises(RateLimitError, match="slow down") as caught:
        decode_completion({"error": {"code": 429, "message": "slow down"}}, ASKED)
    assert caught.value.status == 429


def chunk(delta: dict[str, Any] | None = None, **choice: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta or {}, "finish_reason": None, **choice}]}


@pytest.mark.parametrize(
    ("given", "deltas"),
    [
        (chunk({"role": "assistant", "content": ""}), []),
        (chunk({"content": "x"}), [RathLLMStreamDelta(content_delta="x")]),
        (
            chunk({"content": "x"}, finish_reason="stop"),
            [RathLLMStreamDelta(content_delta="x"), RathLLMStreamDelta(finish_reason="stop")],
        ),
        (chunk({}, finish_reason="eos"), []),
        (chunk({"reasoning_content": "w"}), [RathLLMStreamDelta(reasoning_delta="w")]),
        (chunk({"refusal": "no"}), [RathLLMStreamDelta(refusal_delta="no")]),
        (chunk({"content": "x"}, index=1), []),
        (
            chunk({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f"}}]}),
            [RathLLMStreamDelta(tool_call_index=0, tool_call_id="c", tool_call_name_delta="f")],
        ),
        (
            chunk({"tool_calls": [{"function": {"arguments": "{}"}}, {"function": None}]}),
            [RathLLMStreamDelta(tool_call_args_delta="{}"), RathLLMStreamDelta()],
        ),
        (
            {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}},
            [RathLLMStreamDelta(usage=RathLLMTokenUsage(1, 2, 3))],
        ),
        ({"choices": [], "usage": {"total_tokens": 0}}, []),
        ({"choices": [], "usage": None}, []),
    ],
    ids=["role", "content", "content-and-finish", "unknown-finish", "reasoning", "refusal",
         "other-choice", "tool-call", "no-index", "usage", "zero-usage", "no-usage"],
)  # fmt: skip
def test_a_chunk_becomes_deltas(given: dict[str, Any], deltas: list[RathLLMStreamDelta]) -> None:
    assert list(chunk_to_deltas(given)) == deltas


def test_the_decoder_remembers_what_the_endpoint_says() -> None:
    decoder = OpenAIChunkDecoder(ASKED)
    envelope = {"id": "c-1", "model": "m-2", "created": 5, "system_fingerprint": "fp"}
    decoder.decode_chunk(json.dumps({**envelope, **chunk({"content": "x"})}))
    decoder.decode_chunk(json.dumps(chunk({}, finish_reason="eos")))
    served = decoder.served
    assert (served.response_id, served.model, served.created) == ("c-1", "m-2", 5)
    assert (served.fingerprint, served.finish_reason) == ("fp", "eos")
    assert not decoder.ended


def test_the_decoder_knows_the_end_marker() -> None:
    decoder = OpenAIChunkDecoder(ASKED)
    assert list(decoder.decode_chunk("[DONE]")) == []
    assert decoder.ended


@pytest.mark.parametrize(
    "data", ["{oops", "[]", '"x"', '{"choices": [1]}', '{"choices": {"a": 1}}']
)
def test_what_is_no_chunk_is_refused(data: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        OpenAIChunkDecoder(ASKED).decode_chunk(data)


@given(openai_answers)
def test_whatever_answer_comes_it_is_one_or_an_error(payload: dict[str, Any]) -> None:
    try:
        response, _ = decode_completion(payload, ASKED)
    except ProviderError:
        return
    assert response.choices


@given(st.lists(openai_chunks, min_size=1, max_size=3))
def test_whatever_chunks_come_they_are_an_answer_or_an_error(chunks: list[Any]) -> None:
    decoder, folded = OpenAIChunkDecoder(ASKED), StreamFold()
    try:
        for given_chunk in chunks:
            for found in decoder.decode_chunk(json.dumps(given_chunk)):
                folded.add(found)
    except (ProviderError, ValueError):
        return  # the draft makes an error of rath of the latter
    assert folded.response().choices


def test_a_chunk_that_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        OpenAIChunkDecoder(ASKED).decode_chunk('{"choices": ' + "[" * 100_000)


@pytest.mark.parametrize("code", [True, 7, 1211, 10**20])
def test_a_code_that_is_no_status_is_not_taken_for_one(code: int) -> None:
    with pytest.raises(ProviderError) as caught:
        decode_completion({"error": {"message": "m", "type": "invalid_request_error",
                                     "code": code}}, ASKED)  # fmt: skip
    assert (caught.value.status, caught.value.code) == (400, str(code))


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ({"message": "m", "type": "overloaded_error"}, 529),
        ({"message": "m", "type": "rate_limit_error", "code": "x"}, 429),
        ({"message": "m", "code": 402}, 402),
        ({"message": "m", "type": "odd"}, 500),
        ({"message": "m"}, 200),
        ({"message": "m: the server is Overloaded"}, 529),
        ("m", 200),
    ],
)
def test_an_error_in_a_stream_is_raised(error: object, status: int) -> None:
    with pytest.raises(ProviderError, match="m") as caught:
        OpenAIChunkDecoder(ASKED).decode_chunk(json.dumps({"error": error}))
    assert caught.value.status == status
