"""The shape of the config file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rath.config.schema import (
    BackendProviderConfig,
    LLMProviderConfig,
    MCPServerConfig,
    RathConfig,
)

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
maybe_text = st.none() | names
llm_providers = st.fixed_dictionaries(
    {"provider_kind": names, "model": maybe_text, "api_key": maybe_text, "base_url": maybe_text},
    optional={"x_unknown": st.lists(st.integers())},
)
configs = st.fixed_dictionaries(
    {
        "llm": st.fixed_dictionaries(
            {"default_provider": maybe_text, "providers": st.dictionaries(names, llm_providers)}
        )
    },
    optional={"x_section": st.dictionaries(names, st.booleans())},
)


@given(configs)
def test_dump_of_a_config_gives_an_equal_config(payload: dict[str, object]) -> None:
    config = RathConfig.model_validate(payload)
    assert RathConfig.model_validate_json(config.model_dump_json()) == config


@given(configs)
def test_unknown_keys_are_kept(payload: dict[str, object]) -> None:
    dumped = RathConfig.model_validate(payload).model_dump(mode="json")
    assert dumped.get("x_section") == payload.get("x_section")


def test_defaults_are_the_documented_ones() -> None:
    assert RathConfig().model_dump(mode="json") == {
        "version": 1,
        "llm": {
            "default_provider": None,
            "embedding_provider": None,
            "vlm_provider": None,
            "providers": {},
        },
        "mcp": {"default_enabled": [], "servers": {}},
        "memory": {"default_provider": None, "providers": {}},
        "backend": {"default_provider": None, "providers": {}},
        # This one is no part of 1.3.
        "sessions": {"store": None, "persist": None, "durability": None},
    }


def test_two_configs_share_no_table() -> None:
    RathConfig().llm.providers["a"] = LLMProviderConfig()
    assert RathConfig().llm.providers == {}


@pytest.mark.parametrize(
    "entry",
    [
        LLMProviderConfig(api_key="canary"),
        BackendProviderConfig(api_key="canary", options={"token": "canary"}),
        MCPServerConfig(command=["x"], env={"TOKEN": "canary"}),
        LLMProviderConfig.model_validate({"proxy_password": "canary"}),
    ],
    ids=["llm", "backend", "mcp", "unknown-key"],
)
def test_repr_shows_no_secret(entry: object) -> None:
    assert "canary" not in repr(entry) + str(entry)


def test_error_text_shows_no_input() -> None:
    with pytest.raises(ValidationError) as caught:
        LLMProviderConfig.model_validate({"api_key": ["canary"]})
    assert "canary" not in str(caught.value)
