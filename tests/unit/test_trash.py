"""Removing directories in two steps."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import pytest

from rath._core import retention
from rath._core.retention import (
    empty_trash,
    in_trash,
    mount_below,
    mount_in,
    move_to_trash,
    remove_tree,
)

IS_ROOT = os.name == "posix" and os.geteuid() == 0


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with a file and a link to a directory that is not its own."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept").touch()
    directory = tmp_path / "root" / "work"
    (directory / "deep").mkdir(parents=True)
    (directory / "deep" / "file").write_text("x")
    (directory / "link").symlink_to(tmp_path / "elsewhere")
    return directory


def test_what_is_moved_is_in_the_trash_until_that_is_emptied(directory: Path) -> None:
    root = directory.parent
    moved = move_to_trash(directory)
    assert moved is not None
    assert not directory.exists()
    assert in_trash(root) == [moved]
    assert (moved / "deep" / "file").read_text() == "x"
    empty_trash(root)
    assert in_trash(root) == []


def test_links_are_removed_and_not_followed(directory: Path, tmp_path: Path) -> None:
    remove_tree(directory)
    assert not directory.exists()
    assert (tmp_path / "elsewhere" / "kept").exists()


def test_one_name_is_moved_as_often_as_it_is_made(directory: Path) -> None:
    assert move_to_trash(directory)
    directory.mkdir()
    assert move_to_trash(directory)
    assert len(in_trash(directory.parent)) == 2


def test_the_trash_of_another_directory_may_be_named(directory: Path, tmp_path: Path) -> None:
    moved = move_to_trash(directory, root=tmp_path)
    assert moved is not None
    assert in_trash(tmp_path) == [moved]
    assert in_trash(directory.parent) == []


def test_link_in_the_place_of_the_trash_is_not_followed(
    directory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = directory.parent
    (root / retention.TRASH_DIR_NAME).symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "theirs").mkdir()
    assert move_to_trash(directory) is None
    assert "is a link" in caplog.text
    assert in_trash(root) == []
    empty_trash(root)
    assert (tmp_path / "elsewhere" / "theirs").is_dir()
    assert directory.is_dir()


def test_what_is_not_there_is_not_moved(tmp_path: Path) -> None:
    assert move_to_trash(tmp_path / "gone") is None
    empty_trash(tmp_path / "nowhere")


def test_what_cannot_be_moved_is_kept_and_told(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def busy(*_: object) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(Path, "rename", busy)
    with caplog.at_level(logging.WARNING, "rath._core.retention"):
        assert move_to_trash(directory) is None
    assert directory.exists()
    assert "busy" in caplog.text


def test_what_cannot_be_removed_stays_in_the_trash_and_is_told(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    moved = move_to_trash(directory)
    monkeypatch.setattr(os, "rmdir", refuse)
    with caplog.at_level(logging.WARNING, "rath._core.retention"):
        empty_trash(directory.parent)
    assert in_trash(directory.parent) == [moved]
    assert "remove it by hand" in caplog.text


@pytest.mark.skipif(IS_ROOT, reason="the superuser may do everything")
def test_directories_without_rights_are_removed(directory: Path) -> None:
    (directory / "deep").chmod(0)
    remove_tree(directory)
    assert not directory.exists()


def test_all_but_what_cannot_be_removed_is_removed(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = os.unlink

    def refuse_one(name: str, *, dir_fd: int) -> None:
        if name == "file":
            raise PermissionError(errno.EPERM, "Operation not permitted")
        really(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", refuse_one)
    with pytest.raises(PermissionError, match="not permitted"):
        remove_tree(directory)
    assert [str(each.relative_to(directory)) for each in directory.rglob("*")] == [
        "deep",
        "deep/file",
    ]


def test_link_in_the_place_of_a_directory_is_not_followed(directory: Path) -> None:
    with pytest.raises(OSError, match="directory"):
        remove_tree(directory / "link")
    assert (directory.parent.parent / "elsewhere" / "kept").exists()


def test_what_is_gone_already_is_no_error(directory: Path) -> None:
    remove_tree(directory.parent / "gone")
    remove_tree(directory.parent / "gone" / "with its parent")


def test_no_depth_stands_in_the_way(directory: Path) -> None:
    made_deep(directory, 1500)
    moved = move_to_trash(directory)
    assert moved is not None
    empty_trash(directory.parent)
    assert in_trash(directory.parent) == []


def made_deep(directory: Path, n_levels: int) -> None:
    """Make directories in each other, deeper than any path can tell."""
    fd = os.open(directory, os.O_RDONLY)
    for _ in range(n_levels):
        os.mkdir("below", dir_fd=fd)
        below = os.open("below", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)


def mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *points: str) -> None:
    """Let these be the mount points, as the kernel tells them."""
    table = tmp_path / "mountinfo"
    lines = (f"36 35 98:0 / {point} rw,noatime - ext4 /dev/x rw" for point in points)
    table.write_text("".join(f"{line}\n" for line in lines))
    monkeypatch.setattr(retention, "MOUNT_TABLE", table)


def test_directory_in_which_something_is_mounted_is_kept(
    directory: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    mounts(tmp_path, monkeypatch, "/", f"{directory}/deep", f"{directory}er")
    with caplog.at_level(logging.WARNING, "rath._core.retention"):
        assert move_to_trash(directory) is None
    assert "is mounted in it" in caplog.text
    with pytest.raises(OSError, match="is mounted there"):
        remove_tree(directory)
    assert (directory / "deep" / "file").exists()


def test_mount_points_are_found_under_their_escaped_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts(tmp_path, monkeypatch, "/", "/with\\040space/\\134x")
    assert mount_in(Path("/with space")) == Path("/with space/\\x")
    assert mount_in(Path("/with")) is None
    assert mount_in(Path("/")) == Path("/")


def test_what_is_mounted_below_is_found_and_the_directory_itself_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts(tmp_path, monkeypatch, "/", "/with\\040space/\\134x", "/work", "/works/x")
    assert mount_below("/with space") == Path("/with space/\\x")
    assert mount_below("/with space/\\x") is None
    assert mount_below("/work") is None
    assert mount_below("/") == Path("/with space/\\x")


def test_without_a_table_only_the_directory_itself_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "MOUNT_TABLE", tmp_path / "nothing")
    assert mount_in(tmp_path) is None
    assert mount_in(Path("/")) == Path("/")
