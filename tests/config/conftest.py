"""A machine of its own for each test: empty home, empty project, no variables."""

from __future__ import annotations

from pathlib import Path

import pytest

from rath.config.env import all_env_specs


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory; the user's home stands beside it as `home`."""
    for spec in all_env_specs():
        monkeypatch.delenv(spec.name, raising=False)
    directories = {name: tmp_path / name for name in ("home", "project")}
    for directory in directories.values():
        directory.mkdir()
    monkeypatch.setenv("HOME", str(directories["home"]))
    monkeypatch.setenv("USERPROFILE", str(directories["home"]))
    monkeypatch.chdir(directories["project"])
    return directories["project"]


@pytest.fixture
def home(project: Path) -> Path:
    """The user's home directory, which is empty."""
    return project.with_name("home")
