"""Commands and code on the local backend: what they see, and how they end."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rath._async.runtime import runtime
from rath.backend import (
    BackendSandbox,
    BackendSandboxSpec,
    BackendTool,
    BackendToolCodeRun,
    BackendToolCommandRun,
    CodeResult,
    ToolExecutionFailure,
)
from rath.backend.local import LocalBackend
from tests.support.command_witness import Witness
from tests.support.waiting import at_a_deadline
from tests.support.workspaces import failure, run

BEGIN = "exec 9>witness; echo begun >&9; "


def test_a_signal_shows_as_a_negative_exit_code(sandbox: BackendSandbox) -> None:
    assert run(sandbox, "kill -KILL $$").exit_code == -signal.SIGKILL


def test_a_command_starts_in_the_workspace(sandbox: BackendSandbox, workspace: Path) -> None:
    assert run(sandbox, "pwd").stdout.decode().strip() == os.path.realpath(workspace)


def test_a_missing_cwd_is_a_failure(sandbox: BackendSandbox) -> None:
    result = failure(sandbox.dispatch(BackendToolCommandRun("pwd", cwd="missing")))
    assert result.kind == "os_error"
    assert "missing" in result.message


@pytest.mark.parametrize(
    ("cmd", "kind"),
    [
        pytest.param(["no-such-program-here"], "os_error", id="missing program"),
        pytest.param([], "unexpected", id="nothing"),
        pytest.param("echo \0", "unexpected", id="zero character"),
    ],
)
def test_what_cannot_be_started_is_a_failure(
    sandbox: BackendSandbox, cmd: str | list[str], kind: str
) -> None:
    assert failure(sandbox.dispatch(BackendToolCommandRun(cmd))).kind == kind


def test_no_secret_of_this_process_reaches_a_command(
    sandbox: BackendSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "canary")
    monkeypatch.setenv("MY_TOKEN", "canary")
    monkeypatch.setenv("LC_TIME", "C")
    said = run(sandbox, "env").stdout
    assert b"canary" not in said
    assert b"LC_TIME=C" in said
    assert b"PATH=" in said


def test_variables_of_the_call_win_over_those_of_the_spec(workspace: Path) -> None:
    backend = LocalBackend()
    spec = BackendSandboxSpec(working_dir=str(workspace), env={"ONE": "spec", "TWO": "spec"})
    sandbox = backend.open(spec)
    assert run(sandbox, "echo $ONE $TWO", env={"ONE": "call"}).stdout == b"call spec\n"
    backend.close(sandbox)


def test_values_of_variables_are_not_displayed(sandbox: BackendSandbox) -> None:
    secret = {"TOKEN": "canary"}
    shown = repr(BackendToolCommandRun("x", env=secret)) + repr(BackendSandboxSpec(env=secret))
    assert "canary" not in shown


def test_large_input_and_output_do_not_block_each_other(sandbox: BackendSandbox) -> None:
    data = os.urandom(1024) * 600
    assert run(sandbox, "cat", stdin=data).stdout == data


def test_a_timeout_is_a_failure_with_what_was_printed(sandbox: BackendSandbox) -> None:
    def run_until(deadline: float) -> ToolExecutionFailure:
        call = BackendToolCommandRun("echo early; sleep 30", timeout=deadline)
        result = failure(sandbox.dispatch(call))
        assert f"within {deadline:g} s" in result.message
        return result

    result = at_a_deadline(run_until, lambda result: result.detail != "")
    assert (result.kind, result.detail) == ("timeout", "early\n")


@pytest.mark.parametrize(
    "line",
    [BEGIN + "(sleep 30; true) & sleep 30", "trap '' TERM; " + BEGIN + "sleep 30; sleep 30"],
    ids=["polite", "stubborn"],
)
def test_a_timeout_ends_the_complete_group(
    sandbox: BackendSandbox, witness: Witness, line: str
) -> None:
    def run_until(deadline: float) -> ToolExecutionFailure:
        return failure(sandbox.dispatch(BackendToolCommandRun(line, timeout=deadline)))

    assert at_a_deadline(run_until, lambda _: witness.has_begun()).kind == "timeout"
    witness.wait_begun()
    witness.wait_all_gone()


def test_a_command_is_over_when_its_process_ended(
    sandbox: BackendSandbox, witness: Witness
) -> None:
    assert run(sandbox, BEGIN + "sleep 30 & echo done").stdout == b"done\n"
    witness.wait_begun()
    witness.wait_all_gone()


@pytest.mark.skipif(shutil.which("setsid") is None, reason="needs setsid")
def test_a_process_that_left_the_group_does_not_hold_up_the_result(
    sandbox: BackendSandbox,
) -> None:
    line = "setsid sh -c 'echo $$; touch ready; exec sleep 60' & "
    result = run(sandbox, line + "until [ -e ready ]; do sleep 0.02; done")
    os.kill(int(result.stdout), signal.SIGKILL)
    assert result.exit_code == 0


def test_cancelling_ends_the_complete_group(sandbox: BackendSandbox, witness: Witness) -> None:
    call = BackendToolCommandRun(BEGIN + "(sleep 30; true) & sleep 30")
    running = runtime().submit(lambda: sandbox.adispatch(call), label="a command")
    witness.wait_begun()
    runtime().cancel(running)
    assert isinstance(running.future.exception(), asyncio.CancelledError)
    witness.wait_all_gone()


def test_cancelling_at_once_starts_nothing_that_stays(
    sandbox: BackendSandbox, workspace: Path
) -> None:
    call = BackendToolCommandRun("sleep 30")
    for _ in range(10):
        running = runtime().submit(lambda: sandbox.adispatch(call), label="a command")
        runtime().cancel(running)
        assert isinstance(running.future.exception(), asyncio.CancelledError)


def test_leaving_the_interpreter_ends_the_complete_group(witness: Witness, workspace: Path) -> None:
    program = """
import sys, threading
from rath.backend import BackendSandboxSpec, BackendToolCommandRun, get
sandbox = get("local").open(BackendSandboxSpec(working_dir=sys.argv[1]))
call = BackendToolCommandRun(sys.argv[2])
threading.Thread(target=sandbox.dispatch, args=[call], daemon=True).start()
sys.stdin.read()
"""
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(workspace), BEGIN + "(sleep 30; true) & sleep 30"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    witness.wait_begun()
    _, said = child.communicate()
    witness.wait_all_gone()
    assert b"cut off" in said


def test_code_tells_its_output(sandbox: BackendSandbox, workspace: Path) -> None:
    result = sandbox.dispatch(BackendToolCodeRun("import os; print(os.getcwd())"))
    assert isinstance(result, CodeResult)
    assert result.stdout.decode().strip() == os.path.realpath(workspace)
    assert (result.text, result.error) == (None, None)


def test_code_that_fails_in_silence_still_has_an_error(sandbox: BackendSandbox) -> None:
    result = sandbox.dispatch(BackendToolCodeRun("raise SystemExit(4)"))
    assert isinstance(result, CodeResult)
    assert "exit code 4" in (result.error or "")


@pytest.mark.parametrize("code", ["print(1)", "1 / 0", "import time; time.sleep(30)"])
def test_the_script_of_the_code_is_removed(
    sandbox: BackendSandbox, tmp_path: Path, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    sandbox.dispatch(BackendToolCodeRun(code, timeout=0.5))
    assert os.listdir(tmp_path) == ["workspace"]


@pytest.mark.parametrize("language", ["python", "bash", "javascript"])
def test_code_sees_no_script_in_the_workspace(sandbox: BackendSandbox, language: str) -> None:
    listings = {
        "python": "import os; print(os.listdir())",
        "bash": "ls -A",
        "javascript": "console.log(require('fs').readdirSync('.').join())",
    }
    assert code(sandbox, listings[language], language).stdout.strip() in (b"[]", b"")


def code(sandbox: BackendSandbox, text: str, language: str) -> CodeResult:
    if language == "javascript" and shutil.which("node") is None:
        pytest.skip("needs node")
    result = sandbox.dispatch(BackendToolCodeRun(text, language))
    assert isinstance(result, CodeResult)
    return result


def test_code_imports_modules_of_the_workspace(sandbox: BackendSandbox, workspace: Path) -> None:
    (workspace / "mymodule.py").write_text("answer = 42")
    text = "from __future__ import annotations\nimport mymodule; print(mymodule.answer)"
    said = code(sandbox, text, "python")
    assert said.stdout == b"42\n"


def test_code_keeps_the_path_that_its_sandbox_was_given(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "elsewhere.py").write_text("answer = 42")
    backend = LocalBackend()
    sandbox = backend.open(
        BackendSandboxSpec(env={"PYTHONPATH": str(tmp_path / "other"), "PATH": os.defpath})
    )
    assert code(sandbox, "import elsewhere; print(elsewhere.answer)", "python").stdout == b"42\n"
    backend.close(sandbox)


@pytest.mark.parametrize("language", ["javascript", "js", "node"])
def test_javascript_finds_modules_of_the_workspace(
    sandbox: BackendSandbox, workspace: Path, language: str
) -> None:
    if shutil.which("node") is None:
        pytest.skip("needs node")
    (workspace / "mymodule.js").write_text("exports.answer = 42")
    said = code(sandbox, "console.log(require('./mymodule').answer)", language)
    assert (said.stdout, said.error) == (b"42\n", None)


def test_bash_runs_scripts_of_many_lines(sandbox: BackendSandbox) -> None:
    said = code(sandbox, "words=(one two)\necho ${words[1]}\nread line || echo no input\n", "bash")
    assert said.stdout == b"two\nno input\n"
    assert "exit code 3" in (code(sandbox, "exit 3", "bash").error or "")


def test_another_language_is_a_failure_that_names_it(sandbox: BackendSandbox) -> None:
    result = failure(sandbox.dispatch(BackendToolCodeRun("x", language="go")))
    assert (result.kind, result.detail) == ("unsupported_tool", "go")
    assert "'python', 'bash'" in result.message


def test_a_language_whose_program_is_missing_is_not_offered(workspace: Path) -> None:
    backend = LocalBackend()
    sandbox = backend.open(BackendSandboxSpec(working_dir=str(workspace), env={"PATH": "/nowhere"}))
    result = failure(sandbox.dispatch(BackendToolCodeRun("x", language="bash")))
    assert (result.kind, "bash" in result.message.split(", not in")[0]) == (
        "unsupported_tool",
        False,
    )
    backend.close(sandbox)


def test_code_that_is_not_unicode_is_a_failure(sandbox: BackendSandbox) -> None:
    assert failure(sandbox.dispatch(BackendToolCodeRun("'\ud800'"))).kind == "encode_error"


def test_code_without_a_place_for_its_script_is_a_failure(
    sandbox: BackendSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    assert failure(sandbox.dispatch(BackendToolCodeRun("1"))).kind == "os_error"


def test_output_that_cannot_be_decoded_raises_nowhere(sandbox: BackendSandbox) -> None:
    text = "import os; os.write(2, b'\\xff\\xfe'); raise SystemExit(1)"
    said = code(sandbox, text, "python")
    assert said.stderr == b"\xff\xfe"
    assert isinstance(said.error, str)


@pytest.mark.parametrize("call", [BackendToolCommandRun("true"), BackendToolCodeRun("1")])
def test_a_workspace_that_has_gone_is_a_failure(
    sandbox: BackendSandbox, workspace: Path, call: BackendTool
) -> None:
    workspace.rmdir()
    result = failure(sandbox.dispatch(call))
    assert result.kind == "os_error"
    assert str(workspace) in result.message
