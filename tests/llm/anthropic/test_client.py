"""The Anthropic client over real HTTP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest

from rath.errors import (
    QuotaExceededError,
)
from rath.llm import (
    Provider,
    RathAnthropicChatClient,
    RathLLMChatRequest,
    RathLLMMessage,
    RathLLMStreamDelta,
    chat_client_for,
    open_draft,
    registered_kinds,
)
from tests.support import anthropic_replies as replies
from tests.support.anthropic_rules import check_body
from tests.support.asking import HELLO, KEY, WEATHER, NoSleep, exchange, send
from tests.support.chat_replies import (
    Cut,
)
from tests.support.chat_server import ChatServer

USED = replies.tool_use("weather", {"city": "Ulm"}, id="toolu_01A")


def client_of(
    server: ChatServer, *, sleep: NoSleep | None = None, **fields: Any
) -> RathAnthropicChatClient:
    given = replace(Provider(**fields), base_url=server.base_url, api_key=KEY, model="m")
    return RathAnthropicChatClient(given, sleep=sleep or NoSleep())


def ignore(_: RathLLMStreamDelta) -> None:
    pass


# ---------------------------------------------------------------- answers


def test_an_answer_and_its_evidence(server: ChatServer) -> None:
    counts = replies.usage(
        3,
        7,
        cache_read_input_tokens=90,
        cache_creation_input_tokens=2,
        output_tokens_details={"thinking_tokens": 4},
        service_tier="priority",
    )
    server.queue(replies.message(replies.text("hi there"), usage=counts))
    answered = exchange(client_of(server))
    evidence = answered.evidence
    assert answered.response.primary_choice.message.content == "hi there"
    assert (evidence.provider_kind, evidence.sdk, evidence.sdk_version) == ("anthropic", None, None)
    assert evidence.renderer == "anthropic-messages/1"
    assert evidence.endpoint == f"{server.base_url}/messages"
    assert dict(evidence.origins) == {"model": "call", "base_url": "call", "api_key": "call"}
    assert (evidence.credential or "").startswith("call ")
    assert (evidence.requested_model, evidence.served_model) == ("m", replies.MODEL)
    assert (evidence.response_id, evidence.service_tier) == (replies.MESSAGE_ID, "priority")
    assert (evidence.finish_reason, evidence.finish_reason_raw) == ("stop", "end_turn")
    assert (evidence.cached_tokens, evidence.cache_write_tokens, evidence.reasoning_tokens) == (
        90,
        2,
        4,
    )
    assert evidence.usage is not None
    assert (evidence.usage.prompt_tokens, evidence.usage.total_tokens) == (95, 102)
    assert evidence.parameters["max_tokens"] == 4096


@pytest.mark.parametrize("on_delta", [None, ignore], ids=["whole", "streamed"])
def test_the_request_digest_is_that_of_the_bytes_that_arrived(
    server: ChatServer, on_delta: Callable[[RathLLMStreamDelta], None] | None
) -> None:
    reply = replies.message if on_delta is None else replies.streamed
    server.queue(reply(USED), reply(replies.text("warm")))
    request = RathLLMChatRequest(messages=HELLO, model="m", tools=(WEATHER,), temperature=0.5)
    draft = open_draft(client_of(server), request, streaming=on_delta is not None)
    for _ in range(2):
        evidence = send(draft, on_delta).evidence
        arrived = server.requests[-1].body
        check_body(arrived)
        assert arrived == draft.body()
        assert sha256(arrived).hexdigest() == draft.digest == evidence.request_digest
        call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        draft.append([RathLLMMessage("assistant", tool_calls=(call,))])
        draft.append([RathLLMMessage("tool", "20 °C", tool_call_id="a")])


def test_key_and_version_are_sent_and_nothing_about_this_machine(server: ChatServer) -> None:
    server.queue(replies.message(replies.text("x")))
    exchange(client_of(server))
    (request,) = server.requests
    assert (request.method, request.path) == ("POST", "/v1/messages")
    assert KEY in (request.headers.get("authorization", "") + request.headers.get("x-api-key", ""))
    assert request.headers["anthropic-version"]
    assert request.headers["content-type"] == "application/json"
    assert [name for name in request.headers if name.startswith("x-stainless")] == []


@pytest.mark.parametrize("suffix", ["/v1", "/v1/", "", "/"])
def test_the_version_stands_in_the_path_once(server: ChatServer, suffix: str) -> None:
    server.queue(replies.message(replies.text("x")))
    root = server.base_url.removesuffix("/v1")
    client = RathAnthropicChatClient(Provider(base_url=root + suffix, api_key=KEY, model="m"))
    assert exchange(client).evidence.endpoint == f"{root}/v1/messages"
    assert server.requests[0].path == "/v1/messages"


def test_a_stream_gives_deltas_and_the_same_evidence(server: ChatServer) -> None:
    content = (replies.thinking("hm"), replies.text("hello"), USED)
    server.queue(replies.message(*content), replies.streamed(*content))
    deltas: list[RathLLMStreamDelta] = []
    whole, streamed = (
        exchange(client_of(server)),
        exchange(client_of(server), on_delta=deltas.append),
    )
    assert "".join(delta.content_delta or "" for delta in deltas) == "hello"
    assert streamed.response.choices == whole.response.choices
    for name in ("usage", "reasoning", "reasoning_blocks", "finish_reason_raw", "response_id",
                 "served_model", "service_tier"):  # fmt: skip
        assert getattr(streamed.evidence, name) == getattr(whole.evidence, name)
    assert streamed.evidence.first_token_ms is not None
    assert server.requests[1].json()["stream"] is True
    assert "stream" not in server.requests[0].json()


@pytest.mark.parametrize("on_delta", [None, ignore], ids=["whole", "streamed"])
@pytest.mark.parametrize("reason", ["refusal", "pause_turn"])
def test_a_refusal_and_a_pause_are_no_plain_stop(
    server: ChatServer, reason: str, on_delta: Callable[[RathLLMStreamDelta], None] | None
) -> None:
    reply = replies.message if on_delta is None else replies.streamed
    server.queue(reply(replies.text("so far"), stop_reason=reason))
    evidence = exchange(client_of(server), on_delta=on_delta).evidence
    assert (evidence.finish_reason, evidence.finish_reason_raw) == (reason, reason)


# ---------------------------------------------------------------- failures


@pytest.mark.parametrize("code", ["contract_spend_limit_reached", "enforced_spend_limit_reached"])
def test_a_spend_limit_is_final(server: ChatServer, code: str) -> None:
    spent = replies.error(429, "rate_limit_error", "spent", details={"error_code": code})
    server.queue(spent)
    with pytest.raises(QuotaExceededError, match="nothing left to spend") as caught:
        exchange(client_of(server))
    assert caught.value.code == code
    assert len(server.requests) == 1


def test_a_cut_behind_the_stop_reason_loses_nothing(server: ChatServer) -> None:
    events = replies.events(replies.envelope(replies.thinking("hm"), replies.text("all of it")))
    server.queue(replies.stream(*events[:-1], Cut("reset")))
    evidence = exchange(client_of(server), on_delta=ignore).evidence
    assert (evidence.status, len(evidence.reasoning_blocks)) == ("done", 2)


# ---------------------------------------------------------------- where a client goes


def test_the_kind_is_registered() -> None:
    assert "anthropic" in registered_kinds()
    made = chat_client_for(Provider(provider_kind="anthropic", api_key=KEY, model="m"))
    assert isinstance(made, RathAnthropicChatClient)
    assert made.output_mode(with_tools=True) == "schema"


def test_the_vendor_itself_is_the_default() -> None:
    route = RathAnthropicChatClient(Provider(api_key=KEY, model="m")).target(None)
    assert route.endpoint == "https://api.anthropic.com/v1/messages"
    assert dict(route.origins) == {"model": "call", "base_url": "default", "api_key": "call"}


def test_the_environment_fills_what_the_provider_leaves_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", f" {KEY} ")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:1/proxy")
    monkeypatch.setenv("ANTHROPIC_DEFAULT_MODEL", "from-env")
    client = RathAnthropicChatClient(Provider())
    route = client.target(None)
    assert (route.endpoint, route.model, route.secret) == (
        "http://127.0.0.1:1/proxy/v1/messages",
        "from-env",
        KEY,
    )
    assert dict(client.target("other").origins)["model"] == "call"
    assert dict(route.origins)["api_key"] == "env ANTHROPIC_API_KEY"


def test_a_missing_key_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with pytest.raises(ValueError, match=r"No Anthropic api_key.*, set ANTHROPIC_API_KEY"):
        RathAnthropicChatClient(Provider(model="m"))
