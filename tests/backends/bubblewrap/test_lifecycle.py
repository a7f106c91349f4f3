"""Opening, preparing and closing sandboxes, and copies of workspaces."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path

import pytest

from rath._async.runtime import runtime
from rath.backend import (
    BackendError,
    BackendSandbox,
    BackendSandboxSpec,
    BackendToolCodeRun,
    BackendToolCommandRun,
    CodeResult,
    CommandResult,
)
from rath.backend.bubblewrap import BubblewrapBackend
from rath.backend.host.paths import new_name
from tests.backends.bubblewrap.running import Open, printed
from tests.support.workspaces import failure, run


def test_a_workspace_of_its_own_is_made_and_removed(backend: BubblewrapBackend) -> None:
    sandbox = backend.open()
    run(sandbox, "echo one > file")
    assert (Path(sandbox.handle) / "file").read_text() == "one\n"
    backend.close(sandbox)
    assert not Path(sandbox.handle).exists()


def test_the_identity_says_that_it_is_a_container(sandbox: BackendSandbox) -> None:
    identity = sandbox.describe()
    assert (identity.backend, identity.isolation) == ("bubblewrap", "container")


def test_a_cancelled_first_command_does_not_stop_the_others(sandbox: BackendSandbox) -> None:
    call = BackendToolCommandRun("echo well", timeout=50.0)
    running = [
        runtime().submit(lambda: sandbox.adispatch(call), label="a command") for _ in range(3)
    ]
    runtime().cancel(running[0])
    assert isinstance(running[0].future.exception(), asyncio.CancelledError)
    assert [each.future.result().stdout for each in running[1:]] == [b"well\n"] * 2


def test_closing_right_after_a_cancellation_leaves_nothing(
    backend: BubblewrapBackend, workspace: Path
) -> None:
    sandbox = backend.open(BackendSandboxSpec(working_dir=str(workspace)))
    call = BackendToolCommandRun("sleep 30")
    running = runtime().submit(lambda: sandbox.adispatch(call), label="a command")
    runtime().cancel(running)
    backend.close(sandbox)
    assert sandbox.closed


@pytest.mark.skipif(shutil.which("bash") != "/usr/bin/bash", reason="needs bash in the system")
def test_code_of_a_shell_runs(sandbox: BackendSandbox) -> None:
    code = BackendToolCodeRun("echo $((6 * 7))", language="bash", timeout=50.0)
    result = sandbox.dispatch(code)
    assert isinstance(result, CodeResult)
    assert result.stdout == b"42\n"


def test_files_that_somebody_cleaned_up_are_made_again(
    backend: BubblewrapBackend, opened: Open
) -> None:
    run(opened(), "true")
    mine = new_name("bwrap").rsplit("-", 1)[0]
    for path in Path(tempfile.gettempdir()).glob(f"{mine}-*"):
        shutil.rmtree(path)
    assert printed(opened(), "echo well") == "well"


def test_what_a_command_prints_is_not_taken_for_words_of_bubblewrap(
    sandbox: BackendSandbox,
) -> None:
    result = run(sandbox, "echo out; echo 'bwrap: mine' >&2; exit 1")
    assert (result.exit_code, result.stdout, result.stderr) == (1, b"out\n", b"bwrap: mine\n")
    code = "import sys; print(42); sys.stderr.write('bwrap: a word\\n')"
    said = sandbox.dispatch(BackendToolCodeRun(code, timeout=50.0))
    assert isinstance(said, CodeResult)
    assert (said.stdout, said.stderr, said.error) == (b"42\n", b"bwrap: a word\n", None)


@pytest.mark.parametrize("env", [None, {"ONE": "1"}, {"a-b": "1"}])
def test_a_program_that_is_not_there_was_not_started(
    sandbox: BackendSandbox, env: dict[str, str] | None
) -> None:
    call = BackendToolCommandRun(["no-such-program"], env=env, timeout=50.0)
    refused = failure(sandbox.dispatch(call))
    assert refused.kind == "os_error"
    assert "could not start it: execvp no-such-program" in refused.message


@pytest.mark.parametrize("env", [None, {"ONE": "1"}, {"a-b": "1"}])
def test_a_command_gets_no_descriptor_but_its_three(
    sandbox: BackendSandbox, env: dict[str, str] | None
) -> None:
    call = BackendToolCommandRun(["ls", "/proc/self/fd"], env=env, timeout=50.0)
    shown = sandbox.dispatch(call)
    assert isinstance(shown, CommandResult)
    assert shown.stdout.split() == [b"0", b"1", b"2", b"3"]  # the last is the listing's own


def test_an_empty_program_is_refused(sandbox: BackendSandbox) -> None:
    refused = failure(sandbox.dispatch(BackendToolCommandRun([""], timeout=50.0)))
    assert "name a program" in refused.message


def test_a_sandbox_whose_files_cannot_be_made_says_so(
    backend: BubblewrapBackend, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = backend.open(BackendSandboxSpec(working_dir=str(workspace)))
    with monkeypatch.context() as patch:
        patch.setattr("tempfile.tempdir", str(workspace / "missing"))
        with pytest.raises(BackendError, match="could not be set up"):
            sandbox.dispatch(BackendToolCommandRun("true"))
    assert printed(sandbox, "echo well") == "well"
    backend.close(sandbox)
