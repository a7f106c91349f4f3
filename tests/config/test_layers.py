"""The project's config before the user's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from rath.config import ConfigStore, config_layers, llm_default
from rath.config.layers import find_backend_provider, find_llm_provider, find_memory_provider
from rath.config.paths import config_layer_paths
from rath.errors import ConfigError
from rath.memory import MemoryStoreSpec
from tests.support.machine import llm_config, write_config

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
