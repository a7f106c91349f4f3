"""The loop on a real model that is served on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rath.llm import Provider, RathLLMStreamDelta
from rath.session import Session, run_session_loop
from rath.session.outcome import Completed
from rath.session.record import ModelCall
from tests.support.sessions import FunctionTool

pytestmark = pytest.mark.timeout(180)


def count_words(_: Session, arguments: Any) -> dict[str, int]:
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


def test_a_real_model_calls_the_tool_and_answers(embedded: Provider) -> None:
    user = Session.from_user_message("Count the words in: OpenRath makes agent clusters traceable.")
    agent = Session.from_agent_prompt("Use the `word_count` tool, then answer briefly.")
    out = run_session_loop(
        user, agent, agent_provider=embedded, tools=[WORD_COUNT], system_tools=False
    ).synchronize()
    results = [row for row in out.chunk_table if row.kind == "tool_result"]
    assert results[0].payload["content"] == '{"words": 5}'
    assert "5" in (out.text() or "")
    assert out.outcome == Completed()


def test_a_real_stream_comes_in_deltas_with_usage(embedded: Provider) -> None:
    seen: list[RathLLMStreamDelta] = []
    out = run_session_loop(
        Session.from_user_message("Say hello."),
        Session.from_agent_prompt("You are brief."),
        agent_provider=embedded,
        system_tools=False,
        on_event=seen.append,
    )
    text = out.text()
    assert "".join(delta.content_delta or "" for delta in seen) == text
    (call,) = [entry for entry in out.record if isinstance(entry, ModelCall)]
    assert call.evidence.first_token_ms is not None
    assert out.cumulative_usage is not None
    assert out.cumulative_usage.completion_tokens > 0


def test_the_evidence_names_the_embedded_model(embedded: Provider, tmp_path: Path) -> None:
    out = run_session_loop(
        Session.from_user_message("Say yes.").to("local", spec=str(tmp_path)),
        Session.from_agent_prompt("You are brief."),
        agent_provider=embedded,
        system_tools=False,
    )
    (call,) = [entry for entry in out.record if isinstance(entry, ModelCall)]
    assert call.evidence.provider_kind == "local"
    assert "qwen" in (call.evidence.served_model or "").lower()
    assert (call.evidence.endpoint or "").startswith("http://127.0.0.1:")
