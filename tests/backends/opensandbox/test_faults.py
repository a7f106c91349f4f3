"""What can go wrong between this process and a sandbox."""

from __future__ import annotations

import pytest

from rath.backend import (
    BackendError,
    BackendSandbox,
    BackendSandboxSpec,
    BackendToolCommandRun,
    BackendToolFilesRead,
    BackendToolFilesWrite,
    FileContent,
    ToolExecutionFailure,
)
from rath.backend.opensandbox import OpenSandboxBackend
from rath.backend.opensandbox.faults import (
    AnswerLost,
    Broken,
    NotReached,
    NotReady,
    Refused,
    RemoteFault,
    failure_of,
)
from tests.support.opensandbox_server import Answer, OpenSandboxServer


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        (NotReached("refused"), "dispatch_error", "the command was not sent"),
        (NotReady("still starting"), "dispatch_error", "is not ready"),
        (AnswerLost("reset"), "sandbox_sdk_error", "may have taken effect or not"),
        (Refused("no", status=400, code="BAD"), "dispatch_error", "no"),
        (Broken("odd"), "sandbox_sdk_error", "odd"),
    ],
)
def test_a_fault_is_said_in_words(fault: RemoteFault, kind: str, words: str) -> None:
    failure = failure_of(fault, "the command")
    assert failure.kind == kind
    assert words in failure.message


@pytest.mark.parametrize(
    ("status", "code", "message", "expected"),
    [
        (422, "VALIDATION", "volumes", True),
        (400, "VOLUME::HOST_PATH_NOT_ALLOWED", "", True),
        (400, "X", "path is not under any allowed host prefix", True),
        (400, "X", "the image is odd", False),
        (500, "X", "host path", False),
    ],
)
def test_a_refused_mount_is_known_by_its_words(
    status: int, code: str, message: str, expected: bool
) -> None:
    assert Refused(message, status=status, code=code).is_about_the_bind is expected


@pytest.fixture
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opensandbox")
    monkeypatch.setattr("rath.backend.opensandbox.client.RETRY_SECONDS", 0.01)


@pytest.mark.usefixtures("_soon")
def test_a_server_that_is_not_there_is_said_at_opening(
    backend: OpenSandboxBackend, opensandbox_server: OpenSandboxServer
) -> None:
    opensandbox_server.close()
    with pytest.raises(BackendError, match="no sandbox could be opened on") as caught:
        backend.open()
    assert opensandbox_server.domain in str(caught.value)


@pytest.mark.usefixtures("_soon")
def test_a_server_that_went_away_is_said_by_each_operation(
    backend: OpenSandboxBackend, opensandbox_server: OpenSandboxServer
) -> None:
    sandbox = backend.open()
    opensandbox_server.close()
    for call in (BackendToolCommandRun("true"), BackendToolFilesRead("a")):
        failure = sandbox.dispatch(call)
        assert isinstance(failure, ToolExecutionFailure)
        assert (failure.kind, failure.detail) == ("dispatch_error", "not reached")
    with pytest.raises(BackendError, match="could not be ended on the server"):
        backend.close(sandbox)
    with pytest.raises(BackendError, match="cannot be reached"):
        backend.attach(sandbox.handle)


@pytest.mark.usefixtures("_soon")
def test_what_changes_nothing_is_asked_again(
    sandbox: BackendSandbox, opensandbox_server: OpenSandboxServer
) -> None:
    sandbox.dispatch(BackendToolFilesWrite("a", "x"))
    opensandbox_server.inject("GET", "/files/*", Answer(503, b""), times=1)
    assert sandbox.dispatch(BackendToolFilesRead("a")) == FileContent("x")
    assert opensandbox_server.calls["GET", "/files/info"] == 2


def test_a_server_that_refuses_to_connect_says_why(
    backend: OpenSandboxBackend, sandbox: BackendSandbox, opensandbox_server: OpenSandboxServer
) -> None:
    again = BackendSandbox(backend, sandbox.handle, BackendSandboxSpec())
    away = Answer(500, {"code": "AWAY", "message": "the engine is away"})
    opensandbox_server.inject("GET", "/v1/sandboxes/*", away, times=None)
    failure = again.dispatch(BackendToolCommandRun("true"))
    opensandbox_server.clear_faults()
    assert isinstance(failure, ToolExecutionFailure)
    assert failure.message == "the engine is away"


def test_an_attached_sandbox_that_ended_does_not_guess_its_lifetime(
    backend: OpenSandboxBackend, sandbox: BackendSandbox, opensandbox_server: OpenSandboxServer
) -> None:
    again = backend.attach(sandbox.handle)
    opensandbox_server.advance(601)
    failure = again.dispatch(BackendToolCommandRun("true"))
    backend.close(again)
    assert isinstance(failure, ToolExecutionFailure)
    assert "or its lifetime was over" in failure.message
