"""Reading, looking up and writing the config."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rath.config.schema import LLMProviderConfig, MCPServerConfig, RathConfig
from rath.config.store import ConfigError, ConfigStore, default_store
from rath.errors import ConfigConflict, ManifestVersionError, RathError

GOLDEN = Path(__file__).parents[1] / "data" / "v1" / "home"
FULL: dict[str, Any] = {
    "llm": {
        "default_provider": "b",
        "providers": {
            "a": {"provider_kind": "openai", "model": "m-a"},
            "b": {"provider_kind": "anthropic", "model": "m-b"},
            "c": {"provider_kind": "anthropic", "model": "m-c"},
        },
    },
    "mcp": {
        "default_enabled": ["two", "one"],
        "servers": {"one": {"command": ["1"]}, "two": {"command": ["2"]}},
    },
    "memory": {"default_provider": "notes", "providers": {"notes": {"path": "./n"}}},
    "backend": {"providers": {"box": {"domain": "d", "api_key": "k-box"}}},
}


@pytest.fixture
def path(project: Path) -> Path:
    directory = project / ".openrath"
    directory.mkdir()
    return directory / "config.json"


@pytest.fixture
def store(path: Path) -> ConfigStore:
    path.write_text(json.dumps(FULL))
    return ConfigStore(path)


def test_missing_file_gives_the_defaults_and_creates_nothing(project: Path) -> None:
    assert ConfigStore(project / "no" / "config.json").config == RathConfig()
    assert list(project.iterdir()) == []


def test_golden_home_loads_with_its_key(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path / "home")
    store = ConfigStore(tmp_path / "home" / "config.json")
    main = store.get_llm_provider(None)
    assert (main.model, main.api_key, main.temperature) == ("m-1", "sk-not-a-real-key", 0.2)
    assert store.enabled_mcp_servers()[0].command == ["python", "-m", "echo_server"]
    assert store.get_memory_provider("notes").path == "./notes"


def test_golden_home_is_saved_as_it_was(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path / "home")
    ConfigStore(tmp_path / "home" / "config.json").save()
    for name in ("config.json", "credentials.json", "manifest.json"):
        assert (tmp_path / "home" / name).read_text() == (GOLDEN / name).read_text()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{\n  "llm": x}', "line 2 col 10"),
        (b"[1]", "must be a JSON object"),
        (b'{"llm": {"providers": {"a": {"max_tokens": "many"}}}}', "has values that do not fit"),
        (b"\xff", "cannot be read"),
    ],
    ids=["json", "shape", "schema", "bytes"],
)
def test_unusable_file_is_a_config_error_that_names_it(
    path: Path, content: bytes, words: str
) -> None:
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=words) as caught:
        ConfigStore(path)
    assert str(path) in str(caught.value)
    assert isinstance(caught.value, RathError)
    assert isinstance(caught.value, RuntimeError)


def test_directory_in_place_of_the_file_is_a_config_error(path: Path) -> None:
    path.mkdir()
    with pytest.raises(ConfigError, match="cannot be read"):
        ConfigStore(path)


def test_schema_error_names_the_field_and_hides_its_value(path: Path) -> None:
    path.write_text('{"llm": {"providers": {"a": {"api_key": ["canary"]}}}}')
    with pytest.raises(ConfigError, match=r"llm\.providers\.a\.api_key") as caught:
        ConfigStore(path)
    assert "canary" not in str(caught.value) + str(caught.value.__cause__)


def test_byte_order_mark_is_no_obstacle(path: Path) -> None:
    path.write_bytes(b"\xef\xbb\xbf{}")
    assert ConfigStore(path).config == RathConfig()


def test_newer_layout_is_refused(path: Path) -> None:
    path.with_name("manifest.json").write_text('{"layout_version": 9}')
    with pytest.raises(ManifestVersionError):
        ConfigStore(path)


def test_inline_key_hides_the_one_next_to_and_moves_out(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_text('{"llm": {"providers": {"a": {"api_key": "key-inline"}}}}')
    path.with_name("credentials.json").write_text('{"llm": {"providers": {"a": "beside"}}}')
    store = ConfigStore(path)
    assert store.get_llm_provider("a").api_key == "key-inline"
    with caplog.at_level(logging.INFO, logger="rath.config.store"):
        store.save()
    assert "key-inline" not in path.read_text() + caplog.text
    assert "llm.a" in caplog.text
    assert ConfigStore(path).get_llm_provider("a").api_key == "key-inline"


def test_saved_store_loads_equal(store: ConfigStore) -> None:
    store.save()
    assert ConfigStore(store.path).config == store.config


def test_save_forces_the_version(store: ConfigStore) -> None:
    store.config.version = 7
    store.save()
    assert json.loads(store.path.read_text())["version"] == 1


def test_unknown_keys_are_saved(path: Path) -> None:
    path.write_text('{"x": {"y": [1]}, "llm": {"z": 2}}')
    ConfigStore(path).save()
    saved = json.loads(path.read_text())
    assert (saved["x"], saved["llm"]["z"]) == ({"y": [1]}, 2)


@pytest.mark.skipif(os.name != "posix", reason="permission bits are a POSIX matter")
def test_saved_files_are_private(store: ConfigStore) -> None:
    store.save()
    files = (store.path, store.path.with_name("credentials.json"))
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_credentials_are_written_only_for_keys(project: Path) -> None:
    store = ConfigStore(project / "conf" / "config.json")
    store.save()
    names = sorted(file.name for file in store.path.parent.iterdir())
    assert names == [".config.lock", ".gitignore", "config.json", "manifest.json"]


def test_removed_key_does_not_come_back(store: ConfigStore) -> None:
    store.save()
    store.config.backend.providers["box"].api_key = None
    store.save()
    assert ConfigStore(store.path).get_backend_provider("box").api_key is None


def test_project_gitignore_gets_the_directory(store: ConfigStore, project: Path) -> None:
    (project / ".gitignore").write_text("dist\n")
    store.save()
    assert (project / ".gitignore").read_text() == "dist\n.openrath/\n"


def test_gitignore_of_another_project_is_left_alone(project: Path) -> None:
    (project / ".gitignore").write_text("dist\n")
    ConfigStore(project / "conf" / "config.json").save()
    assert (project / ".gitignore").read_text() == "dist\n"


def test_load_gives_the_same_store_until_the_file_changes(path: Path) -> None:
    path.write_text("{}")
    first = ConfigStore.load()
    assert ConfigStore.load() is first
    path.write_text(json.dumps(FULL))
    assert ConfigStore.load() is not first


def test_load_sees_changed_keys(path: Path) -> None:
    path.write_text('{"llm": {"providers": {"a": {}}}}')
    ConfigStore.load()
    path.with_name("credentials.json").write_text('{"llm": {"providers": {"a": "k"}}}')
    assert ConfigStore.load().get_llm_provider("a").api_key == "k"


@pytest.mark.usefixtures("path")
def test_load_looks_for_a_missing_file_each_time() -> None:
    assert ConfigStore.load() is not ConfigStore.load()


def test_save_makes_load_read_again(path: Path) -> None:
    path.write_text("{}")
    first = ConfigStore.load()
    first.save()
    assert ConfigStore.load() is not first


def test_default_store_is_never_shared(path: Path) -> None:
    path.write_text("{}")
    assert default_store() is not default_store()


def test_default_entry_is_found_for_none(store: ConfigStore) -> None:
    assert store.get_llm_provider(None).model == "m-b"
    assert store.get_memory_provider(None).path == "./n"


@pytest.mark.parametrize(
    ("lookup", "name", "words"),
    [
        ("get_llm_provider", "aa", r"'aa'.*config\.json.*Available: a, b, c"),
        ("get_backend_provider", None, r"backend\.default_provider is not set.*box"),
        ("get_memory_provider", "note", r"Did you mean 'notes'"),
        ("get_mcp_server", "three", r"MCP server named 'three'.*one, two"),
    ],
)
def test_failed_lookup_names_target_file_and_choices(
    store: ConfigStore, lookup: str, name: str | None, words: str
) -> None:
    with pytest.raises(KeyError, match=words):
        getattr(store, lookup)(name)


@pytest.mark.usefixtures("path")
def test_lookup_without_name_and_default_says_so() -> None:
    with pytest.raises(KeyError, match=r"no LLM provider name.*llm\.default_provider.*none"):
        default_store().get_llm_provider(None)


@pytest.mark.parametrize(
    ("kind", "model"), [("anthropic", "m-b"), ("openai", "m-a"), ("litellm", None)]
)
def test_provider_of_a_kind_is_the_default_or_the_first(
    store: ConfigStore, kind: str, model: str | None
) -> None:
    found = store.find_provider_by_kind(kind)
    assert (found and found.model) == model


def test_enabled_servers_stand_in_the_given_order(store: ConfigStore) -> None:
    assert store.enabled_mcp_servers() == [
        MCPServerConfig(command=["2"]),
        MCPServerConfig(command=["1"]),
    ]


def test_origin_names_the_file_of_a_value(path: Path) -> None:
    path.write_text('{"llm": {"providers": {"a": {"model": "m"}, "b": {"api_key": "k"}}}}')
    beside = path.with_name("credentials.json")
    beside.write_text('{"llm": {"providers": {"a": "k"}}}')
    store = ConfigStore(path)
    a, b = store.get_llm_provider("a"), store.get_llm_provider("b")
    assert store.origin_of(a, "model") == store.origin_of(b, "api_key") == f"config {path}"
    assert store.origin_of(a, "api_key") == f"config {beside}"


def test_the_key_of_a_memory_is_preserved_next_to(path: Path) -> None:
    entry = {"backend_kind": "openviking", "url": "http://h", "api_key": "k"}
    path.write_text(json.dumps({"memory": {"providers": {"team": entry}}}))
    ConfigStore(path).save()
    read = ConfigStore(path).get_memory_provider("team")
    assert '"k"' not in path.read_text()
    assert (read.url, read.api_key) == ("http://h", "k")


def test_origin_of_a_key_follows_a_save(store: ConfigStore) -> None:
    store.config.llm.providers["new"] = entry = LLMProviderConfig(api_key="k")
    store.save()
    assert store.origin_of(entry, "api_key") == f"config {store.path.with_name('credentials.json')}"


def test_store_says_whether_a_project_brought_it(store: ConfigStore, tmp_path: Path) -> None:
    assert store.is_project_local
    assert not ConfigStore(tmp_path / "config.json").is_project_local


def test_keys_of_entries_that_are_not_there_survive_a_save(path: Path) -> None:
    path.write_text('{"llm": {"providers": {"a": {}}}}')
    beside = path.with_name("credentials.json")
    beside.write_text('{"llm": {"providers": {"a": "k-a", "later": "k-later"}}, "x": {"y": 1}}')
    store = ConfigStore(path)
    store.config.llm.providers["later"] = LLMProviderConfig(model="m")
    store.save()
    assert ConfigStore(path).get_llm_provider("later").api_key == "k-later"
    assert json.loads(beside.read_text())["x"] == {"y": 1}


def test_key_of_a_removed_entry_is_removed(path: Path) -> None:
    path.write_text('{"llm": {"providers": {"a": {}}}}')
    beside = path.with_name("credentials.json")
    beside.write_text('{"llm": {"providers": {"a": "k-a"}}}')
    store = ConfigStore(path)
    del store.config.llm.providers["a"]
    store.save()
    assert not beside.exists()


def test_a_config_that_does_not_fit_is_not_written(store: ConfigStore) -> None:
    before = store.path.read_text()
    entry: Any = store.config.llm.providers["a"]
    entry.max_tokens = "canary"
    with pytest.raises(ConfigError, match=r"llm\.providers\.a\.max_tokens") as caught:
        store.save()
    assert "canary" not in str(caught.value)
    assert store.path.read_text() == before


def test_a_change_by_somebody_else_is_not_overwritten(store: ConfigStore) -> None:
    other = ConfigStore(store.path)
    other.config.llm.providers["new"] = LLMProviderConfig(model="m", api_key="k-new")
    other.save()
    store.config.llm.default_provider = "a"
    with pytest.raises(ConfigConflict, match="changed by somebody else"):
        store.save()
    assert ConfigStore(store.path).get_llm_provider("new").api_key == "k-new"


def test_saves_of_many_threads_lose_nothing(path: Path) -> None:
    def add(name: str) -> None:
        while True:
            store = ConfigStore(path)
            store.config.llm.providers[name] = LLMProviderConfig(api_key=f"key-of-{name}")
            with contextlib.suppress(ConfigConflict):
                store.save()
                return

    names = [f"p{number}" for number in range(12)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, names))
    entries = ConfigStore(path).config.llm.providers
    assert {name: entry.api_key for name, entry in entries.items()} == {
        name: f"key-of-{name}" for name in names
    }


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_a_number_that_json_does_not_have_is_refused(path: Path, number: str) -> None:
    path.write_text(f'{{"x": {number}}}')
    with pytest.raises(ConfigError, match=number):
        ConfigStore(path)


def test_an_infinite_value_is_not_written(store: ConfigStore) -> None:
    store.config.llm.providers["a"].temperature = float("inf")
    before = store.path.read_bytes()
    with pytest.raises(ConfigError, match="temperature"):
        store.save()
    assert store.path.read_bytes() == before
