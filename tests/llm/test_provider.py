"""The provider as a value."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from rath.config.store import ConfigStore
from rath.llm import Provider

CONFIG: dict[str, Any] = {
    "llm": {
        "default_provider": "main",
        "providers": {
            "main": {
                "provider_kind": "openai",
                "model": "m-1",
                "base_url": "http://127.0.0.1:9/v1",
                "temperature": 0.2,
                "max_tokens": 7,
            },
            "other": {"provider_kind": "anthropic", "model": "m-2"},
        },
    }
}


@pytest.fixture
def store(tmp_path: Path) -> ConfigStore:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return ConfigStore(tmp_path / "config.json")


def test_its_text_is_its_model() -> None:
    assert str(Provider(model="m", api_key="sk-secret")) == "m"
    assert str(Provider(api_key="sk-secret")) == "(no model)"


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({}, ""),
        ({"temperature": 0.2, "model": "m"}, "model='m', temperature=0.2"),
        ({"api_key": "abcdefghijk"}, "api_key='***'"),
        ({"base_url": "https://u:pass1234@h/v1?key=abcdefgh"}, "base_url='https://***@h/v1?***'"),
        (
            {"extra_create_args": {"extra_headers": {"X-One": "abcdefghijk"}}},
            "extra_create_args=<extra_headers>",
        ),
        ({"on_budget_exceeded": print}, "on_budget_exceeded=<print>"),
        ({"client": AsyncOpenAI(api_key="abcdefghijk")}, "client=<AsyncOpenAI>"),
        (
            {"fallbacks": [Provider(model="n", api_key="abcdefghijk")]},
            "fallbacks=[Provider(model='n', api_key='***')]",
        ),
        ({"user": "sk-abcdefgh12345678"}, "user='***'"),
    ],
    ids=[
        "nothing", "model first", "key", "login", "extra", "callback", "client", "fallbacks",
        "key elsewhere",
    ],
)  # fmt: skip
def test_shows_what_differs_and_no_key(fields: dict[str, Any], shown: str) -> None:
    assert repr(Provider(**fields)) == f"Provider({shown})"


def test_shows_the_name_of_its_config_entry(store: ConfigStore) -> None:
    assert "config_entry='" in repr(Provider.from_config(store=store))


def test_is_equal_by_value() -> None:
    assert Provider(model="m", extra_create_args={"a": 1}) == Provider(
        model="m", extra_create_args={"a": 1}
    )


def test_keeps_its_own_extra_arguments() -> None:
    extra = {"a": 1}
    provider = Provider(extra_create_args=extra)
    extra["a"] = 2
    assert provider.extra_create_args == {"a": 1}


def test_extra_arguments_are_read_only() -> None:
    provider = Provider(extra_create_args={"a": 1})
    with pytest.raises(TypeError):
        provider.extra_create_args["a"] = 2  # type: ignore[index]  # that it fails is the test


@pytest.mark.parametrize(
    "field",
    [
        {"temperature": "hot"},
        {"temperature": True},
        {"max_tokens": 1.5},
        {"model": 3},
        {"store": 1},
        {"metadata": "x"},
        {"stop": 3},
        {"stop": [1]},
        {"tool_choice": 3},
        {"on_budget_exceeded": "log"},
        {"timeout": "60"},
        {"extra_create_args": [1]},
    ],
    ids=lambda field: "{}={!r}".format(*next(iter(field.items()))),
)
def test_refuses_wrong_types(field: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=next(iter(field))):
        Provider(**field)


@pytest.mark.parametrize(
    "field",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"timeout": 0},
        {"timeout": -1.0},
        {"max_tokens": 0},
        {"n": 0},
        {"retry_base_seconds": -1},
        {"budget_total_tokens": -1},
    ],
    ids=lambda field: "{}={!r}".format(*next(iter(field.items()))),
)
def test_refuses_impossible_numbers(field: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(field))):
        Provider(**field)


def test_a_wrong_key_is_not_repeated() -> None:
    with pytest.raises(TypeError) as caught:
        Provider(api_key=b"sk-secret")  # type: ignore[arg-type]  # that it fails is the test
    assert "sk-secret" not in str(caught.value)


def test_from_config_reads_the_default_entry(store: ConfigStore) -> None:
    provider = Provider.from_config(store=store)
    assert (provider.provider_kind, provider.model) == ("openai", "m-1")
    assert (provider.base_url, provider.api_key) == ("http://127.0.0.1:9/v1", None)
    assert (provider.temperature, provider.max_tokens) == (0.2, 7)


def test_from_config_reads_a_named_entry_with_overrides(store: ConfigStore) -> None:
    provider = Provider.from_config("other", store=store, model="m-3", seed=1)
    assert (provider.provider_kind, provider.model, provider.seed) == ("anthropic", "m-3", 1)


def test_from_config_names_what_there_is(store: ConfigStore) -> None:
    with pytest.raises(KeyError, match="main, other"):
        Provider.from_config("missing", store=store)


def test_from_config_without_a_name_or_default(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="no LLM provider name"):
        Provider.from_config(store=ConfigStore(tmp_path / "config.json"))


def test_a_replaced_provider_remembers_its_config(store: ConfigStore) -> None:
    provider = replace(Provider.from_config(store=store), temperature=0.9)
    assert provider.config_entry is not None
    assert provider.config_entry.base_url == provider.base_url


def test_money_may_be_a_decimal_and_equals_the_same_number() -> None:
    provider = Provider(model="m", budget_usd=Decimal("0.1"))
    assert provider.budget_usd == Decimal("0.1")
    assert Provider(budget_usd=0.5) == Provider(budget_usd=Decimal("0.5"))


@pytest.mark.parametrize("wrong", ["-1", "NaN", "Infinity"])
def test_money_out_of_range_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="budget_usd must be finite and at least 0"):
        Provider(budget_usd=Decimal(wrong))


def test_a_decimal_is_money_alone() -> None:
    with pytest.raises(TypeError, match="temperature must be a number"):
        Provider(temperature=Decimal("0.5"))  # type: ignore[arg-type]  # that it fails is the test


def test_no_fallbacks_may_be_reported_by_none() -> None:
    nothing: Any = None
    assert Provider(model="m", fallbacks=nothing) == Provider(model="m")
