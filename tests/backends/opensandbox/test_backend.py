"""The life of a sandbox on a server, and the contract of its backend."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rath._async.runtime import runtime
from rath.backend import (
    BackendError,
    BackendSandbox,
    BackendSandboxClosed,
    BackendSandboxSpec,
    BackendToolCommandRun,
    BackendToolFilesExists,
    BackendToolFilesRead,
    BackendToolFilesWrite,
    CommandResult,
    FileContent,
    ToolExecutionFailure,
)
from rath.backend.abc import SandboxLimits
from rath.backend.opensandbox import OpenSandboxBackend
from rath.conformance import check_backend
from tests.support.opensandbox_server import Answer, Drop, Gate, OpenSandboxServer


@pytest.mark.timeout(300)
def test_it_keeps_the_contract(backend: OpenSandboxBackend) -> None:
    report = check_backend(backend)
    passed = {each.check for each in report.findings if each.status == "passed"}
    assert {
        "commands_tell_what_they_changed",
        "code_tells_output_and_error",
        "neither_sees_what_the_other_writes_later",
        "a_copy_of_a_copy_knows_where_it_came_from",
    } <= passed


CREATE = ("POST", "/v1/sandboxes")


def _said(sandbox: BackendSandbox, line: str) -> bytes:
    result = sandbox.dispatch(BackendToolCommandRun(line))
    assert isinstance(result, CommandResult), result
    return result.stdout


def _created(server: OpenSandboxServer) -> Sequence[dict[str, object]]:
    return [request.json() for request in server.matching(*CREATE)]


def test_what_is_opened_is_what_the_documents_say(
    backend: OpenSandboxBackend, opensandbox_server: OpenSandboxServer
) -> None:
    sandbox = backend.open()
    (body,) = _created(opensandbox_server)
    backend.close(sandbox)
    assert body["image"] == {"uri": "opensandbox/code-interpreter:v1.1.0"}
    assert body["entrypoint"] == ["/opt/code-interpreter/code-interpreter.sh"]
    assert body["timeout"] == 600
    assert "volumes" not in body


def test_a_spec_is_passed_on(
    backend: OpenSandboxBackend, opensandbox_server: OpenSandboxServer
) -> None:
    spec = BackendSandboxSpec(
        image="python:3.11",
        entrypoint=["sleep", "inf"],
        env={"GREETING": "hello"},
        timeout=timedelta(minutes=3),
        limits=SandboxLimits(memory_bytes=300 << 20),
    )
    sandbox = backend.open(spec)
    (body,) = _created(opensandbox_server)
    assert _said(sandbox, "echo $GREETING") == b"hello\n"
    backend.close(sandbox)
    assert (body["image"], body["timeout"]) == ({"uri": "python:3.11"}, 180)
    assert body["entrypoint"] == ["sleep", "inf"]
    assert body["resourceLimits"] == {"cpu": "1", "memory": "300Mi"}


def test_its_handle_is_its_id_and_its_place_is_inside(
    sandbox: BackendSandbox, opensandbox_server: OpenSandboxServer
) -> None:
    place = sandbox.describe()
    assert [sandbox.handle] == opensandbox_server.sandbox_ids
    assert (place.backend, place.sandbox_id) == ("opensandbox", sandbox.handle)
    assert (place.isolation, place.root, place.cwd) == ("container", "/workspace", "/workspace")


def test_closing_from_many_threads_ends_it_once(
    backend: OpenSandboxBackend, opensandbox_server: OpenSandboxServer
) -> None:
    sandbox = backend.open()
    assert backend.sandbox_count() == 1
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(backend.close, sandbox) for _ in range(8)]:
            done.result()
    assert len(opensandbox_server.matching("DELETE", f"/v1/sandboxes/{sandbox.handle}")) == 1
    assert opensandbox_server.sandbox_ids == []
    assert backend.sandbox_count() == 0


def test_closing_what_has_ended_already_is_no_error(
    backend: OpenSandboxBackend, opensandbox_server: OpenSandboxServer
) -> None:
    sandbox = backend.open()
    opensandbox_server.advance(601)
    backend.close(sandbox)
    assert sandbox.closed


def test_a_sandbox_that_cannot_be_ended_says_until_when_it_lives(
    backend: OpenSandboxBackend, opensandbox_server: OpenSandboxServer
) -> None:
    sandbox = backend.open()
    refused = Answer(500, {"code": "DOCKER::ERROR", "message": "the engine is away"})
    opensandbox_server.inject("DELETE", "/v1/sandboxes/*", refused)
    with pytest.raises(BackendError, match=r"ends with its lifetime.*the engine is away"):
        backend.close(sandbox)


def test_an_expired_sandbox_says_that_it_is_gone(
    sandbox: BackendSandbox, opensandbox_server: OpenSandboxServer
) -> None:
    opensandbox_server.advance(601)
    for call in (BackendToolCommandRun("true"), BackendToolFilesRead("x")):
        result = sandbox.dispatch(call)
        assert isinstance(result, ToolExecutionFailure)
        assert result.kind == "sandbox_closed"
        assert "lifetime of 0:10:00" in result.message


def test_a_renewed_sandbox_lives_longer(
    backend: OpenSandboxBackend, sandbox: BackendSandbox, opensandbox_server: OpenSandboxServer
) -> None:
    before = datetime.now(UTC)
    until = backend.renew(sandbox, timedelta(hours=1))
    opensandbox_server.advance(1200)
    assert until - before > timedelta(minutes=59)
    assert _said(sandbox, "echo here") == b"here\n"


def test_a_closed_sandbox_is_not_renewed(backend: OpenSandboxBackend) -> None:
    sandbox = backend.open()
    backend.close(sandbox)
    with pytest.raises(BackendSandboxClosed):
        backend.renew(sandbox, timedelta(hours=1))


def test_an_expired_sandbox_is_not_renewed(
    backend: OpenSandboxBackend, sandbox: BackendSandbox, opensandbox_server: OpenSandboxServer
) -> None:
    opensandbox_server.advance(601)
    with pytest.raises(BackendSandboxClosed):
        backend.renew(sandbox, timedelta(hours=1))


def test_another_backend_attaches_by_id(
    backend: OpenSandboxBackend, sandbox: BackendSandbox, opensandbox_server: OpenSandboxServer
) -> None:
    sandbox.dispatch(BackendToolFilesWrite("a.txt", "kept"))
    server = opensandbox_server
    other = OpenSandboxBackend(domain=server.domain, api_key=server.api_key)
    attached = other.attach(sandbox.handle)
    found = attached.dispatch(BackendToolFilesRead("a.txt"))
    assert found == FileContent("kept")
    assert (attached.handle, other.sandbox_count()) == (sandbox.handle, 1)
    other.close(attached)
    assert server.sandbox_ids == []


def test_a_handle_of_a_known_id_connects_on_first_use(
    backend: OpenSandboxBackend, sandbox: BackendSandbox
) -> None:
    again = BackendSandbox(backend, sandbox.handle)
    assert _said(again, "echo here") == b"here\n"
    backend.detach(again)


def test_attaching_to_nothing_says_so(backend: OpenSandboxBackend) -> None:
    with pytest.raises(BackendSandboxClosed):
        backend.attach("00000000-0000-0000-0000-000000000000")
    with pytest.raises(ValueError, match="needs the id"):
        backend.attach("")
    assert backend.sandbox_count() == 0


def test_a_refused_attachment_is_an_error_of_the_backend(
    backend: OpenSandboxBackend, opensandbox_server: OpenSandboxServer
) -> None:
    refused = Answer(401, {"code": "INVALID_API_KEY", "message": "wrong key"})
    opensandbox_server.inject("GET", "/v1/sandboxes/*", refused)
    with pytest.raises(BackendError, match="wrong key"):
        backend.attach("00000000-0000-0000-0000-000000000000")


def test_a_detached_sandbox_goes_on(
    backend: OpenSandboxBackend, opensandbox_server: OpenSandboxServer
) -> None:
    sandbox = backend.open()
    remote_id = backend.detach(sandbox)
    backend.close(sandbox)
    assert sandbox.closed
    assert opensandbox_server.sandbox_ids == [remote_id]
    again = backend.attach(remote_id)
    assert _said(again, "echo here") == b"here\n"
    backend.close(again)


def test_a_wrong_key_is_told_and_not_shown(opensandbox_server: OpenSandboxServer) -> None:
    backend = OpenSandboxBackend(domain=opensandbox_server.domain, api_key="a-wrong-long-api-key")
    with pytest.raises(BackendError, match=r"INVALID_API_KEY|API key") as caught:
        backend.open()
    assert "a-wrong-long-api-key" not in str(caught.value)


def test_an_image_that_cannot_be_fetched_is_told(backend: OpenSandboxBackend) -> None:
    with pytest.raises(BackendError, match="Failed to pull image"):
        backend.open(BackendSandboxSpec(image="localhost/none:1"))


def test_a_sandbox_whose_answer_was_lost_is_found_and_not_made_again(
    backend: OpenSandboxBackend, opensandbox_server: OpenSandboxServer
) -> None:
    opensandbox_server.inject(*CREATE, Drop("after"))
    sandbox = backend.open()
    assert opensandbox_server.calls[CREATE] == 1
    assert [sandbox.handle] == opensandbox_server.sandbox_ids
    backend.close(sandbox)


def test_a_request_that_was_lost_is_not_sent_again(
    backend: OpenSandboxBackend, opensandbox_server: OpenSandboxServer
) -> None:
    opensandbox_server.inject(*CREATE, Drop("before"))
    with pytest.raises(BackendError, match="no sandbox could be opened"):
        backend.open()
    assert opensandbox_server.calls[CREATE] == 1


def test_where_nobody_knows_whether_it_was_opened_that_is_said(
    backend: OpenSandboxBackend, opensandbox_server: OpenSandboxServer
) -> None:
    opensandbox_server.inject(*CREATE, Drop("after"))
    away = Answer(500, {"code": "AWAY", "message": "away"})
    opensandbox_server.inject("GET", "/v1/sandboxes", away, times=None)
    with pytest.raises(BackendError, match="has the metadata rath-opening="):
        backend.open()


def test_a_sandbox_without_a_workspace_is_not_left_behind(
    backend: OpenSandboxBackend, opensandbox_server: OpenSandboxServer
) -> None:
    full = Answer(500, {"code": "RUNTIME_ERROR", "message": "no space left"})
    opensandbox_server.inject("POST", "/directories", full)
    with pytest.raises(BackendError, match="no space left"):
        backend.open()
    assert opensandbox_server.sandbox_ids == []


def test_a_cancelled_opening_leaves_no_sandbox(
    backend: OpenSandboxBackend, opensandbox_server: OpenSandboxServer
) -> None:
    gate = Gate()
    opensandbox_server.inject(*CREATE, gate)
    lazy = backend.lazy()
    running = runtime().submit(lazy.aopened, label="opening")
    assert gate.reached.wait(50)
    runtime().cancel(running)
    with pytest.raises(BaseException):  # noqa: B017, PT011  # CancelledError is none of Exception
        running.future.result(50)
    gate.release()
    opensandbox_server.wait_for("DELETE", "/v1/sandboxes/*")
    assert opensandbox_server.calls[CREATE] == 1
    # What comes after it is answered after it, too.
    backend.close(backend.open())
    assert opensandbox_server.sandbox_ids == []


def test_after_a_restart_of_the_server_it_goes_on(
    sandbox: BackendSandbox, opensandbox_server: OpenSandboxServer
) -> None:
    sandbox.dispatch(BackendToolFilesWrite("a.txt", "kept"))
    opensandbox_server.restart()
    assert _said(sandbox, "cat a.txt") == b"kept"


def test_a_working_dir_is_mounted(
    backend: OpenSandboxBackend, opensandbox_server: OpenSandboxServer, tmp_path: Path
) -> None:
    workspace = tmp_path / "new" / "workspace"
    sandbox = backend.open(BackendSandboxSpec(working_dir=str(workspace)))
    (body,) = _created(opensandbox_server)
    sandbox.dispatch(BackendToolFilesWrite("a.txt", "seen"))
    backend.close(sandbox)
    volume = {"name": "rath-workspace", "host": {"path": str(workspace)}, "readOnly": False}
    assert body["volumes"] == [{**volume, "mountPath": "/workspace"}]
    assert (workspace / "a.txt").read_text() == "seen"


def test_a_working_dir_that_the_server_does_not_mount_is_left_out_with_a_warning(
    backend: OpenSandboxBackend,
    opensandbox_server: OpenSandboxServer,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    opensandbox_server.allowed_host_paths.clear()
    sandbox = backend.open(BackendSandboxSpec(working_dir=str(tmp_path)))
    assert sandbox.dispatch(BackendToolFilesExists(".")) is True
    backend.close(sandbox)
    assert ["volumes" in body for body in _created(opensandbox_server)] == [True, False]
    assert "does not mount the working_dir" in caplog.text


def test_a_working_dir_that_must_be_mounted_is_an_error_where_it_is_not(
    backend: OpenSandboxBackend,
    opensandbox_server: OpenSandboxServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RATH_OPENSANDBOX_STRICT_WORKSPACE_BIND", "1")
    opensandbox_server.allowed_host_paths.clear()
    with pytest.raises(BackendError, match="no sandbox could be opened"):
        backend.open(BackendSandboxSpec(working_dir=str(tmp_path)))
    assert opensandbox_server.calls[CREATE] == 1


def test_a_working_dir_that_cannot_be_made_is_an_error(
    backend: OpenSandboxBackend, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BackendError, match="cannot be made"):
        backend.open(BackendSandboxSpec(working_dir=str(tmp_path / "file" / "x")))


def test_a_snapshot_opens_another_sandbox(
    backend: OpenSandboxBackend, sandbox: BackendSandbox
) -> None:
    sandbox.dispatch(BackendToolFilesWrite("a.txt", "kept"))
    copy = backend.open_snapshot(backend.snapshot(sandbox, "one"))
    sandbox.dispatch(BackendToolFilesWrite("a.txt", "later"))
    assert copy.dispatch(BackendToolFilesRead("a.txt")) == FileContent("kept")
    assert copy.handle != sandbox.handle
    backend.close(copy)


def test_a_snapshot_that_is_not_there_opens_nothing(backend: OpenSandboxBackend) -> None:
    with pytest.raises(BackendError, match="no sandbox could be opened"):
        backend.open_snapshot("00000000-0000-0000-0000-000000000000")


def test_many_sandboxes_open_side_by_side(
    backend: OpenSandboxBackend, opensandbox_server: OpenSandboxServer
) -> None:
    barrier = threading.Barrier(3)

    def work(number: int) -> bytes:
        sandbox = backend.open()
        sandbox.dispatch(BackendToolFilesWrite("n.txt", str(number)))
        barrier.wait(50)
        said = _said(sandbox, "cat n.txt")
        backend.close(sandbox)
        return said

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(work, range(3)))
    assert found == [b"0", b"1", b"2"]
    assert opensandbox_server.sandbox_ids == []
