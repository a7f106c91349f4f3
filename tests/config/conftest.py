"""A machine of its own for each test: empty home, empty project, no variables."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.machine import own_project


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory; the user's home stands beside it as `home`."""
    return own_project(tmp_path, monkeypatch)


@pytest.fixture
def home(project: Path) -> Path:
    """The user's home directory, which is empty."""
    return project.with_name("home")
