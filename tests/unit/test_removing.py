"""A walk that removes a directory, and what may happen to it on the way."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from rath._core.retention import remove_directory, remove_tree


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with a file, a directory, and a file in that."""
    directory = tmp_path / "work"
    (directory / "deep").mkdir(parents=True)
    (directory / "deep" / "file").touch()
    (directory / "other").touch()
    return directory


def test_directories_get_the_rights_that_it_takes(directory: Path) -> None:
    (directory / "deep").chmod(0)
    remove_directory(directory)
    assert not directory.exists()


def test_directory_that_cannot_be_listed_is_told_and_the_rest_goes(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep, really = (directory / "deep").stat(), os.listdir

    def refuse(fd: int) -> list[str]:
        if os.path.samestat(os.fstat(fd), deep):
            raise PermissionError(errno.EACCES, "Permission denied")
        return really(fd)

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(PermissionError, match="Permission denied"):
        remove_directory(directory)
    assert sorted(path.name for path in directory.rglob("*")) == ["deep", "file"]


def test_file_that_cannot_be_read_from_the_disk_is_told(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str, *, dir_fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "unlink", fail)
    with pytest.raises(OSError, match="Input/output error"):
        remove_directory(directory)


def test_walk_stops_where_a_directory_is_moved_under_its_feet(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").touch()
    deep, really = directory / "deep", os.unlink

    def move_first(name: str, *, dir_fd: int) -> None:
        if name == "file":
            deep.rename(elsewhere / "deep")
        really(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", move_first)
    with pytest.raises(OSError, match="was moved while it was removed"):
        remove_directory(directory)
    assert (elsewhere / "kept").exists()


def test_directory_that_another_one_removes_first_is_no_failure(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = os.rmdir

    def come_second(name: str, *, dir_fd: int) -> None:
        really(name, dir_fd=dir_fd)
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr(os, "rmdir", come_second)
    remove_directory(directory)
    assert not directory.exists()


def test_systems_that_open_no_directories_remove_by_path(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "supports_dir_fd", set[object]())
    remove_tree(directory)
    remove_tree(directory)
    assert not directory.exists()
