"""The HTTP client of the SDKs: proxies of the environment, and keys that stay at home."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace

import httpx2
import openai
import pytest

from rath._async.runtime import runtime
from rath.llm.sdk_transport import open_http_client
from tests.support import chat_replies as replies
from tests.support.asking import KEY
from tests.support.chat_server import ChatServer
from tests.support.waiting import PATIENCE, wait_until

HEADERS = {"api-key": KEY, "x-api-key": KEY, "authorization": f"Bearer {KEY}"}


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with ChatServer(lambda _: replies.completion("x")) as running:
        yield running


def get(base_url: str, path: str = "/x") -> httpx2.Response:
    """Ask with a key in every header that may hold one."""
    client = open_http_client(openai, base_url)

    async def ask() -> httpx2.Response:
        try:
            return await client.get(base_url + path, headers=HEADERS)
        finally:
            await client.aclose()

    return runtime().run(ask, label="a test call")


def moved(to: str) -> replies.Reply:
    return replies.raw(b"", status=307, headers={"location": to})


def test_proxies_of_the_environment_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    with pytest.raises(httpx2.ConnectError):
        get("https://h.example")


@pytest.mark.parametrize(
    ("variables", "is_spread"),
    [
        ({}, True),
        ({"NO_PROXY": "localhost"}, True),
        ({"HTTPS_PROXY": "http://127.0.0.1:9"}, False),
        ({"ALL_PROXY": "http://127.0.0.1:9"}, False),
        ({"HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "other.example"}, False),
        ({"HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "h.example"}, True),
        ({"FTP_PROXY": "http://127.0.0.1:9"}, True),
    ],
    ids=str,
)
def test_connections_are_spread_where_no_proxy_applies(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], is_spread: bool
) -> None:
    for name in ("ALL", "FTP", "HTTP", "HTTPS", "NO"):
        monkeypatch.delenv(f"{name}_PROXY", raising=False)
        monkeypatch.delenv(f"{name}_proxy".lower(), raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    asked: list[dict[str, object]] = []

    def make(**given: object) -> httpx2.AsyncClient:
        asked.append(given)
        return httpx2.AsyncClient()

    open_http_client(SimpleNamespace(DefaultAsyncHttpxClient=make), "https://h.example/v1")
    assert ("transport" in asked[0]) is is_spread


def test_a_key_is_not_taken_to_another_origin(server: ChatServer) -> None:
    with ChatServer(lambda _: replies.completion("x")) as other:
        server.queue(moved(f"{other.base_url}/stolen"))
        assert get(server.base_url).status_code == 200
        assert KEY not in repr(other.requests[0].headers)
    assert server.requests[0].headers.items() >= HEADERS.items()


def test_a_key_follows_within_its_origin(server: ChatServer) -> None:
    server.queue(moved("/v2/x"))
    get(server.base_url)
    assert server.requests[1].path == "/v2/x"
    assert server.requests[1].headers.items() >= HEADERS.items()


# ---------------------------------------------------------------- connections with nothing to do

BURST = 240
MOST_IDLE = 200


def answers_at_once(gate: replies.Gate) -> replies.Reply:
    """A reply that comes when the gate is opened."""
    return replace(replies.completion("x"), steps=(gate, *replies.completion("x").steps))


def burst(
    client: httpx2.AsyncClient, base_url: str, gate: replies.Gate, n_calls: int
) -> Future[list[int]]:
    """Make calls that are all open at once; the first one stands at the gate."""

    async def call() -> int:
        return (await client.get(base_url + "/x")).status_code

    async def call_all() -> list[int]:
        return await asyncio.gather(*(call() for _ in range(n_calls)))

    running = runtime().submit(call_all, label="a burst")
    assert gate.reached.wait(PATIENCE)
    return running.future


def get_with(client: httpx2.AsyncClient, base_url: str) -> int:
    async def ask() -> int:
        return (await client.get(base_url + "/x")).status_code

    return runtime().run(ask, label="a test call")


def close(client: httpx2.AsyncClient) -> None:
    runtime().run(client.aclose, label="closing a client")


def test_after_a_burst_only_so_many_connections_stay_open() -> None:
    gate = replies.Gate()
    with ChatServer(lambda _: answers_at_once(gate)) as server:
        client = open_http_client(openai, server.base_url, idle_seconds=3600)
        running = burst(client, server.base_url, gate, BURST)
        wait_until(lambda: server.n_open == BURST)
        gate.release()
        assert running.result(PATIENCE) == [200] * BURST
        wait_until(lambda: server.n_open <= MOST_IDLE, "the server sees connections close")
        assert get_with(client, server.base_url) == 200
        assert server.n_connections == BURST
        close(client)
        wait_until(lambda: server.n_open == 0, "the server sees the last connections close")


def test_connections_with_nothing_to_do_are_closed_while_others_go_on() -> None:
    gate, last = replies.Gate(), replies.Gate()
    with ChatServer(lambda _: answers_at_once(gate)) as server:
        client = open_http_client(openai, server.base_url, idle_seconds=0.01)
        server.queue(answers_at_once(last))
        long = burst(client, server.base_url, last, 1)
        running = burst(client, server.base_url, gate, 40)
        wait_until(lambda: server.n_open == 41)
        gate.release()
        assert running.result(PATIENCE) == [200] * 40
        wait_until(lambda: server.n_open <= 8, "the server sees all but one pool close")
        last.release()
        assert long.result(PATIENCE) == [200]
        wait_until(lambda: server.n_open == 0, "the server sees the last pool close")
        assert get_with(client, server.base_url) == 200
        close(client)
