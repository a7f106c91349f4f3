"""Where session files live."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from rath.errors import PersistenceError
from rath.session.persistence import (
    ensure_sessions_dir,
    session_file,
    session_partial_file,
    sessions_dir,
)

ID = UUID("333e789d-c4d8-493a-9b9a-7717152dccbc")


def test_files_stand_in_the_sessions_directory(home: Path) -> None:
    assert session_file(ID) == home / "sessions" / f"{ID}.jsonl"
    assert session_partial_file(ID) == home / "sessions" / f"{ID}.jsonl.__partial__"
    assert not home.exists()


@pytest.mark.parametrize("text", [str(ID), str(ID).upper(), ID.hex, f"{{{ID}}}"])
def test_every_spelling_of_an_id_names_one_file(text: str) -> None:
    assert session_file(text) == session_file(ID)


@pytest.mark.parametrize("bad", ["", "x", "../../etc/passwd", f"{ID}/../x", None, 7])
def test_what_is_no_uuid_never_becomes_a_path(bad: Any) -> None:
    with pytest.raises(ValueError, match="expected a UUID"):
        session_file(bad)


def test_ensure_creates_the_directory_once(home: Path) -> None:
    assert ensure_sessions_dir() == ensure_sessions_dir() == sessions_dir() == home / "sessions"
    assert (home / "sessions").is_dir()


def test_directory_that_cannot_be_created_is_a_persistence_error(home: Path) -> None:
    home.mkdir()
    (home / "sessions").touch()
    with pytest.raises(PersistenceError, match="cannot be created"):
        ensure_sessions_dir()
