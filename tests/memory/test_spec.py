"""Specs from a config file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rath.config import ConfigStore
from rath.memory import MemoryStoreSpec

NOTES = {"backend_kind": "local", "path": "./notes", "embedding_provider": "e", "url": "http://x"}


@pytest.fixture
def config(tmp_path: Path) -> ConfigStore:
    """A config with one memory provider, which is the default."""
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps({"memory": {"default_provider": "notes", "providers": {"notes": NOTES}}})
    )
    return ConfigStore(path)


def test_a_configured_memory_gives_the_options(config: ConfigStore) -> None:
    spec = MemoryStoreSpec.from_config("notes", store=config)
    assert spec.options == {"path": "./notes", "embedding_provider": "e", "url": "http://x"}


def test_the_default_is_used_without_a_name(config: ConfigStore) -> None:
    assert MemoryStoreSpec.from_config(store=config) == MemoryStoreSpec.from_config(
        "notes", store=config
    )


def test_overrides_are_fields_or_options(config: ConfigStore) -> None:
    spec = MemoryStoreSpec.from_config(
        "notes", store=config, namespace="n", path="/elsewhere", options={"url": "http://y"}
    )
    assert spec.namespace == "n"
    assert spec.options == {"path": "/elsewhere", "embedding_provider": "e", "url": "http://y"}


def test_an_unknown_memory_is_an_error(config: ConfigStore) -> None:
    with pytest.raises(KeyError, match="no memory provider named 'other'"):
        MemoryStoreSpec.from_config("other", store=config)


def test_no_name_and_no_default_is_an_error() -> None:
    with pytest.raises(KeyError, match="no memory provider name"):
        MemoryStoreSpec.from_config()


def test_options_are_not_displayed() -> None:
    assert "secret" not in repr(MemoryStoreSpec(options={"api_key": "secret"}))
