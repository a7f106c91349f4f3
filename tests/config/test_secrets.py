"""Permissions, version control, and what may be shown."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

import pytest

from rath.config.redaction import HIDDEN, looks_secret, redact_setting
from rath.config.secrets import (
    chmod_user_only,
    ensure_config_dir_gitignore,
    ensure_project_gitignore_entry,
    warn_if_world_readable,
)

LOGGER = "rath.config.secrets"

pytestmark = pytest.mark.skipif(os.name != "posix", reason="permission bits are a POSIX matter")


def test_config_directory_is_ignored_whole(tmp_path: Path) -> None:
    ensure_config_dir_gitignore(tmp_path)
    lines = (tmp_path / ".gitignore").read_text().splitlines()
    assert lines == ["*", "!.gitignore", "!config.json.example"]


def test_config_directory_that_is_not_there_is_made(tmp_path: Path) -> None:
    ensure_config_dir_gitignore(tmp_path / "new" / ".openrath")
    assert (tmp_path / "new" / ".openrath" / ".gitignore").is_file()


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
    assert [r.levelno for r in caplog.records if r.name == LOGGER] == [logging.WARNING]
    assert "permissions" in caplog.text


def test_private_file_is_not_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "config.json"
    path.touch()
    chmod_user_only(path)
    warn_if_world_readable(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [r for r in caplog.records if r.name == LOGGER] == []


@pytest.mark.parametrize(
    "name",
    ["api_key", "apiKey", "--api-key", "TOKEN", "auth_token", "proxy_password", "PGPASSWORD",
     "client-secret", "Authorization", "cookie", "env", "headers", "credentials"],
)  # fmt: skip
def test_a_telling_name_is_a_secret(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize(
    "name", ["model", "base_url", "max_tokens", "max_completion_tokens", "budget_total_tokens"]
)
def test_other_names_and_counts_of_tokens_are_none(name: str) -> None:
    assert not looks_secret(name)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("model", "m", "m"),
        ("api_key", "canary", HIDDEN),
        ("password", 1234, HIDDEN),
        ("api_key", None, None),
        ("api_key", "", ""),
        ("env", {"A": "canary"}, {"A": HIDDEN}),
        ("x", {"a": [{"token": "canary"}], "b": 1}, {"a": [{"token": HIDDEN}], "b": 1}),
        ("command", ["x", "--token", "canary", "y"], ["x", "--token", HIDDEN, "y"]),
        ("command", ["x", "--token=canary"], ["x", f"--token={HIDDEN}"]),
        ("base_url", "http://u:canary@h/v1?key=canary", f"http://{HIDDEN}@h/v1?{HIDDEN}"),
        ("base_url", "http://h:1/v1#a", "http://h:1/v1#a"),
    ],
)
def test_what_may_be_shown_holds_no_secret(name: str, value: object, expected: object) -> None:
    assert redact_setting(name, value) == expected
