"""Writing changes into a directory of the user."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from rath._core.blobs import Blob
from rath.backend.effects import FileEffect, note_gap
from rath.errors import BackendError
from rath.session import Session
from rath.testing import tool_call
from tests.support.api import all_or_none, apply_changes, net_changes
from tests.support.session_files import (
    FILE,
    Change,
    change_lists,
    changed,
    created,
    files_of,
    follow,
    moved,
    placed,
    removed,
    running,
    trees,
    worked,
    write,
    writing,
)
from tests.support.sessions import FunctionTool
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
        (changed("a", b"0", b"2"), "'a': expected the file that was changed, found another"),
        (changed("none", b"0", b"2"), "'none': expected the file that was changed, found none"),
        (created("a", b"2"), "'a': expected no file, found another"),
        (created("dir", b"2"), "'dir': expected no file, found a directory"),
        (removed({"a": b"0"}, "a"), "'a': expected the file that was changed, found another"),
        (moved({"b": b"1"}, "b", "dir"), "'dir': expected no file, found a directory"),
        (FileEffect("new", "created", None, Blob("0" * 64, 9)), "content of 'new' was not kept"),
        (created("../out", b""), "'../out' leads out of the directory"),
        (created("/out", b""), "'/out' leads out of the directory"),
        (created("", b""), "'' leads out of the directory"),
        (created("away/x", b""), "'away/x' lies behind the symbolic link 'away'"),
        (created("a/x", b""), "'a/x' lies behind 'a', which is no directory"),
        (removed({"dir": b""}, "dir"), "'dir': expected the file that was changed, found a dir"),
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


def test_a_directory_becomes_a_file_and_a_file_a_directory(tmp_path: Path) -> None:
    files = {"was_dir/x": b"1", "was_dir/deep/y": b"2", "was_file": b"3"}
    lay_out(tmp_path, files)
    (tmp_path / "was_dir" / "empty").mkdir()
    changes = [
        removed(files, "was_dir/x"),
        removed(files, "was_dir/deep/y"),
        created("was_dir", b"now a file"),
        moved(files, "was_file", "was_file/in/it"),
    ]
    touched = ["was_dir", "was_dir/deep/y", "was_dir/x", "was_file", "was_file/in/it"]
    assert apply_changes(changes, tmp_path) == touched
    assert laid_out(tmp_path) == {"was_dir": b"now a file", "was_file/in/it": b"3"}
    assert apply_changes(changes, tmp_path) == []
    back = [
        removed({"was_dir": b"now a file"}, "was_dir"),
        created("was_dir/x", b"1"),
        created("was_dir/deep/y", b"2"),
        moved({"was_file/in/it": b"3"}, "was_file/in/it", "was_file"),
    ]
    apply_changes(back, tmp_path)
    assert laid_out(tmp_path) == files


@pytest.mark.parametrize("left", ["dir/mine", "dir/deep/mine", "dir/link"])
def test_a_directory_that_holds_more_does_not_make_way(tmp_path: Path, left: str) -> None:
    files = {"dir/x": b"1"}
    lay_out(tmp_path, files)
    (tmp_path / left).parent.mkdir(exist_ok=True)
    (tmp_path / left).symlink_to(tmp_path)
    changes = [removed(files, "dir/x"), created("dir", b"")]
    with pytest.raises(ValueError, match="'dir': expected no file, found a directory"):
        apply_changes(changes, tmp_path)
    assert laid_out(tmp_path) == files
    assert (tmp_path / left).is_symlink()


LARGE = b"x" * ((1 << 20) + 1)


def test_a_file_that_only_moved_is_taken_from_the_directory(tmp_path: Path) -> None:
    files = {"big": LARGE}
    lay_out(tmp_path, files)
    assert apply_changes([moved(files, "big", "a/b")], tmp_path) == ["a/b", "big"]
    assert laid_out(tmp_path) == {"a/b": LARGE}


def test_an_error_in_the_middle_leaves_all_as_it_was(tmp_path: Path) -> None:
    files = {"a/old": b"1", "b": b"2", "run": b"3"}
    lay_out(tmp_path, files)
    (tmp_path / "run").chmod(0o644)
    name = "n" * 300  # more than a file system takes
    changes = [
        removed(files, "a/old"),
        created("a", b"new"),
        changed("b", b"2", b"two"),
        created("c/d/e", b"5"),
        FileEffect(
            "run", "changed", Blob.from_bytes(b"3"), Blob.from_bytes(b"3"),
            before_mode=FILE, after_mode=SCRIPT,
        ),
        created(f"z/{name}", b""),
    ]  # fmt: skip
    with pytest.raises(OSError, match="name too long"):
        apply_changes(changes, tmp_path)
    assert laid_out(tmp_path) == files
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "run"]
    assert not (tmp_path / "run").stat().st_mode & 0o111


FILES = {"a/b": b"1", "c": b"2", "d": b"3"}


def test_files_that_cannot_be_put_back_stay_in_a_folder_that_the_error_names(
    tmp_path: Path,
) -> None:
    lay_out(tmp_path, FILES)

    def write() -> None:
        with all_or_none(tmp_path) as writing:
            writing.remove("c")
            writing.finish()
            (tmp_path / "c").mkdir()  # somebody else was faster
            raise ValueError("as told")

    with pytest.raises(ValueError, match="as told") as caught:
        write()
    (moved_away,) = tmp_path.glob(".rath_apply_*")
    assert str(moved_away) in caught.value.__notes__[0]
    assert b"2" in laid_out(moved_away).values()


LARGE_TEXT = "x" * ((1 << 20) + 1)


def large() -> Session:
    """Return a session that wrote a file of which no content is kept."""
    return worked(placed().fork(workspace="copy"), writing("big", LARGE_TEXT), writing("a", "1"))


def test_contents_that_were_not_recorded_come_from_the_open_sandbox(tmp_path: Path) -> None:
    done = large()
    assert done.files.apply_to(tmp_path) == ["a", "big"]
    assert laid_out(tmp_path) == files_of(done)


def test_without_the_sandbox_the_error_says_what_is_lost(tmp_path: Path) -> None:
    done = large().synchronize()
    done.close_sandbox()
    with pytest.raises(ValueError, match=r"the content of 'big' was not kept, since .* not open"):
        done.files.apply_to(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_somebody_else_wrote_since_is_not_taken_for_it(tmp_path: Path) -> None:
    done = large().synchronize()
    write(done, {"big": "something else"})
    with pytest.raises(ValueError, match="content of 'big' was not kept and in the workspace it"):
        done.files.apply_to(tmp_path, gaps="ignore")
    assert list(tmp_path.iterdir()) == []


def test_what_the_sandbox_does_not_have_any_more_is_an_error(tmp_path: Path) -> None:
    done = large().synchronize()
    done.require_sandbox().native.remove("big")
    with pytest.raises(BackendError, match="'big' was not kept and cannot be read"):
        done.files.apply_to(tmp_path, gaps="ignore")
    assert list(tmp_path.iterdir()) == []


def test_what_may_be_missing_is_not_brought_home_unasked(tmp_path: Path) -> None:
    with pytest.raises(NotADirectoryError, match="cannot apply changes to"):
        apply_changes([], tmp_path / "missing")

    def unseen(_: Session, __: Any) -> str:
        note_gap("nobody looked")
        return "ok"

    tool = FunctionTool("odd", unseen)
    turns = writing("a", "1"), tool_call("odd", {}, id="strange"), running("mv a b")
    done = worked(placed().fork(workspace="copy"), *turns, tools=[tool])
    with pytest.raises(ValueError, match=r"not all is known .*: odd \(strange\): nobody looked\. "):
        done.files.apply_to(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert done.files.apply_to(tmp_path, gaps="ignore") == ["b"]
    assert laid_out(tmp_path) == {"b": b"1"}
