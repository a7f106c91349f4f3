"""Keys apart from the config."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.config.credentials import secrets_from_config, split_secrets

keys = st.none() | st.text()
entries = st.fixed_dictionaries({"model": st.text()}, optional={"api_key": keys})
sections = st.fixed_dictionaries({"providers": st.dictionaries(st.text(), entries)})
payloads = st.fixed_dictionaries({"llm": sections, "backend": sections, "version": st.just(1)})


@given(payloads)
def test_split_leaves_no_key_in_the_config_and_its_argument_alone(payload: dict[str, Any]) -> None:
    before = copy.deepcopy(payload)
    config, _ = split_secrets(payload)
    assert payload == before
    left = [entry for s in ("llm", "backend") for entry in config[s]["providers"].values()]
    assert not any("api_key" in entry for entry in left)


@given(payloads)
def test_every_key_that_is_not_blank_is_found_again(payload: dict[str, Any]) -> None:
    expected = {
        (section, name): entry["api_key"]
        for section in ("llm", "backend")
        for name, entry in payload[section]["providers"].items()
        if (entry.get("api_key") or "").strip()
    }
    assert secrets_from_config(split_secrets(payload)[1]) == expected


def test_credentials_have_the_documented_form() -> None:
    payload = {"llm": {"providers": {"main": {"api_key": "k", "model": "m"}}}}
    config, credentials = split_secrets(payload)
    assert config == {"llm": {"providers": {"main": {"model": "m"}}}}
    assert credentials == {"llm": {"providers": {"main": "k"}}}


@pytest.mark.parametrize(
    "payload",
    [{}, {"llm": 1}, {"llm": {"providers": []}}, {"llm": {"providers": {"a": 1}}}],
    ids=["empty", "section", "providers", "entry"],
)
def test_odd_shapes_hold_no_keys(payload: dict[str, Any]) -> None:
    assert split_secrets(payload) == (payload, {})
    assert secrets_from_config(payload) == {}
