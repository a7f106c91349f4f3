"""The life of a sandbox on a server; its contract is run with those of the others."""

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
    FileContent,
)
from rath.backend.abc import SandboxLimits
from rath.backend.opensandbox import OpenSandboxBackend
from tests.support.opensandbox_calls import Remote, Service, failed, stdout
from tests.support.opensandbox_server import Answer, Drop, Gate, OpenSandboxServer

CREATE = ("POST", "/v1/sandboxes")


def _created(server: OpenSandboxServer) -> Sequence[dict[str, object]]:
    return [request.json() for request in server.matching(*CREATE)]


def test_what_is_opened_is_what_the_documents_say(service: Service) -> None:
    sandbox = service.backend.open()
    (body,) = _created(service.server)
    service.backend.close(sandbox)
    assert body["image"] == {"uri": "opensandbox/code-interpreter:v1.1.0"}
    assert body["entrypoint"] == ["/opt/code-interpreter/code-interpreter.sh"]
    assert body["timeout"] == 600
    assert "volumes" not in body


def test_a_spec_is_passed_on(service: Service) -> None:
    spec = BackendSandboxSpec(
        image="python:3.11",
        entrypoint=["sleep", "inf"],
        env={"GREETING": "hello"},
        timeout=timedelta(minutes=3),
        limits=SandboxLimits(memory_bytes=300 << 20),
    )
    sandbox = service.backend.open(spec)
    (body,) = _created(service.server)
    assert stdout(sandbox, "echo $GREETING") == b"hello\n"
    service.backend.close(sandbox)
    assert (body["image"], body["timeout"]) == ({"uri": "python:3.11"}, 180)
    assert body["entrypoint"] == ["sleep", "inf"]
    assert body["resourceLimits"] == {"cpu": "1", "memory": "300Mi"}


def test_its_handle_is_its_id_and_its_place_is_inside(remote: Remote) -> None:
    place = remote.sandbox.describe()
    assert [remote.sandbox.handle] == remote.server.sandbox_ids
    assert (place.backend, place.sandbox_id) == ("opensandbox", remote.sandbox.handle)
    assert (place.isolation, place.root, place.cwd) == ("container", "/workspace", "/workspace")


def test_closing_from_many_threads_ends_it_once(service: Service) -> None:
    sandbox = service.backend.open()
    assert service.backend.sandbox_count() == 1
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(service.backend.close, sandbox) for _ in range(8)]:
            done.result()
    assert len(service.server.matching("DELETE", f"/v1/sandboxes/{sandbox.handle}")) == 1
    assert service.server.sandbox_ids == []
    assert service.backend.sandbox_count() == 0


def test_closing_what_has_ended_already_is_no_error(service: Service) -> None:
    sandbox = service.backend.open()
    service.server.advance(601)
    service.backend.close(sandbox)
    assert sandbox.closed


def test_a_sandbox_that_cannot_be_ended_says_until_when_it_lives(service: Service) -> None:
    sandbox = service.backend.open()
    refused = Answer(500, {"code": "DOCKER::ERROR", "message": "the engine is away"})
    service.server.inject("DELETE", "/v1/sandboxes/*", refused)
    with pytest.raises(BackendError, match=r"ends with its lifetime.*the engine is away"):
        service.backend.close(sandbox)


def test_an_expired_sandbox_says_that_it_is_gone(remote: Remote) -> None:
    remote.server.advance(601)
    for call in (BackendToolCommandRun("true"), BackendToolFilesRead("x")):
        result = failed(remote.sandbox, call)
        assert result.kind == "sandbox_closed"
        assert "lifetime of 0:10:00" in result.message


def test_a_renewed_sandbox_lives_longer(remote: Remote) -> None:
    before = datetime.now(UTC)
    until = remote.backend.renew(remote.sandbox, timedelta(hours=1))
    remote.server.advance(1200)
    assert until - before > timedelta(minutes=59)
    assert stdout(remote.sandbox, "echo here") == b"here\n"


def test_a_closed_sandbox_is_not_renewed(backend: OpenSandboxBackend) -> None:
    sandbox = backend.open()
    backend.close(sandbox)
    with pytest.raises(BackendSandboxClosed):
        backend.renew(sandbox, timedelta(hours=1))


def test_an_expired_sandbox_is_not_renewed(remote: Remote) -> None:
    remote.server.advance(601)
    with pytest.raises(BackendSandboxClosed):
        remote.backend.renew(remote.sandbox, timedelta(hours=1))


def test_another_backend_attaches_by_id(remote: Remote) -> None:
    remote.sandbox.dispatch(BackendToolFilesWrite("a.txt", "kept"))
    server = remote.server
    other = OpenSandboxBackend(domain=server.domain, api_key=server.api_key)
    attached = other.attach(remote.sandbox.handle)
    found = attached.dispatch(BackendToolFilesRead("a.txt"))
    assert found == FileContent("kept")
    assert (attached.handle, other.sandbox_count()) == (remote.sandbox.handle, 1)
    other.close(attached)
    assert server.sandbox_ids == []


def test_a_handle_of_a_known_id_connects_on_first_use(remote: Remote) -> None:
    again = BackendSandbox(remote.backend, remote.sandbox.handle)
    assert stdout(again, "echo here") == b"here\n"
    remote.backend.detach(again)


def test_attaching_to_nothing_says_so(backend: OpenSandboxBackend) -> None:
    with pytest.raises(BackendSandboxClosed):
        backend.attach("00000000-0000-0000-0000-000000000000")
    with pytest.raises(ValueError, match="needs the id"):
        backend.attach("")
    assert backend.sandbox_count() == 0


def test_a_refused_attachment_is_an_error_of_the_backend(service: Service) -> None:
    refused = Answer(401, {"code": "INVALID_API_KEY", "message": "wrong key"})
    service.server.inject("GET", "/v1/sandboxes/*", refused)
    with pytest.raises(BackendError, match="wrong key"):
        service.backend.attach("00000000-0000-0000-0000-000000000000")


def test_a_detached_sandbox_goes_on(service: Service) -> None:
    sandbox = service.backend.open()
    remote_id = service.backend.detach(sandbox)
    service.backend.close(sandbox)
    assert sandbox.closed
    assert service.server.sandbox_ids == [remote_id]
    again = service.backend.attach(remote_id)
    assert stdout(again, "echo here") == b"here\n"
    service.backend.close(again)


def test_a_wrong_key_is_reported_and_not_displayed(opensandbox_server: OpenSandboxServer) -> None:
    backend = OpenSandboxBackend(domain=opensandbox_server.domain, api_key="a-wrong-long-api-key")
    with pytest.raises(BackendError, match=r"INVALID_API_KEY|API key") as caught:
        backend.open()
    assert "a-wrong-long-api-key" not in str(caught.value)


def test_an_image_that_cannot_be_fetched_is_reported(backend: OpenSandboxBackend) -> None:
    with pytest.raises(BackendError, match="Failed to pull image"):
        backend.open(BackendSandboxSpec(image="localhost/none:1"))


def test_a_sandbox_whose_answer_was_lost_is_found_and_not_made_again(service: Service) -> None:
    service.server.inject(*CREATE, Drop("after"))
    sandbox = service.backend.open()
    assert service.server.calls[CREATE] == 1
    assert [sandbox.handle] == service.server.sandbox_ids
    service.backend.close(sandbox)


def test_a_request_that_was_lost_is_not_sent_again(service: Service) -> None:
    service.server.inject(*CREATE, Drop("before"))
    with pytest.raises(BackendError, match="no sandbox could be opened"):
        service.backend.open()
    assert service.server.calls[CREATE] == 1


def test_where_nobody_knows_whether_it_was_opened_that_is_reported(service: Service) -> None:
    service.server.inject(*CREATE, Drop("after"))
    away = Answer(500, {"code": "AWAY", "message": "away"})
    service.server.inject("GET", "/v1/sandboxes", away, times=None)
    with pytest.raises(BackendError, match="has the metadata rath-opening="):
        service.backend.open()


def test_a_sandbox_without_a_workspace_is_not_left_behind(service: Service) -> None:
    full = Answer(500, {"code": "RUNTIME_ERROR", "message": "no space left"})
    service.server.inject("POST", "/directories", full)
    with pytest.raises(BackendError, match="no space left"):
        service.backend.open()
    assert service.server.sandbox_ids == []


def test_a_cancelled_opening_leaves_no_sandbox(service: Service) -> None:
    gate = Gate()
    service.server.inject(*CREATE, gate)
    lazy = service.backend.lazy()
    running = runtime().submit(lazy.aopened, label="opening")
    assert gate.reached.wait(50)
    runtime().cancel(running)
    with pytest.raises(BaseException):  # noqa: B017, PT011  # CancelledError is none of Exception
        running.future.result(50)
    gate.release()
    service.server.wait_for("DELETE", "/v1/sandboxes/*")
    assert service.server.calls[CREATE] == 1
    # What comes after it is answered after it, too.
    service.backend.close(service.backend.open())
    assert service.server.sandbox_ids == []


def test_after_a_restart_of_the_server_it_goes_on(remote: Remote) -> None:
    remote.sandbox.dispatch(BackendToolFilesWrite("a.txt", "kept"))
    remote.server.restart()
    assert stdout(remote.sandbox, "cat a.txt") == b"kept"


def test_a_working_dir_is_mounted(service: Service, tmp_path: Path) -> None:
    workspace = tmp_path / "new" / "workspace"
    sandbox = service.backend.open(BackendSandboxSpec(working_dir=str(workspace)))
    (body,) = _created(service.server)
    sandbox.dispatch(BackendToolFilesWrite("a.txt", "seen"))
    service.backend.close(sandbox)
    volume = {"name": "rath-workspace", "host": {"path": str(workspace)}, "readOnly": False}
    assert body["volumes"] == [{**volume, "mountPath": "/workspace"}]
    assert (workspace / "a.txt").read_text() == "seen"


def test_a_working_dir_that_the_server_does_not_mount_is_left_out_with_a_warning(
    service: Service, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    service.server.allowed_host_paths.clear()
    sandbox = service.backend.open(BackendSandboxSpec(working_dir=str(tmp_path)))
    assert sandbox.dispatch(BackendToolFilesExists(".")) is True
    service.backend.close(sandbox)
    assert ["volumes" in body for body in _created(service.server)] == [True, False]
    assert "does not mount the working_dir" in caplog.text


def test_a_working_dir_that_must_be_mounted_is_an_error_where_it_is_not(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RATH_OPENSANDBOX_STRICT_WORKSPACE_BIND", "1")
    service.server.allowed_host_paths.clear()
    with pytest.raises(BackendError, match="no sandbox could be opened"):
        service.backend.open(BackendSandboxSpec(working_dir=str(tmp_path)))
    assert service.server.calls[CREATE] == 1


def test_a_working_dir_that_cannot_be_made_is_an_error(
    backend: OpenSandboxBackend, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BackendError, match="cannot be made"):
        backend.open(BackendSandboxSpec(working_dir=str(tmp_path / "file" / "x")))


def test_a_snapshot_opens_another_sandbox(remote: Remote) -> None:
    remote.sandbox.dispatch(BackendToolFilesWrite("a.txt", "kept"))
    copy = remote.backend.open_snapshot(remote.backend.snapshot(remote.sandbox, "one"))
    remote.sandbox.dispatch(BackendToolFilesWrite("a.txt", "later"))
    assert copy.dispatch(BackendToolFilesRead("a.txt")) == FileContent("kept")
    assert copy.handle != remote.sandbox.handle
    remote.backend.close(copy)


def test_a_snapshot_that_is_not_there_opens_nothing(backend: OpenSandboxBackend) -> None:
    with pytest.raises(BackendError, match="no sandbox could be opened"):
        backend.open_snapshot("00000000-0000-0000-0000-000000000000")


def test_many_sandboxes_open_side_by_side(service: Service) -> None:
    barrier = threading.Barrier(3)

    def work(number: int) -> bytes:
        sandbox = service.backend.open()
        sandbox.dispatch(BackendToolFilesWrite("n.txt", str(number)))
        barrier.wait(50)
        said = stdout(sandbox, "cat n.txt")
        service.backend.close(sandbox)
        return said

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(work, range(3)))
    assert found == [b"0", b"1", b"2"]
    assert service.server.sandbox_ids == []
