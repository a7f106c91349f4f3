"""Agents on Anthropic's wire: tools, thoughts that go back, and turns that pause."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest
from pydantic import BaseModel

from rath import flow
from rath.llm import Provider, RathLLMStreamDelta, chat_client_for
from rath.session import Session
from rath.session.record import ModelCall
from tests.support import anthropic_replies as replies
from tests.support import chat_replies
from tests.support.anthropic_rules import check_body
from tests.support.asking import KEY, WEATHER
from tests.support.chat_server import ChatServer
from tests.support.rendering import rerender_call
from tests.support.sessions import FunctionTool

USED = replies.tool_use("weather", {"city": "Ulm"}, id="toolu_01A")


def ignore(_: RathLLMStreamDelta) -> None:
    pass


def tell_weather(_: Session, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"city": arguments["city"], "celsius": 20}


WEATHER_TOOL = FunctionTool("weather", tell_weather, schema=WEATHER.parameters, parallel_safe=True)


def provider_of(server: ChatServer, model: str = "m") -> Provider:
    return Provider(provider_kind="anthropic", base_url=server.base_url, api_key=KEY, model=model)


def agent_of(server: ChatServer, **options: Any) -> flow.Agent:
    return flow.Agent(
        "You are brief.",
        provider_of(server),
        tools=[WEATHER_TOOL],
        system_tools=False,
        **options,
    )


@pytest.mark.parametrize("on_event", [None, ignore], ids=["whole", "streamed"])
def test_an_agent_runs_its_tools(
    server: ChatServer, on_event: Callable[[RathLLMStreamDelta], None] | None
) -> None:
    reply = replies.message if on_event is None else replies.streamed
    second = replies.tool_use("weather", {"city": "Bonn"}, id="toolu_02B")
    server.queue(reply(replies.text("I look."), USED, second), reply(replies.text("20 °C")))
    out = agent_of(server, on_event=on_event)(Session.from_user_message("How warm is it?"))
    assert out.text() == "20 °C"
    first, last = (check_body(request.body) for request in server.requests)
    assert first["system"] == [
        {"type": "text", "text": "You are brief.", "cache_control": {"type": "ephemeral"}}
    ]
    assert first["messages"] == last["messages"][:1]
    answers = last["messages"][2]["content"]
    assert [answer["tool_use_id"] for answer in answers] == ["toolu_01A", "toolu_02B"]
    assert out.cumulative_usage is not None
    assert out.cumulative_usage.total_tokens == 30


@pytest.mark.parametrize("on_event", [None, ignore], ids=["whole", "streamed"])
def test_signed_thoughts_go_back_between_tool_turns(
    server: ChatServer, on_event: Callable[[RathLLMStreamDelta], None] | None
) -> None:
    reply = replies.message if on_event is None else replies.streamed
    content = (
        replies.thinking("It asks for Ulm."),
        replies.redacted(),
        replies.text("I look."),
        USED,
    )
    server.queue(reply(*content), reply(replies.thinking("Warm."), replies.text("20 °C")))
    out = agent_of(server, on_event=on_event)(Session.from_user_message("How warm is it?"))
    assert out.text() == "20 °C"
    last = check_body(server.requests[1].body)
    assert last["messages"][1]["content"] == list(content)
    calls = [entry for entry in out.record if isinstance(entry, ModelCall)]
    assert [call.evidence.reasoning for call in calls] == ["It asks for Ulm.", "Warm."]


def test_thoughts_stay_away_from_another_model(server: ChatServer) -> None:
    server.queue(
        replies.message(replies.thinking("hm"), replies.text("20 °C")),
        replies.message(replies.text("yes")),
    )
    first = agent_of(server)(Session.from_user_message("How warm is it?"))
    flow.Agent("Check.", provider_of(server, "n"), system_tools=False)(first).synchronize()
    sent = check_body(server.requests[1].body)
    assert sent["messages"][1]["content"] == [replies.text("20 °C")]


def test_a_fallback_thinks_where_it_may(server: ChatServer) -> None:
    thinking = {"type": "enabled", "budget_tokens": 2000}
    asked = {"thinking": thinking}
    with ChatServer() as other:
        other.queue(
            chat_replies.completion(
                tool_calls=(chat_replies.tool_call("weather", {"city": "Ulm"}),)
            ),
            *[chat_replies.status_error(500, "down")] * 2,
        )
        server.queue(
            replies.message(replies.text("20 °C")),
            replies.message(replies.thinking("hm"), replies.text("21 °C")),
        )
        fallback = replace(provider_of(server), extra_create_args=asked)
        provider = Provider(
            base_url=other.base_url,
            api_key=KEY,
            model="m",
            retry_max_attempts=1,
            fallbacks=[fallback],
        )
        agent = flow.Agent("Be brief.", provider, tools=[WEATHER_TOOL], system_tools=False)
        out = agent(Session.from_user_message("How warm is it?"))
        out = agent(out.merge(Session.from_user_message("And tomorrow?")))
        assert out.text() == "21 °C"
    sent = [check_body(request.body) for request in server.requests]
    assert [body.get("thinking") for body in sent] == [None, thinking]
    calls = [entry for entry in out.record if isinstance(entry, ModelCall)]
    done = [call.evidence for call in calls if call.evidence.provider_kind == "anthropic"]
    assert [evidence.parameters.get("thinking") for evidence in done] == [None, thinking]
    assert [evidence.request_digest for evidence in done] == [
        sha256(request.body).hexdigest() for request in server.requests
    ]


def test_a_model_that_thinks_is_not_forced_to_give_its_typed_answer(server: ChatServer) -> None:
    class Counts(BaseModel):
        words: dict[str, int]

    said = replies.tool_use("final_answer", {"words": {"a": 1}})
    server.queue(replies.message(replies.thinking("hm"), said))
    provider = replace(
        provider_of(server),
        extra_create_args={"thinking": {"type": "enabled", "budget_tokens": 2000}},
    )
    agent = flow.Agent("Count.", provider, system_tools=False, output=Counts)
    assert agent(Session.from_user_message("a")).output == Counts(words={"a": 1})
    assert check_body(server.requests[0].body)["tool_choice"] == {"type": "auto"}


def test_a_session_goes_on(server: ChatServer) -> None:
    server.queue(
        replies.message(replies.thinking("hm"), USED),
        replies.message(replies.text("20 °C")),
        replies.message(replies.text("And 21 °C.")),
    )
    agent = agent_of(server)
    out = agent(Session.from_user_message("How warm is it?"))
    again = agent(out.merge(Session.from_user_message("And tomorrow?")))
    assert again.text() == "And 21 °C."
    sent = check_body(server.requests[2].body)
    assert sent["messages"][1]["content"] == [replies.thinking("hm"), USED]


@pytest.mark.parametrize("on_event", [None, ignore], ids=["whole", "streamed"])
def test_calls_are_rendered_again_as_they_were_sent(
    server: ChatServer, on_event: Callable[[RathLLMStreamDelta], None] | None
) -> None:
    reply = replies.message if on_event is None else replies.streamed
    server.queue(reply(replies.thinking("hm"), USED), reply(replies.text("20 °C")))
    out = agent_of(server, on_event=on_event)(Session.from_user_message("How warm is it?"))
    provider = provider_of(server)
    bodies = [
        rerender_call(out, call, client=chat_client_for(provider), provider=provider)
        for call in out.record
        if isinstance(call, ModelCall)
    ]
    assert bodies == [request.body for request in server.requests]


SEARCHING = (replies.text("I search."), replies.search("q"))


def test_a_paused_turn_goes_back_as_it_is_and_goes_on(server: ChatServer) -> None:
    rest = (replies.found(), replies.text("Found it."))
    server.queue(
        replies.message(*SEARCHING, stop_reason="pause_turn"),
        replies.message(*rest),
        replies.message(replies.text("yes")),
    )
    agent = agent_of(server)
    out = agent(Session.from_user_message("Search."))
    agent(out.merge(Session.from_user_message("Sure?"))).synchronize()
    paused, ended = (check_body(request.body) for request in server.requests[1:])
    assert paused["messages"][1] == {"role": "assistant", "content": list(SEARCHING)}
    assert ended["messages"][1]["content"] == [*SEARCHING, *rest]


def test_a_paused_turn_that_the_user_ends_stays_valid(server: ChatServer) -> None:
    server.queue(
        replies.message(*SEARCHING, stop_reason="pause_turn"),
        replies.message(replies.text("done")),
    )
    paused = agent_of(server, max_tool_rounds=1)(Session.from_user_message("Search."))
    ended = agent_of(server)(paused.merge(Session.from_user_message("Never mind.")))
    assert ended.text() == "done"
    sent = check_body(server.requests[1].body)
    assert sent["messages"][1]["content"] == [replies.text("I search.")]
