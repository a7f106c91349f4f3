"""Writing changes into a directory of the user."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings

from rath._core.blobs import Blob
from rath.backend.effects import FileEffect
from rath.session.apply import apply_changes
from rath.session.changes import net_changes
from tests.support.session_files import (
    FILE,
    Change,
    change_lists,
    changed,
    created,
    follow,
    moved,
    removed,
    trees,
)
from tests.support.trees import laid_out, lay_out, temporary_tree

LINK, SCRIPT = stat.S_IFLNK | 0o777, stat.S_IFREG | 0o755
ONE = Blob.from_bytes(b"1")


@settings(max_examples=25)
@given(files=trees, todo=change_lists)
def test_the_files_before_become_those_after(files: dict[str, bytes], todo: list[Change]) -> None:
    after = dict(files)
    changes = net_changes(follow(after, todo))
    with temporary_tree(files) as root:
        apply_changes(changes, root)
        assert laid_out(root) == after
        assert apply_changes(changes, root) == []


def test_modes_and_links_are_written(tmp_path: Path) -> None:
    lay_out(tmp_path, {"run": b"1", "was": b"1"})
    changes = [
        FileEffect("link", "created", None, Blob.from_bytes(b"run"), after_mode=LINK),
        FileEffect("run", "changed", ONE, Blob(ONE.digest, 1), before_mode=FILE, after_mode=SCRIPT),
        FileEffect(
            "was", "changed", ONE, Blob.from_bytes(b"run"), before_mode=FILE, after_mode=LINK
        ),
        FileEffect("twin", "created", None, Blob.from_bytes(b"run"), after_mode=FILE),
    ]
    assert apply_changes(changes, tmp_path) == ["link", "run", "twin", "was"]
    assert (os.readlink(tmp_path / "link"), os.readlink(tmp_path / "was")) == ("run", "run")
    assert (tmp_path / "run").stat().st_mode & 0o111
    assert not (tmp_path / "twin").is_symlink()
    assert apply_changes(changes, tmp_path) == []
    gone = FileEffect("link", "deleted", Blob.from_bytes(b"run"), None, before_mode=LINK)
    assert apply_changes([gone], tmp_path) == ["link"]
    assert (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (changed("a", b"0", b"2"), "'a': expected the file that was changed, found another one"),
        (changed("none", b"0", b"2"), "'none': expected the file that was changed, found none"),
        (created("a", b"2"), "'a': expected no file, found another one"),
        (created("dir", b"2"), "'dir': expected no file, found another one"),
        (removed({"a": b"0"}, "a"), "'a': expected the file that was changed, found another one"),
        (moved({"b": b"1"}, "b", "dir"), "'dir': expected no file, found another one"),
        (FileEffect("new", "created", None, Blob("0" * 64, 9)), "content of 'new' was not kept"),
        (created("../out", b""), "'../out' leads out of the directory"),
        (created("/out", b""), "'/out' leads out of the directory"),
        (created("", b""), "'' leads out of the directory"),
        (created("away/x", b""), "'away/x' lies behind the symbolic link 'away'"),
        (removed({"a/x": b""}, "a/x"), None),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_written(
    tmp_path: Path, change: FileEffect, problem: str | None
) -> None:
    root = tmp_path / "root"
    files = {"a": b"1", "b": b"1", "dir/x": b""}
    lay_out(root, files)
    (root / "away").symlink_to(tmp_path)
    good = created("good", b"")
    if problem is None:
        assert apply_changes([good, change], root) == ["good"]
        return
    with pytest.raises(ValueError, match=re.escape(problem)):
        apply_changes([good, change], root)
    assert laid_out(root) == files


def test_a_directory_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotADirectoryError, match="cannot apply changes to"):
        apply_changes([], tmp_path / "missing")


def test_a_file_that_cannot_be_put_in_place_leaves_no_part(tmp_path: Path) -> None:
    broken = FileEffect("a", "created", None, Blob.from_bytes(b"x\0y"), after_mode=LINK)
    with pytest.raises(ValueError, match="null"):
        apply_changes([broken], tmp_path)
    assert list(tmp_path.iterdir()) == []
