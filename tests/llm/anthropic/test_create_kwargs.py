"""Requests as calls of the Messages API: parameters, tools, and marks for the cache."""

from __future__ import annotations

import json
from hashlib import sha256
from types import MappingProxyType
from typing import Any

import pytest

from rath.llm import RathLLMChatRequest, RathLLMFunctionTool, RathLLMMessage
from rath.llm.anthropic import build_anthropic_kwargs, build_anthropic_stream_kwargs
from rath.llm.anthropic.create_kwargs import DEFAULT_MAX_TOKENS, MessagesWriter
from rath.llm.body import RequestBody
from tests.support.anthropic_rules import check_body

Json = dict[str, Any]
USER = RathLLMMessage("user", "hi")
SYSTEM = RathLLMMessage("system", "You are brief.")
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
ASKING = RathLLMMessage("assistant", tool_calls=(MappingProxyType(CALL),))
RESULT = RathLLMMessage("tool", "3", tool_call_id="c")
SCHEMA: Json = {"type": "object", "properties": {}, "additionalProperties": False}
TOOL = RathLLMFunctionTool("f", SCHEMA, "what it does")
OTHER = RathLLMFunctionTool("g", {})
MARK = {"type": "ephemeral"}


def request(*messages: RathLLMMessage, **fields: Any) -> RathLLMChatRequest:
    given: Json = {"messages": messages or (USER,), "model": "m"} | fields
    return RathLLMChatRequest(**given)


def arguments_of(**fields: Any) -> Json:
    return build_anthropic_kwargs(request(**fields), default_model=None)


def body_of(asked: RathLLMChatRequest, *, streaming: bool = False) -> Json:
    body = RequestBody(MessagesWriter(asked, model=asked.model or "m"))
    body.append(asked.messages)
    return check_body(body.content(streaming=streaming))


# ---------------------------------------------------------------- keyword arguments


def test_only_what_is_set_is_sent() -> None:
    assert arguments_of() == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": DEFAULT_MAX_TOKENS,
    }


def test_texts_of_the_system_are_joined_wherever_they_stand() -> None:
    developer = RathLLMMessage("developer", "Be kind.")
    blank = RathLLMMessage("system", " ")
    asked = request(SYSTEM, USER, blank, developer)
    arguments = build_anthropic_kwargs(asked, default_model=None)
    assert arguments["system"] == "You are brief.\n\nBe kind."
    assert arguments["messages"] == [{"role": "user", "content": "hi"}]


def test_the_results_of_a_round_are_one_message() -> None:
    second = {**CALL, "id": "d"}
    asked = request(
        USER,
        RathLLMMessage("assistant", "I look.", tool_calls=(CALL, second)),
        RESULT,
        RathLLMMessage("tool", "4", tool_call_id="d"),
    )
    assert build_anthropic_kwargs(asked, default_model=None)["messages"][1:] == [
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "c", "name": "f", "input": {"x": 1}},
                {"type": "tool_use", "id": "d", "name": "f", "input": {"x": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c", "content": "3"},
                {"type": "tool_result", "tool_use_id": "d", "content": "4"},
            ],
        },
    ]


def test_the_arguments_of_a_stream_are_the_same() -> None:
    asked = request(SYSTEM, USER, temperature=0.0)
    plain = build_anthropic_kwargs(asked, default_model=None)
    assert build_anthropic_stream_kwargs(asked, default_model=None) == plain


def test_a_model_is_required() -> None:
    assert build_anthropic_kwargs(request(model=None), default_model="d")["model"] == "d"
    with pytest.raises(ValueError, match="model is required"):
        build_anthropic_kwargs(request(model=None), default_model=None)


THINKING = {"thinking": {"type": "enabled", "budget_tokens": 9000}}
FREE = {"max_tokens": 9, "thinking": {"type": "adaptive"}}
WANTED = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}
FORMAT = {"type": "json_schema", "schema": SCHEMA}


@pytest.mark.parametrize(
    ("fields", "sent"),
    [
        ({"max_tokens": 7, "max_completion_tokens": 8}, {"max_tokens": 7}),
        ({"max_completion_tokens": 8}, {"max_tokens": 8}),
        ({"temperature": 0.0, "top_p": 0.5}, {"temperature": 0.0, "top_p": 0.5}),
        ({"stop": "END"}, {"stop_sequences": ["END"]}),
        ({"stop": ("a", "b")}, {"stop_sequences": ["a", "b"]}),
        ({"metadata": {"user_id": "u", "team": "t"}}, {"metadata": {"user_id": "u"}}),
        ({"user": "u"}, {"metadata": {"user_id": "u"}}),
        ({"reasoning_effort": "high"}, {"output_config": {"effort": "high"}}),
        ({"service_tier": "standard_only"}, {"service_tier": "standard_only"}),
        (
            {"response_format": WANTED, "reasoning_effort": "low"},
            {"output_config": {"effort": "low", "format": FORMAT}},
        ),
        # Tokens for thinking are not those of the answer.
        ({"extra_create_args": THINKING}, {"max_tokens": DEFAULT_MAX_TOKENS + 9000, **THINKING}),
        ({"extra_create_args": THINKING, "max_tokens": 9001}, {"max_tokens": 9001, **THINKING}),
        # Extra arguments win, and never ask for a stream.
        ({"max_tokens": 7, "extra_create_args": {**FREE, "stream": True}}, FREE),
        (
            {"reasoning_effort": "low", "extra_create_args": {"output_config": {"task_budget": 3}}},
            {"output_config": {"effort": "low", "task_budget": 3}},
        ),
    ],
)
def test_fields_have_their_names_in_the_api(fields: Json, sent: Json) -> None:
    assert arguments_of(**fields) == arguments_of() | sent


@pytest.mark.parametrize(
    "fields",
    [
        {"service_tier": "flex"},
        {"metadata": {"team": "t"}},
        {"n": 2, "seed": 1, "logprobs": True, "top_logprobs": 1, "logit_bias": {"1": 2}},
        {"frequency_penalty": 0.5, "presence_penalty": 0.5, "verbosity": "low", "store": True},
        {"response_format": {"type": "json_object"}},
        {"stop": ()},
        {"tools": ()},
        {"parallel_tool_calls": False},
    ],
)
def test_fields_that_the_api_has_not_stay_away(fields: Json) -> None:
    assert arguments_of(**fields) == arguments_of()


ENABLED = {"type": "enabled", "budget_tokens": 2000}
ONE = {"type": "function", "function": {"name": "f"}}
NOT_PARALLEL = {"disable_parallel_tool_use": True}


@pytest.mark.parametrize(
    ("fields", "sent"),
    [
        ({"tool_choice": "none"}, {"type": "none"}),
        ({"tool_choice": "required"}, {"type": "any"}),
        ({"tool_choice": ONE}, {"type": "tool", "name": "f"}),
        ({"tool_choice": {"type": "any"}}, {"type": "any"}),
        ({"tool_choice": None}, None),
        ({"tool_choice": ""}, None),
        ({"tool_choice": "auto"}, None),
        ({"tool_choice": "sometimes"}, None),
        ({"parallel_tool_calls": False}, {"type": "auto", **NOT_PARALLEL}),
        (
            {"tool_choice": "required", "parallel_tool_calls": False},
            {"type": "any", **NOT_PARALLEL},
        ),
        ({"tool_choice": "none", "parallel_tool_calls": False}, {"type": "none"}),
        (
            {"tool_choice": "required", "parallel_tool_calls": False,
             "extra_create_args": {"thinking": ENABLED}},
            {"type": "auto", **NOT_PARALLEL},
        ),
    ],
    ids=str,
)  # fmt: skip
def test_a_tool_choice_has_the_form_of_the_api(fields: Json, sent: Json | None) -> None:
    asked = request(tools=(TOOL,), **fields)
    assert body_of(asked).get("tool_choice") == sent
    assert build_anthropic_kwargs(asked, default_model=None).get("tool_choice") == sent


@pytest.mark.parametrize(
    ("thinking", "model", "is_forced"),
    [
        (ENABLED, "m", False),
        ({"type": "adaptive"}, "m", False),
        ({"type": "between_tools"}, "claude-sonnet-5-5", False),
        (None, "claude-opus-5-5", False),
        (None, "claude-fable-5-1", False),
        (None, "m", True),
        (None, "claude-opus-5", True),
        (None, "claude-haiku-5-5", True),
        (None, "claude-opus-4-1", True),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("choice", "forced"),
    [("required", {"type": "any"}), (ONE, {"type": "tool", "name": "f"})],
    ids=["any", "one"],
)
def test_a_model_that_thinks_is_not_forced_to_call(
    choice: object, forced: Json, thinking: Json | None, model: str, is_forced: bool
) -> None:
    extra = {} if thinking is None else {"thinking": thinking}
    asked = request(tools=(TOOL,), tool_choice=choice, model=model, extra_create_args=extra)
    assert body_of(asked)["tool_choice"] == (forced if is_forced else {"type": "auto"})


def test_a_choice_between_no_tools_is_left_out() -> None:
    assert "tool_choice" not in body_of(request(tool_choice="required"))


def test_a_call_without_its_thinking_is_forced_as_reported() -> None:
    asked = request(
        USER,
        ASKING,
        RESULT,
        tools=(TOOL,),
        tool_choice="required",
        extra_create_args={"thinking": ENABLED},
    )
    sent = body_of(asked)
    assert ("thinking" in sent, sent["tool_choice"]) == (False, {"type": "any"})


def test_tools_keep_their_schemas() -> None:
    assert arguments_of(tools=(TOOL, OTHER))["tools"] == [
        {"name": "f", "input_schema": SCHEMA, "description": "what it does"},
        {"name": "g", "input_schema": {"type": "object"}},
    ]


# ---------------------------------------------------------------- bodies


def test_the_messages_stand_first_in_the_body() -> None:
    body = RequestBody(MessagesWriter(request(temperature=0.5), model="m"))
    body.append([USER])
    assert body.content(streaming=False) == (
        b'{"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}],'
        b'"cache_control":{"type":"ephemeral"},"model":"m","max_tokens":4096,"temperature":0.5}'
    )
    assert body.content(streaming=True).endswith(b',"stream":true}')


def test_parameters_hold_no_text_and_no_tools() -> None:
    body = RequestBody(MessagesWriter(request(tools=(TOOL,)), model="m"))
    body.append([SYSTEM, USER])
    expected = {"cache_control": MARK, "model": "m", "max_tokens": DEFAULT_MAX_TOKENS}
    assert body.parameters(streaming=False) == expected
    assert body.parameters(streaming=True) == expected | {"stream": True}


@pytest.mark.parametrize("streaming", [False, True])
def test_the_digest_is_that_of_the_content(streaming: bool) -> None:
    body = RequestBody(MessagesWriter(request(tools=(TOOL,)), model="m"))
    for message in (SYSTEM, USER, ASKING, RESULT, SYSTEM):
        body.append([message])
        content = body.content(streaming=streaming)
        assert body.digest(streaming=streaming) == sha256(content).hexdigest()


def test_the_tools_digest_tells_tools_apart() -> None:
    digests = [
        MessagesWriter(request(tools=tools), model="m").tools_digest
        for tools in [(TOOL,), (TOOL, OTHER), (TOOL,), None, ()]
    ]
    assert digests[0] == digests[2] != digests[1]
    assert digests[3:] == [None, None]


def test_a_late_text_of_the_system_is_sent() -> None:
    body = RequestBody(MessagesWriter(request(), model="m"))
    body.append([SYSTEM, USER])
    body.content(streaming=False)
    body.append([RathLLMMessage("developer", "Be kind.")])
    texts = [block["text"] for block in check_body(body.content(streaming=False))["system"]]
    assert texts == ["You are brief.", "Be kind."]


def test_earlier_calls_without_tools_are_named_and_forbidden() -> None:
    sent = body_of(request(SYSTEM, USER, ASKING, RESULT))
    assert sent["tools"] == [{"name": "f", "input_schema": {"type": "object"}}]
    assert sent["tool_choice"] == {"type": "none"}


def test_earlier_calls_need_no_more_tools_than_there_are() -> None:
    asked = request(USER, ASKING, RESULT, tools=(OTHER,))
    assert [tool["name"] for tool in body_of(asked)["tools"]] == ["g"]


@pytest.mark.parametrize("name", ["messages", "system"])
def test_what_comes_from_the_session_cannot_be_set(name: str) -> None:
    with pytest.raises(ValueError, match=f"cannot set '{name}'"):
        MessagesWriter(request(extra_create_args={name: []}), model="m")


def test_extra_tools_are_sent_as_they_are() -> None:
    given = [{"type": "web_search_20250305", "name": "web_search"}]
    asked = request(tools=(TOOL,), extra_create_args={"tools": given})
    body = RequestBody(MessagesWriter(asked, model="m"))
    body.append([USER, ASKING, RESULT])
    assert json.loads(body.content(streaming=False))["tools"] == given


# ---------------------------------------------------------------- marks for the cache


def test_the_last_text_of_the_system_and_the_conversation_are_marked() -> None:
    more = RathLLMMessage("system", "More.")
    sent = body_of(request(SYSTEM, more, USER, tools=(TOOL,)))
    assert [block.get("cache_control") for block in sent["system"]] == [None, MARK]
    assert "cache_control" not in sent["tools"][0]
    assert sent["cache_control"] == MARK


def test_without_a_system_the_last_tool_is_marked() -> None:
    sent = body_of(request(tools=(OTHER, TOOL)))
    assert [tool.get("cache_control") for tool in sent["tools"]] == [None, MARK]


def test_marks_can_be_taken_away() -> None:
    asked = request(SYSTEM, USER, tools=(TOOL,), extra_create_args={"cache_control": None})
    body = RequestBody(MessagesWriter(asked, model="m"))
    body.append(asked.messages)
    assert b"cache_control" not in body.content(streaming=False)


def test_marks_can_last_longer() -> None:
    mark = {"type": "ephemeral", "ttl": "1h"}
    sent = body_of(request(SYSTEM, USER, extra_create_args={"cache_control": mark}))
    assert (sent["cache_control"], sent["system"][0]["cache_control"]) == (mark, mark)


def test_a_marked_prefix_stays_the_same_between_rounds() -> None:
    body = RequestBody(MessagesWriter(request(tools=(TOOL,)), model="m"))
    body.append([SYSTEM, USER])
    before = check_body(body.content(streaming=False))
    body.append([ASKING, RESULT])
    after = check_body(body.content(streaming=False))
    assert {**after, "messages": after["messages"][:1]} == before
