"""Runs, typed answers and summaries of a real model that is served on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from rath import flow
from rath.errors import AuthenticationError
from rath.llm import Provider, RathAnthropicChatClient, RathLLMStreamDelta
from rath.llm.local.server import ensure_server
from rath.session import Session, run_session_compress
from rath.session.outcome import Completed
from rath.session.record import ModelCall, Summary, ToolRun
from tests.support.asking import ask
from tests.support.sessions import FunctionTool, entries_of

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def by_anthropic(embedded: Provider) -> Provider:
    """The embedded model, asked by Anthropic's protocol, which its server speaks too."""
    endpoint = ensure_server(embedded.model)
    return Provider(
        provider_kind="anthropic",
        base_url=endpoint.base_url,
        api_key=endpoint.api_key,
        model=endpoint.model,
        temperature=0,
        max_tokens=200,
    )


@pytest.fixture(params=["local", "anthropic"])
def provider(
    request: pytest.FixtureRequest, embedded: Provider, by_anthropic: Provider
) -> Provider:
    """The embedded model by either protocol."""
    return embedded if request.param == "local" else by_anthropic


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
USE_TOOL = "Use the `word_count` tool, then answer briefly."


def ignore(_: RathLLMStreamDelta) -> None:
    pass


def asked(provider: Provider, prompt: str, question: str, **options: Any) -> Session:
    """Ask an agent without built-in tools, and wait for its answer."""
    agent = flow.Agent(prompt, provider, system_tools=False, **options)
    return agent(Session.from_user_message(question)).synchronize()


@pytest.mark.parametrize("on_event", [None, ignore], ids=["whole", "streamed"])
def test_a_real_model_calls_the_tool_and_answers(provider: Provider, on_event: Any) -> None:
    out = asked(provider, USE_TOOL, QUESTION, tools=[WORD_COUNT], on_event=on_event)
    results = [row for row in out.chunk_table if row.kind == "tool_result"]
    assert results[0].payload["content"] == '{"words": 5}'
    assert "5" in (out.text() or "")
    assert out.outcome == Completed()


def test_a_real_stream_comes_in_deltas_with_usage(provider: Provider) -> None:
    seen: list[RathLLMStreamDelta] = []
    out = asked(provider, "You are brief.", "Say hello.", on_event=seen.append)
    assert "".join(delta.content_delta or "" for delta in seen) == out.text()
    (call,) = entries_of(out, ModelCall)
    evidence = call.evidence
    assert evidence.provider_kind == provider.provider_kind
    assert (evidence.endpoint or "").startswith("http://127.0.0.1:")
    assert evidence.first_token_ms is not None
    assert evidence.usage is not None
    assert min(evidence.usage.prompt_tokens, evidence.usage.completion_tokens) > 0
    if provider.provider_kind == "anthropic":
        assert evidence.finish_reason_raw == "end_turn"
        assert (evidence.endpoint or "").endswith("/v1/messages")
    else:
        assert "qwen" in (evidence.served_model or "").lower()


def test_a_wrong_key_is_refused(by_anthropic: Provider) -> None:
    client = RathAnthropicChatClient(replace(by_anthropic, api_key="sk-not-the-key"))
    with pytest.raises(AuthenticationError):
        client.complete(ask(model=by_anthropic.model))


class Person(BaseModel):
    name: str
    age: int
    mood: Literal["happy", "sad"]


class Count(BaseModel):
    words: int


@pytest.mark.parametrize("form", ["schema", "tool"])
def test_a_real_model_gives_a_typed_answer_in_either_form(embedded: Provider, form: str) -> None:
    provider = embedded if form == "schema" else replace(embedded, output_mode="tool")
    text = "Anna is 31 years old and smiles all day."
    out = asked(provider, "Extract the person.", text, output=Person)
    assert isinstance(out.output, Person)
    assert (out.output.name, out.output.age) == ("Anna", 31)
    (call,) = entries_of(out, ModelCall)
    assert ("response_format" in call.evidence.parameters) == (form == "schema")
    tools = [entry.tool for entry in entries_of(out, ToolRun)]
    assert tools == ([] if form == "schema" else ["final_answer"])


def test_a_real_model_uses_its_tools_before_it_answers(embedded: Provider) -> None:
    brief = replace(embedded, max_tokens=60)
    out = asked(brief, USE_TOOL, QUESTION, tools=[WORD_COUNT], output=Count)
    assert out.output == Count(words=5)
    assert entries_of(out, ToolRun)[0].tool == "word_count"


def test_a_real_model_writes_a_summary(embedded: Provider) -> None:
    user = Session.from_user_message("My name is Ada. I live in Turin and I like green tea.")
    agent = Session.from_agent_prompt("You summarise conversations in one sentence.")
    out = run_session_compress(user, agent, agent_provider=embedded)
    assert len(out.chunk_table) == 1
    assert out.text()
    assert entries_of(out, Summary)
