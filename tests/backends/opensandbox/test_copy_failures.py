"""Copies on a server that cannot be made: said why, nothing lost unsaid, nothing left behind."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from rath._async.runtime import runtime
from rath.backend import (
    BackendError,
    BackendSandbox,
    BackendSandboxClosed,
    BackendSandboxSpec,
    BackendToolCommandRun,
    BackendToolFilesWrite,
    NewFile,
    ToolExecutionFailure,
)
from rath.backend.opensandbox import OpenSandboxBackend
from rath.testing import FakeBackend
from tests.support.opensandbox_copies import (
    FILE,
    content,
    lazy_copy,
    printed,
    read,
    settle,
    waited,
    write,
)
from tests.support.opensandbox_server import Answer, Drop, Gate, OpenSandboxServer

pytestmark = pytest.mark.usefixtures("nothing_left")

SNAP = ("POST", "/v1/sandboxes/*/snapshots")
STATE = ("GET", "/v1/snapshots/*")
NONE = Answer(501, {"code": "SNAPSHOT::UNSUPPORTED", "message": "this runtime has no snapshots"})


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(NONE, id="501"),
        pytest.param(Answer(404, {"detail": "Not Found"}), id="404"),
        pytest.param(Answer(500, {"code": "DOCKER::ERROR", "message": "disk full"}), id="500"),
    ],
)
def test_where_there_is_no_snapshot_nothing_is_done_and_that_is_said(
    sandbox: BackendSandbox, opensandbox_server: OpenSandboxServer, answer: Answer
) -> None:
    write(sandbox, "a.txt", "before")
    opensandbox_server.inject(*SNAP, answer, times=None)
    frozen = sandbox.freeze()
    for call in (BackendToolFilesWrite("a.txt", "x"), BackendToolCommandRun("echo x > a.txt")):
        failure = sandbox.dispatch(call)
        assert isinstance(failure, ToolExecutionFailure)
        assert failure.kind == "workspace_copy_failed"
        assert "made no snapshot" in failure.message
    assert read(sandbox, "a.txt") == "before"
    assert content(frozen, "a.txt") == b"before"
    del frozen
    gc.collect()
    write(sandbox, "a.txt", "after")


def test_a_copy_that_needs_a_snapshot_names_the_reason(
    backend: OpenSandboxBackend, sandbox: BackendSandbox, opensandbox_server: OpenSandboxServer
) -> None:
    opensandbox_server.inject(*SNAP, NONE)
    copy = lazy_copy(backend, sandbox.freeze())
    with pytest.raises(BackendError, match="this runtime has no snapshots"):
        copy.ensure_open()
    assert opensandbox_server.sandbox_ids == [sandbox.handle]
    # The failure is not kept.
    copy.ensure_open()
    backend.close(copy)


@pytest.mark.parametrize("state", ["Failed", "Deleting"])
def test_a_snapshot_that_fails_later_is_a_failure_and_is_deleted(
    sandbox: BackendSandbox, opensandbox_server: OpenSandboxServer, state: str
) -> None:
    frozen = sandbox.freeze()
    body = {
        "id": "x", "sandboxId": sandbox.handle, "createdAt": "2026-01-01T00:00:00Z",
        "status": {"state": state, "reason": "snapshot_capture_failed", "message": "disk full"},
    }  # fmt: skip
    opensandbox_server.inject(*STATE, Answer(200, body))
    failure = sandbox.dispatch(BackendToolFilesWrite("a.txt", "x"))
    assert isinstance(failure, ToolExecutionFailure)
    assert "disk full" in failure.message
    settle(opensandbox_server, 1)
    assert waited(frozen.amanifest) == {}


def test_a_snapshot_is_waited_for(
    sandbox: BackendSandbox,
    opensandbox_server: OpenSandboxServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rath.backend.opensandbox.snapshots.SNAPSHOT_WAITS", (0.0,))
    body = {
        "id": "x", "sandboxId": sandbox.handle, "createdAt": "2026-01-01T00:00:00Z",
        "status": {"state": "Creating"},
    }  # fmt: skip
    opensandbox_server.inject(*STATE, Answer(200, body), times=3)
    write(sandbox, "a.txt", "before")
    frozen = sandbox.freeze()
    write(sandbox, "a.txt", "after")
    assert len(opensandbox_server.matching(*STATE)) == 4
    assert content(frozen, "a.txt") == b"before"


def test_a_snapshot_that_takes_too_long_is_a_failure(
    sandbox: BackendSandbox,
    opensandbox_server: OpenSandboxServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rath.backend.opensandbox.snapshots.SNAPSHOT_SECONDS", 0.05)
    gate = Gate()
    opensandbox_server.inject(*STATE, gate)
    frozen = sandbox.freeze()
    failure = sandbox.dispatch(BackendToolFilesWrite("a.txt", "x"))
    gate.release()
    assert isinstance(failure, ToolExecutionFailure)
    assert "was not ready within" in failure.message
    assert waited(frozen.amanifest) == {}


def test_a_snapshot_whose_answer_was_lost_is_found_and_not_made_again(
    sandbox: BackendSandbox, opensandbox_server: OpenSandboxServer
) -> None:
    write(sandbox, "a.txt", "before")
    frozen = sandbox.freeze()
    opensandbox_server.inject(*SNAP, Drop("after"))
    write(sandbox, "a.txt", "after")
    assert content(frozen, "a.txt") == b"before"
    assert len(opensandbox_server.matching(*SNAP)) == 1


def test_a_snapshot_that_was_never_asked_for_is_a_failure(
    sandbox: BackendSandbox, opensandbox_server: OpenSandboxServer
) -> None:
    frozen = sandbox.freeze()
    opensandbox_server.inject(*SNAP, Drop("before"))
    failure = sandbox.dispatch(BackendToolFilesWrite("a.txt", "x"))
    assert isinstance(failure, ToolExecutionFailure)
    assert failure.kind == "workspace_copy_failed"
    assert waited(frozen.amanifest) == {}


def test_closing_without_a_snapshot_ends_the_sandbox_and_says_what_is_lost(
    backend: OpenSandboxBackend, opensandbox_server: OpenSandboxServer
) -> None:
    source = backend.open()
    frozen = source.freeze()
    opensandbox_server.inject(*SNAP, NONE, times=None)
    with pytest.raises(BackendError, match="are lost: the server made no snapshot"):
        backend.close(source)
    assert opensandbox_server.sandbox_ids == []
    with pytest.raises(BackendError, match="is not on the server any more"):
        waited(frozen.amanifest)


def test_letting_go_without_a_snapshot_is_refused(
    backend: OpenSandboxBackend, sandbox: BackendSandbox, opensandbox_server: OpenSandboxServer
) -> None:
    frozen = sandbox.freeze()
    opensandbox_server.inject(*SNAP, NONE)
    with pytest.raises(BackendError, match="was not let go"):
        backend.detach(sandbox)
    write(sandbox, "a.txt", "x")
    assert waited(frozen.amanifest) == {}


def test_a_source_that_expired_takes_its_frozen_files_with_it(
    backend: OpenSandboxBackend, opensandbox_server: OpenSandboxServer
) -> None:
    source = backend.open()
    frozen = source.freeze()
    opensandbox_server.advance(601)
    failure = source.dispatch(BackendToolFilesWrite("a.txt", "x"))
    assert isinstance(failure, ToolExecutionFailure)
    assert failure.kind == "sandbox_closed"
    with pytest.raises(BackendError, match="is not on the server any more"):
        waited(frozen.amanifest)
    with pytest.raises(BackendError, match="a copy of a workspace cannot be opened"):
        lazy_copy(backend, frozen).ensure_open()
    backend.close(source)


def test_a_mounted_workspace_is_refused_at_the_call(
    backend: OpenSandboxBackend, tmp_path: Path
) -> None:
    spec = BackendSandboxSpec(working_dir=str(tmp_path))
    opened = backend.open(spec)
    for sandbox in (opened, backend.lazy(spec)):
        with pytest.raises(BackendError, match="use a sandbox without working_dir"):
            sandbox.freeze()
    backend.close(opened)


def test_a_mount_that_nobody_told_of_is_found(backend: OpenSandboxBackend, tmp_path: Path) -> None:
    opened = backend.open(BackendSandboxSpec(working_dir=str(tmp_path)))
    attached = backend.attach(opened.handle)
    frozen = attached.freeze()
    failure = attached.dispatch(BackendToolFilesWrite("a.txt", "x"))
    assert isinstance(failure, ToolExecutionFailure)
    assert failure.kind == "workspace_copy_failed"
    assert "is mounted" in failure.message
    del frozen
    gc.collect()
    backend.detach(attached)
    backend.close(opened)


def test_a_closed_sandbox_is_not_frozen(backend: OpenSandboxBackend) -> None:
    sandbox = backend.open()
    backend.close(sandbox)
    with pytest.raises(BackendSandboxClosed):
        sandbox.freeze()


def test_files_of_another_backend_are_no_beginning(backend: OpenSandboxBackend) -> None:
    copy = lazy_copy(backend, FakeBackend().lazy().freeze())
    with pytest.raises(BackendError, match="fork on the backend where the files are"):
        copy.ensure_open()


@pytest.mark.parametrize("path", ["../out", "a/b/c"])
def test_a_copy_that_cannot_be_made_is_not_left_behind(
    backend: OpenSandboxBackend,
    sandbox: BackendSandbox,
    opensandbox_server: OpenSandboxServer,
    path: str,
) -> None:
    printed(sandbox, "mkdir -p a/b/c/full")
    copy = lazy_copy(backend, sandbox.freeze(), {path: NewFile(b"x", FILE)})
    with pytest.raises(BackendError, match="no sandbox could be opened"):
        copy.ensure_open()
    assert opensandbox_server.sandbox_ids == [sandbox.handle]


@pytest.mark.parametrize("where", [SNAP, ("POST", "/v1/sandboxes"), ("POST", "/directories")])
def test_a_cancelled_opening_leaves_nothing_behind(
    backend: OpenSandboxBackend,
    sandbox: BackendSandbox,
    opensandbox_server: OpenSandboxServer,
    where: tuple[str, str],
) -> None:
    gate = Gate()
    opensandbox_server.inject(*where, gate)
    copy = lazy_copy(backend, sandbox.freeze())
    running = runtime().submit(copy.aopened, label="opening")
    assert gate.reached.wait(50)
    runtime().cancel(running)
    with pytest.raises(BaseException):  # noqa: B017, PT011  # CancelledError is none of Exception
        running.future.result(50)
    gate.release()
    del copy, running
    settle(opensandbox_server, 1)
    backend.close(backend.open())
    assert opensandbox_server.sandbox_ids == [sandbox.handle]
