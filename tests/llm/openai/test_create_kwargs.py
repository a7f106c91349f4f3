"""Requests as chat completions."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import Any

import pytest

from rath.llm import RathLLMChatRequest, RathLLMFunctionTool, RathLLMMessage
from rath.llm.body import RequestBody
from rath.llm.openai import to_create_kwargs, to_create_kwargs_stream
from rath.llm.openai.create_kwargs import body_writer

USER = RathLLMMessage("user", "hi")
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CLOSED = {
    "type": "object",
    "additionalProperties": False,
    "properties": {"a": {"type": "array", "items": [{"additionalProperties": {"type": "string"}}]}},
}
TOOL = RathLLMFunctionTool("f", CLOSED)


def request(**fields: Any) -> RathLLMChatRequest:
    given: dict[str, Any] = {"messages": (USER,), "model": "m"} | fields
    return RathLLMChatRequest(**given)


def body_of(asked: RathLLMChatRequest, *, streaming: bool = False) -> dict[str, Any]:
    body = RequestBody(body_writer(asked, model=asked.model or "m"))
    body.append(asked.messages)
    decoded: dict[str, Any] = json.loads(body.content(streaming=streaming))
    return decoded


@pytest.mark.parametrize(
    ("fields", "sent"),
    [
        ({}, {}),
        ({"temperature": 0.0, "store": False, "seed": 0}, None),
        (
            {"temperature": 0.1, "extra_create_args": {"temperature": 0.9, "top_k": 3}},
            {"temperature": 0.9, "top_k": 3},
        ),
    ],
    ids=["nothing", "falsy", "extra"],
)
def test_only_what_is_set_is_sent(fields: dict[str, Any], sent: dict[str, Any] | None) -> None:
    plain = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": False}
    arguments = to_create_kwargs(request(**fields), default_model=None)
    assert arguments == plain | (fields if sent is None else sent)


@pytest.mark.parametrize(
    ("extra", "options"),
    [
        ({}, {"include_usage": True}),
        ({"stream_options": {"include_usage": False}}, {"include_usage": False}),
    ],
)
def test_a_stream_asks_for_its_usage(extra: dict[str, Any], options: dict[str, Any]) -> None:
    arguments = to_create_kwargs_stream(request(extra_create_args=extra), default_model=None)
    assert (arguments["stream"], arguments["stream_options"]) == (True, options)


def test_messages_hold_what_they_use() -> None:
    messages = (
        RathLLMMessage("assistant", tool_calls=(MappingProxyType(CALL),), reasoning="why"),
        RathLLMMessage("tool", "3", tool_call_id="c", name="f"),
    )
    assert to_create_kwargs(request(messages=messages), default_model=None)["messages"] == [
        {"role": "assistant", "tool_calls": [CALL], "reasoning_content": "why"},
        {"role": "tool", "content": "3", "name": "f", "tool_call_id": "c"},
    ]


def test_additional_properties_are_left_out_of_tools() -> None:
    (tool,) = to_create_kwargs(request(tools=(TOOL,)), default_model=None)["tools"]
    assert tool == {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "array", "items": [{}]}},
            },
        },
    }
    assert CLOSED["additionalProperties"] is False


def test_a_strict_tool_is_sent_with_its_complete_schema() -> None:
    asked = request(tools=(RathLLMFunctionTool("f", CLOSED, strict=True),))
    (tool,) = to_create_kwargs(asked, default_model=None)["tools"]
    assert tool["function"] == {"name": "f", "parameters": CLOSED, "strict": True}
    assert body_of(asked)["tools"] == [tool]


@pytest.mark.parametrize("names", ["properties", "patternProperties", "$defs", "dependentSchemas"])
def test_a_property_of_that_name_is_sent(names: str) -> None:
    schema = {names: {"additionalProperties": {"type": "object", "additionalProperties": False}}}
    asked = request(tools=(RathLLMFunctionTool("f", {"type": "object", **schema}),))
    (tool,) = body_of(asked)["tools"]
    assert tool["function"]["parameters"] == {
        "type": "object",
        names: {"additionalProperties": {"type": "object"}},
    }


@pytest.mark.parametrize(
    "literal",
    [{"default": CLOSED}, {"const": CLOSED}, {"enum": [CLOSED]}, {"examples": [CLOSED]}],
    ids=lambda literal: next(iter(literal)),
)
def test_values_in_a_schema_are_sent_as_they_are(literal: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"a": literal}}
    asked = request(tools=(RathLLMFunctionTool("f", schema),))
    (tool,) = body_of(asked)["tools"]
    assert tool["function"]["parameters"] == schema


def test_description_and_strict_are_sent_when_set() -> None:
    tool = RathLLMFunctionTool("f", {}, "what it does", strict=False)
    (sent,) = to_create_kwargs(request(tools=(tool,)), default_model=None)["tools"]
    assert (sent["function"]["description"], sent["function"]["strict"]) == ("what it does", False)


def test_extra_arguments_cannot_stream() -> None:
    asked = request(extra_create_args={"stream": True})
    with pytest.raises(ValueError, match="stream"):
        to_create_kwargs(asked, default_model=None)
    with pytest.raises(ValueError, match="stream"):
        body_writer(asked, model="m")
    assert (
        to_create_kwargs(request(extra_create_args={"stream": False}), default_model=None)["stream"]
        is False
    )


def test_a_model_is_required() -> None:
    assert to_create_kwargs(request(model=None), default_model="d")["model"] == "d"
    with pytest.raises(ValueError, match="model is required"):
        to_create_kwargs(request(model=None), default_model=None)


@pytest.mark.parametrize("streaming", [False, True])
def test_the_body_says_what_the_arguments_say(streaming: bool) -> None:
    asked = request(
        tools=(TOOL,),
        tool_choice="auto",
        stop=["a"],
        metadata=MappingProxyType({"k": "v"}),
        extra_create_args={"top_k": 3, "nested": MappingProxyType({"a": (1, 2)})},
    )
    to_kwargs = to_create_kwargs_stream if streaming else to_create_kwargs
    arguments = to_kwargs(asked, default_model=None)
    plain = json.loads(json.dumps(arguments, default=dict))
    if not streaming:
        del plain["stream"]
    assert body_of(asked, streaming=streaming) == plain


def test_a_choice_between_no_tools_is_not_sent() -> None:
    assert set(body_of(request(tool_choice="none", parallel_tool_calls=True))) == {
        "messages",
        "model",
    }


def test_tools_may_be_extra_arguments() -> None:
    tools = [{"type": "web_search"}]
    body = body_of(request(tool_choice="auto", extra_create_args={"tools": tools}))
    assert (body["tools"], body["tool_choice"]) == (tools, "auto")


def test_the_body_takes_its_messages_from_the_draft() -> None:
    with pytest.raises(ValueError, match="messages"):
        body_writer(request(extra_create_args={"messages": []}), model="m")
