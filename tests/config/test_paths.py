"""Where the files of rath live."""

from __future__ import annotations

from pathlib import Path

import pytest

from rath.config.paths import (
    comes_from_project,
    is_project_local,
    resolve_config_dir,
    resolve_config_path,
)


@pytest.mark.usefixtures("project")
def test_user_directory_is_the_last_choice(home: Path) -> None:
    assert resolve_config_dir() == home / ".openrath"
    assert not (home / ".openrath").exists()


def test_project_directory_hides_the_user_directory(project: Path) -> None:
    (project / ".openrath").mkdir()
    assert resolve_config_dir() == project / ".openrath"


def test_project_file_of_that_name_does_not_count(project: Path, home: Path) -> None:
    (project / ".openrath").touch()
    assert resolve_config_dir() == home / ".openrath"


def test_variable_hides_the_project_directory(
    project: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / ".openrath").mkdir()
    monkeypatch.setenv("OPENRATH_HOME", " ~/elsewhere/../new \n")
    assert resolve_config_dir() == home / "new"


def test_variable_that_names_a_file_is_an_error(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "file").touch()
    monkeypatch.setenv("OPENRATH_HOME", str(project / "file"))
    with pytest.raises(FileNotFoundError, match="not a directory"):
        resolve_config_dir()


def test_blank_variable_counts_as_unset(
    project: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENRATH_HOME", "  ")
    assert resolve_config_path() == home / ".openrath" / "config.json"
    assert project.exists()


def test_only_the_directory_of_the_working_directory_is_project_local(
    project: Path, home: Path
) -> None:
    assert is_project_local(project / ".openrath")
    assert not is_project_local(home / ".openrath")


@pytest.mark.usefixtures("project")
def test_user_directory_is_no_gift_of_a_project_even_at_home(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    assert is_project_local(home / ".openrath")
    assert not comes_from_project(home / ".openrath")
