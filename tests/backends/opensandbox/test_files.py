"""Files of a sandbox, through the API of its server."""

from __future__ import annotations

import posixpath
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.backend import (
    BackendSandbox,
    BackendTool,
    BackendToolFilesExists,
    BackendToolFilesList,
    BackendToolFilesRead,
    BackendToolFilesWrite,
    FileContent,
    FileEntries,
    FileEntry,
    FileWriteResult,
)
from rath.backend.file_tools import MAX_READ_BYTES, OutsideWorkspace
from rath.backend.opensandbox.files import absolute, is_in_workspace, relative
from rath.backend.tool_types import BackendToolFilesEdit
from tests.support.opensandbox_calls import Remote, failed, stdout
from tests.support.opensandbox_server import Answer, Drop


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (".", "/workspace"),
        ("./", "/workspace"),
        ("", "/workspace"),
        ("./x", "/workspace/x"),
        ("x", "/workspace/x"),
        ("a/../b", "/workspace/b"),
        ("/etc/hosts", "/etc/hosts"),
        ("/workspace/../etc", "/workspace/../etc"),
    ],
)
def test_a_path_is_preserved_or_starts_at_the_workspace(path: str, expected: str) -> None:
    assert absolute(path) == expected


@pytest.mark.parametrize("path", ["..", "../x", "a/../../x", "../workspace2/x"])
def test_a_relative_path_stays_inside(path: str) -> None:
    with pytest.raises(OutsideWorkspace, match="leads out of the workspace"):
        absolute(path)


@given(st.lists(st.sampled_from(["a", "b", "..", ".", ""])).map("/".join))
def test_whatever_a_relative_path_is_it_stays_inside(path: str) -> None:
    if path.startswith("/"):
        return
    try:
        found = absolute(path)
    except OutsideWorkspace:
        assert ".." in path
    else:
        assert is_in_workspace(found)
        assert posixpath.join("/workspace", relative(found)) in (found, f"{found}/.")


def test_a_path_elsewhere_stays_absolute() -> None:
    assert relative("/etc/hosts") == "/etc/hosts"
    assert not is_in_workspace("/workspace2")


@pytest.mark.parametrize("data", ["text: äöü €\n", b"\xff\0raw", "", b""])
def test_a_file_comes_back_as_it_was_written(sandbox: BackendSandbox, data: str | bytes) -> None:
    n_bytes = len(data.encode() if isinstance(data, str) else data)
    written = sandbox.dispatch(BackendToolFilesWrite("deep/er/a", data))
    encoding = "utf-8" if isinstance(data, str) else None
    assert written == FileWriteResult(n_bytes)
    assert sandbox.dispatch(BackendToolFilesRead("deep/er/a", encoding)) == FileContent(data)


def test_an_edit_keeps_the_mode(sandbox: BackendSandbox) -> None:
    sandbox.dispatch(BackendToolFilesWrite("run.sh", "echo one\n", mode=0o750))
    sandbox.dispatch(BackendToolFilesEdit("run.sh", "one", "two"))
    assert stdout(sandbox, "stat -c %a run.sh; ./run.sh") == b"750\ntwo\n"


def test_an_edit_through_a_link_keeps_the_mode_of_the_file(sandbox: BackendSandbox) -> None:
    stdout(sandbox, "printf secret > s; chmod 600 s; ln -s s l")
    sandbox.dispatch(BackendToolFilesEdit("l", "secret", "public"))
    assert stdout(sandbox, "stat -c '%a %F' s l; cat s") == (
        b"600 regular file\n777 symbolic link\npublic"
    )


def test_a_link_that_leads_in_a_circle_is_not_edited(sandbox: BackendSandbox) -> None:
    stdout(sandbox, "ln -s odd odd")
    assert failed(sandbox, BackendToolFilesEdit("odd", "x", "y")).kind == "os_error"


def test_what_the_server_calls_no_file_is_not_edited(remote: Remote) -> None:
    times = dict.fromkeys(("modified_at", "created_at"), "2026-01-01T00:00:00Z")
    pipe = {"path": "/workspace/p", "type": "other", "size": 0, "mode": 644, **times}
    info = {"/workspace/p": {**pipe, "owner": "root", "group": "root"}}
    remote.server.inject("GET", "/files/info", Answer(200, info))
    remote.server.inject("GET", "/files/info", Answer(200, info))
    assert failed(remote.sandbox, BackendToolFilesEdit("p", "x", "y")).kind == "os_error"
    assert remote.server.matching("GET", "/files/download") == []


def test_a_name_is_taken_off_an_absolute_path_as_off_a_relative_one(
    sandbox: BackendSandbox,
) -> None:
    stdout(sandbox, "mkdir -p d/e; ln -s d/e l")
    sandbox.dispatch(BackendToolFilesWrite("/workspace/l/../a", "x"))
    assert sandbox.dispatch(BackendToolFilesRead("l/../a")) == FileContent("x")


def test_a_path_of_the_sandbox_may_be_absolute(sandbox: BackendSandbox) -> None:
    sandbox.dispatch(BackendToolFilesWrite("/tmp/a.txt", "there"))
    assert stdout(sandbox, "cat /tmp/a.txt") == b"there"


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (BackendToolFilesRead("missing"), "file_not_found"),
        (BackendToolFilesEdit("missing", "x", "y"), "file_not_found"),
        (BackendToolFilesList("missing"), "os_error"),
        (BackendToolFilesRead("."), "os_error"),
        (BackendToolFilesEdit(".", "x", "y"), "os_error"),
        (BackendToolFilesRead("a.bin"), "decode_error"),
        (BackendToolFilesRead("a.bin", "no-such-encoding"), "decode_error"),
        (BackendToolFilesEdit("a.bin", "x", "y"), "decode_error"),
        (BackendToolFilesRead("a.bin", None, -1), "bad_range"),
        (BackendToolFilesWrite("b.txt", "\ud800"), "encode_error"),
    ],
)
def test_what_cannot_be_done_is_a_failure_to_read(
    sandbox: BackendSandbox, call: BackendTool, kind: str
) -> None:
    sandbox.dispatch(BackendToolFilesWrite("a.bin", b"\xff\xfe"))
    failure = failed(sandbox, call)
    assert failure.kind == kind
    assert failure.message


def test_a_directory_is_listed_with_paths_that_lead_there(sandbox: BackendSandbox) -> None:
    for path in ("d/b.txt", "d/a.txt", "d/e/f.txt"):
        sandbox.dispatch(BackendToolFilesWrite(path, "x"))
    assert sandbox.dispatch(BackendToolFilesList("d")) == FileEntries(
        (
            FileEntry("a.txt", "/workspace/d/a.txt", False),
            FileEntry("b.txt", "/workspace/d/b.txt", False),
            FileEntry("e", "/workspace/d/e", True),
        )
    )


def test_a_server_that_is_away_is_not_taken_for_a_missing_file(remote: Remote) -> None:
    away = Answer(500, {"code": "RUNTIME_ERROR", "message": "the disk is away"})
    remote.server.inject("GET", "/files/info", away)
    failure = failed(remote.sandbox, BackendToolFilesExists("a.txt"))
    assert (failure.kind, failure.message) == ("sandbox_sdk_error", "the disk is away")


def test_lines_and_bytes_are_read_in_parts(sandbox: BackendSandbox) -> None:
    sandbox.dispatch(BackendToolFilesWrite("a.txt", "one\ntwo\nthree\n"))
    lines = sandbox.dispatch(BackendToolFilesRead("a.txt", offset=1, limit=1))
    raw = sandbox.dispatch(BackendToolFilesRead("a.txt", None, 4, 3))
    end = sandbox.dispatch(BackendToolFilesRead("a.txt", None, 8))
    past = sandbox.dispatch(BackendToolFilesRead("a.txt", None, 99))
    assert lines == FileContent("two\n", 2, 3)
    assert raw == FileContent(b"two", 7, 14)
    assert end == FileContent(b"three\n", None, 14)
    assert past == FileContent(b"", None, 14)


def test_only_the_asked_bytes_are_fetched(remote: Remote) -> None:
    remote.sandbox.dispatch(BackendToolFilesWrite("a.bin", b"0123456789"))
    remote.sandbox.dispatch(BackendToolFilesRead("a.bin", None, 2, 3))
    (asked,) = remote.server.matching("GET", "/files/download")
    assert asked.headers["range"] == "bytes=2-4"


def test_a_file_that_is_too_large_is_not_fetched(remote: Remote) -> None:
    stdout(remote.sandbox, f"truncate -s {MAX_READ_BYTES + 1} big; ln -s big link")
    for call in (BackendToolFilesRead("big"), BackendToolFilesEdit("big", "x", "y")):
        assert failed(remote.sandbox, call).kind == "file_too_large"
    assert remote.server.matching("GET", "/files/download") == []
    assert failed(remote.sandbox, BackendToolFilesRead("link")).kind == "file_too_large"


def test_a_link_is_read_through(sandbox: BackendSandbox) -> None:
    stdout(sandbox, "printf there > a.txt; : > empty; ln -s a.txt link; ln -s empty nothing")
    assert sandbox.dispatch(BackendToolFilesRead("link")) == FileContent("there")
    assert sandbox.dispatch(BackendToolFilesRead("nothing")) == FileContent("")


def test_a_write_whose_answer_was_lost_is_not_sent_again(remote: Remote) -> None:
    remote.server.inject("POST", "/files/upload", Drop("after"))
    failure = failed(remote.sandbox, BackendToolFilesWrite("a.txt", "x"))
    assert failure.kind == "sandbox_sdk_error"
    assert "may have taken effect or not" in failure.message
    assert remote.server.calls["POST", "/files/upload"] == 1


def test_writes_to_one_path_do_not_mix(remote: Remote) -> None:
    contents = [str(number) * 10_000 for number in range(6)]
    remote.sandbox.dispatch(BackendToolFilesWrite("a.txt", "-"))
    with ThreadPoolExecutor(6) as pool:
        list(
            pool.map(
                remote.sandbox.dispatch, [BackendToolFilesWrite("a.txt", each) for each in contents]
            )
        )
    found = remote.sandbox.dispatch(BackendToolFilesRead("a.txt"))
    assert isinstance(found, FileContent)
    assert found.data in contents
    assert len(remote.sandbox.native.path_locks) == 0


def test_edits_of_one_file_are_none_lost(sandbox: BackendSandbox) -> None:
    names = [f"name{number}" for number in range(5)]
    sandbox.dispatch(BackendToolFilesWrite("a.txt", "\n".join(names)))
    edits = [BackendToolFilesEdit("a.txt", name, name.upper()) for name in names]
    with ThreadPoolExecutor(5) as pool:
        list(pool.map(sandbox.dispatch, edits))
    expected = "\n".join(name.upper() for name in names)
    assert sandbox.dispatch(BackendToolFilesRead("a.txt")) == FileContent(expected)
