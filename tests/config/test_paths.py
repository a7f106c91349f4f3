"""Where the files of rath live."""

from __future__ import annotations

from pathlib import Path

import pytest

from rath.config.paths import (
    comes_from_project,
    config_layer_paths,
    is_project_local,
    resolve_config_dir,
    resolve_config_path,
)
from rath.config.store import ConfigStore


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


def test_the_project_is_read_before_the_user(project: Path, home: Path) -> None:
    (project / ".openrath").mkdir()
    directories = [path.parent for path in config_layer_paths()]
    assert directories == [project / ".openrath", home / ".openrath"]


@pytest.mark.usefixtures("project")
def test_without_a_project_only_the_user_is_read(home: Path) -> None:
    assert config_layer_paths() == (home / ".openrath" / "config.json",)


def test_a_project_directory_that_is_the_users_by_a_link_is_read_once(
    project: Path, home: Path
) -> None:
    (home / ".openrath").mkdir()
    (project / ".openrath").symlink_to(home / ".openrath")
    assert len(config_layer_paths()) == 1


@pytest.fixture
def homeless(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of a user whose home nobody knows."""

    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", unknown)
    return project


@pytest.mark.usefixtures("homeless")
def test_an_unknown_home_says_what_to_set() -> None:
    with pytest.raises(FileNotFoundError, match="set OPENRATH_HOME"):
        resolve_config_dir()


def test_an_unknown_home_needs_none_where_a_directory_is_named(
    homeless: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENRATH_HOME", str(homeless / "own"))
    assert config_layer_paths() == (homeless / "own" / "config.json",)


def test_an_unknown_home_leaves_the_project(homeless: Path) -> None:
    (homeless / ".openrath").mkdir()
    assert config_layer_paths() == (homeless / ".openrath" / "config.json",)
    assert comes_from_project(homeless / ".openrath")


@pytest.mark.usefixtures("project")
def test_a_home_of_nobody_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENRATH_HOME", "~no-such-user-here/x")
    with pytest.raises(FileNotFoundError, match="no such user"):
        resolve_config_dir()


def test_links_in_a_circle_are_no_project(project: Path, home: Path) -> None:
    (project / ".openrath").symlink_to(project / ".openrath")
    assert resolve_config_dir() == home / ".openrath"
    assert not is_project_local(home / ".openrath")


def test_a_deleted_working_directory_leaves_the_user(
    project: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = project / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert config_layer_paths() == (home / ".openrath" / "config.json",)
    assert ConfigStore.load(home / ".openrath" / "config.json").config.version == 1
