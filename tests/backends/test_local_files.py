"""File operations of the local backend."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.backend import (
    BackendSandbox,
    BackendToolFilesEdit,
    BackendToolFilesExists,
    BackendToolFilesList,
    BackendToolFilesRead,
    BackendToolFilesWrite,
    FileContent,
    FileEditResult,
    FileEntries,
    FileWriteResult,
)
from rath.backend.file_tools import MAX_READ_BYTES
from rath.backend.host.files import run_host_tool
from rath.backend.host.paths import Workspace
from tests.support.workspaces import failure


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_text_comes_back_as_written(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    workspace = Workspace.at(str(tmp_path_factory.getbasetemp()))
    written = run_host_tool(workspace, BackendToolFilesWrite("text.txt", text))
    assert written == FileWriteResult(len(text.encode()))
    assert run_host_tool(workspace, BackendToolFilesRead("text.txt")) == FileContent(text)


@given(data=st.binary(max_size=4096))
def test_bytes_come_back_as_written(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    workspace = Workspace.at(str(tmp_path_factory.getbasetemp()))
    run_host_tool(workspace, BackendToolFilesWrite("bytes.bin", data))
    assert run_host_tool(workspace, BackendToolFilesRead("bytes.bin", None)) == FileContent(data)


def test_a_write_leaves_nothing_else_behind(sandbox: BackendSandbox, workspace: Path) -> None:
    sandbox.dispatch(BackendToolFilesWrite("a.txt", "x"))
    assert os.listdir(workspace) == ["a.txt"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
@pytest.mark.parametrize(
    "op",
    [BackendToolFilesWrite("a", "new"), BackendToolFilesEdit("a", "old", "new")],
    ids=["write", "edit"],
)
def test_a_file_keeps_its_owner(
    sandbox: BackendSandbox, workspace: Path, op: BackendToolFilesWrite | BackendToolFilesEdit
) -> None:
    (workspace / "a").write_text("old")
    os.chown(workspace / "a", 1234, 2345)
    sandbox.dispatch(op)
    found = (workspace / "a").stat()
    assert ((workspace / "a").read_text(), found.st_uid, found.st_gid) == ("new", 1234, 2345)


@pytest.mark.parametrize(
    "op", [BackendToolFilesWrite("inside", "new"), BackendToolFilesEdit("inside", "old", "new")]
)
def test_a_change_does_not_reach_through_a_hard_link(
    sandbox: BackendSandbox,
    workspace: Path,
    tmp_path: Path,
    op: BackendToolFilesWrite | BackendToolFilesEdit,
) -> None:
    (tmp_path / "outside").write_text("old")
    (workspace / "inside").hardlink_to(tmp_path / "outside")
    sandbox.dispatch(op)
    assert (tmp_path / "outside").read_text() == "old"
    assert (workspace / "inside").read_text() == "new"


def test_a_failed_write_leaves_nothing_behind(sandbox: BackendSandbox, workspace: Path) -> None:
    (workspace / "taken").mkdir()
    result = failure(sandbox.dispatch(BackendToolFilesWrite("taken", "x")))
    assert result.kind == "os_error"
    assert os.listdir(workspace) == ["taken"]


def test_text_that_is_not_unicode_is_a_failure(sandbox: BackendSandbox, workspace: Path) -> None:
    result = failure(sandbox.dispatch(BackendToolFilesWrite("a.txt", "\ud800")))
    assert result.kind == "encode_error"
    assert os.listdir(workspace) == []


def test_reading_a_directory_is_a_failure(sandbox: BackendSandbox) -> None:
    result = failure(sandbox.dispatch(BackendToolFilesRead(".")))
    assert result.kind == "os_error"
    assert "is a directory" in result.message


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


def test_bits_that_give_rights_are_never_set(sandbox: BackendSandbox, workspace: Path) -> None:
    sandbox.dispatch(BackendToolFilesWrite("run.sh", "true", mode=0o7755))
    assert stat.S_IMODE((workspace / "run.sh").stat().st_mode) == 0o755


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    # By its name in a directory that is held open: the path of a socket must be short.
    with socket.socket(socket.AF_UNIX) as listener:
        above = os.open(path.parent, os.O_RDONLY)
        listener.bind(f"/proc/self/fd/{above}/{path.name}")
        os.close(above)


def make_device(path: Path) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("making a device needs more rights")


@pytest.mark.parametrize("make", [make_pipe, make_socket, make_device])
def test_what_is_no_file_is_neither_read_nor_edited_and_a_write_replaces_it(
    sandbox: BackendSandbox, workspace: Path, make: Callable[[Path], None]
) -> None:
    make(workspace / "it")
    for op in (BackendToolFilesRead("it", None, 0, 5), BackendToolFilesEdit("it", "a", "b")):
        assert "not a regular file" in failure(sandbox.dispatch(op)).message
    assert sandbox.dispatch(BackendToolFilesWrite("it", "new")) == FileWriteResult(3)
    assert sandbox.dispatch(BackendToolFilesRead("it")) == FileContent("new")


def test_a_hard_link_is_a_file_of_the_workspace(
    sandbox: BackendSandbox, workspace: Path, tmp_path: Path
) -> None:
    (tmp_path / "outside.txt").write_text("shared")
    (workspace / "inside.txt").hardlink_to(tmp_path / "outside.txt")
    assert sandbox.dispatch(BackendToolFilesRead("inside.txt")) == FileContent("shared")


@pytest.mark.parametrize("name", ["two\nlines", "a\udcffb", "'; true", "\u202e", "-rf", "~"])
def test_odd_names_are_listed_read_written_and_edited(sandbox: BackendSandbox, name: str) -> None:
    assert sandbox.dispatch(BackendToolFilesWrite(name, "one")) == FileWriteResult(3)
    listing = sandbox.dispatch(BackendToolFilesList("."))
    assert isinstance(listing, FileEntries)
    (entry,) = listing.entries
    assert entry.name == name
    assert isinstance(
        sandbox.dispatch(BackendToolFilesEdit(entry.path, "one", "2")), FileEditResult
    )
    assert sandbox.dispatch(BackendToolFilesRead(entry.path)) == FileContent("2")


@pytest.mark.parametrize("path", ["x" * 300, "d/" * 3000 + "x", "\ud800"])
def test_a_path_that_cannot_be_is_a_failure(
    sandbox: BackendSandbox, workspace: Path, path: str
) -> None:
    for op in (
        BackendToolFilesRead(path),
        BackendToolFilesWrite(path, "x"),
        BackendToolFilesEdit(path, "x", "y"),
        BackendToolFilesList(path),
    ):
        assert failure(sandbox.dispatch(op)).kind == "os_error"
    assert os.listdir(workspace) == []


def test_processes_have_no_links_into_the_workspace(
    sandbox: BackendSandbox, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace / "a.txt").write_text("x")
    monkeypatch.chdir(workspace)
    for path in (
        "/proc/self/cwd/a.txt",
        f"/proc/self/root{workspace}/a.txt",
        "//proc/self/environ",
    ):
        assert (
            failure(sandbox.dispatch(BackendToolFilesRead(path))).kind == "path_outside_workspace"
        )
