"""A machine of its own for a test: an empty home, an empty project, no variables of rath."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rath.config import ConfigStore, guarded_entries, trust_entries
from rath.config.env import all_env_specs


def own_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make and enter an empty working directory; the user's home stands beside it as `home`."""
    for spec in all_env_specs():
        monkeypatch.delenv(spec.name, raising=False)
    for name in ("home", "project"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def write_config(base: Path, config: dict[str, Any], keys: dict[str, str] | None = None) -> Path:
    """Write `.openrath/config.json` under `base`, and keys of model endpoints beside it."""
    directory = base / ".openrath"
    directory.mkdir(exist_ok=True)
    path = directory / "config.json"
    path.write_text(json.dumps(config))
    path.chmod(0o600)
    if keys is not None:
        neighbour = directory / "credentials.json"
        neighbour.write_text(json.dumps({"llm": {"providers": keys}, "version": 1}))
        neighbour.chmod(0o600)
    return path


def trust(path: Path) -> Path:
    """Trust the config of a project as it stands there, and return its path."""
    trust_entries(guarded_entries(ConfigStore(path)))
    return path


def llm_config(default: str | None = None, **providers: dict[str, Any]) -> dict[str, Any]:
    """A config with these model endpoints."""
    return {"llm": {"default_provider": default, "providers": providers}}
