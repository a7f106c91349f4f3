"""Chat clients by kind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rath.llm import ChatClient, Provider, chat_client_for, register_chat_client, registered_kinds
from rath.llm.openai import RathOpenAIChatClient
from rath.llm.registry import clear_client_cache
from rath.testing import ScriptedClient
from tests.support.machine import llm_config, own_project, trust, write_config

KEYED = Provider(provider_kind="openai", api_key="k", base_url="http://127.0.0.1:9/v1", model="m")


@pytest.fixture(autouse=True)
def fresh_cache() -> Iterator[None]:
    clear_client_cache()
    yield
    clear_client_cache()


def scripted(_: Provider) -> ChatClient:
    return ScriptedClient([])


def test_the_kinds_are_known_in_order() -> None:
    register_chat_client("zeta", scripted)
    kinds = registered_kinds()
    assert {"openai", "local", "zeta"} <= set(kinds)
    assert list(kinds) == sorted(kinds)


def test_openai_is_the_default_kind() -> None:
    assert isinstance(chat_client_for(replace(KEYED, provider_kind=None)), RathOpenAIChatClient)


def test_an_unknown_kind_names_the_nearest_and_all() -> None:
    with pytest.raises(ValueError, match="unknown provider_kind 'opneai'") as caught:
        Provider(provider_kind="opneai")
    assert "Did you mean 'openai'?" in str(caught.value)
    assert "local" in str(caught.value)


@pytest.mark.parametrize("kind", ["smoke", "openai2", "my-openai"])
def test_a_kind_that_may_come_later_is_refused_when_it_is_called(kind: str) -> None:
    provider = Provider(provider_kind=kind)
    with pytest.raises(ValueError, match=f"unknown provider_kind '{kind}'"):
        chat_client_for(provider)


def test_registering_again_replaces() -> None:
    first, second = ScriptedClient([]), ScriptedClient([])
    register_chat_client("again", lambda _: first)
    provider = Provider(provider_kind="again", api_key="k")
    assert chat_client_for(provider) is first
    register_chat_client("again", lambda _: second)
    assert chat_client_for(provider) is second


def test_a_provider_with_a_key_gets_the_same_client_again() -> None:
    client = chat_client_for(KEYED)
    assert chat_client_for(replace(KEYED, temperature=0.5)) is client


@pytest.mark.parametrize(
    "other",
    [
        replace(KEYED, api_key="k2"),
        replace(KEYED, base_url="http://127.0.0.1:8/v1"),
        replace(KEYED, model="m2"),
        replace(KEYED, retry_max_attempts=1),
        replace(KEYED, timeout=1.0),
    ],
    ids=["key", "endpoint", "model", "retries", "timeout"],
)
def test_another_endpoint_key_model_or_patience_is_another_client(other: Provider) -> None:
    assert chat_client_for(other) is not chat_client_for(KEYED)


def test_a_provider_without_a_key_gets_a_new_client() -> None:
    register_chat_client("keyless", scripted)
    provider = Provider(provider_kind="keyless")
    assert chat_client_for(provider) is not chat_client_for(provider)


def endpoint(provider: Provider) -> str | None:
    client = chat_client_for(provider)
    assert isinstance(client, RathOpenAIChatClient)
    return client.target("m").endpoint


OPEN = Provider(api_key="call-key-0123456789", model="m")


def test_the_client_of_another_project_is_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = own_project(tmp_path, monkeypatch)
    for name in ("a", "b"):
        (home / name).mkdir()
        entry = {"model": "m", "base_url": f"http://{name}.example/v1"}
        trust(write_config(home / name, llm_config("p", p=entry)))
    monkeypatch.chdir(home / "a")
    first = chat_client_for(OPEN)
    assert chat_client_for(OPEN) is first
    monkeypatch.chdir(home / "b")
    assert endpoint(OPEN) == "http://b.example/v1/chat/completions"
    monkeypatch.chdir(home / "a")
    assert endpoint(OPEN) == "http://a.example/v1/chat/completions"


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("OPENAI_BASE_URL", ("http://a.example/v1", "http://b.example/v1")),
        ("OPENAI_DEFAULT_MODEL", ("a", "b")),
        ("OPENAI_API_VERSION", ("2024-10-21", "2025-01-01")),
    ],
)
def test_the_client_of_another_environment_is_another_one(
    monkeypatch: pytest.MonkeyPatch, name: str, values: tuple[str, str]
) -> None:
    azure = "https://x.openai.azure.com" if name == "OPENAI_API_VERSION" else None
    provider = Provider(api_key="call-key-0123456789", base_url=azure)
    monkeypatch.setenv(name, values[0])
    first = chat_client_for(provider)
    assert chat_client_for(provider) is first
    monkeypatch.setenv(name, values[1])
    assert chat_client_for(provider) is not first


def test_the_same_values_of_a_config_and_of_a_call_are_two_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = own_project(tmp_path, monkeypatch)
    entry = {"model": "m", "base_url": "http://a.example/v1", "provider_kind": "openai"}
    trust(write_config(project, llm_config("p", p=entry), {"p": "k"}))
    read = Provider.from_config()
    given = replace(read, config_entry=None)
    clients = [chat_client_for(provider) for provider in (read, given, read, given)]
    assert clients[:2] == clients[2:]
    origins: list[set[str]] = []
    for client in clients[:2]:
        assert isinstance(client, RathOpenAIChatClient)
        origins.append({origin.partition(" ")[0] for _, origin in client.target(None).origins})
    assert origins == [{"config"}, {"call"}]


def test_the_client_of_another_is_made_once() -> None:
    made: list[Provider] = []

    def make(provider: Provider) -> ChatClient:
        made.append(provider)
        return ScriptedClient([])

    register_chat_client("foreign", make)
    provider = Provider(provider_kind="foreign", api_key="k")
    assert chat_client_for(provider) is chat_client_for(provider)
    assert len(made) == 1


def test_the_cache_can_be_cleared() -> None:
    client = chat_client_for(KEYED)
    clear_client_cache()
    assert chat_client_for(KEYED) is not client
