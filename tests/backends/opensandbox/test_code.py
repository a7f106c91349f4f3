"""Code in the interpreters of a sandbox."""

from __future__ import annotations

import pytest

from rath._async.runtime import runtime
from rath.backend import (
    BackendSandbox,
    BackendSandboxSpec,
    BackendToolCodeRun,
    BackendToolFilesExists,
    CodeResult,
    ToolExecutionFailure,
)
from rath.backend.opensandbox import OpenSandboxBackend
from tests.support.opensandbox_server import Answer, CutStream, Drop, Gate, OpenSandboxServer
from tests.support.waiting import at_a_deadline, wait_until

CODE = ("POST", "/code")
BUSY = Answer(500, {"code": "RUNTIME_ERROR", "message": "error running codes session is busy"})


def _ran(sandbox: BackendSandbox, code: str, language: str = "python") -> CodeResult:
    result = sandbox.dispatch(BackendToolCodeRun(code, language))
    assert isinstance(result, CodeResult), result
    return result


def _failed(sandbox: BackendSandbox, call: BackendToolCodeRun) -> ToolExecutionFailure:
    result = sandbox.dispatch(call)
    assert isinstance(result, ToolExecutionFailure), result
    return result


@pytest.fixture
def _no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rath.backend.opensandbox.commands.BUSY_WAITS", (0.01, 0.01))


def test_the_last_value_is_the_text_and_output_is_apart(sandbox: BackendSandbox) -> None:
    ran = _ran(sandbox, "import sys\nprint('out')\nprint('err', file=sys.stderr)\n41 + 1")
    assert (ran.text, ran.stdout, ran.stderr, ran.error) == ("42", b"out\n", b"err\n", None)


@pytest.mark.parametrize(
    ("language", "first", "second"),
    [("python", "x = 41", "print(x + 1)"), ("bash", "x=42", "echo $x")],
)
def test_an_interpreter_keeps_its_state(
    sandbox: BackendSandbox, language: str, first: str, second: str
) -> None:
    _ran(sandbox, first, language)
    assert _ran(sandbox, second, language).stdout.strip() == b"42"


def test_an_error_is_told_without_colours(sandbox: BackendSandbox) -> None:
    error = str(_ran(sandbox, "print('before')\n1/0").error)
    assert "ZeroDivisionError: division by zero" in error
    assert "\x1b" not in error


def test_a_failing_shell_tells_its_exit_code(sandbox: BackendSandbox) -> None:
    assert _ran(sandbox, "exit_with() { return 3; }; exit_with", "bash").error == "exit code 3"


@pytest.mark.parametrize("language", ["cobol", "", "Python"])
def test_an_unknown_language_is_refused_before_it_is_sent(
    sandbox: BackendSandbox, opensandbox_server: OpenSandboxServer, language: str
) -> None:
    failure = _failed(sandbox, BackendToolCodeRun("x", language))
    assert (failure.kind, failure.detail) == ("unsupported_tool", language)
    assert opensandbox_server.matching(*CODE) == []


def test_no_code_does_nothing(
    sandbox: BackendSandbox, opensandbox_server: OpenSandboxServer
) -> None:
    assert _ran(sandbox, " \n") == CodeResult(None, b"", b"", None)
    assert opensandbox_server.matching(*CODE) == []


def test_at_its_deadline_code_is_interrupted_and_its_state_stays(sandbox: BackendSandbox) -> None:
    _ran(sandbox, "x = 42")
    endless = "import time\nprint('begun', flush=True)\ntime.sleep(30)"
    failure = at_a_deadline(
        lambda deadline: _failed(sandbox, BackendToolCodeRun(endless, timeout=deadline)),
        lambda failure: failure.detail != "",
    )
    assert (failure.kind, failure.detail) == ("timeout", "begun\n")
    assert _ran(sandbox, "x").text == "42"


def test_cancelled_code_is_interrupted(sandbox: BackendSandbox) -> None:
    call = BackendToolCodeRun("import time\nopen('/tmp/begun', 'w')\ntime.sleep(30)")
    running = runtime().submit(lambda: sandbox.adispatch(call), label="code")
    wait_until(lambda: sandbox.dispatch(BackendToolFilesExists("/tmp/begun")) is True)
    runtime().cancel(running)
    with pytest.raises(BaseException):  # noqa: B017, PT011  # CancelledError is none of Exception
        running.future.result(50)
    assert _ran(sandbox, "6 * 7").text == "42"


@pytest.mark.usefixtures("_no_wait")
def test_code_that_a_busy_interpreter_refused_is_sent_again(
    sandbox: BackendSandbox, opensandbox_server: OpenSandboxServer
) -> None:
    _ran(sandbox, "n = 0")
    opensandbox_server.inject(*CODE, BUSY, times=2)
    assert _ran(sandbox, "n += 1\nn").text == "1"


def test_code_of_which_nothing_was_heard_is_interrupted_too(
    sandbox: BackendSandbox, opensandbox_server: OpenSandboxServer
) -> None:
    _ran(sandbox, "x = 42")
    gate = Gate()
    opensandbox_server.inject(*CODE, gate)
    assert _failed(sandbox, BackendToolCodeRun("x += 1", timeout=0.1)).kind == "timeout"
    gate.release()
    opensandbox_server.wait_for("DELETE", "/code")


@pytest.mark.usefixtures("_no_wait")
def test_an_interpreter_that_stays_busy_says_so(
    sandbox: BackendSandbox, opensandbox_server: OpenSandboxServer
) -> None:
    opensandbox_server.inject(*CODE, BUSY, times=None)
    failure = _failed(sandbox, BackendToolCodeRun("1"))
    assert failure.kind == "dispatch_error"
    assert "session is busy" in failure.message
    assert opensandbox_server.calls[CODE] == 3


@pytest.mark.usefixtures("_no_wait")
@pytest.mark.parametrize("fault", [Drop("after"), CutStream(2)], ids=["dropped", "cut"])
def test_code_whose_end_was_lost_is_not_run_again(
    sandbox: BackendSandbox, opensandbox_server: OpenSandboxServer, fault: Drop | CutStream
) -> None:
    _ran(sandbox, "n = 0")
    opensandbox_server.inject(*CODE, fault)
    failure = _failed(sandbox, BackendToolCodeRun("n += 1"))
    assert failure.kind == "sandbox_sdk_error"
    assert "may have taken effect or not" in failure.message
    assert _ran(sandbox, "n").text in ("0", "1")
    assert opensandbox_server.calls[CODE] == 3


def test_an_image_without_interpreters_says_what_is_missing(
    backend: OpenSandboxBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("opensandbox")
    monkeypatch.setattr("rath.backend.opensandbox.client.INTERPRETER_SECONDS", 0.2)
    sandbox = backend.open(BackendSandboxSpec(image="python:3.11", entrypoint=["sleep", "inf"]))
    failure = _failed(sandbox, BackendToolCodeRun("1"))
    backend.close(sandbox)
    assert (failure.kind, failure.detail) == ("dispatch_error", "not ready")
    assert "was not sent" in failure.message
