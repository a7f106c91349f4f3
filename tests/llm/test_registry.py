"""Chat clients by kind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from rath.llm import ChatClient, Provider, chat_client_for, register_chat_client, registered_kinds
from rath.llm.openai import RathOpenAIChatClient
from rath.llm.registry import clear_client_cache
from rath.testing import ScriptedClient

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
    with pytest.raises(ValueError, match="unknown provider_kind 'opnai'") as caught:
        chat_client_for(Provider(provider_kind="opnai"))
    assert "Did you mean 'openai'?" in str(caught.value)
    assert "local" in str(caught.value)


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


def test_the_cache_can_be_cleared() -> None:
    client = chat_client_for(KEYED)
    clear_client_cache()
    assert chat_client_for(KEYED) is not client
