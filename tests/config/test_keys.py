"""Dotted keys of the config."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.config.keys import (
    assign,
    format_key,
    is_known,
    is_table,
    near_key,
    parse_key,
    parse_value,
    remove,
)
from rath.config.schema import RathConfig
from rath.config.store import ConfigStore
from rath.errors import ConfigError

parts = st.text(st.characters(exclude_characters='"'), min_size=1)


@given(st.lists(parts, min_size=1).map(tuple))
def test_a_formatted_key_is_parsed_to_its_parts(key: tuple[str, ...]) -> None:
    assert parse_key(format_key(key)) == key


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", "a..b", '"a', 'a"b"', '""'])
def test_what_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no key"):
        parse_key(text)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("llm.providers.main.model", True),
        ('llm.providers."my.gateway".model', True),
        ("mcp.servers.x.env.TOKEN", True),
        ("backend.providers.x.options.deep.er", True),
        ("llm.providers.main.modle", False),
        ("llm.default_provider.x", False),
        ("x", False),
    ],
)
def test_the_schema_decides_which_keys_are_known(key: str, expected: bool) -> None:
    assert is_known(parse_key(key)) is expected


def test_tables_are_told_from_values() -> None:
    assert is_table(("llm",))
    assert is_table(("llm", "providers", "main"))
    assert is_table(("mcp", "servers", "x", "env"))
    assert not is_table(("llm", "default_provider"))


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("llm.providers.main.modle", "llm.providers.main.model"),
        ("llm.providers.main.modle.x", "llm.providers.main.model"),
        ("lm.default_provider", "llm.default_provider"),
        ("providers.main.model", "llm.providers.main.model"),
        ("default_provider", "llm.default_provider"),
        ("quite.something.else", None),
    ],
)
def test_a_near_key_is_named(key: str, near: str | None) -> None:
    assert near_key(parse_key(key)) == near


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("llm.default_provider", "3", "3"),
        ("llm.providers.a.temperature", "0.5", 0.5),
        ("llm.providers.a.max_tokens", "100", 100),
        ("mcp.servers.a.command", "python -m 'my server'", ["python", "-m", "my server"]),
        ("mcp.servers.a.command", '["python", "-m x"]', ["python", "-m x"]),
        ("mcp.servers.a.env.A", "1", "1"),
        ("backend.providers.a.options.n", "1", 1),
        ("backend.providers.a.options.n", "one", "one"),
        ("unknown.key", '{"a": [1]}', {"a": [1]}),
    ],
)
def test_a_text_becomes_what_the_schema_has(key: str, text: str, value: object) -> None:
    assert parse_value(parse_key(key), text) == value


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("llm.providers.a.temperature", "canary"),
        ("llm.providers.a.max_tokens", "1.5 canary"),
        ("mcp.servers.a.command", "'canary"),
        ("mcp.servers.a.command", "[1, 'canary']"),
        ("llm.providers.a", "canary"),
    ],
)
def test_what_does_not_fit_is_refused_without_repeating_it(key: str, text: str) -> None:
    with pytest.raises(ValueError, match=key) as caught:
        parse_value(parse_key(key), text)
    assert "canary" not in str(caught.value)


def test_an_assigned_value_is_saved(tmp_path: Path) -> None:
    store = ConfigStore(tmp_path / "config.json")
    assign(store.config, ("llm", "providers", "my.gateway", "model"), "m")
    assign(store.config, ("x", "y"), 1)
    store.save()
    config = ConfigStore(store.path).config
    assert config.llm.providers["my.gateway"].model == "m"
    assert config.model_extra == {"x": {"y": 1}}


def test_nothing_is_put_inside_a_value() -> None:
    config = RathConfig()
    config.llm.default_provider = "a"
    with pytest.raises(ValueError, match=r"llm\.default_provider holds a value"):
        assign(config, ("llm", "default_provider", "x"), 1)


def test_a_half_made_entry_is_not_saved(tmp_path: Path) -> None:
    store = ConfigStore(tmp_path / "config.json")
    assign(store.config, ("mcp", "servers", "a", "env", "X"), "canary")
    with pytest.raises(ConfigError, match=r"mcp\.servers\.a: needs either command") as caught:
        store.save()
    assert "canary" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "key",
    [
        ("llm", "providers", "a", "model"),
        ("llm", "providers", "a", "extra"),
        ("llm", "providers", "a"),
        ("mcp", "servers", "s", "env", "A"),
        ("mcp", "default_enabled"),
        ("x",),
    ],
    ids=".".join,
)
def test_a_removed_value_is_gone(key: tuple[str, ...]) -> None:
    config = RathConfig.model_validate(
        {
            "llm": {"providers": {"a": {"model": "m", "extra": 1}}},
            "mcp": {"default_enabled": ["s"], "servers": {"s": {"command": [], "env": {"A": ""}}}},
            "x": 1,
        }
    )
    before = config.model_dump_json()
    assert remove(config, key)
    assert config.model_dump_json() != before
    RathConfig.model_validate(config.model_dump())


@pytest.mark.parametrize("key", [("x",), ("llm", "providers", "a", "model"), ("llm", "x", "y")])
def test_what_is_not_there_is_not_removed(key: tuple[str, ...]) -> None:
    assert not remove(RathConfig(), key)
