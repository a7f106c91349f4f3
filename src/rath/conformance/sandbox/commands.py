"""Commands and code: what they are given, what they give back, how they end."""

from __future__ import annotations

import os
import time

from rath.backend.abc import BackendSandbox
from rath.backend.fallbacks import output_path
from rath.backend.results import CodeResult, CommandResult, FileContent, ToolExecutionFailure
from rath.backend.tool_types import (
    BackendToolCodeRun,
    BackendToolCommandRun,
    BackendToolFilesExists,
    BackendToolFilesRead,
    BackendToolFilesWrite,
)
from rath.conformance.report import Skipped, Unlike, expect
from rath.conformance.sandbox.subject import (
    COMMANDS,
    FILES,
    Check,
    exists,
    fail,
    give,
    need_shell,
    new_name,
    read,
    shell,
    write,
)

__all__ = ["CHECKS"]

_CANARY = "RATH_CONFORMANCE_CANARY"

_ORPHAN = 'n=0; while [ $n -lt 80 ]; do echo alive >> "$1"; n=$((n + 1)); sleep 0.05; done\n'
"""Tells for some seconds that it is alive, and ends by itself where nobody ends it."""


def a_command_tells_output_and_exit_code(sandbox: BackendSandbox) -> None:
    said = give(sandbox, BackendToolCommandRun("echo hello"), CommandResult)
    expect((said.exit_code, said.stdout) == (0, b"hello\n"), f"hello and 0, got {said!r}")
    ended = give(sandbox, BackendToolCommandRun("exit 3"), CommandResult)
    expect(ended.exit_code == 3, f"exit code 3, got {ended!r}")


def a_command_gets_its_variables(sandbox: BackendSandbox) -> None:
    call = BackendToolCommandRun("printenv RATH_CHECK", env={"RATH_CHECK": "seen"})
    said = give(sandbox, call, CommandResult)
    expect(said.stdout == b"seen\n", f"its variable, got {said!r}")


def a_command_that_takes_too_long_is_a_failure_to_read(sandbox: BackendSandbox) -> None:
    started = time.monotonic()
    fail(sandbox, BackendToolCommandRun("sleep 30", timeout=0.1), "timeout")
    expect(time.monotonic() - started < 20, "the end of a command of 30 s soon after 0.1 s")
    give(sandbox, BackendToolCommandRun("echo still here"), CommandResult)


def commands_and_files_share_the_workspace(sandbox: BackendSandbox) -> None:
    sandbox.dispatch(BackendToolFilesWrite("a.txt", "shared\n"))
    said = give(sandbox, BackendToolCommandRun("cat a.txt"), CommandResult)
    expect(said.stdout == b"shared\n", f"the file's content, got {said!r}")


def a_command_reads_what_it_is_given(sandbox: BackendSandbox) -> None:
    call = BackendToolCommandRun("cat", stdin=b"given")
    result = sandbox.dispatch(call)
    if isinstance(result, ToolExecutionFailure) and result.kind == "unsupported_tool":
        raise Skipped(result.message)
    said = give(sandbox, call, CommandResult)
    expect(said.stdout == b"given", f"its input back, got {said!r}")


def an_argument_list_meets_no_shell(sandbox: BackendSandbox) -> None:
    said = give(sandbox, BackendToolCommandRun(["echo", "$HOME", "a  b"]), CommandResult)
    expect(said.stdout == b"$HOME a  b\n", f"the arguments as they are, got {said!r}")


def output_that_is_not_text_is_kept(sandbox: BackendSandbox) -> None:
    write(sandbox, "a.bin", b"\xff\xfe")
    said = shell(sandbox, "cat a.bin")
    expect(said.stdout == b"\xff\xfe", f"the very bytes, got {said!r}")


def output_and_errors_are_kept_apart(sandbox: BackendSandbox) -> None:
    need_shell(sandbox)
    said = shell(sandbox, "echo out; echo err >&2")
    expect((said.stdout, said.stderr) == (b"out\n", b"err\n"), f"both apart, got {said!r}")


def a_command_starts_where_it_is_told(sandbox: BackendSandbox) -> None:
    need_shell(sandbox)
    write(sandbox, "below/here.txt", "here")
    said = give(sandbox, BackendToolCommandRun("cat here.txt", cwd="below"), CommandResult)
    expect(said.stdout == b"here", f"the file of its directory, got {said!r}")
    give(sandbox, BackendToolCommandRun("true", cwd="no-such-place"), ToolExecutionFailure)


def a_long_output_is_read_afterwards(sandbox: BackendSandbox) -> None:
    need_shell(sandbox)
    said = shell(sandbox, "n=0; while [ $n -lt 9000 ]; do n=$((n + 1)); echo $n; done")
    if said.stdout_full is None:
        raise Unlike(f"expected stdout_full beside {len(said.stdout)} bytes, got None")
    path = output_path(said.stdout_full.digest)
    part = give(sandbox, BackendToolFilesRead(path, offset=8999), FileContent)
    expect(part.data == "9000\n", f"its last line, got {part!r}")


def variables_of_this_process_are_not_seen(sandbox: BackendSandbox) -> None:
    os.environ[_CANARY] = "seen"
    try:
        said = shell(sandbox, f"printenv {_CANARY}")
    finally:
        del os.environ[_CANARY]
    expect(b"seen" not in said.stdout, f"no variable of this process, got {said!r}")


def after_a_timeout_nothing_goes_on(sandbox: BackendSandbox) -> None:
    need_shell(sandbox)
    _expect_no_orphan(sandbox, "sh {script} {trace}")


def after_a_timeout_nothing_of_another_session_goes_on(sandbox: BackendSandbox) -> None:
    need_shell(sandbox)
    if shell(sandbox, "setsid true").exit_code != 0:
        raise Skipped("its commands know no setsid, so that none can leave its group")
    _expect_no_orphan(sandbox, "setsid sh {script} {trace}")


def _expect_no_orphan(sandbox: BackendSandbox, start: str) -> None:
    """Let a command reach its deadline while something that it started still writes."""
    for patience in (0.2, 2.0, 10.0):
        script, trace = new_name("orphan"), new_name("trace")
        write(sandbox, script, _ORPHAN)
        line = (
            f"({start.format(script=script, trace=trace)} </dev/null >/dev/null 2>&1 &); sleep 60"
        )
        fail(sandbox, BackendToolCommandRun(line, timeout=patience), "timeout")
        if exists(sandbox, trace):
            break
    else:
        raise Unlike("expected a process in the background to begin within 10 s")
    written = read(sandbox, trace)
    shell(sandbox, "sleep 0.5")
    expect(read(sandbox, trace) == written, f"no process that outlived its command: {start!r}")


def code_tells_output_and_error(sandbox: BackendSandbox) -> None:
    said = give(sandbox, BackendToolCodeRun("print(6 * 7)"), CodeResult)
    expect(said.stdout.strip() == b"42" and said.error is None, f"42, got {said!r}")
    broken = give(sandbox, BackendToolCodeRun("raise ValueError('no')"), CodeResult)
    expect("ValueError" in (broken.error or ""), f"the error's name, got {broken!r}")


def a_language_it_cannot_run_is_a_failure_to_read(sandbox: BackendSandbox) -> None:
    fail(sandbox, BackendToolCodeRun("x", language="no-such-language"), "unsupported_tool")


_COMMANDS, _CODE = "Commands", "Code"
_DEADLINES = "Deadlines, and nothing outlives them"
_WITH_FILES = (*FILES, BackendToolFilesExists, *COMMANDS)

CHECKS = (
    Check(_COMMANDS, a_command_tells_output_and_exit_code, COMMANDS),
    Check(_COMMANDS, a_command_gets_its_variables, COMMANDS),
    Check(_COMMANDS, an_argument_list_meets_no_shell, COMMANDS),
    Check(_COMMANDS, output_that_is_not_text_is_kept, (*COMMANDS, BackendToolFilesWrite)),
    Check(_COMMANDS, output_and_errors_are_kept_apart, COMMANDS),
    Check(_COMMANDS, a_command_starts_where_it_is_told, (*FILES, *COMMANDS)),
    Check(_COMMANDS, commands_and_files_share_the_workspace, (*FILES, *COMMANDS)),
    Check("Long outputs to read in parts", a_long_output_is_read_afterwards, (*FILES, *COMMANDS)),
    Check("Input of commands", a_command_reads_what_it_is_given, COMMANDS),
    Check("Environment is not inherited", variables_of_this_process_are_not_seen, COMMANDS),
    Check(_DEADLINES, a_command_that_takes_too_long_is_a_failure_to_read, COMMANDS),
    Check(_DEADLINES, after_a_timeout_nothing_goes_on, _WITH_FILES),
    Check(_DEADLINES, after_a_timeout_nothing_of_another_session_goes_on, _WITH_FILES),
    Check(_CODE, code_tells_output_and_error, (BackendToolCodeRun,)),
    Check(_CODE, a_language_it_cannot_run_is_a_failure_to_read, (BackendToolCodeRun,)),
)
