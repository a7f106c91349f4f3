"""Commands in a sandbox: what they are given, how their end is told, and that they run once."""

from __future__ import annotations

import math
import shlex

import pytest

from rath._async.runtime import runtime
from rath._core.blobs import Blob
from rath.backend import (
    BackendSandbox,
    BackendTool,
    BackendToolCommandRun,
    BackendToolFilesExists,
    BackendToolFilesRead,
    CommandResult,
    FileContent,
    ToolExecutionFailure,
)
from rath.backend.opensandbox import OpenSandboxBackend
from rath.backend.opensandbox.defaults import MAX_OUTPUT_BYTES, MAX_WHOLE_BYTES
from tests.support.opensandbox_server import Answer, CutStream, Drop, Gate, OpenSandboxServer
from tests.support.waiting import at_a_deadline, wait_until

COMMAND = ("POST", "/command")

GHOST = "until [ -e go ]; do sleep 0.01; done; touch ghost"


def _ended(sandbox: BackendSandbox, call: BackendTool) -> CommandResult:
    result = sandbox.dispatch(call)
    assert isinstance(result, CommandResult), result
    return result


def _failed(sandbox: BackendSandbox, call: BackendTool) -> ToolExecutionFailure:
    result = sandbox.dispatch(call)
    assert isinstance(result, ToolExecutionFailure), result
    return result


def _run(line: str) -> BackendToolCommandRun:
    return BackendToolCommandRun(line)


def _seen_of_a_ghost(sandbox: BackendSandbox) -> bytes:
    """Return which files there are after a `GHOST` that still lived would have made its own."""
    return _ended(sandbox, _run("touch go; sleep 0.3; ls")).stdout


def _sent(server: OpenSandboxServer, text: str) -> int:
    """Return how often a command was sent that holds a text."""
    return sum(text in request.json()["command"] for request in server.matching(*COMMAND))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("printf x", (0, b"x", b"")),
        ("echo x; echo y >&2; exit 3", (3, b"x\n", b"y\n")),
        ("printf '\\377\\0\\n'", (0, b"\xff\0\n", b"")),
        ("cat <<END\ntext\nEND", (0, b"text\n", b"")),
        ("echo x # a comment", (0, b"x\n", b"")),
        ("echo \\", (0, b"\\\n", b"")),
        ("kill -15 $$", (-15, b"", b"")),
        ("cat", (0, b"", b"")),
        ("", (0, b"", b"")),
    ],
)
def test_a_command_tells_exactly_what_it_printed(
    sandbox: BackendSandbox, line: str, expected: tuple[int, bytes, bytes]
) -> None:
    ended = _ended(sandbox, _run(line))
    assert (ended.exit_code, ended.stdout, ended.stderr) == expected
    assert ended.elapsed_ms > 0


def test_a_broken_command_tells_the_error_of_the_shell(sandbox: BackendSandbox) -> None:
    ended = _ended(sandbox, _run("echo 'open"))
    assert ended.exit_code not in (0, None)
    assert b"unexpected EOF" in ended.stderr


def test_it_starts_in_the_workspace_or_where_it_is_told(sandbox: BackendSandbox) -> None:
    sandbox.dispatch(_run("mkdir -p deep"))
    assert _ended(sandbox, _run("pwd")).stdout == b"/workspace\n"
    for cwd, expected in (("deep", b"/workspace/deep\n"), ("/tmp", b"/tmp\n")):
        assert _ended(sandbox, BackendToolCommandRun("pwd", cwd=cwd)).stdout == expected


def test_a_missing_directory_is_said(sandbox: BackendSandbox) -> None:
    failure = _failed(sandbox, BackendToolCommandRun("pwd", cwd="nowhere"))
    assert failure.kind == "os_error"
    assert "does not exist" in failure.message


def test_a_directory_that_leads_out_is_refused(sandbox: BackendSandbox) -> None:
    assert _failed(sandbox, BackendToolCommandRun("pwd", cwd="..")).kind == "path_outside_workspace"


def test_it_reads_what_it_is_given(sandbox: BackendSandbox) -> None:
    given = b"a\0b\xff"
    assert _ended(sandbox, BackendToolCommandRun("cat", stdin=given)).stdout == given


def test_its_files_are_removed(
    sandbox: BackendSandbox, opensandbox_server: OpenSandboxServer
) -> None:
    _ended(sandbox, BackendToolCommandRun("cat", stdin=b"x"))
    left = opensandbox_server.root_of(sandbox.handle) / "tmp"
    assert [each for each in left.iterdir() if each.name.startswith(".rath-")] == []


def test_arguments_meet_no_shell(
    sandbox: BackendSandbox, opensandbox_server: OpenSandboxServer
) -> None:
    argv = ["printf", "%s|", "$HOME", "a  b", "it's", ""]
    assert _ended(sandbox, BackendToolCommandRun(argv)).stdout == b"$HOME|a  b|it's||"
    assert _sent(opensandbox_server, shlex.join(argv)) == 1


@pytest.mark.parametrize("cmd", [[], "a\0b"])
def test_what_cannot_be_run_is_refused_before_it_is_sent(
    cmd: str | list[str], sandbox: BackendSandbox, opensandbox_server: OpenSandboxServer
) -> None:
    assert _failed(sandbox, BackendToolCommandRun(cmd)).kind == "unexpected"
    assert opensandbox_server.matching(*COMMAND) == []


def test_variables_are_added(sandbox: BackendSandbox) -> None:
    call = BackendToolCommandRun("echo $ONE", env={"ONE": "it's 1"})
    assert _ended(sandbox, call).stdout == b"it's 1\n"


def test_of_long_output_both_ends_are_told_and_all_of_it_is_kept(sandbox: BackendSandbox) -> None:
    n_bytes = MAX_OUTPUT_BYTES + 1000
    ended = _ended(sandbox, _run(f"head -c {n_bytes} /dev/zero"))
    assert b"1000 bytes left out" in ended.stdout
    assert ended.stdout_full is not None
    assert ended.stdout_full.data == b"\0" * n_bytes


def test_output_that_is_too_long_stays_in_the_sandbox(sandbox: BackendSandbox) -> None:
    ended = _ended(sandbox, _run(f"head -c {MAX_WHOLE_BYTES + 1} /dev/zero"))
    note = ended.stdout.strip(b"\0").decode()
    path = note.partition("all of it is in ")[2].partition(" ")[0]
    assert sandbox.dispatch(BackendToolFilesExists(path)) is True
    whole = b"\0" * (MAX_WHOLE_BYTES + 1)
    assert ended.stdout_full == Blob.from_bytes(whole, keep=0)


@pytest.mark.parametrize(
    "fault",
    [Answer(500, {"code": "RUNTIME_ERROR", "message": "away"}), CutStream(0)],
    ids=["refused", "no answer"],
)
def test_output_that_cannot_be_digested_there_is_not_said_to_be_known(
    sandbox: BackendSandbox,
    opensandbox_server: OpenSandboxServer,
    backend: OpenSandboxBackend,
    fault: Answer | CutStream,
) -> None:
    native = sandbox.ensure_open().native
    opensandbox_server.inject(*COMMAND, fault, skip=1)
    call = _run(f"head -c {MAX_WHOLE_BYTES + 1} /dev/zero")
    ended = runtime().run(lambda: backend.adispatch(native, call), label="a command")
    assert isinstance(ended, CommandResult)
    assert ended.stdout_full is None


def test_at_its_deadline_a_command_is_ended_with_what_it_started(sandbox: BackendSandbox) -> None:
    line = f"(setsid sh -c '{GHOST}' >/dev/null 2>&1 &); echo begun; sleep 30"
    failure = at_a_deadline(
        lambda deadline: _failed(sandbox, BackendToolCommandRun(line, timeout=deadline)),
        lambda failure: failure.detail != "",
    )
    assert (failure.kind, failure.detail) == ("timeout", "begun\n")
    assert _seen_of_a_ghost(sandbox) == b"go\n"


def test_what_emptied_its_environment_is_ended_at_the_deadline(sandbox: BackendSandbox) -> None:
    line = f"env -i setsid sh -c 'touch begun; {GHOST}' & sleep 30"
    failure = at_a_deadline(
        lambda deadline: _failed(sandbox, BackendToolCommandRun(line, timeout=deadline)),
        lambda _: sandbox.dispatch(BackendToolFilesExists("begun")) is True,
    )
    assert failure.kind == "timeout"
    assert _seen_of_a_ghost(sandbox) == b"begun\ngo\n"


def test_a_deadline_that_the_server_does_not_keep_is_kept_here(
    sandbox: BackendSandbox, opensandbox_server: OpenSandboxServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rath.backend.opensandbox.processes.GRACE_SECONDS", 0.0)
    gate = Gate()
    opensandbox_server.inject(*COMMAND, gate)
    failure = _failed(sandbox, BackendToolCommandRun("echo x", timeout=0.05))
    gate.release()
    assert failure.kind == "timeout"


@pytest.mark.parametrize("timeout", [math.inf, math.nan, 1e12])
def test_an_endless_deadline_is_none(sandbox: BackendSandbox, timeout: float) -> None:
    assert _ended(sandbox, BackendToolCommandRun("true", timeout=timeout)).exit_code == 0


def test_a_cancelled_command_is_ended_in_the_sandbox(
    sandbox: BackendSandbox, opensandbox_server: OpenSandboxServer
) -> None:
    call = _run(f"touch begun; {GHOST}; sleep 30")
    running = runtime().submit(lambda: sandbox.adispatch(call), label="a command")
    opensandbox_server.wait_for(*COMMAND)
    wait_until(lambda: sandbox.dispatch(BackendToolFilesExists("begun")) is True)
    runtime().cancel(running)
    with pytest.raises(BaseException):  # noqa: B017, PT011  # CancelledError is none of Exception
        running.future.result(50)
    assert _seen_of_a_ghost(sandbox) == b"begun\ngo\n"


def test_a_command_whose_end_was_lost_is_not_taken_for_one_that_went_well(
    sandbox: BackendSandbox, opensandbox_server: OpenSandboxServer
) -> None:
    opensandbox_server.inject(*COMMAND, CutStream(2))
    failure = _failed(sandbox, _run("echo x >> ran.txt"))
    assert failure.kind == "sandbox_sdk_error"
    assert "may have taken effect or not" in failure.message
    assert _sent(opensandbox_server, "ran.txt") == 1


def test_a_connection_that_broke_says_that_the_outcome_is_unknown(
    sandbox: BackendSandbox, opensandbox_server: OpenSandboxServer
) -> None:
    opensandbox_server.inject(*COMMAND, Drop("after", "reset"))
    failure = _failed(sandbox, _run("echo x >> ran.txt"))
    assert (failure.kind, failure.detail) == ("sandbox_sdk_error", "connection lost")
    assert _sent(opensandbox_server, "ran.txt") == 1


def test_a_command_that_prints_nothing_is_not_run_again(
    sandbox: BackendSandbox, opensandbox_server: OpenSandboxServer
) -> None:
    _ended(sandbox, _run("python3 -c \"print('x', file=open('out.txt', 'a'))\""))
    assert sandbox.dispatch(BackendToolFilesRead("out.txt")) == FileContent("x\n")
    assert _sent(opensandbox_server, "out.txt") == 1


def test_what_the_server_refuses_is_said(
    sandbox: BackendSandbox, opensandbox_server: OpenSandboxServer
) -> None:
    refused = Answer(500, {"code": "RUNTIME_ERROR", "message": "no more processes"})
    opensandbox_server.inject(*COMMAND, refused)
    failure = _failed(sandbox, _run("true"))
    assert (failure.kind, failure.message) == ("dispatch_error", "no more processes")


def test_commands_run_one_at_a_time(sandbox: BackendSandbox) -> None:
    line = "mkdir only || echo overlap; sleep 0.05; rmdir only"
    with sandbox.stream() as first, sandbox.stream() as second:
        said = [stream.submit(_run(line)) for stream in (first, second, first, second)]
        results = [each.result() for each in said]
    assert [each.stdout for each in results if isinstance(each, CommandResult)] == [b""] * 4


def test_output_that_cannot_be_fetched_is_not_taken_for_none(
    sandbox: BackendSandbox, opensandbox_server: OpenSandboxServer
) -> None:
    away = Answer(500, {"code": "RUNTIME_ERROR", "message": "the disk is away"})
    opensandbox_server.inject("GET", "/files/info", away)
    failure = _failed(sandbox, _run("echo x; exit 3"))
    assert (failure.kind, failure.detail) == ("sandbox_sdk_error", "output lost")
    assert "ended with exit code 3" in failure.message


def test_output_that_the_command_removed_is_not_taken_for_none(sandbox: BackendSandbox) -> None:
    failure = _failed(sandbox, _run("echo x; rm /tmp/.rath-*"))
    assert failure.detail == "output lost"


def test_a_command_whose_output_has_no_place_says_so(sandbox: BackendSandbox) -> None:
    sandbox.dispatch(_run("rm -rf /tmp; exit 0"))
    ended = _ended(sandbox, _run("echo x > ran.txt"))
    assert ended.exit_code == 125
    assert b"No such file or directory" in ended.stderr
    assert sandbox.dispatch(BackendToolFilesExists("ran.txt")) is False


def test_input_of_a_refused_command_is_removed(
    sandbox: BackendSandbox, opensandbox_server: OpenSandboxServer
) -> None:
    _failed(sandbox, BackendToolCommandRun("cat", cwd="nowhere", stdin=b"x"))
    left = opensandbox_server.root_of(sandbox.handle) / "tmp"
    assert [each for each in left.iterdir() if each.name.startswith(".rath-")] == []
