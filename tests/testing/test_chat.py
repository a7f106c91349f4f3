"""The scripted model."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from rath.errors import RateLimitError
from rath.llm import (
    ChatClient,
    Provider,
    RathLLMChatRequest,
    RathLLMMessage,
    RathLLMStreamDelta,
    StreamingChatClient,
    chat_client_for,
)
from rath.testing import ScriptedClient, tool_call
from tests.support.asking import ask, exchange


def text_of(client: ChatClient) -> str | None:
    return exchange(client).response.primary_choice.message.content


def test_it_answers_with_its_turns_in_order() -> None:
    client = ScriptedClient(["one", lambda req: f"{len(req.messages)} message"])
    assert [text_of(client), text_of(client)] == ["one", "1 message"]
    assert client.n_left == 0
    assert len(client.requests) == 2


def test_a_tool_call_is_a_turn() -> None:
    client = ScriptedClient([tool_call("add", {"a": 1}, tool_call("sub", "{"), content="I add.")])
    choice = exchange(client).response.primary_choice
    assert choice.message.tool_calls is not None
    first, second = choice.message.tool_calls
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I add.")
    assert first.function.arguments_parsed == {"a": 1}
    assert second.function.arguments_parse_error
    assert first.id != second.id


def test_deltas_are_a_turn() -> None:
    deltas = [RathLLMStreamDelta(content_delta="a"), RathLLMStreamDelta(content_delta="b")]
    client = ScriptedClient([deltas, deltas])
    seen: list[RathLLMStreamDelta] = []
    assert text_of(client) == "ab"
    exchange(client, on_delta=seen.append)
    assert seen == deltas


def test_a_text_is_streamed_word_by_word() -> None:
    seen: list[RathLLMStreamDelta] = []
    exchange(ScriptedClient(["one two three"]), on_delta=seen.append)
    assert [delta.content_delta for delta in seen[:3]] == ["one", " two", " three"]


def test_an_error_is_raised() -> None:
    with pytest.raises(RateLimitError):
        exchange(ScriptedClient([RateLimitError("slow")]))


def test_an_ended_script_says_so() -> None:
    client = ScriptedClient(["one"])
    exchange(client)
    with pytest.raises(RuntimeError, match="the script has 1 turns and this is request 2"):
        exchange(client)


def test_usage_counts_words() -> None:
    usage = exchange(ScriptedClient(["one two"])).response.usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (1, 2, 3)


def test_its_provider_leads_to_it() -> None:
    client, other = ScriptedClient(["x"]), ScriptedClient(["y"])
    assert chat_client_for(client.provider) is client
    assert chat_client_for(other.provider) is other
    assert client.provider.model == "scripted"


def test_a_given_provider_keeps_its_fields() -> None:
    client = ScriptedClient([], provider=Provider(model="m", temperature=0.5, api_key="k"))
    assert (client.provider.model, client.provider.temperature) == ("m", 0.5)
    assert chat_client_for(client.provider) is client


def test_it_is_a_streaming_client() -> None:
    assert isinstance(ScriptedClient([]), StreamingChatClient)


def test_threads_may_share_it() -> None:
    client = ScriptedClient([str(number) for number in range(50)])
    request = RathLLMChatRequest(messages=(RathLLMMessage("user", "x"),))
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(client.complete, [request] * 50))
    texts = {answered.primary_choice.message.content for answered in answers}
    assert texts == {str(number) for number in range(50)}


def test_asking_directly_works_too() -> None:
    assert ScriptedClient(["x"]).complete(ask()).model == "m"
