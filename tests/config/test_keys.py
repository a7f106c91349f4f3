"""Keys, schema and layers of a config, and its tool servers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from rath.config import ConfigStore, config_layers, llm_default
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
from rath.config.layers import find_backend_provider, find_llm_provider, find_memory_provider
from rath.config.paths import config_layer_paths
from rath.config.schema import (
    BackendProviderConfig,
    LLMProviderConfig,
    MCPServerConfig,
    RathConfig,
)
from rath.errors import ConfigError
from rath.mcp.configured import configured_server
from rath.mcp.spec import Bearer, ClientCredentials, HttpServer, StdioServer
from rath.memory import MemoryStoreSpec
from tests.support.machine import llm_config, write_config

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


def test_tables_are_reported_from_values() -> None:
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
def test_unknown_keys_are_preserved(payload: dict[str, object]) -> None:
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


NAMES = ("a", "b", "c")
entries = st.dictionaries(st.sampled_from(NAMES), st.fixed_dictionaries({"model": st.text("xyz")}))


def test_both_are_read_and_the_project_comes_first(project: Path, home: Path) -> None:
    own, other = write_config(home, {}), write_config(project, {})
    assert [store.path for store in config_layers()] == [other, own]


def test_missing_files_are_empty_ones(project: Path, home: Path) -> None:
    assert [store.path for store in config_layers()] == [home / ".openrath" / "config.json"]
    assert config_layers()[0].config.llm.providers == {}
    assert list(project.iterdir()) == list(home.iterdir()) == []


def test_the_variable_leaves_one_directory(
    project: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_config(home, llm_config("a", a={}))
    write_config(project, llm_config("a", a={}))
    monkeypatch.setenv("OPENRATH_HOME", str(home / "elsewhere"))
    assert config_layer_paths() == (home / "elsewhere" / "config.json",)
    with pytest.raises(KeyError, match="elsewhere"):
        find_llm_provider("a")


@pytest.mark.usefixtures("project")
def test_at_home_there_is_one_config(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_config(home, {})
    monkeypatch.chdir(home)
    assert len(config_layers()) == 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(of_project=entries, of_user=entries, name=st.sampled_from(NAMES))
def test_an_entry_is_that_of_the_first_file_which_has_it(
    project: Path, home: Path, of_project: Any, of_user: Any, name: str
) -> None:
    both = {**of_user, **of_project}
    assume(name in both)
    write_config(project, llm_config(**of_project))
    write_config(home, llm_config(**of_user))
    assert find_llm_provider(name).entry.model == both[name]["model"]


def test_a_default_is_that_of_the_first_file_which_sets_one(project: Path, home: Path) -> None:
    write_config(home, llm_config("mine", mine={"model": "m"}))
    write_config(project, llm_config(theirs={"model": "t"}))
    assert llm_default("default_provider") == "mine"
    write_config(project, llm_config("theirs", theirs={"model": "t"}))
    assert llm_default("default_provider") == "theirs"


def test_a_default_of_the_project_may_name_an_entry_of_the_user(project: Path, home: Path) -> None:
    path = write_config(home, llm_config("slow", slow={"model": "s"}, fast={"model": "f"}))
    write_config(project, llm_config("fast"))
    found = find_llm_provider()
    assert (found.name, found.entry.model, found.store.path) == ("fast", "f", path)


def test_nothing_of_an_entry_of_the_same_name_is_mixed_in(project: Path, home: Path) -> None:
    write_config(home, llm_config(a={"model": "m", "temperature": 0.5}), {"a": "user-key"})
    write_config(project, llm_config(a={"model": "p"}))
    entry = find_llm_provider("a").entry
    assert (entry.model, entry.temperature, entry.api_key) == ("p", None, None)


@pytest.mark.parametrize(
    ("find", "section"),
    [
        (find_llm_provider, "llm"),
        (find_memory_provider, "memory"),
        (find_backend_provider, "backend"),
    ],
)
def test_a_failed_lookup_says_what_each_file_has(
    project: Path, home: Path, find: Callable[[str | None], object], section: str
) -> None:
    own = write_config(home, {section: {"providers": {"mine": {}, "other": {}}}})
    theirs = write_config(project, {section: {"providers": {"theirs": {}}}})
    with pytest.raises(KeyError) as caught:
        find("mime")
    assert "Did you mean 'mine'" in str(caught.value)
    assert f"theirs in {theirs}; mine, other in {own}" in str(caught.value)


def test_a_lookup_without_name_and_default_names_the_files(project: Path, home: Path) -> None:
    own, theirs = write_config(home, {}), write_config(project, {})
    with pytest.raises(KeyError, match="no LLM provider name given") as caught:
        find_llm_provider()
    assert f"llm.default_provider is not set in {theirs} or {own}" in str(caught.value)


def test_what_the_project_has_needs_no_config_of_the_user(project: Path, home: Path) -> None:
    write_config(home, {}).write_text("{")
    write_config(project, llm_config("a", a={"model": "p"}))
    assert find_llm_provider().entry.model == "p"
    with pytest.raises(ConfigError, match="line 1 col 2"):
        find_llm_provider("b")


def test_memories_are_found_in_both(project: Path, home: Path) -> None:
    write_config(home, {"memory": {"providers": {"notes": {"path": "/n"}}}})
    write_config(project, {"memory": {"default_provider": "notes"}})
    assert MemoryStoreSpec.from_config().options == {"path": "/n"}
    assert MemoryStoreSpec.from_config("notes").options == {"path": "/n"}


def test_a_layer_is_read_again_only_when_it_has_changed(home: Path) -> None:
    write_config(home, llm_config(a={}))
    first = config_layers()[0]
    assert config_layers()[0] is first
    write_config(home, llm_config(a={}, b={}))
    assert config_layers()[0] is not first


def test_a_store_can_be_loaded_by_its_path(project: Path, home: Path) -> None:
    own, theirs = write_config(home, {}), write_config(project, {})
    assert ConfigStore.load().path == theirs
    assert ConfigStore.load(own) is ConfigStore.load(own)
    assert not ConfigStore.load(own).is_project_local


OAUTH = {"client_id": "me", "secret_env": "SECRET", "issuer": "https://auth"}


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({}, "needs either command"),
        ({"command": ["x"], "url": "https://h"}, "has both"),
        ({"url": "ftp://h"}, "must begin with http"),
        ({"url": "https://h", "env": {"A": "b"}}, "env goes with command"),
        ({"url": "https://h", "cwd": "/"}, "cwd goes with command"),
        ({"command": ["x"], "headers": {"A": "b"}}, "headers goes with url"),
        ({"command": ["x"], "transport": "sse"}, "transport goes with url"),
        ({"url": "https://h", "transport": "telnet"}, "transport"),
        ({"url": "https://h", "bearer_env": "not a name"}, "bearer_env"),
        ({"url": "https://h", "bearer_env": "A", "oauth": OAUTH}, "at most one of"),
        ({"command": ["x"], "timeout": 0}, "timeout"),
    ],
)
def test_what_is_no_server_is_refused(entry: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        MCPServerConfig.model_validate(entry)


@pytest.mark.parametrize(
    "entry",
    [
        {"command": ["x", "y"], "env": {}},
        {"command": [], "env": {"A": "b"}},
        {"command": ["x"], "env": {}, "of_a_later_version": 1},
        {"command": ["x"], "env": {}, "cwd": "/tmp", "timeout": 5.0, "trust_annotations": False},
        {"url": "https://h", "env": {}, "headers": {"A": "${B}"}, "bearer_env": "T"},
    ],
    ids=["1.3", "1.3-empty", "unknown", "command", "url"],
)
def test_a_server_is_saved_as_it_was_read(tmp_path: Path, entry: dict[str, Any]) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"mcp": {"servers": {"s": entry}}}))
    ConfigStore(path).save()
    assert json.loads(path.read_text())["mcp"]["servers"]["s"] == entry


def spec_of(tmp_path: Path, entry: dict[str, Any]) -> object:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"mcp": {"servers": {"s": entry}}}))
    return configured_server("s", store=ConfigStore(path)).spec


def test_a_command_is_a_child_process(tmp_path: Path) -> None:
    found = spec_of(tmp_path, {"command": ["x", "y"], "env": {"A": "b"}, "cwd": "/"})
    assert found == StdioServer("x", ("y",), {"A": "b"}, "/")


def test_a_url_is_an_address(tmp_path: Path) -> None:
    entry = {"url": "https://h", "headers": {"A": "b"}, "bearer_env": "T", "transport": "http"}
    assert spec_of(tmp_path, entry) == HttpServer("https://h", {"A": "b"}, Bearer("T"), "http")


def test_oauth_names_the_issuer_and_where_the_secret_is(tmp_path: Path) -> None:
    found = spec_of(tmp_path, {"url": "https://h", "oauth": OAUTH})
    assert found == HttpServer("https://h", {}, ClientCredentials("me", "SECRET", "https://auth"))


def test_an_empty_command_is_refused_at_use(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"mcp\.servers\.s\.command .* is empty"):
        spec_of(tmp_path, {"command": []})


def test_the_time_of_a_request_is_taken_from_the_config(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"mcp": {"servers": {"s": {"command": ["x"], "timeout": 7}}}}))
    assert configured_server("s", store=ConfigStore(path)).client().timeout == 7
