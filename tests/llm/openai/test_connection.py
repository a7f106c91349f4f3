"""Connections of the SDK: shared, spread, closed, and without secrets that do not belong there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import httpx2
import pytest

from rath._async.runtime import runtime
from rath.errors import AuthenticationError
from rath.llm.openai.connection import Connection
from rath.llm.openai.target import Target
from rath.llm.openai.transport import open_http_client
from tests.support import chat_replies as replies
from tests.support.asking import KEY, NoSleep, ask, exchange, openai_client
from tests.support.chat_server import ChatServer


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with ChatServer(lambda _: replies.completion("x")) as running:
        yield running


def target(
    base_url: str, *, azure_version: str | None = None, from_project: bool = False
) -> Target:
    return Target(base_url, None, azure_version, from_project, KEY)


def close(connection: Connection) -> None:
    runtime().run(connection.aclose, label="a test close")


def test_many_calls_at_once_are_all_in_flight(server: ChatServer) -> None:
    gate = replies.Gate()
    server.queue(*[replies.held(replies.completion(str(number)), gate) for number in range(40)])
    client = openai_client(server)

    async def fan_out() -> list[str | None]:
        calls = [client.open_draft(ask(), streaming=False, provider_origin="call").asend()
                 for _ in range(40)]  # fmt: skip
        tasks = [asyncio.ensure_future(call) for call in calls]
        await runtime().call_in_worker(lambda: server.wait_for_requests(40))
        gate.release()
        answers = await asyncio.gather(*tasks)
        return [answer.response.primary_choice.message.content for answer in answers]

    texts = runtime().run(fan_out, label="a test fan-out")
    assert sorted(texts, key=str) == sorted(map(str, range(40)))
    assert server.max_in_flight == 40


def test_connections_are_used_again_after_a_fan_out(server: ChatServer) -> None:
    client = openai_client(server)

    async def fan_out() -> None:
        calls = [client.open_draft(ask(), streaming=False, provider_origin="call").asend()
                 for _ in range(20)]  # fmt: skip
        await asyncio.gather(*calls)

    for _ in range(3):
        runtime().run(fan_out, label="a test fan-out")
    # Not always 20: a call that begins late takes the connection of one that has ended.
    assert server.n_connections <= 20


def test_a_failed_request_makes_room_again(server: ChatServer) -> None:
    server.queue(*[replies.dropped()] * 20)
    client = openai_client(server, sleep=NoSleep())
    for _ in range(5):
        with pytest.raises(Exception, match="connection"):
            exchange(client)
    exchange(client)
    assert len(server.requests) == 21


def test_a_refused_stream_is_an_error_too(server: ChatServer) -> None:
    server.queue(replies.status_error(401, f"bad {KEY}"))
    with pytest.raises(AuthenticationError) as caught:
        exchange(openai_client(server), on_delta=lambda _: None)
    assert KEY not in str(caught.value)


def test_what_follows_the_end_marker_is_not_waited_for(server: ChatServer) -> None:
    gate = replies.Gate()
    whole = replies.text_stream("x")
    server.queue(replies.Reply((*whole.steps[:-1], gate, whole.steps[-1])))
    answered = exchange(openai_client(server), on_delta=lambda _: None)
    assert answered.response.primary_choice.message.content == "x"
    assert gate.abandoned.wait(5)


def test_azure_gets_its_version_and_its_own_header() -> None:
    connection = Connection(target("https://x.openai.azure.com", azure_version="2024-10-21"))
    assert connection.client.default_query == {"api-version": "2024-10-21"}
    assert str(connection.client.base_url) == "https://x.openai.azure.com/openai/"
    close(connection)


def test_an_administrators_key_is_not_sent(
    server: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_ADMIN_KEY", "sk-admin-canary")
    exchange(openai_client(server))
    assert "sk-admin-canary" not in repr(server.requests[0].headers)


def test_the_machine_is_not_described(server: ChatServer) -> None:
    exchange(openai_client(server))
    exchange(openai_client(server), on_delta=lambda _: None)
    for request in server.requests:
        assert [name for name in request.headers if name.startswith("x-stainless")] == []


def test_a_projects_endpoint_gets_no_headers_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "Authorization: Bearer sk-own")
    with pytest.raises(ValueError, match="OPENAI_CUSTOM_HEADERS"):
        Connection(target("http://project/v1", from_project=True))
    close(Connection(target("http://own/v1")))


def test_proxies_of_the_environment_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    client = open_http_client()

    async def ask_through_it() -> None:
        with pytest.raises(httpx2.ConnectError):
            await client.get("https://h.example/")
        await client.aclose()

    runtime().run(ask_through_it, label="a test call")
