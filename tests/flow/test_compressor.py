"""A compressor as a layer."""

from __future__ import annotations

from rath import flow
from rath.llm import RathLLMStreamDelta
from rath.session import ChunkKind, LineageKind, Session
from rath.testing import ScriptedClient


def user() -> Session:
    return Session.from_user_message("a long story")


def test_a_session_becomes_one_summary() -> None:
    out = flow.Compressor("Be short.", ScriptedClient(["short"]).provider)(user())
    assert [(row.kind, row.payload["content"]) for row in out.chunk_table] == [
        (ChunkKind.USER, "short")
    ]
    assert out.text() == "short"
    assert out.lineage_kind is LineageKind.OP_SESSION_COMPRESS


def test_the_instruction_stands_before_the_session() -> None:
    client = ScriptedClient(["short"])
    flow.Compressor("Be short.", client.provider)(user()).synchronize()
    first, second, *_ = client.requests[0].messages
    assert (first.role, first.content) == ("system", "Be short.")
    assert (second.role, second.content) == ("user", "a long story")


def test_it_accepts_a_pending_session() -> None:
    agent = flow.Agent("p", ScriptedClient(["an answer"]).provider)
    compressor = flow.Compressor("Be short.", ScriptedClient(["short"]).provider)
    assert compressor(agent(user())).text() == "short"


def test_events_are_streamed() -> None:
    events: list[RathLLMStreamDelta] = []
    provider = ScriptedClient(["a b"]).provider
    flow.Compressor("p", provider, on_event=events.append)(user()).synchronize()
    assert "".join(event.content_delta or "" for event in events) == "a b"


def test_to_changes_its_provider() -> None:
    compressor = flow.Compressor("p", flow.Provider(model="old"))
    assert compressor.to(model="new").agent.provider.model == "new"
