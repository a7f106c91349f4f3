"""The transport of our own HTTP client: shared connections, heads, errors, no stray secrets."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from traceback import TracebackException
from typing import Never

import anthropic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath import flow
from rath._async.runtime import runtime
from rath.errors import OfflineError, ProviderError, ProviderStatusError, ProviderTimeout
from rath.llm import Provider, errors
from rath.llm.anthropic.client import API_VERSION
from rath.llm.credentials import RequestTarget
from rath.llm.errors import decode_error_body
from rath.llm.http import Origin, Proxy
from rath.llm.http_transport import HttpConnection, decode_models, proxy_for, without_locals
from rath.llm.offline import offline
from rath.llm.transport import ApiEndpoint, WireReply
from rath.session import Session, run_session_loop
from tests.support import chat_replies as replies
from tests.support.asking import KEY, NoSleep, ask, exchange, openai_client
from tests.support.chat_server import CapturedRequest, ChatServer
from tests.support.dialects import ANTHROPIC, OPENAI, WHOLE, Dialect
from tests.support.error_table import assert_is, documented
from tests.support.machine import llm_config, own_project, trust, write_config
from tests.support.targets import request_target
from tests.support.waiting import PATIENCE, at_a_deadline, wait_until


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with ChatServer(lambda _: replies.completion("x")) as running:
        yield running


def asked(base_url: str) -> RequestTarget:
    return request_target(f"{base_url}/x", path="/x", timeout=5.0, secret=KEY)


def post(connection: HttpConnection, path: str = "/x") -> WireReply:
    transport = connection.transport(replace(asked(connection.endpoint.base_url), path=path))
    return runtime().run(lambda: transport.post(b"{}"), label="a test call")


def provider_of(dialect: Dialect, server: ChatServer) -> Provider:
    return Provider(provider_kind=dialect.kind, base_url=server.base_url, api_key=KEY, model="m")


def close(connection: HttpConnection) -> None:
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


def test_the_connection_opens_before_the_request_is_there(
    server: ChatServer, dialect: Dialect
) -> None:
    def recall(_: Session) -> Sequence[Never]:
        wait_until(lambda: server.n_open == 1)
        assert not server.requests
        return ()

    server.queue(dialect.answer)
    answer = run_session_loop(
        Session.from_user_message("ping"),
        Session.from_agent_prompt("You answer."),
        agent_provider=provider_of(dialect, server),
        recall=recall,
    )
    assert answer.text() == WHOLE
    assert server.n_connections == 1


def test_no_connection_opens_while_live_calls_are_forbidden(
    server: ChatServer, dialect: Dialect
) -> None:
    server.queue(dialect.answer)
    with offline():
        answer = run_session_loop(
            Session.from_user_message("ping"),
            Session.from_agent_prompt("You answer."),
            agent_provider=provider_of(dialect, server),
        )
        with pytest.raises(OfflineError):
            answer.text()
    exchange(dialect.client(server))
    assert server.n_connections == 1


@pytest.mark.parametrize(
    ("base_url", "sent"),
    [("/a b", "/a%20b/x"), ("/v1 HTTP/1.0", "/v1%20HTTP/1.0/x"), ("/é%2F", "/%C3%A9%2F/x")],
)
def test_the_path_of_a_base_url_is_sent_as_an_address(
    server: ChatServer, base_url: str, sent: str
) -> None:
    root = server.base_url.removesuffix("/v1")
    connection = HttpConnection(OPENAI.target(root + base_url))
    post(connection)
    close(connection)
    assert [request.path for request in server.requests] == [sent]


def test_a_host_that_no_name_can_be_is_a_clear_error() -> None:
    with pytest.raises(ValueError, match="cannot be looked up"):
        HttpConnection(OPENAI.target("http://日本..example/v1"))
    connection = HttpConnection(OPENAI.target("http://a..b/v1"))
    with pytest.raises(ProviderError):
        post(connection)
    close(connection)


def test_no_proxy_may_name_a_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", "h.example:8000")
    assert proxy_for(Origin("http", "h.example", 8000)) is None
    assert proxy_for(Origin("http", "h.example", 8001)) is not None


def test_certificates_that_cannot_be_read_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/nonexistent.pem")
    with pytest.raises(ValueError, match=r"SSL_CERT_FILE='/nonexistent.pem'"):
        HttpConnection(OPENAI.target("https://h.example/v1"))


def test_what_follows_the_end_marker_is_not_waited_for(
    server: ChatServer, dialect: Dialect
) -> None:
    gate = replies.Gate()
    whole = dialect.stream(*dialect.begin, *dialect.rest)
    server.queue(replies.Reply((*whole.steps[:-1], gate, whole.steps[-1])))
    answered = exchange(dialect.client(server), on_delta=lambda _: None)
    assert answered.response.primary_choice.message.content == "whole"
    assert gate.abandoned.wait(50)


def test_azure_gets_its_version_and_its_own_header(server: ChatServer) -> None:
    endpoint = ApiEndpoint(
        base_url=f"{server.base_url}/openai",
        key_origin=None,
        from_project=False,
        headers_variable=None,
        api_key=KEY,
        key_header="api-key",
        query=(("api-version", "2024-10-21"),),
    )
    connection = HttpConnection(endpoint)
    post(connection, "/deployments/m/chat/completions")
    close(connection)
    (request,) = server.requests
    assert request.path == "/v1/openai/deployments/m/chat/completions?api-version=2024-10-21"
    assert request.headers["api-key"] == KEY
    assert "authorization" not in request.headers


def test_the_version_of_the_messages_is_that_of_the_sdk() -> None:
    make = anthropic.AsyncAnthropic(api_key=KEY)
    assert make.default_headers["anthropic-version"] == API_VERSION


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
        HttpConnection(projects)
    close(HttpConnection(own))


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
    connection = HttpConnection(dialect.target("http://h/v1", listing=None))
    wire = connection.transport(asked("http://h/v1"))
    with pytest.raises(ProviderError, match="http://h/v1/x cannot list the names"):
        runtime().run(wire.models, label="a test question")
    close(connection)


def moved(to: str) -> replies.Reply:
    return replies.raw(b"", status=307, headers={"location": to})


def test_a_redirect_is_not_followed(server: ChatServer, dialect: Dialect) -> None:
    with ChatServer(lambda _: replies.completion("x")) as other:
        place = f"{other.base_url}/else"
        server.queue(moved(f"{place}?key=1"))
        with pytest.raises(ProviderStatusError, match=f"points to '{place}'.* base_url") as caught:
            exchange(dialect.client(server))
        assert caught.value.status == 307
        assert not other.requests
    assert len(server.requests) == 1


ORIGIN = Origin("https", "h.example", 443)
PROXY = Proxy(Origin("http", "127.0.0.1", 9))


@pytest.fixture
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ALL", "FTP", "HTTP", "HTTPS", "NO"):
        monkeypatch.delenv(f"{name}_PROXY", raising=False)
        monkeypatch.delenv(f"{name}_proxy".lower(), raising=False)


@pytest.mark.parametrize(
    ("variables", "proxy"),
    [
        ({}, None),
        ({"NO_PROXY": "localhost"}, None),
        ({"HTTPS_PROXY": "http://127.0.0.1:9"}, PROXY),
        ({"https_proxy": "127.0.0.1:9"}, PROXY),
        ({"ALL_PROXY": "http://127.0.0.1:9/"}, PROXY),
        ({"HTTP_PROXY": "http://127.0.0.1:9"}, None),
        ({"HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "other.example"}, PROXY),
        ({"HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": ".example"}, None),
        ({"FTP_PROXY": "http://127.0.0.1:9"}, None),
        (
            {"HTTPS_PROXY": "https://me:pass%20word@p.example"},
            Proxy(Origin("https", "p.example", 443), "Basic bWU6cGFzcyB3b3Jk"),
        ),
    ],
    ids=str,
)
@pytest.mark.usefixtures("no_proxies")
def test_proxies_of_the_environment_are_used(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], proxy: Proxy | None
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert proxy_for(ORIGIN) == proxy


@pytest.mark.usefixtures("no_proxies")
def test_a_proxy_of_another_kind_is_refused_without_its_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "socks5://me:canary@p.example:1080")
    with pytest.raises(ValueError, match=r"'socks5://p\.example:1080' .* NO_PROXY=h\.example"):
        proxy_for(ORIGIN)


@pytest.mark.usefixtures("no_proxies")
def test_a_proxy_of_plain_requests_gets_the_whole_address(
    server: ChatServer, dialect: Dialect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", server.base_url.replace("http://", "http://me:word@"))
    connection = HttpConnection(dialect.target("http://h.example/v1"))
    post(connection)
    close(connection)
    (request,) = server.requests
    assert request.path == "http://h.example/v1/x"
    assert request.headers["host"] == "h.example"
    assert request.headers["proxy-authorization"] == "Basic bWU6d29yZA=="


def test_headers_of_the_environment_are_added(
    server: ChatServer, dialect: Dialect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(dialect.headers_variable, "X-A: b: c\nno header\nauthorization: Basic x")
    connection = HttpConnection(dialect.target(server.base_url))
    post(connection)
    close(connection)
    headers = server.requests[0].headers
    assert (headers["x-a"], headers["authorization"]) == ("b: c", "Basic x")


@pytest.mark.parametrize("key", ["sk-canary\r\nX: y", "sk-canary\n", "sk-canary\u201d", "\x00"])
def test_a_key_that_no_header_can_hold_is_refused_without_being_said(
    dialect: Dialect, key: str
) -> None:
    endpoint = replace(dialect.target("http://h/v1"), api_key=key)
    with pytest.raises(ValueError, match="'Authorization' cannot be sent") as caught:
        HttpConnection(endpoint)
    assert "canary" not in str(caught.value)


def test_a_silent_endpoint_is_a_timeout(server: ChatServer, dialect: Dialect) -> None:
    gate = replies.Gate()
    server.queue(*[replies.held(dialect.answer, gate)] * 3)
    connection = HttpConnection(dialect.target(server.base_url))

    def post_within(seconds: float) -> int:
        transport = connection.transport(replace(asked(server.base_url), timeout=seconds))
        with pytest.raises(ProviderTimeout):
            runtime().run(lambda: transport.post(b"{}"), label="a test call")
        return len(server.requests)

    assert at_a_deadline(post_within, bool)
    assert gate.abandoned.wait(PATIENCE)


ASKED = request_target("https://h/v1", timeout=600.0, secret=KEY)
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


@pytest.mark.parametrize(("library", "name", "ours", "base"), documented("openai", "anthropic"))
def test_an_error_of_a_vendor_is_what_the_documents_say(
    library: str, name: str, ours: str, base: str
) -> None:
    assert issubclass(getattr(importlib.import_module(library), name), Exception)
    if name in STATUSES:
        error: ProviderError = errors.status_error(ASKED, STATUSES[name], "it failed")
    elif name == "APITimeoutError":
        error = errors.timeout_error(ASKED)
    else:
        error = errors.connection_error(ASKED, "it failed")
    assert_is(error, ours, base)


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
