"""Frozen files of a sandbox of a server: found there or in a snapshot, and never changed."""

from __future__ import annotations

import gc
from functools import partial

import pytest

from rath._async.runtime import runtime
from rath.backend import (
    BackendError,
    BackendSandbox,
    BackendToolFilesExists,
    BackendToolFilesWrite,
    FrozenWorkspace,
)
from rath.backend.changes import manifest_digest
from rath.backend.opensandbox import OpenSandboxBackend
from rath.testing import FakeBackend
from tests.support.opensandbox_copies import (
    content,
    lazy_copy,
    printed,
    read,
    waited,
    write,
)
from tests.support.opensandbox_server import Answer, Gate, OpenSandboxServer

pytestmark = pytest.mark.usefixtures("nothing_left")

SNAP = ("POST", "/v1/sandboxes/*/snapshots")


def test_freezing_alone_asks_the_server_for_nothing(
    sandbox: BackendSandbox, opensandbox_server: OpenSandboxServer
) -> None:
    n_requests = len(opensandbox_server.requests)
    frozen = sandbox.freeze()
    assert sandbox.freeze() is frozen
    assert len(opensandbox_server.requests) == n_requests


def test_what_nobody_holds_takes_no_snapshot(
    sandbox: BackendSandbox, opensandbox_server: OpenSandboxServer
) -> None:
    sandbox.freeze()
    gc.collect()
    write(sandbox, "a.txt", "x")
    assert opensandbox_server.matching(*SNAP) == []


def test_reading_takes_no_snapshot_and_one_is_taken_before_the_first_change(
    sandbox: BackendSandbox, opensandbox_server: OpenSandboxServer
) -> None:
    write(sandbox, "a.txt", "before")
    frozen = sandbox.freeze()
    read(sandbox, "a.txt")
    sandbox.dispatch(BackendToolFilesExists("a.txt"))
    assert content(frozen, "a.txt") == b"before"
    assert opensandbox_server.matching(*SNAP) == []
    for text in ("after", "later"):
        write(sandbox, "a.txt", text)
    assert len(opensandbox_server.matching(*SNAP)) == 1
    assert content(frozen, "a.txt") == b"before"


def test_each_version_has_a_snapshot_of_its_own(
    sandbox: BackendSandbox, opensandbox_server: OpenSandboxServer
) -> None:
    held: list[FrozenWorkspace] = []
    for text in ("1", "2", "3"):
        write(sandbox, "a.txt", text)
        held.append(sandbox.freeze())
    write(sandbox, "a.txt", "4")
    assert [content(each, "a.txt") for each in held] == [b"1", b"2", b"3"]
    assert len(opensandbox_server.matching(*SNAP)) == 3


def test_frozen_files_are_told_as_they_were_in_the_sandbox(sandbox: BackendSandbox) -> None:
    printed(sandbox, "mkdir d; printf x > d/a; chmod 755 d/a; ln -s d/a link; : > empty")
    frozen = sandbox.freeze()
    here = waited(frozen.amanifest)
    assert manifest_digest(here) == sandbox.workspace_digest()
    assert {path: oct(state.mode) for path, state in here.items()} == {
        "d/a": "0o100755", "empty": "0o100644", "link": "0o120777",
    }  # fmt: skip
    printed(sandbox, "rm -r d link empty")
    assert [content(frozen, path) for path in ("d/a", "link", "empty")] == [b"x", b"d/a", b""]


def test_they_are_looked_at_in_a_snapshot_once_the_source_has_changed(
    sandbox: BackendSandbox,
) -> None:
    printed(sandbox, "printf x > a; printf y > b; chmod 700 b")
    digest = sandbox.workspace_digest()
    frozen = sandbox.freeze()
    printed(sandbox, "rm a")
    assert manifest_digest(waited(frozen.amanifest)) == digest
    assert manifest_digest(waited(frozen.amanifest)) == digest


@pytest.mark.parametrize("path", ["missing", "d", "../etc/passwd", "", "d/missing/x"])
def test_what_is_no_file_is_not_found(sandbox: BackendSandbox, path: str) -> None:
    printed(sandbox, "mkdir d")
    with pytest.raises(FileNotFoundError):
        content(sandbox.freeze(), path)


def test_a_reader_that_has_expired_is_opened_again(
    sandbox: BackendSandbox, backend: OpenSandboxBackend, opensandbox_server: OpenSandboxServer
) -> None:
    write(sandbox, "a.txt", "before")
    frozen = sandbox.freeze()
    write(sandbox, "a.txt", "after")
    assert content(frozen, "a.txt") == b"before"
    opensandbox_server.advance(601)
    assert content(frozen, "a.txt") == b"before"


def test_a_source_that_expired_is_read_in_its_snapshot(
    backend: OpenSandboxBackend, opensandbox_server: OpenSandboxServer
) -> None:
    source = backend.open()
    write(source, "a.txt", "kept")
    frozen = source.freeze()
    copy = lazy_copy(backend, frozen).ensure_open()
    opensandbox_server.advance(601)
    assert content(frozen, "a.txt") == b"kept"
    for each in (source, copy):
        backend.close(each)


def test_two_looks_at_once_open_one_reader(
    sandbox: BackendSandbox, opensandbox_server: OpenSandboxServer
) -> None:
    write(sandbox, "a.txt", "x")
    frozen = sandbox.freeze()
    write(sandbox, "a.txt", "y")
    reading = [runtime().submit(partial(frozen.aread, "a.txt"), label="r") for _ in range(3)]
    assert [each.future.result(50) for each in reading] == [b"x"] * 3
    assert len(opensandbox_server.matching("POST", "/v1/sandboxes")) == 2


def test_writers_wait_for_one_snapshot_and_for_those_who_read(
    sandbox: BackendSandbox, opensandbox_server: OpenSandboxServer
) -> None:
    write(sandbox, "a.txt", "before")
    frozen = sandbox.freeze()
    gate = Gate()
    opensandbox_server.inject(*SNAP, gate)
    calls = [BackendToolFilesWrite(f"{n}.txt", "x") for n in range(3)]
    writing = [runtime().submit(partial(sandbox.adispatch, each), label="w") for each in calls]
    assert gate.reached.wait(50)
    assert not sandbox.dispatch(BackendToolFilesExists("0.txt"))
    gate.release()
    for each in writing:
        each.future.result(50)
    assert len(opensandbox_server.matching(*SNAP)) == 1
    assert sorted(waited(frozen.amanifest)) == ["a.txt"]


def test_frozen_files_that_cannot_be_looked_at_say_so(
    sandbox: BackendSandbox, opensandbox_server: OpenSandboxServer
) -> None:
    write(sandbox, "a.txt", "x")
    frozen = sandbox.freeze()
    refused = Answer(500, {"code": "RUNTIME_ERROR", "message": "no more processes"})
    opensandbox_server.inject("POST", "/command", refused)
    with pytest.raises(BackendError, match=r"cannot be told apart.*no more processes"):
        waited(frozen.amanifest)
    opensandbox_server.inject("GET", "/files/info", refused)
    with pytest.raises(BackendError, match=r"could not be used: .*no more processes"):
        content(frozen, "a.txt")
    write(sandbox, "a.txt", "y")
    opensandbox_server.inject("GET", "/files/info", refused)
    with pytest.raises(BackendError, match=r"cannot be read: .*no more processes"):
        content(frozen, "a.txt")


def test_files_of_no_common_origin_have_no_base(backend: OpenSandboxBackend) -> None:
    one, other = backend.lazy().freeze(), backend.lazy().freeze()
    assert one.base_with(other) is None
    assert one.base_with(FakeBackend().lazy().freeze()) is None
