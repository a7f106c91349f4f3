"""Permissions and version control."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

import pytest

from rath.config.secrets import (
    chmod_user_only,
    ensure_config_dir_gitignore,
    ensure_project_gitignore_entry,
    warn_if_world_readable,
)

pytestmark = pytest.mark.skipif(os.name != "posix", reason="permission bits are a POSIX matter")


def test_config_directory_is_ignored_whole(tmp_path: Path) -> None:
    ensure_config_dir_gitignore(tmp_path)
    lines = (tmp_path / ".gitignore").read_text().splitlines()
    assert lines == ["*", "!.gitignore", "!config.json.example"]


def test_existing_gitignore_of_a_config_directory_stays(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("mine\n")
    ensure_config_dir_gitignore(tmp_path)
    assert (tmp_path / ".gitignore").read_text() == "mine\n"


def test_top_of_a_repository_is_not_ignored(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    ensure_config_dir_gitignore(tmp_path)
    assert not (tmp_path / ".gitignore").exists()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", ".openrath/\n"),
        ("a\n", "a\n.openrath/\n"),
        ("a", "a\n.openrath/\n"),
        (".openrath\n", ".openrath\n"),
        ("/.openrath/\r\nb\r\n", "/.openrath/\r\nb\r\n"),
    ],
    ids=["empty", "line", "no-line-end", "no-slash", "slashes"],
)
def test_project_entry_is_added_once(tmp_path: Path, before: str, after: str) -> None:
    path = tmp_path / ".gitignore"
    path.write_bytes(before.encode())
    ensure_project_gitignore_entry(tmp_path)
    ensure_project_gitignore_entry(tmp_path)
    assert path.read_bytes() == after.encode()


def test_project_without_gitignore_gets_none(tmp_path: Path) -> None:
    ensure_project_gitignore_entry(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602], ids=oct)
def test_readable_file_is_warned_about_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int
) -> None:
    path = tmp_path / "config.json"
    path.touch()
    path.chmod(mode)
    warn_if_world_readable(path)
    warn_if_world_readable(path)
    assert [(r.name, r.levelno) for r in caplog.records] == [
        ("rath.config.secrets", logging.WARNING)
    ]
    assert "permissions" in caplog.text


def test_private_file_is_not_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "config.json"
    path.touch()
    chmod_user_only(path)
    warn_if_world_readable(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert caplog.records == []
