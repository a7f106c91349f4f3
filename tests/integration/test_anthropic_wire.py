"""The Anthropic client against a real model, whose server speaks the Messages API too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from rath import flow
from rath.errors import AuthenticationError
from rath.llm import Provider, RathAnthropicChatClient, RathLLMStreamDelta
from rath.llm.local.server import ensure_server
from rath.session import Session
from rath.session.outcome import Completed
from rath.session.record import ModelCall
from tests.support.asking import ask
from tests.support.sessions import FunctionTool

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def provider(embedded: Provider) -> Provider:
    """The embedded model, asked by Anthropic's protocol."""
    endpoint = ensure_server(embedded.model)
    return Provider(
        provider_kind="anthropic",
        base_url=endpoint.base_url,
        api_key=endpoint.api_key,
        model=endpoint.model,
        temperature=0,
        max_tokens=200,
    )


def count_words(_: Session, arguments: Mapping[str, Any]) -> dict[str, int]:
    return {"words": len(arguments["text"].split())}


WORD_COUNT = FunctionTool(
    "word_count",
    count_words,
    schema={
        "type": "object",
        "properties": {"text": {"type": "string", "description": "Text to count."}},
        "required": ["text"],
    },
)
QUESTION = "Count the words in: OpenRath makes agent clusters traceable."


def ignore(_: RathLLMStreamDelta) -> None:
    pass


@pytest.mark.parametrize("on_event", [None, ignore], ids=["whole", "streamed"])
def test_a_real_model_calls_the_tool_and_answers(provider: Provider, on_event: Any) -> None:
    agent = flow.Agent(
        "Use the `word_count` tool, then answer briefly.",
        provider,
        tools=[WORD_COUNT],
        system_tools=False,
        on_event=on_event,
    )
    out = agent(Session.from_user_message(QUESTION)).synchronize()
    results = [row for row in out.chunk_table if row.kind == "tool_result"]
    assert results[0].payload["content"] == '{"words": 5}'
    assert "5" in (out.text() or "")
    assert out.outcome == Completed()


def test_a_real_stream_comes_in_deltas_with_usage(provider: Provider) -> None:
    seen: list[RathLLMStreamDelta] = []
    agent = flow.Agent("You are brief.", provider, system_tools=False, on_event=seen.append)
    out = agent(Session.from_user_message("Say hello.")).synchronize()
    assert "".join(delta.content_delta or "" for delta in seen) == out.text()
    (call,) = [entry for entry in out.record if isinstance(entry, ModelCall)]
    evidence = call.evidence
    assert (evidence.provider_kind, evidence.finish_reason_raw) == ("anthropic", "end_turn")
    assert (evidence.endpoint or "").endswith("/v1/messages")
    assert evidence.first_token_ms is not None
    assert evidence.usage is not None
    assert min(evidence.usage.prompt_tokens, evidence.usage.completion_tokens) > 0


def test_a_wrong_key_is_refused(provider: Provider) -> None:
    client = RathAnthropicChatClient(replace(provider, api_key="sk-not-the-key"))
    with pytest.raises(AuthenticationError):
        client.complete(ask(model=provider.model))
