"""The contract of chat clients, run against ours over real HTTP, and against clients of others."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from rath.conformance import Report, check_chat_client
from rath.llm import ChatClient, Provider, RathAnthropicChatClient, RathOpenAIChatClient
from rath.llm.litellm import RathLiteLLMChatClient
from rath.llm.local.server import LocalEndpoint, RathLocalChatClient
from tests.support.asking import KEY
from tests.support.chat_server import ChatServer
from tests.support.exchanges import EMBEDDED_MODEL, SOURCES, replayed
from tests.support.litellm import needs_litellm
from tests.support.rule_clients import AsyncRuleClient, RuleClient, SilentRuleClient
from tests.support.served_model import MODEL, serve_model

MODELS = {"scripted": MODEL, "embedded": EMBEDDED_MODEL}
NO_CANCEL = {"a_cancelled_call_ends_at_once", "a_cancelled_stream_ends_at_once"}
UNKNOWN_MODEL = "an_unknown_model_is_an_error_that_names_it"


@dataclass(frozen=True)
class Kind:
    """One of our clients, and how it is led to a test server."""

    protocol: str
    make: Callable[[ChatServer, Provider], ChatClient]
    prefix: str = ""
    """What its models are called before their name."""


def openai(server: ChatServer, provider: Provider) -> ChatClient:
    return RathOpenAIChatClient(replace(provider, base_url=server.base_url))


def anthropic(server: ChatServer, provider: Provider) -> ChatClient:
    return RathAnthropicChatClient(replace(provider, base_url=server.base_url))


def local(server: ChatServer, provider: Provider) -> ChatClient:
    def serve(model: str) -> LocalEndpoint:
        return LocalEndpoint(server.base_url, KEY, model, Path("model.gguf"), "0")

    return RathLocalChatClient(replace(provider, api_key=None), serve=serve)


def litellm_openai(server: ChatServer, provider: Provider) -> ChatClient:
    return RathLiteLLMChatClient(replace(provider, base_url=server.base_url))


def litellm_anthropic(server: ChatServer, provider: Provider) -> ChatClient:
    # LiteLLM adds the version to the address itself.
    root = server.base_url.removesuffix("/v1")
    return RathLiteLLMChatClient(replace(provider, base_url=root))


LITELLM = [
    needs_litellm,
    # The first call of a process imports the library, which takes seconds.
    pytest.mark.timeout(90),
    # The library ignores this one itself, with a filter that pytest takes away after each test.
    pytest.mark.filterwarnings("ignore:Accessing the:DeprecationWarning"),
    # It makes coroutines before it awaits them, and a cancelled call leaves one behind.
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
KINDS = [
    pytest.param(Kind("openai", openai), id="openai"),
    pytest.param(Kind("anthropic", anthropic), id="anthropic"),
    pytest.param(Kind("openai", local), id="local"),
    pytest.param(Kind("openai", litellm_openai, "openai/"), id="litellm-openai", marks=LITELLM),
    pytest.param(
        Kind("anthropic", litellm_anthropic, "anthropic/"), id="litellm-anthropic", marks=LITELLM
    ),
]


def skipped(report: Report) -> set[str]:
    return {finding.check for finding in report.findings if finding.status == "skipped"}


def check(kind: Kind, server: ChatServer, model: str, *, unknown: str | None) -> Report:
    provider = Provider(model=kind.prefix + model, api_key=KEY, temperature=0)
    client = kind.make(server, provider)
    name = unknown and kind.prefix + unknown
    return check_chat_client(client, unknown_model=name, secret=KEY)


@pytest.mark.parametrize("kind", KINDS)
def test_our_clients_keep_the_contract_over_http(kind: Kind) -> None:
    checked: dict[str, Any] = {"check": json.loads} if kind.prefix else {}
    with serve_model(**checked) as server:
        report = check(kind, server, MODEL, unknown="no-such-model")
    assert skipped(report) == set()


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("kind", KINDS)
def test_our_clients_keep_the_contract_with_recorded_answers(kind: Kind, source: str) -> None:
    unknown = "no-such-model" if source == "scripted" else None
    with replayed(source, kind.protocol) as server:
        report = check(kind, server, MODELS[source], unknown=unknown)
    assert skipped(report) == (set() if unknown else {UNKNOWN_MODEL})


def test_a_client_with_plain_functions_keeps_the_contract() -> None:
    assert skipped(check_chat_client(RuleClient())) == NO_CANCEL


def test_a_client_with_coroutines_keeps_the_contract() -> None:
    report = check_chat_client(AsyncRuleClient())  # type: ignore[arg-type]  # the protocol is written with `def`
    assert skipped(report) == {
        "it_is_used_from_several_threads_and_loops",
        "an_abandoned_stream_ends_at_once",
    }


def test_a_client_that_cannot_stream_keeps_the_contract() -> None:
    report = check_chat_client(SilentRuleClient())
    assert skipped(report) == NO_CANCEL | {
        "deltas_fold_to_the_answer",
        "tokens_of_a_stream_are_counted",
        "a_required_tool_is_called_in_a_stream",
        "an_abandoned_stream_ends_at_once",
    }
    reasons = {finding.detail for finding in report.findings if finding.status == "skipped"}
    assert "it has no complete_stream" in reasons


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with serve_model() as running:
        yield running


def test_a_provider_leads_to_its_client(server: ChatServer) -> None:
    provider = Provider(
        provider_kind="anthropic", base_url=server.base_url, api_key=KEY, model=MODEL
    )
    assert check_chat_client(provider).subject == f"RathAnthropicChatClient {MODEL!r}"


def test_a_provider_that_leads_nowhere_is_an_error() -> None:
    with pytest.raises(ValueError, match="unknown provider_kind 'smoke'"):
        check_chat_client(Provider(provider_kind="smoke"))


def test_few_calls_are_made(server: ChatServer) -> None:
    check_chat_client(
        RathOpenAIChatClient(Provider(base_url=server.base_url, api_key=KEY, model=MODEL))
    )
    assert len(server.calls) <= 25


def test_a_limit_stands_in_the_field_that_the_provider_uses(server: ChatServer) -> None:
    old = Provider(base_url=server.base_url, api_key=KEY, model=MODEL, max_tokens=999)
    check_chat_client(RathOpenAIChatClient(old), max_tokens=20)
    limits = {request.json().get("max_tokens") for request in server.calls}
    assert limits == {1, 3, 20, 80}
    assert all("max_completion_tokens" not in request.json() for request in server.calls)
