"""File operations of the local backend."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.backend import (
    BackendSandbox,
    BackendToolFilesExists,
    BackendToolFilesList,
    BackendToolFilesRead,
    BackendToolFilesWrite,
    FileContent,
    FileEntries,
    FileWriteResult,
    ToolExecutionFailure,
)
from rath.backend.files import MAX_READ_BYTES, FileOperations
from rath.backend.paths import Workspace


def failure(result: object) -> ToolExecutionFailure:
    assert isinstance(result, ToolExecutionFailure)
    return result


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_text_comes_back_as_written(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    workspace = Workspace.at(str(tmp_path_factory.getbasetemp()))
    files = FileOperations()
    written = files.run(workspace, BackendToolFilesWrite("text.txt", text))
    assert written == FileWriteResult(len(text.encode()))
    assert files.run(workspace, BackendToolFilesRead("text.txt")) == FileContent(text)


@given(data=st.binary(max_size=4096))
def test_bytes_come_back_as_written(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    workspace = Workspace.at(str(tmp_path_factory.getbasetemp()))
    files = FileOperations()
    files.run(workspace, BackendToolFilesWrite("bytes.bin", data))
    assert files.run(workspace, BackendToolFilesRead("bytes.bin", None)) == FileContent(data)


def test_a_write_makes_the_directories_above(sandbox: BackendSandbox, workspace: Path) -> None:
    sandbox.dispatch(BackendToolFilesWrite("a/b/c.txt", "x"))
    assert (workspace / "a" / "b" / "c.txt").read_text() == "x"


def test_a_write_sets_the_mode(sandbox: BackendSandbox, workspace: Path) -> None:
    sandbox.dispatch(BackendToolFilesWrite("run.sh", "true", mode=0o755))
    assert stat.S_IMODE((workspace / "run.sh").stat().st_mode) == 0o755


def test_a_write_leaves_nothing_else_behind(sandbox: BackendSandbox, workspace: Path) -> None:
    sandbox.dispatch(BackendToolFilesWrite("a.txt", "x"))
    assert os.listdir(workspace) == ["a.txt"]


def test_a_failed_write_leaves_nothing_behind(sandbox: BackendSandbox, workspace: Path) -> None:
    (workspace / "taken").mkdir()
    result = failure(sandbox.dispatch(BackendToolFilesWrite("taken", "x")))
    assert result.kind == "os_error"
    assert os.listdir(workspace) == ["taken"]


def test_a_write_does_not_reach_through_a_hard_link(
    sandbox: BackendSandbox, workspace: Path, tmp_path: Path
) -> None:
    (tmp_path / "outside.txt").write_text("old")
    (workspace / "inside.txt").hardlink_to(tmp_path / "outside.txt")
    sandbox.dispatch(BackendToolFilesWrite("inside.txt", "new"))
    assert (tmp_path / "outside.txt").read_text() == "old"


def test_text_that_is_not_unicode_is_a_failure(sandbox: BackendSandbox, workspace: Path) -> None:
    result = failure(sandbox.dispatch(BackendToolFilesWrite("a.txt", "\ud800")))
    assert result.kind == "encode_error"
    assert os.listdir(workspace) == []


def test_a_missing_file_is_a_failure_that_names_it(sandbox: BackendSandbox) -> None:
    result = failure(sandbox.dispatch(BackendToolFilesRead("no/such.txt")))
    assert (result.kind, result.detail) == ("file_not_found", "no/such.txt")


def test_reading_a_directory_is_a_failure(sandbox: BackendSandbox) -> None:
    result = failure(sandbox.dispatch(BackendToolFilesRead(".")))
    assert result.kind == "os_error"
    assert "is a directory" in result.message


def test_reading_a_pipe_is_a_failure_and_does_not_wait(
    sandbox: BackendSandbox, workspace: Path
) -> None:
    os.mkfifo(workspace / "pipe")
    result = failure(sandbox.dispatch(BackendToolFilesRead("pipe")))
    assert "not a regular file" in result.message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_reading_without_permission_is_a_failure(sandbox: BackendSandbox, workspace: Path) -> None:
    (workspace / "locked").write_text("x")
    (workspace / "locked").chmod(0)
    assert failure(sandbox.dispatch(BackendToolFilesRead("locked"))).kind == "os_error"


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "base64", "no-such-encoding"])
def test_what_cannot_be_decoded_is_a_failure_that_names_the_encoding(
    sandbox: BackendSandbox, workspace: Path, encoding: str
) -> None:
    (workspace / "raw.bin").write_bytes(b"\xff\x00\xfe")
    result = failure(sandbox.dispatch(BackendToolFilesRead("raw.bin", encoding)))
    assert (result.kind, result.detail) == ("decode_error", encoding)
    assert repr(encoding) in result.message


def test_another_encoding_is_obeyed(sandbox: BackendSandbox, workspace: Path) -> None:
    (workspace / "old.txt").write_bytes("Übung".encode("latin-1"))
    assert sandbox.dispatch(BackendToolFilesRead("old.txt", "latin-1")) == FileContent("Übung")


def test_a_huge_file_is_a_failure_that_says_its_size(
    sandbox: BackendSandbox, workspace: Path
) -> None:
    with (workspace / "huge.bin").open("wb") as file:
        file.truncate(MAX_READ_BYTES + 1)
    result = failure(sandbox.dispatch(BackendToolFilesRead("huge.bin", None)))
    assert result.kind == "file_too_large"
    assert str(MAX_READ_BYTES + 1) in result.message


def test_a_listing_is_sorted_and_its_paths_can_be_read(
    sandbox: BackendSandbox, workspace: Path
) -> None:
    for name in ("b.txt", "a.txt"):
        (workspace / "sub").mkdir(exist_ok=True)
        (workspace / "sub" / name).write_text(name)
    listing = sandbox.dispatch(BackendToolFilesList("sub"))
    assert isinstance(listing, FileEntries)
    assert [entry.name for entry in listing.entries] == ["a.txt", "b.txt"]
    path = listing.entries[0].path
    assert path == str(workspace / "sub" / "a.txt")
    assert sandbox.dispatch(BackendToolFilesRead(path)) == FileContent("a.txt")


def test_a_listing_follows_links_to_directories_inside_only(
    sandbox: BackendSandbox, workspace: Path
) -> None:
    (workspace / "dir").mkdir()
    (workspace / "in").symlink_to("dir")
    (workspace / "out").symlink_to("/etc")
    listing = sandbox.dispatch(BackendToolFilesList("."))
    assert isinstance(listing, FileEntries)
    assert {entry.name: entry.is_dir for entry in listing.entries} == {
        "dir": True,
        "in": True,
        "out": False,
    }


@pytest.mark.parametrize("path", ["missing", "file.txt"])
def test_listing_what_is_no_directory_is_a_failure(
    sandbox: BackendSandbox, workspace: Path, path: str
) -> None:
    (workspace / "file.txt").write_text("x")
    assert failure(sandbox.dispatch(BackendToolFilesList(path))).kind == "os_error"


@pytest.mark.parametrize(
    ("path", "expected"),
    [("file.txt", True), (".", True), ("missing", False), ("file.txt/x", False), ("hole", False)],
)
def test_a_path_exists_or_not(
    sandbox: BackendSandbox, workspace: Path, path: str, expected: bool
) -> None:
    (workspace / "file.txt").write_text("x")
    (workspace / "hole").symlink_to("nowhere")
    assert sandbox.dispatch(BackendToolFilesExists(path)) is expected
