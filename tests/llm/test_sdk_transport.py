"""Transports over the SDKs: shared, spread and closed connections, errors, and no stray secrets."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from traceback import TracebackException
from types import SimpleNamespace

import httpx2
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath import flow
from rath._async.runtime import runtime
from rath.errors import ProviderError
from rath.llm import Provider
from rath.llm.credentials import RequestTarget
from rath.llm.errors import decode_error_body
from rath.llm.sdk_transport import (
    SdkConnection,
    decode_models,
    map_error,
    open_http_client,
    without_locals,
)
from rath.llm.transport import ApiEndpoint, ModelListing
from tests.support import chat_replies as replies
from tests.support.asking import KEY, NoSleep, ask, exchange, openai_client
from tests.support.chat_server import CapturedRequest, ChatServer
from tests.support.dialects import ANTHROPIC, OPENAI, Dialect
from tests.support.error_table import assert_is, documented
from tests.support.machine import llm_config, own_project, trust, write_config
from tests.support.targets import request_target
from tests.support.waiting import PATIENCE, wait_until


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with ChatServer(lambda _: replies.completion("x")) as running:
        yield running


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


def close(connection: SdkConnection | httpx2.AsyncClient) -> None:
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


def test_complete_and_streamed_calls_share_a_connection(
    server: ChatServer, dialect: Dialect
) -> None:
    server.queue(dialect.answer, dialect.stream(*dialect.begin, *dialect.rest), dialect.answer)
    exchange(dialect.client(server))
    exchange(dialect.client(server), on_delta=lambda _: None)
    exchange(dialect.client(server))
    assert server.n_connections == 1


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


HEADERS = {"api-key": KEY, "x-api-key": KEY, "authorization": f"Bearer {KEY}"}


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


ASKED = request_target("https://h/v1", timeout=600.0, secret=KEY)
REQUEST = httpx2.Request("POST", "https://h/v1")
STATUSES = {
    "BadRequestError": 400,
    "AuthenticationError": 401,
    "PermissionDeniedError": 403,
    "NotFoundError": 404,
    "ConflictError": 409,
    "UnprocessableEntityError": 422,
    "RateLimitError": 429,
    "InternalServerError": 500,
}
"""What the SDKs document for their classes."""


def error_of(library: str, name: str) -> Exception:
    """Make an error as the SDK, or its HTTP client, raises it."""
    kind = getattr(importlib.import_module(library), name)
    if library == "httpx2":
        return kind("it failed", request=REQUEST)  # type: ignore[no-any-return]  # by its name
    if name in STATUSES:
        response = httpx2.Response(STATUSES[name], request=REQUEST, json={"error": "it failed"})
        return kind("it failed", response=response, body=None)  # type: ignore[no-any-return]
    return kind(request=REQUEST)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("library", "name", "ours", "base"), documented("openai", "anthropic", "httpx2")
)
def test_an_error_of_a_vendor_is_what_the_documents_say(
    library: str, name: str, ours: str, base: str
) -> None:
    sdk = importlib.import_module("openai" if library == "httpx2" else library)
    assert_is(map_error(error_of(library, name), sdk, ASKED), ours, base)


@pytest.mark.parametrize("library", ["openai", "anthropic"])
def test_the_documents_name_every_status_class_of_an_sdk(library: str) -> None:
    assert {name for _, name, _, _ in documented(library)} >= STATUSES.keys()


def send() -> None:
    headers = [(b"authorization", f"Bearer {KEY}".encode())]
    raise OSError(f"{len(headers)} headers were not sent")


def raised_while_sending() -> Exception:
    with pytest.raises(OSError, match="not sent") as caught:
        send()
    return caught.value


def with_a_cause() -> Exception:
    error = ValueError("lost")
    error.__cause__ = raised_while_sending()
    return error


def with_a_context() -> Exception:
    error = ValueError("lost")
    error.__context__ = raised_while_sending()
    return error


def in_a_group() -> Exception:
    return ExceptionGroup("tried twice", [raised_while_sending(), ValueError("refused")])


def of_itself() -> Exception:
    error = raised_while_sending()
    error.__context__ = with_a_cause()
    error.__context__.__context__ = error
    return error


def shown(error: Exception) -> str:
    return "".join(TracebackException.from_exception(error, capture_locals=True).format())


@pytest.mark.parametrize(
    "make", [raised_while_sending, with_a_cause, with_a_context, in_a_group, of_itself]
)
def test_no_frame_keeps_the_key_of_a_request(make: Callable[[], Exception]) -> None:
    error = make()
    assert KEY in shown(error)
    assert without_locals(error) is error
    assert KEY not in shown(error)
    assert "in send" in shown(error)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON)
def test_any_json_is_a_list_of_models_or_none(value: object) -> None:
    try:
        names, _ = decode_models(json.dumps(value).encode())
    except ValueError:
        return
    assert all(names)


@given(JSON | JSON.map(lambda inner: {"error": inner}))
def test_any_json_may_be_the_body_of_an_error(value: object) -> None:
    for said in decode_error_body(json.dumps(value).encode()):
        assert said is None or isinstance(said, str)


@pytest.mark.parametrize(
    ("payload", "names"),
    [
        ({"object": "list", "data": [{"id": "a"}, {"id": "b", "name": "B"}]}, ("a", "b")),
        ({"models": [{"name": "a"}, {"id": "b"}]}, ("a", "b")),
        ({"data": [{"id": "a"}], "models": [{"name": "b"}]}, ("a",)),
        ([{"id": "a"}, "b"], ("a", "b")),
        ({"data": [{"id": ""}, {"id": 3}, None, {}]}, ()),
    ],
    ids=["openai", "ollama", "both", "bare", "junk"],
)
def test_every_form_of_a_list_is_read(payload: object, names: tuple[str, ...]) -> None:
    assert decode_models(json.dumps(payload).encode()) == (names, None)


@pytest.mark.parametrize(
    ("fields", "last"),
    [
        ({"has_more": True, "last_id": "a"}, "a"),
        ({"has_more": False, "last_id": "a"}, None),
        ({"has_more": True, "last_id": None}, None),
        ({"last_id": "a"}, None),
    ],
)
def test_a_page_tells_where_the_next_one_begins(
    fields: dict[str, object], last: str | None
) -> None:
    content = json.dumps({"data": [{"id": "a"}], **fields}).encode()
    assert decode_models(content) == (("a",), last)


@pytest.mark.parametrize("content", [b"", b"<html>", b"{}", b'{"data": {}}', b"3", b"\xff"])
def test_what_lists_no_models_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"no list of models|Expecting value|can't decode"):
        decode_models(content)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"error": {"message": "m", "type": "t", "code": "c"}}, ("m", "c")),
        ({"error": {"message": "m", "type": "t", "code": None}}, ("m", "t")),
        ({"error": {"message": "m", "code": 404}}, ("m", "404")),
        (
            {"type": "error", "error": {"type": "t", "message": "m"}, "request_id": "r"},
            ("m", "t"),
        ),
        ({"error": {"type": "t", "message": "m", "details": {"error_code": "c"}}}, ("m", "c")),
        ({"error": "model 'x' not found"}, ("model 'x' not found", None)),
        ({"error": ""}, (None, None)),
        ({"message": "m", "code": "c"}, ("m", "c")),
        ({"detail": "Not Found"}, ("Not Found", None)),
        (["m"], (None, None)),
    ],
    ids=[
        "openai",
        "no-code",
        "number",
        "anthropic",
        "details",
        "text",
        "empty",
        "bare",
        "detail",
        "list",
    ],
)
def test_every_form_of_an_error_is_read(body: object, said: tuple[str | None, str | None]) -> None:
    assert decode_error_body(json.dumps(body).encode()) == said


@pytest.mark.parametrize("content", [b"", b"<html>Bad gateway</html>", b"\xff\xfe", b"[" * 100_000])
def test_a_body_that_is_not_json_says_nothing(content: bytes) -> None:
    assert decode_error_body(content) == (None, None)
