"""A home directory of its own for each test."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of all files of rath, which does not exist yet."""
    directory = tmp_path / "home"
    monkeypatch.setenv("OPENRATH_HOME", str(directory))
    return directory
