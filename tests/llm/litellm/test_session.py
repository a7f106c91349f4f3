"""A whole run through LiteLLM: tools, streaming, and thinking that goes back between rounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from rath import flow
from rath.session import Session
from rath.session.record import ModelCall
from tests.support import anthropic_replies
from tests.support.asking import KEY
from tests.support.chat_server import ChatServer
from tests.support.litellm import ANTHROPIC_MODEL, needs_litellm
from tests.support.sessions import FunctionTool

pytestmark = [
    needs_litellm,
    pytest.mark.timeout(90),
    # The library ignores this one itself, with a filter that pytest takes away after each test.
    pytest.mark.filterwarnings("ignore:Accessing the:DeprecationWarning"),
]

THOUGHT = anthropic_replies.thinking("Ulm, then.", "signed")
CALL = anthropic_replies.tool_use("weather", {"key": "Ulm"})


def tell_weather(_: Session, arguments: Mapping[str, Any]) -> str:
    return f"sunny in {arguments['key']}"


def run(server: ChatServer, *, streamed: bool) -> Session:
    provider = flow.Provider(
        provider_kind="litellm",
        model=ANTHROPIC_MODEL,
        base_url=server.base_url.removesuffix("/v1"),
        api_key=KEY,
    )
    weather = FunctionTool("weather", tell_weather)
    events: list[object] = []
    agent = flow.Agent(
        "Be brief.",
        provider,
        tools=[weather],
        on_event=events.append if streamed else None,
    )
    out = agent(Session.from_user_message("How is the weather?")).synchronize()
    assert bool(events) == streamed
    return out


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_a_tool_loop(server: ChatServer, streamed: bool) -> None:
    one = anthropic_replies.streamed if streamed else anthropic_replies.message
    server.queue(one(THOUGHT, CALL), one(anthropic_replies.text("It is sunny.")))
    out = run(server, streamed=streamed)
    assert out.text() == "It is sunny."
    (_, answer, result) = server.requests[1].json()["messages"]
    assert [block["type"] for block in answer["content"]] == ["thinking", "tool_use"]
    assert answer["content"][0] == THOUGHT
    assert result["content"][0]["tool_use_id"] == answer["content"][1]["id"]
    calls = [entry.evidence for entry in out.record if isinstance(entry, ModelCall)]
    assert [call.sdk for call in calls] == ["litellm", "litellm"]
    assert KEY not in repr(calls)
