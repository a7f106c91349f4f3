"""Which embedding model is asked where, with whose key."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from rath.config import ConfigStore
from rath.llm import (
    DEFAULT_EMBEDDING_MODEL,
    EmbeddingProvider,
    RathOpenAIEmbeddingClient,
    embedding_client_for,
)
from tests.support.asking import KEY
from tests.support.machine import trust


def write_config(directory: Path, llm: dict[str, Any]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "config.json"
    path.write_text(json.dumps({"llm": llm}))
    path.chmod(0o600)


@pytest.fixture
def home() -> Path:
    return Path(os.environ["OPENRATH_HOME"])


def origins(provider: EmbeddingProvider) -> dict[str, str]:
    return dict(RathOpenAIEmbeddingClient(provider).route().origins)


def test_it_reads_as_its_model_and_never_as_its_key() -> None:
    provider = EmbeddingProvider(model="m", api_key=KEY)
    assert (str(provider), repr(provider)) == ("m", "m")


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"model": " "}, ValueError),
        ({"model": None}, ValueError),
        ({"model": "m", "dimensions": 0}, ValueError),
        ({"model": "m", "dimensions": True}, ValueError),
        ({"model": "m", "timeout": 0}, ValueError),
        ({"model": "m", "api_key": 5}, TypeError),
        ({"model": "m", "retry_max_attempts": "4"}, TypeError),
    ],
    ids=str,
)
def test_a_field_that_cannot_be_is_refused(fields: dict[str, Any], kind: type[Exception]) -> None:
    with pytest.raises(kind):
        EmbeddingProvider(**fields)


# ---------------------------------------------------------------- from a config


ENTRY = {"model": "e", "base_url": "http://embed.example/v1", "api_key": "embed-key"}
CHAT = {"model": "c", "base_url": "http://chat.example/v1", "api_key": "chat-key"}


def test_by_name(home: Path) -> None:
    write_config(home, {"providers": {"p": ENTRY}})
    provider = EmbeddingProvider.from_config("p", dimensions=8)
    assert (provider.model, provider.base_url, provider.api_key, provider.dimensions) == (
        *ENTRY.values(),
        8,
    )


def test_by_the_default_for_embeddings(home: Path) -> None:
    llm = {"providers": {"e": ENTRY, "c": CHAT}, "embedding_provider": "e", "default_provider": "c"}
    write_config(home, llm)
    assert EmbeddingProvider.from_config().model == "e"


def test_the_default_for_chat_lends_its_account_but_not_its_model(home: Path) -> None:
    write_config(home, {"providers": {"c": CHAT}, "default_provider": "c"})
    provider = EmbeddingProvider.from_config()
    assert (provider.model, provider.base_url, provider.api_key) == (
        DEFAULT_EMBEDDING_MODEL,
        CHAT["base_url"],
        CHAT["api_key"],
    )


def test_the_key_of_another_vendor_is_not_lent(home: Path) -> None:
    other = {"provider_kind": "anthropic", "model": "c", "api_key": KEY}
    write_config(home, {"providers": {"c": other}, "default_provider": "c"})
    provider = EmbeddingProvider.from_config()
    assert (provider.model, provider.api_key) == (DEFAULT_EMBEDDING_MODEL, None)


def test_without_any_config() -> None:
    assert EmbeddingProvider.from_config() == EmbeddingProvider(model=DEFAULT_EMBEDDING_MODEL)


def test_a_default_that_names_nothing_is_passed_over(home: Path) -> None:
    write_config(home, {"providers": {}, "embedding_provider": "gone"})
    assert EmbeddingProvider.from_config().model == DEFAULT_EMBEDDING_MODEL


def test_an_unknown_name_is_an_error(home: Path) -> None:
    write_config(home, {"providers": {"p": ENTRY}})
    with pytest.raises(KeyError, match="'q'"):
        EmbeddingProvider.from_config("q")


def test_an_entry_of_a_given_store(tmp_path: Path) -> None:
    write_config(tmp_path, {"providers": {"p": ENTRY}, "embedding_provider": "p"})
    store = ConfigStore(tmp_path / "config.json")
    assert EmbeddingProvider.from_config(store=store, model="other").model == "other"


def test_an_entry_of_the_kind_local(home: Path) -> None:
    write_config(home, {"providers": {"p": {"provider_kind": "local"}}, "embedding_provider": "p"})
    assert EmbeddingProvider.from_config() == EmbeddingProvider.local()


# ---------------------------------------------------------------- account


def test_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://env.example/v1")
    assert origins(EmbeddingProvider(model="m")) == {
        "model": "call",
        "base_url": "env OPENAI_BASE_URL",
        "api_key": "env OPENAI_API_KEY",
    }


def test_the_config_comes_last(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_config(home, {"providers": {"e": ENTRY}, "embedding_provider": "e"})
    file = f"config {home / 'config.json'}"
    assert origins(EmbeddingProvider(model="m"))["base_url"] == file
    monkeypatch.setenv("OPENAI_BASE_URL", "http://env.example/v1")
    assert origins(EmbeddingProvider(model="m"))["base_url"] == "env OPENAI_BASE_URL"


def test_no_key() -> None:
    with pytest.raises(ValueError, match=r"No API key for EmbeddingProvider.*OPENAI_API_KEY"):
        RathOpenAIEmbeddingClient(EmbeddingProvider(model="m"))


def test_a_project_s_endpoint_never_gets_a_key_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENRATH_HOME")
    evil = {"model": "m", "base_url": "http://evil.example/v1"}
    write_config(tmp_path / ".openrath", {"providers": {"p": evil}, "embedding_provider": "p"})
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    trust(tmp_path / ".openrath" / "config.json")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    for provider in (EmbeddingProvider.from_config(), EmbeddingProvider(model="m")):
        with pytest.raises(ValueError, match=r"evil\.example") as caught:
            RathOpenAIEmbeddingClient(provider)
        assert KEY not in str(caught.value)


# ---------------------------------------------------------------- kinds


def test_the_kind_decides_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    for kind in (None, "openai"):
        client = embedding_client_for(EmbeddingProvider(model="m", provider_kind=kind))
        assert isinstance(client, RathOpenAIEmbeddingClient)


def test_an_unknown_kind_names_those_that_are_known() -> None:
    with pytest.raises(ValueError, match="'anthropic'; known: local, openai"):
        embedding_client_for(EmbeddingProvider(model="m", provider_kind="anthropic"))
