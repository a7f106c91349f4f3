"""An answer that is a call in all but its fence, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rath.llm import Provider
from rath.llm.chat_request import RathLLMFunctionTool
from rath.llm.chat_response import RathLLMChatResponse, RathLLMStreamDelta
from rath.llm.local.bare_calls import call_in_text
from rath.llm.local.server import LocalEndpoint, RathLocalChatClient
from tests.support import chat_replies as replies
from tests.support.asking import NoSleep, ask, exchange
from tests.support.chat_server import ChatServer

CALL = '{"name": "word_count", "arguments": {"text": "to be"}}'
TOOL = RathLLMFunctionTool(name="word_count", parameters={"type": "object", "properties": {}})
OFFERED = replace(ask(model=None), tools=(TOOL,))


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with ChatServer(lambda _: replies.completion(CALL)) as running:
        yield running


@pytest.fixture
def client(server: ChatServer) -> RathLocalChatClient:
    endpoint = LocalEndpoint(server.base_url, "random-key", "m", Path("m.gguf"), "2026.11")
    return RathLocalChatClient(Provider(), sleep=NoSleep(), serve=lambda _: endpoint)


def outcome_of(response: RathLLMChatResponse) -> tuple[str | None, list[tuple[str, str]], str]:
    choice = response.primary_choice
    calls = choice.message.tool_calls or ()
    found = [(call.function.name, call.function.arguments) for call in calls]
    return choice.message.content, found, choice.finish_reason


AS_A_CALL = (None, [("word_count", '{"text": "to be"}')], "tool_calls")


@pytest.mark.parametrize(
    "text",
    [CALL, f"\n {CALL}\n", f"```json\n{CALL}\n```", f"```\n{CALL}\n```", f"```json\n{CALL}"],
)
def test_an_answer_that_is_a_call_makes_it(
    server: ChatServer, client: RathLocalChatClient, text: str
) -> None:
    server.queue(replies.completion(text))
    assert outcome_of(exchange(client, OFFERED).response) == AS_A_CALL
    server.queue(replies.text_stream(*text))
    deltas: list[RathLLMStreamDelta] = []
    streamed = exchange(client, OFFERED, on_delta=deltas.append)
    assert outcome_of(streamed.response) == AS_A_CALL
    assert not any(delta.content_delta for delta in deltas)
    evidence = streamed.evidence
    assert (evidence.finish_reason, evidence.finish_reason_raw) == ("tool_calls", "stop")


@pytest.mark.parametrize(
    "text",
    [
        "The result is 2.",
        f"I would call {CALL}",
        f"{CALL} and then say so",
        json.dumps({"name": "no_such_tool", "arguments": {}}),
        json.dumps({"name": "word_count", "arguments": "to be"}),
        json.dumps({"name": "word_count", "arguments": {}, "why": "asked"}),
        '{"name": "word_count", "argu',
        "```python\nprint(1)\n```",
        "{" * 50_000,
    ],
)
def test_any_other_answer_stays_a_text(
    server: ChatServer, client: RathLocalChatClient, text: str
) -> None:
    server.queue(replies.completion(text))
    assert outcome_of(exchange(client, OFFERED).response) == (text, [], "stop")
    half = len(text) // 2
    server.queue(replies.text_stream(text[:half], text[half:]))
    deltas: list[RathLLMStreamDelta] = []
    streamed = exchange(client, OFFERED, on_delta=deltas.append)
    assert outcome_of(streamed.response) == (text, [], "stop")
    assert "".join(delta.content_delta or "" for delta in deltas) == text


def test_text_before_a_real_call_is_not_lost(
    server: ChatServer, client: RathLocalChatClient
) -> None:
    server.queue(
        replies.event_stream(
            replies.text_chunk("{so"),
            replies.tool_chunk("{}", id="c1", name="word_count"),
            replies.finish_chunk("tool_calls"),
        )
    )
    streamed = exchange(client, OFFERED, on_delta=lambda _: None)
    assert outcome_of(streamed.response) == ("{so", [("word_count", "{}")], "tool_calls")


def test_json_that_was_asked_for_stays_a_text(
    server: ChatServer, client: RathLocalChatClient
) -> None:
    assert outcome_of(exchange(client, OFFERED).response) == AS_A_CALL
    assert outcome_of(exchange(client, ask(model=None)).response) == (CALL, [], "stop")
    server.queue(replies.text_stream(CALL))
    streamed = exchange(client, ask(model=None), on_delta=lambda _: None)
    assert outcome_of(streamed.response) == (CALL, [], "stop")


def test_a_name_that_is_no_text_is_no_call() -> None:
    assert (
        call_in_text('{"name": ["word_count"], "arguments": {}}', frozenset({"word_count"})) is None
    )
