"""Connections of the SDKs: shared, spread, closed, and without secrets that do not belong there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from rath import flow
from rath._async.runtime import runtime
from rath.errors import AuthenticationError, ProviderError
from rath.llm import Provider
from rath.llm.credentials import RequestTarget
from rath.llm.sdk_transport import SdkConnection
from rath.llm.transport import ApiEndpoint, ModelListing
from tests.support import chat_replies as replies
from tests.support.asking import KEY, NoSleep, ask, exchange, openai_client
from tests.support.chat_server import CapturedRequest, ChatServer
from tests.support.dialects import ANTHROPIC, DIALECTS, OPENAI, Dialect
from tests.support.machine import llm_config, own_project, trust, write_config
from tests.support.targets import request_target


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with ChatServer(lambda _: replies.completion("x")) as running:
        yield running


@pytest.fixture(params=DIALECTS, ids=lambda dialect: dialect.kind)
def dialect(request: pytest.FixtureRequest) -> Dialect:
    found: Dialect = request.param
    return found


def target(base_url: str, *, api_version: str | None = None) -> ApiEndpoint:
    return ApiEndpoint(
        sdk="openai",
        base_url=base_url,
        key_origin=None,
        from_project=False,
        headers_variable=None,
        api_key=KEY,
        api_version=api_version,
        listing=ModelListing("/models"),
    )


def asked(base_url: str) -> RequestTarget:
    return request_target(f"{base_url}/x", path="/x", timeout=5.0, secret=KEY)


def close(connection: SdkConnection) -> None:
    runtime().run(connection.aclose, label="a test close")


# ---------------------------------------------------------------- connections


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


def test_whole_and_streamed_calls_share_a_connection(server: ChatServer, dialect: Dialect) -> None:
    server.queue(dialect.answer, dialect.stream(*dialect.begin, *dialect.rest), dialect.answer)
    exchange(dialect.client(server))
    exchange(dialect.client(server), on_delta=lambda _: None)
    exchange(dialect.client(server))
    assert server.n_connections == 1


def test_a_refused_stream_is_an_error_too(server: ChatServer) -> None:
    server.queue(replies.status_error(401, f"bad {KEY}"))
    with pytest.raises(AuthenticationError) as caught:
        exchange(openai_client(server), on_delta=lambda _: None)
    assert KEY not in str(caught.value)


def test_what_follows_the_end_marker_is_not_waited_for(
    server: ChatServer, dialect: Dialect
) -> None:
    gate = replies.Gate()
    whole = dialect.stream(*dialect.begin, *dialect.rest)
    server.queue(replies.Reply((*whole.steps[:-1], gate, whole.steps[-1])))
    answered = exchange(dialect.client(server), on_delta=lambda _: None)
    assert answered.response.primary_choice.message.content == "whole"
    assert gate.abandoned.wait(50)


def test_azure_gets_its_version_and_its_own_header() -> None:
    connection = SdkConnection(target("https://x.openai.azure.com", api_version="2024-10-21"))
    client = connection.client
    assert isinstance(client, openai.AsyncAzureOpenAI)
    assert client.default_query == {"api-version": "2024-10-21"}
    assert str(client.base_url) == "https://x.openai.azure.com/openai/"
    close(connection)


# ---------------------------------------------------------------- what is told to whom


@pytest.mark.parametrize(
    "name",
    [
        "ANTHROPIC_API_KEY",
        "ANTHROPIC_AUTH_TOKEN",
        "ANTHROPIC_IDENTITY_TOKEN",
        "OPENAI_ADMIN_KEY",
        "OPENAI_API_KEY",
        "AZURE_OPENAI_AD_TOKEN",
    ],
)
def test_no_other_credential_of_the_environment_is_sent(
    server: ChatServer, dialect: Dialect, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "sk-other-canary")
    server.queue(dialect.answer)
    exchange(dialect.client(server))
    assert KEY in repr(server.requests[0].headers)
    assert "sk-other-canary" not in repr(server.requests[0].headers)


def test_the_machine_is_not_described(server: ChatServer, dialect: Dialect) -> None:
    server.queue(dialect.answer, dialect.stream(*dialect.begin, *dialect.rest))
    server.models = ["m"]
    exchange(dialect.client(server))
    exchange(dialect.client(server), on_delta=lambda _: None)
    list_models(server, dialect)
    assert len(server.requests) == 3
    for request in server.requests:
        assert [name for name in request.headers if name.startswith("x-stainless")] == []


def test_a_projects_endpoint_gets_no_headers_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, dialect: Dialect
) -> None:
    projects = dialect.target("http://project/v1", from_project=True)
    monkeypatch.setenv(dialect.headers_variable, "Authorization: Bearer sk-own")
    own = dialect.target("http://own/v1")
    with pytest.raises(ValueError, match=dialect.headers_variable):
        dialect.target("http://project/v1", from_project=True)
    with pytest.raises(ValueError, match=dialect.headers_variable):
        SdkConnection(projects)
    close(SdkConnection(own))


def test_a_caller_hears_at_once_of_headers_that_a_project_must_not_get(
    dialect: Dialect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter_project(dialect, "http://127.0.0.1:9/v1", tmp_path, monkeypatch)
    monkeypatch.setenv(dialect.headers_variable, "X-Own: sk-own")
    with pytest.raises(ValueError, match=dialect.headers_variable):
        dialect.make(Provider.from_config())
    (problem,) = flow.Agent("p", Provider.from_config()).compile().validate()
    assert dialect.headers_variable in problem


def test_a_projects_endpoint_does_not_hear_of_the_users_organisation(
    server: ChatServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter_project(OPENAI, server.base_url, tmp_path, monkeypatch)
    monkeypatch.setenv("OPENAI_ORG_ID", "org-own")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-own")
    server.queue(OPENAI.answer)
    exchange(OPENAI.make(Provider.from_config()))
    assert "-own" not in repr(server.requests[0].headers)


def enter_project(
    dialect: Dialect, base_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Enter a project whose config names an endpoint and has a key for it."""
    entry = {"provider_kind": dialect.kind, "model": "m", "base_url": base_url}
    project = own_project(tmp_path, monkeypatch)
    trust(write_config(project, llm_config("p", p=entry), {"p": KEY}))


# ---------------------------------------------------------------- models


def list_models(server: ChatServer, dialect: Dialect) -> tuple[str, ...]:
    client = dialect.client(server)

    async def ask_for_models() -> tuple[str, ...]:
        wire = await client.connect(asked(server.base_url))
        return await wire.models()

    return runtime().run(ask_for_models, label="a test question")


def test_an_endpoint_names_its_models_in_order(server: ChatServer, dialect: Dialect) -> None:
    server.models = ["b", "a", "b"]
    assert list_models(server, dialect) == ("a", "b")
    (request,) = server.requests
    assert (request.method, request.path.partition("?")[0]) == ("GET", "/v1/models")
    assert KEY in repr(request.headers)


def test_pages_are_turned_where_the_vendor_has_pages(server: ChatServer) -> None:
    pages = {"/v1/models?limit=1000": replies.model_list("c", "a", last="a"),
             "/v1/models?limit=1000&after_id=a": replies.model_list("b")}  # fmt: skip

    def turn(request: CapturedRequest) -> replies.Reply:
        return pages[request.path]

    server.models = turn
    assert list_models(server, ANTHROPIC) == ("a", "b", "c")
    assert len(server.requests) == 2


def test_pages_that_never_end_are_not_turned_for_ever(server: ChatServer, dialect: Dialect) -> None:
    server.models = replies.model_list("a", last="a")
    assert list_models(server, dialect) == ("a",)
    assert len(server.requests) <= 20


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (None, "/v1/models answered with status 404: no such path"),
        (replies.html("<html>Welcome"), "/v1/models answered with status 200, but not with a list"),
        (replies.json_body({"object": "list"}), "not with a list of models"),
        (replies.status_error(401, f"bad {KEY}"), "status 401: bad \\*\\*\\*"),
        (replies.dropped(), "/v1/models failed"),
    ],
    ids=["404", "html", "no-list", "401", "dropped"],
)
def test_a_list_that_does_not_come_is_an_error(
    server: ChatServer, dialect: Dialect, reply: replies.Reply | None, words: str
) -> None:
    server.models = reply
    with pytest.raises(ProviderError, match=words) as caught:
        list_models(server, dialect)
    assert "'m'" not in str(caught.value)
    assert len(server.requests) == 1


def test_azure_cannot_list_what_a_call_may_name(dialect: Dialect) -> None:
    connection = SdkConnection(dialect.target("http://h/v1", listing=None))
    wire = connection.transport(asked("http://h/v1"))
    with pytest.raises(ProviderError, match="http://h/v1/x cannot list the names"):
        runtime().run(wire.models, label="a test question")
    close(connection)
