"""Calls through a client of a vendor's SDK that the user has made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from anthropic.lib.vertex import AsyncAnthropicVertex
from openai import AsyncAzureOpenAI, AsyncOpenAI, OpenAI

from rath._async.runtime import runtime
from rath.errors import (
    ProviderConnectionError,
    ProviderError,
    ProviderProtocolError,
    ProviderTimeout,
    RateLimitError,
    StreamInterrupted,
)
from rath.llm import Provider, chat_client_for
from rath.llm.client import VendorClient
from rath.llm.evidence import Exchange
from rath.session import Session, run_session_loop
from tests.support import chat_replies as replies
from tests.support.asking import KEY, exchange
from tests.support.canaries import all_logs
from tests.support.chat_server import ChatServer
from tests.support.dialects import BEGUN, WHOLE, Dialect


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with ChatServer() as running:
        yield running


Closing = Callable[[Any], Any]


@pytest.fixture
def closing() -> Iterator[Closing]:
    """Closes what it is called with, where it was used, at the end of the test."""
    clients: list[Any] = []

    def close_later(client: Any) -> Any:
        clients.append(client)
        return client

    yield close_later
    for client in clients:
        runtime().run(client.close, label="a test close")


@pytest.fixture
def brought(dialect: Dialect, server: ChatServer, closing: Closing) -> Any:
    """A client of the vendor's SDK for the server."""
    if dialect.kind == "openai":
        return closing(AsyncOpenAI(base_url=server.base_url, api_key=KEY))
    root = server.base_url.removesuffix("/v1")
    return closing(AsyncAnthropic(base_url=root, api_key=KEY))


def client_over(client: object, **fields: Any) -> VendorClient:
    provider = Provider(client=client, model="m", retry_base_seconds=0.0, **fields)
    made = chat_client_for(provider)
    assert isinstance(made, VendorClient)
    return made


def text_of(found: Exchange) -> str | None:
    return found.response.primary_choice.message.content


def test_a_call_goes_through_the_client(server: ChatServer, dialect: Dialect, brought: Any) -> None:
    server.queue(dialect.answer)
    found = exchange(client_over(brought))
    assert text_of(found) == WHOLE
    evidence = found.evidence
    assert (evidence.sdk, evidence.provider_kind) == (dialect.kind, dialect.kind)
    assert evidence.sdk_version
    assert evidence.endpoint == server.base_url + dialect.path
    (request,) = server.requests
    assert KEY in "".join(request.headers.values())


def test_a_streamed_call_goes_through_the_client(
    server: ChatServer, dialect: Dialect, brought: Any
) -> None:
    server.queue(dialect.stream(*dialect.begin, *dialect.rest))
    deltas: list[Any] = []
    found = exchange(client_over(brought), on_delta=deltas.append)
    assert text_of(found) == WHOLE
    assert len(deltas) > 1


def test_a_stream_that_is_cut_is_no_answer(
    server: ChatServer, dialect: Dialect, brought: Any
) -> None:
    client = client_over(brought, retry_max_attempts=1)
    server.queue(dialect.stream(*dialect.begin))
    with pytest.raises(StreamInterrupted) as caught:
        exchange(client, on_delta=lambda _: None)
    assert caught.value.partial_text == BEGUN


@pytest.mark.parametrize("is_streamed", [False, True])
def test_an_error_is_one_of_rath_and_its_cause_that_of_the_sdk(
    server: ChatServer, dialect: Dialect, brought: Any, is_streamed: bool
) -> None:
    client = client_over(brought, retry_max_attempts=2)
    server.queue(*[dialect.error(429, f"slow down, {KEY}")] * 2)
    with pytest.raises(RateLimitError) as caught:
        exchange(client, on_delta=(lambda _: None) if is_streamed else None)
    assert KEY not in str(caught.value)
    assert len(server.requests) == 2, "only rath tries again"


def test_what_the_sdk_logs_shows_no_key(server: ChatServer, dialect: Dialect, brought: Any) -> None:
    server.queue(dialect.error(401, f"bad key {KEY}", headers={"x-reason": f"bad header {KEY}"}))
    with all_logs() as logged, pytest.raises(ProviderError) as caught:
        exchange(client_over(brought))
    assert "HTTP Request: POST" in logged.getvalue()
    assert KEY not in logged.getvalue() + str(caught.value)


def test_an_error_event_of_a_stream_is_reported(
    server: ChatServer, dialect: Dialect, brought: Any
) -> None:
    client = client_over(brought, retry_max_attempts=1)
    server.queue(dialect.stream(*dialect.begin, dialect.failure))
    with pytest.raises(ProviderError):
        exchange(client, on_delta=lambda _: None)


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (replies.dropped(), ProviderConnectionError),
        (replies.held(replies.completion("late"), replies.Gate()), ProviderTimeout),
    ],
)
def test_what_the_network_does_is_mapped(
    server: ChatServer, brought: Any, reply: replies.Reply, error: type[Exception]
) -> None:
    client = client_over(brought, retry_max_attempts=1, timeout=0.5)
    server.queue(reply)
    with pytest.raises(error):
        exchange(client)


def test_a_stored_session_names_the_endpoint_and_no_client(
    server: ChatServer, dialect: Dialect, brought: Any, tmp_path: Path
) -> None:
    server.queue(dialect.answer)
    provider = Provider(client=brought, model="m")
    path = tmp_path / "session.jsonl"
    answer = run_session_loop(
        Session.from_user_message("ping").to(provider),
        Session.from_agent_prompt("You answer."),
        persist_path=path,
    )
    assert answer.text() == WHOLE
    assert KEY not in path.read_text()
    stored = Session.load(path)
    assert stored.text() == WHOLE
    found = stored.provider
    assert found is not None
    assert (found.base_url, found.client) == (str(brought.base_url), None)
    assert found.provider_kind == dialect.kind


def test_a_token_of_azure_is_asked_for_at_each_call(server: ChatServer, closing: Closing) -> None:
    tokens: list[str] = []

    def token() -> str:
        tokens.append(f"token-{len(tokens)}")
        return tokens[-1]

    client = closing(
        AsyncAzureOpenAI(
            azure_endpoint=server.base_url.removesuffix("/v1"),
            azure_ad_token_provider=token,
            api_version="2024-10-21",
        )
    )
    server.queue(replies.completion("a"), replies.completion("b"))
    for text in "ab":
        assert text_of(exchange(client_over(client))) == text
    sent = [request.headers["authorization"] for request in server.requests]
    assert sent == ["Bearer token-0", "Bearer token-1"]
    assert server.requests[0].path.startswith("/openai/deployments/m/chat/completions?api-version=")


def test_vertex_gets_the_model_in_the_path(server: ChatServer, closing: Closing) -> None:
    client = closing(
        AsyncAnthropicVertex(base_url=server.base_url, project_id="p", region="r", access_token=KEY)
    )
    server.queue(replies.json_body({"content": [{"type": "text", "text": "x"}]}))
    exchange(client_over(client))
    (request,) = server.requests
    assert request.path == "/v1/projects/p/locations/r/publishers/anthropic/models/m:rawPredict"
    assert "model" not in request.json()


def test_models_of_such_a_client_are_not_listed(
    server: ChatServer, dialect: Dialect, brought: Any
) -> None:
    client = client_over(brought)
    with pytest.raises(ProviderProtocolError, match="client of your own"):
        runtime().run(client.amodels, label="a test listing")


def test_a_client_can_be_replaced(
    server: ChatServer, dialect: Dialect, brought: Any, closing: Closing
) -> None:
    provider = replace(Provider(client=brought), model="m")
    assert provider.client is brought
    other = closing(AsyncOpenAI(base_url="http://o", api_key="k"))
    assert client_over(replace(provider, client=other).client).target("m").endpoint == (
        "http://o/chat/completions"
    )
    assert replace(provider, client=None) == Provider(model="m")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"api_key": "k"}, "leave api_key out"),
        ({"base_url": "http://h"}, "leave base_url out"),
        ({"provider_kind": "anthropic"}, "leave provider_kind out"),
    ],
)
def test_what_a_client_brings_is_not_given_twice(
    fields: dict[str, Any], words: str, closing: Closing
) -> None:
    client = closing(AsyncOpenAI(base_url="http://o", api_key="k"))
    with pytest.raises(ValueError, match=words):
        Provider(client=client, **fields)


@pytest.mark.parametrize("other", [object(), AsyncOpenAI])
def test_only_clients_of_an_sdk_are_taken(other: object) -> None:
    with pytest.raises(TypeError, match="asynchronous client"):
        Provider(client=other)


def test_a_client_that_blocks_is_not_taken() -> None:
    with OpenAI(api_key="k") as client, pytest.raises(TypeError, match="asynchronous client"):
        Provider(client=client)
