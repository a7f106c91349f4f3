"""Law 9 and section 12: where a key may go, and what an address or a header gives away."""

from __future__ import annotations

import base64
import io
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings

from rath.errors import ProviderError
from rath.llm import Provider, chat_client_for
from rath.llm.embedding import EmbeddingProvider, RathOpenAIEmbeddingClient
from rath.llm.litellm import RathLiteLLMChatClient
from rath.llm.vlm import RathOpenAIVLMClient, VLMProvider
from tests.support import chat_replies
from tests.support.asking import NoSleep, ask, exchange
from tests.support.canaries import odd_keys, seen, shown_of
from tests.support.chat_server import ChatServer
from tests.support.dialects import ANTHROPIC, OPENAI, Dialect
from tests.support.echoes import client_of
from tests.support.litellm import needs_litellm
from tests.support.machine import llm_config, own_project, trust, write_config

KEY = "sk-cNry-0123456789abcdef"
OTHER = "sk-of-the-project-0123456789"
VECTORS = chat_replies.json_body({"data": [{"embedding": [1.0]}]})


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return own_project(tmp_path, monkeypatch)


def headers_of(*servers: ChatServer) -> str:
    """All that was sent beside the bodies."""
    return repr([(each.path, each.headers) for server in servers for each in server.requests])


# ---------------------------------------------------------------- addresses


@pytest.mark.parametrize("password", [KEY, "cNry:pass"], ids=["long", "short"])
def test_a_login_in_the_address_goes_in_place_of_the_key(
    server: ChatServer, dialect: Dialect, logged: io.StringIO, password: str
) -> None:
    address = server.base_url.replace("http://", f"http://user:{quote(password)}@")
    provider = Provider(model="m", api_key=OTHER, base_url=address, retry_max_attempts=1)
    client = dialect.make(provider, sleep=NoSleep())
    server.queue(dialect.answer, dialect.error(401, f"no user with {password}"))
    answered = exchange(client)
    with pytest.raises(ProviderError, match=r"no user with \*\*\*") as caught:
        exchange(client)
    login = base64.b64encode(f"user:{password}".encode()).decode()
    assert server.requests[0].headers["authorization"] == f"Basic {login}"
    assert OTHER not in headers_of(server)
    assert answered.evidence.endpoint == f"{server.base_url}{dialect.path}"
    assert seen(password, repr(answered), *shown_of(caught.value), logged.getvalue()) == []


@needs_litellm
def test_litellm_takes_no_login() -> None:
    with pytest.raises(ValueError, match="'http://h/v1' came with user and password") as caught:
        RathLiteLLMChatClient(Provider(model="openai/m", base_url=f"http://user:{KEY}@h/v1"))
    assert seen(KEY, str(caught.value)) == []


@pytest.mark.parametrize(
    "address",
    [
        f"https://h/v1?api-key={KEY}",
        f"https://h/v1#{KEY}",
        f"ftp://user:{KEY}@h/v1",
        f"user:{KEY}@h/v1",
        f"https://user:{KEY}/x@h/v1",
        f"https://user:123/{KEY}@h/v1",
        KEY,
    ],
    ids=["query", "fragment", "scheme", "no-scheme", "slash", "digits", "key"],
)
@pytest.mark.parametrize("kind", ["openai", "anthropic", "local"])
def test_an_address_that_is_refused_is_not_repeated(kind: str, address: str) -> None:
    with pytest.raises(ValueError, match="base_url") as caught:
        chat_client_for(Provider(provider_kind=kind, model="m", api_key="x", base_url=address))
    assert seen(KEY, "".join(traceback.format_exception(caught.value))) == []


# ---------------------------------------------------------------- keys


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(odd_keys.filter(lambda key: not (key.isascii() and key.isprintable()) or " " in key))
def test_a_key_that_cannot_be_sent_is_refused_and_not_repeated(key: str) -> None:
    for kind in ("openai", "anthropic"):
        with pytest.raises(ValueError, match="holds a character that cannot be sent") as caught:
            chat_client_for(Provider(provider_kind=kind, model="m", api_key=key))
        assert seen(key, "".join(traceback.format_exception(caught.value))) == []


def test_white_space_around_a_key_is_not_sent(
    server: ChatServer, dialect: Dialect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"{dialect.kind.upper()}_API_KEY", f"{KEY}\r\n")
    server.queue(dialect.answer)
    exchange(dialect.make(Provider(model="m", base_url=server.base_url)))
    assert f"Bearer {KEY}'" in headers_of(server)


@pytest.mark.parametrize("name", ["api_key", "extra_headers", "extra_query", "headers"])
@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_a_secret_is_no_parameter(kind: str, name: str) -> None:
    extra: dict[str, Any] = {name: {"Authorization": KEY}}
    client = chat_client_for(Provider(provider_kind=kind, model="m", api_key="x"))
    with pytest.raises(ValueError, match=f"extra_create_args cannot set '{name}'") as caught:
        client.complete(replace(ask(), extra_create_args=extra))
    assert seen(KEY, "".join(traceback.format_exception(caught.value))) == []


# ---------------------------------------------------------------- redirects and proxies


def test_a_redirect_is_not_followed_with_a_secret(
    server: ChatServer, dialect: Dialect, monkeypatch: pytest.MonkeyPatch, logged: io.StringIO
) -> None:
    vendor = dialect.kind.upper()
    monkeypatch.setenv(f"{vendor}_CUSTOM_HEADERS", f"X-Gateway: {KEY}")
    with ChatServer() as other:
        place = other.base_url.replace("http://", f"http://user:{KEY}-too@")
        moved = {"location": f"{place}{dialect.path}?key={KEY}-too"}
        server.queue(chat_replies.raw(b"", status=307, headers=moved))
        with pytest.raises(ProviderError, match="a redirect") as caught:
            exchange(client_of(dialect, server, f"{KEY}-too"))
        assert other.requests == []
    assert seen(KEY, headers_of(server))
    assert seen(KEY, *shown_of(caught.value), logged.getvalue()) == []


def test_the_password_of_a_proxy_is_not_displayed(
    server: ChatServer,
    dialect: Dialect,
    monkeypatch: pytest.MonkeyPatch,
    logged: io.StringIO,
) -> None:
    proxy = server.base_url.removesuffix("/v1").replace("http://", f"http://user:{KEY}@")
    monkeypatch.setenv("HTTP_PROXY", proxy)
    monkeypatch.delenv("NO_PROXY", raising=False)
    server.queue(dialect.answer, dialect.error(407, "who are you?"), chat_replies.dropped())
    provider = Provider(model="m", api_key=OTHER, base_url="http://vendor.example/v1")
    client = dialect.make(replace(provider, retry_max_attempts=1))
    shown = [repr(exchange(client))]
    for _ in range(2):
        with pytest.raises(ProviderError) as caught:
            exchange(client)
        shown += shown_of(caught.value)
    assert server.requests[0].path == f"http://vendor.example/v1{dialect.path}"
    assert "proxy-authorization" in server.requests[0].headers
    assert seen(KEY, *shown, logged.getvalue()) == []


# ---------------------------------------------------------------- endpoints of a project


def chat() -> object:
    return chat_client_for(Provider.from_config("a")).complete(ask(model=None))


def embed() -> object:
    return RathOpenAIEmbeddingClient(EmbeddingProvider.from_config()).embed(["x"])


def describe() -> object:
    return RathOpenAIVLMClient(VLMProvider.from_config()).describe(b"x", prompt="what?")


CASES = [
    pytest.param("openai", "m", OPENAI.answer, chat, id="openai"),
    pytest.param("anthropic", "m", ANTHROPIC.answer, chat, id="anthropic"),
    pytest.param("litellm", "openai/m", OPENAI.answer, chat, id="litellm", marks=needs_litellm),
    pytest.param("openai", "m", VECTORS, embed, id="embedding"),
    pytest.param("openai", "m", OPENAI.answer, describe, id="picture"),
]
"""Provider kind, model, answer, and a call of what the config names."""

OF_THE_USER = (
    "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "AZURE_API_KEY", "AZURE_OPENAI_API_KEY",
    "LITELLM_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_API_KEY",
)  # fmt: skip


def configs(project: Path, address: str, *, kind: str, model: str) -> dict[str, Any]:
    """Write the user's config, with keys, and return one for the project, without."""
    write_config(project.with_name("home"), llm_config("a", a={"provider_kind": kind}), {"a": KEY})
    entry = {"provider_kind": kind, "model": model, "base_url": address}
    config = llm_config("a", a=entry)
    config["llm"] |= {"embedding_provider": "a", "vlm_provider": "a"}
    return config


@pytest.mark.parametrize(("kind", "model", "reply", "call"), CASES)
def test_an_endpoint_of_a_project_gets_nothing_of_the_user(
    server: ChatServer,
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    model: str,
    reply: chat_replies.Reply,
    call: Callable[[], object],
) -> None:
    for name in OF_THE_USER:
        monkeypatch.setenv(name, KEY)
    config = configs(project, server.base_url, kind=kind, model=model)
    trust(write_config(project, config))
    with pytest.raises(ValueError, match="the project's own") as caught:
        call()
    assert server.requests == []
    assert seen(KEY, str(caught.value)) == []
    trust(write_config(project, config, {"a": OTHER}))
    server.queue(reply)
    call()
    assert OTHER in headers_of(server)
    assert seen(KEY, headers_of(server)) == []


def test_an_endpoint_of_a_project_hears_of_no_organisation(
    server: ChatServer, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_ORG_ID", KEY)
    monkeypatch.setenv("OPENAI_PROJECT_ID", KEY)
    server.queue(OPENAI.answer, OPENAI.answer)
    config = configs(project, server.base_url, kind="openai", model="m")
    trust(write_config(project, config, {"a": OTHER}))
    chat()
    assert seen(KEY, headers_of(server)) == []
    exchange(client_of(OPENAI, server, OTHER))
    assert seen(KEY, headers_of(server))


@needs_litellm
@pytest.mark.parametrize(
    "name",
    ["OPENAI_CUSTOM_HEADERS", "OPENAI_ORG_ID", "OPENAI_ORGANIZATION", "OPENAI_PROJECT_ID"],
)
def test_litellm_would_tell_an_endpoint_of_a_project(
    project: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, KEY)
    config = configs(project, "http://h/v1", kind="litellm", model="m")
    trust(write_config(project, config, {"a": OTHER}))
    with pytest.raises(ValueError, match=f"{name} is set and would be sent to 'http://h") as caught:
        chat()
    assert seen(KEY, str(caught.value)) == []
