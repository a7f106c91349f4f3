"""Commands and code in a sandbox."""

from __future__ import annotations

import math
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath._async.runtime import runtime
from rath._core.blobs import Blob
from rath.backend import (
    BackendSandbox,
    BackendSandboxSpec,
    BackendToolCodeRun,
    BackendToolCommandRun,
    BackendToolFilesExists,
    BackendToolFilesRead,
    CodeResult,
    CommandResult,
    FileContent,
)
from rath.backend.opensandbox import OpenSandboxBackend
from rath.backend.opensandbox.processes import (
    MAX_OUTPUT_BYTES,
    MAX_STORED_BYTES,
    RunEnd,
    RunError,
    TruncatedText,
)
from rath.backend.results import truncation_note
from tests.support.opensandbox_calls import Remote, end_of, failed
from tests.support.opensandbox_server import Answer, CutStream, Drop, Gate, OpenSandboxServer
from tests.support.waiting import at_a_deadline, wait_until


def _trouble(value: str, *traceback: str) -> RunError:
    return RunError("CommandExecError", value, traceback)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(RunEnd(True, None), 0, id="complete"),
        pytest.param(RunEnd(False, None), None, id="cut off"),
        pytest.param(RunEnd(False, _trouble("3", "exit status 3")), 3, id="exit status"),
        pytest.param(RunEnd(False, _trouble("-1", "signal: killed")), -9, id="killed"),
        pytest.param(RunEnd(False, _trouble("-1", "signal: terminated")), -15, id="terminated"),
        pytest.param(
            RunEnd(False, _trouble("-1", "signal: segmentation fault (core dumped)")), -11,
            id="with a core",
        ),
        pytest.param(RunEnd(False, _trouble("-1")), -1, id="no reason"),
        pytest.param(RunEnd(False, _trouble("no such shell")), None, id="no number"),
    ],
)  # fmt: skip
def test_an_exit_code_is_what_was_reported_and_never_guessed(
    answer: RunEnd, expected: int | None
) -> None:
    assert answer.exit_code == expected


@pytest.mark.parametrize(
    ("trouble", "expected"),
    [
        (RunError("ValueError", "no"), "ValueError: no"),
        (RunError("", "2"), "exit code 2"),
        (RunError("", "odd"), "odd"),
        (RunError("", ""), "the sandbox says that it failed, and not why"),
        (RunError("E", "x", ("\x1b[31mTraceback\x1b[0m", "E: x")), "Traceback\nE: x"),
        (RunError("E", "x", ("Traceback",)), "Traceback\nE: x"),
    ],
)
def test_trouble_is_reported_as_a_person_reads_it(trouble: RunError, expected: str) -> None:
    assert trouble.text() == expected


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r"))))
def test_lines_are_put_together_again(lines: list[str]) -> None:
    # An empty line is sent as its end alone, as the recorded server does.
    taken = TruncatedText("lines")
    for line in lines:
        taken.add(line or "\n")
    assert taken.data() == "".join(f"{line}\n" for line in lines).encode()


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_pieces_are_preserved_as_they_are(pieces: list[str]) -> None:
    taken = TruncatedText("pieces")
    for piece in pieces:
        taken.add(piece)
    assert taken.data() == "".join(pieces).encode()


def test_the_middle_of_long_output_is_left_out() -> None:
    taken = TruncatedText("pieces")
    taken.add("a" * MAX_OUTPUT_BYTES)
    taken.add("b" * 1000)
    half = MAX_OUTPUT_BYTES // 2
    end = b"a" * (half - 1000) + b"b" * 1000
    assert taken.data() == b"a" * half + truncation_note(1000) + end


COMMAND = ("POST", "/command")


GHOST = "until [ -e go ]; do sleep 0.01; done; touch ghost"


def _run(line: str) -> BackendToolCommandRun:
    return BackendToolCommandRun(line)


def _seen_of_a_ghost(sandbox: BackendSandbox) -> bytes:
    """Return which files there are after a `GHOST` that still lived would have made its own."""
    return end_of(sandbox, _run("touch go; sleep 0.3; ls")).stdout


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
    ended = end_of(sandbox, _run(line))
    assert (ended.exit_code, ended.stdout, ended.stderr) == expected
    assert ended.elapsed_ms > 0


def test_a_broken_command_tells_the_error_of_the_shell(sandbox: BackendSandbox) -> None:
    ended = end_of(sandbox, _run("echo 'open"))
    assert ended.exit_code not in (0, None)
    assert b"unexpected EOF" in ended.stderr


def test_it_starts_in_the_workspace_or_the_given_directory(sandbox: BackendSandbox) -> None:
    sandbox.dispatch(_run("mkdir -p deep"))
    assert end_of(sandbox, _run("pwd")).stdout == b"/workspace\n"
    for cwd, expected in (("deep", b"/workspace/deep\n"), ("/tmp", b"/tmp\n")):
        assert end_of(sandbox, BackendToolCommandRun("pwd", cwd=cwd)).stdout == expected


def test_a_missing_directory_is_reported(sandbox: BackendSandbox) -> None:
    failure = failed(sandbox, BackendToolCommandRun("pwd", cwd="nowhere"))
    assert failure.kind == "os_error"
    assert "does not exist" in failure.message


def test_a_directory_that_leads_out_is_refused(sandbox: BackendSandbox) -> None:
    assert failed(sandbox, BackendToolCommandRun("pwd", cwd="..")).kind == "path_outside_workspace"


def test_its_files_are_removed(remote: Remote) -> None:
    end_of(remote.sandbox, BackendToolCommandRun("cat", stdin=b"x"))
    left = remote.server.root_of(remote.sandbox.handle) / "tmp"
    assert [each for each in left.iterdir() if each.name.startswith(".rath-")] == []


def test_arguments_meet_no_shell(remote: Remote) -> None:
    argv = ["printf", "%s|", "$HOME", "a  b", "it's", ""]
    assert end_of(remote.sandbox, BackendToolCommandRun(argv)).stdout == b"$HOME|a  b|it's||"
    assert _sent(remote.server, shlex.join(argv)) == 1


@pytest.mark.parametrize("cmd", [[], "a\0b"])
def test_what_cannot_be_run_is_refused_before_it_is_sent(
    remote: Remote, cmd: str | list[str]
) -> None:
    assert failed(remote.sandbox, BackendToolCommandRun(cmd)).kind == "unexpected"
    assert remote.server.matching(*COMMAND) == []


def test_of_long_output_both_ends_are_reported_and_all_of_it_is_preserved(
    sandbox: BackendSandbox,
) -> None:
    n_bytes = MAX_OUTPUT_BYTES + 1000
    ended = end_of(sandbox, _run(f"head -c {n_bytes} /dev/zero"))
    assert b"1000 bytes left out" in ended.stdout
    assert ended.stdout_full is not None
    assert ended.stdout_full.data == b"\0" * n_bytes


def test_output_that_is_too_long_stays_in_the_sandbox(sandbox: BackendSandbox) -> None:
    ended = end_of(sandbox, _run(f"head -c {MAX_STORED_BYTES + 1} /dev/zero"))
    note = ended.stdout.strip(b"\0").decode()
    path = note.partition("all of it is in ")[2].partition(" ")[0]
    assert sandbox.dispatch(BackendToolFilesExists(path)) is True
    whole = b"\0" * (MAX_STORED_BYTES + 1)
    assert ended.stdout_full == Blob.from_bytes(whole, keep=0)


@pytest.mark.parametrize(
    "fault",
    [Answer(500, {"code": "RUNTIME_ERROR", "message": "away"}), CutStream(0)],
    ids=["refused", "no answer"],
)
def test_output_that_cannot_be_digested_there_is_unknown(
    remote: Remote, fault: Answer | CutStream
) -> None:
    native = remote.sandbox.ensure_open().native
    remote.server.inject(*COMMAND, fault, skip=1)
    call = _run(f"head -c {MAX_STORED_BYTES + 1} /dev/zero")
    ended = runtime().run(lambda: remote.backend.adispatch(native, call), label="a command")
    assert isinstance(ended, CommandResult)
    assert ended.stdout_full is None


def test_at_its_deadline_a_command_is_ended_with_what_it_started(sandbox: BackendSandbox) -> None:
    line = f"(setsid sh -c '{GHOST}' >/dev/null 2>&1 &); echo begun; sleep 30"
    failure = at_a_deadline(
        lambda deadline: failed(sandbox, BackendToolCommandRun(line, timeout=deadline)),
        lambda failure: failure.detail != "",
    )
    assert (failure.kind, failure.detail) == ("timeout", "begun\n")
    assert _seen_of_a_ghost(sandbox) == b"go\n"


def test_what_emptied_its_environment_is_ended_at_the_deadline(sandbox: BackendSandbox) -> None:
    line = f"env -i setsid sh -c 'touch begun; {GHOST}' & sleep 30"
    failure = at_a_deadline(
        lambda deadline: failed(sandbox, BackendToolCommandRun(line, timeout=deadline)),
        lambda _: sandbox.dispatch(BackendToolFilesExists("begun")) is True,
    )
    assert failure.kind == "timeout"
    assert _seen_of_a_ghost(sandbox) == b"begun\ngo\n"


def test_a_deadline_that_the_server_does_not_keep_is_preserved_here(
    remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rath.backend.opensandbox.processes.GRACE_SECONDS", 0.0)
    gate = Gate()
    remote.server.inject(*COMMAND, gate)
    failure = failed(remote.sandbox, BackendToolCommandRun("echo x", timeout=0.05))
    gate.release()
    assert failure.kind == "timeout"


@pytest.mark.parametrize("timeout", [math.inf, math.nan, 1e12])
def test_an_endless_deadline_is_none(sandbox: BackendSandbox, timeout: float) -> None:
    assert end_of(sandbox, BackendToolCommandRun("true", timeout=timeout)).exit_code == 0


def test_a_cancelled_command_is_ended_in_the_sandbox(remote: Remote) -> None:
    call = _run(f"touch begun; {GHOST}; sleep 30")
    running = runtime().submit(lambda: remote.sandbox.adispatch(call), label="a command")
    remote.server.wait_for(*COMMAND)
    wait_until(lambda: remote.sandbox.dispatch(BackendToolFilesExists("begun")) is True)
    runtime().cancel(running)
    with pytest.raises(BaseException):  # noqa: B017, PT011  # CancelledError is none of Exception
        running.future.result(50)
    assert _seen_of_a_ghost(remote.sandbox) == b"begun\ngo\n"


def test_a_command_whose_end_was_lost_is_not_taken_for_one_that_went_well(remote: Remote) -> None:
    remote.server.inject(*COMMAND, CutStream(2))
    failure = failed(remote.sandbox, _run("echo x >> ran.txt"))
    assert failure.kind == "sandbox_sdk_error"
    assert "may have taken effect or not" in failure.message
    assert _sent(remote.server, "ran.txt") == 1


def test_a_connection_that_broke_says_that_the_outcome_is_unknown(remote: Remote) -> None:
    remote.server.inject(*COMMAND, Drop("after", "reset"))
    failure = failed(remote.sandbox, _run("echo x >> ran.txt"))
    assert (failure.kind, failure.detail) == ("sandbox_sdk_error", "connection lost")
    assert _sent(remote.server, "ran.txt") == 1


def test_a_command_that_prints_nothing_is_not_run_again(remote: Remote) -> None:
    end_of(remote.sandbox, _run("python3 -c \"print('x', file=open('out.txt', 'a'))\""))
    assert remote.sandbox.dispatch(BackendToolFilesRead("out.txt")) == FileContent("x\n")
    assert _sent(remote.server, "out.txt") == 1


def test_what_the_server_refuses_is_reported(remote: Remote) -> None:
    refused = Answer(500, {"code": "RUNTIME_ERROR", "message": "no more processes"})
    remote.server.inject(*COMMAND, refused)
    failure = failed(remote.sandbox, _run("true"))
    assert (failure.kind, failure.message) == ("dispatch_error", "no more processes")


def test_commands_run_one_at_a_time(sandbox: BackendSandbox) -> None:
    line = "mkdir only || echo overlap; sleep 0.05; rmdir only"
    with sandbox.stream() as first, sandbox.stream() as second:
        said = [stream.submit(_run(line)) for stream in (first, second, first, second)]
        results = [each.result() for each in said]
    assert [each.stdout for each in results if isinstance(each, CommandResult)] == [b""] * 4


def test_output_that_cannot_be_fetched_is_not_taken_for_none(remote: Remote) -> None:
    away = Answer(500, {"code": "RUNTIME_ERROR", "message": "the disk is away"})
    remote.server.inject("GET", "/files/info", away)
    failure = failed(remote.sandbox, _run("echo x; exit 3"))
    assert (failure.kind, failure.detail) == ("sandbox_sdk_error", "output lost")
    assert "ended with exit code 3" in failure.message


def test_output_that_the_command_removed_is_not_taken_for_none(sandbox: BackendSandbox) -> None:
    failure = failed(sandbox, _run("echo x; rm /tmp/.rath-*"))
    assert failure.detail == "output lost"


def test_a_command_whose_output_has_no_place_says_so(sandbox: BackendSandbox) -> None:
    sandbox.dispatch(_run("rm -rf /tmp; exit 0"))
    ended = end_of(sandbox, _run("echo x > ran.txt"))
    assert ended.exit_code == 125
    assert b"No such file or directory" in ended.stderr
    assert sandbox.dispatch(BackendToolFilesExists("ran.txt")) is False


def test_input_of_a_refused_command_is_removed(remote: Remote) -> None:
    failed(remote.sandbox, BackendToolCommandRun("cat", cwd="nowhere", stdin=b"x"))
    left = remote.server.root_of(remote.sandbox.handle) / "tmp"
    assert [each for each in left.iterdir() if each.name.startswith(".rath-")] == []


CODE = ("POST", "/code")


BUSY = Answer(500, {"code": "RUNTIME_ERROR", "message": "error running codes session is busy"})


def _ran(sandbox: BackendSandbox, code: str, language: str = "python") -> CodeResult:
    result = sandbox.dispatch(BackendToolCodeRun(code, language))
    assert isinstance(result, CodeResult), result
    return result


@pytest.fixture
def _no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rath.backend.opensandbox.processes.BUSY_WAITS", (0.01, 0.01))


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


def test_an_error_is_reported_without_colours(sandbox: BackendSandbox) -> None:
    error = str(_ran(sandbox, "print('before')\n1/0").error)
    assert "ZeroDivisionError: division by zero" in error
    assert "\x1b" not in error


def test_a_failing_shell_tells_its_exit_code(sandbox: BackendSandbox) -> None:
    assert _ran(sandbox, "exit_with() { return 3; }; exit_with", "bash").error == "exit code 3"


@pytest.mark.parametrize("language", ["cobol", "", "Python"])
def test_an_unknown_language_is_refused_before_it_is_sent(remote: Remote, language: str) -> None:
    failure = failed(remote.sandbox, BackendToolCodeRun("x", language))
    assert (failure.kind, failure.detail) == ("unsupported_tool", language)
    assert remote.server.matching(*CODE) == []


def test_no_code_does_nothing(remote: Remote) -> None:
    assert _ran(remote.sandbox, " \n") == CodeResult(None, b"", b"", None)
    assert remote.server.matching(*CODE) == []


def test_at_its_deadline_code_is_interrupted_and_its_state_stays(sandbox: BackendSandbox) -> None:
    _ran(sandbox, "x = 42")
    endless = "import time\nprint('begun', flush=True)\ntime.sleep(30)"
    failure = at_a_deadline(
        lambda deadline: failed(sandbox, BackendToolCodeRun(endless, timeout=deadline)),
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
def test_code_that_a_busy_interpreter_refused_is_sent_again(remote: Remote) -> None:
    _ran(remote.sandbox, "n = 0")
    remote.server.inject(*CODE, BUSY, times=2)
    assert _ran(remote.sandbox, "n += 1\nn").text == "1"


def test_code_of_which_nothing_was_heard_is_interrupted_too(remote: Remote) -> None:
    _ran(remote.sandbox, "x = 42")
    gate = Gate()
    remote.server.inject(*CODE, gate)
    assert failed(remote.sandbox, BackendToolCodeRun("x += 1", timeout=0.1)).kind == "timeout"
    gate.release()
    remote.server.wait_for("DELETE", "/code")


@pytest.mark.usefixtures("_no_wait")
def test_an_interpreter_that_stays_busy_says_so(remote: Remote) -> None:
    remote.server.inject(*CODE, BUSY, times=None)
    failure = failed(remote.sandbox, BackendToolCodeRun("1"))
    assert failure.kind == "dispatch_error"
    assert "session is busy" in failure.message
    assert remote.server.calls[CODE] == 3


@pytest.mark.usefixtures("_no_wait")
@pytest.mark.parametrize("fault", [Drop("after"), CutStream(2)], ids=["dropped", "cut"])
def test_code_whose_end_was_lost_is_not_run_again(remote: Remote, fault: Drop | CutStream) -> None:
    _ran(remote.sandbox, "n = 0")
    remote.server.inject(*CODE, fault)
    failure = failed(remote.sandbox, BackendToolCodeRun("n += 1"))
    assert failure.kind == "sandbox_sdk_error"
    assert "may have taken effect or not" in failure.message
    assert _ran(remote.sandbox, "n").text in ("0", "1")
    assert remote.server.calls[CODE] == 3


def test_an_image_without_interpreters_says_what_is_missing(
    backend: OpenSandboxBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("opensandbox")
    monkeypatch.setattr("rath.backend.opensandbox.client.INTERPRETER_SECONDS", 0.2)
    sandbox = backend.open(BackendSandboxSpec(image="python:3.11", entrypoint=["sleep", "inf"]))
    failure = failed(sandbox, BackendToolCodeRun("1"))
    backend.close(sandbox)
    assert (failure.kind, failure.detail) == ("dispatch_error", "not ready")
    assert "was not sent" in failure.message
