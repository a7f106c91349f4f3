"""Clauses on commands and code: input, output, end, and what a confined one must not reach."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from secrets import token_hex

from rath.backend.capabilities import IsolationLevel
from rath.backend.kept_output import output_path
from rath.backend.results import CodeResult, CommandResult, FileContent, ToolExecutionFailure
from rath.backend.tool_types import (
    BackendToolCodeRun,
    BackendToolCommandRun,
    BackendToolFilesExists,
    BackendToolFilesRead,
    BackendToolFilesWrite,
)
from rath.conformance.contract import Clauses, Skipped, Unlike, expect, expect_equal
from rath.conformance.sandbox.subject import COMMAND, FILE, SandboxSubject, new_name

__all__ = ["COMMANDS", "CONFINEMENT"]

COMMANDS = Clauses[SandboxSubject]()
CONFINEMENT = Clauses[SandboxSubject]()

_CANARY = "RATH_CONFORMANCE_CANARY"
_DEADLINES = "Deadlines, and nothing outlives them"

_ORPHAN = 'n=0; while [ $n -lt 80 ]; do echo alive >> "$1"; n=$((n + 1)); sleep 0.05; done\n'
"""Shows for some seconds that it is alive, and ends by itself where nobody ends it."""


@COMMANDS.add("Commands", COMMAND)
def a_command_tells_output_and_exit_code(box: SandboxSubject) -> None:
    found = box.run("echo hello")
    expect((found.exit_code, found.stdout) == (0, b"hello\n"), f"hello and 0, got {found!r}")
    expect_equal(box.run("exit 3").exit_code, 3, "as exit code")


@COMMANDS.add("Commands", COMMAND)
def a_command_gets_its_variables(box: SandboxSubject) -> None:
    found = box.run("printenv RATH_CHECK", env={"RATH_CHECK": "seen"})
    expect_equal(found.stdout, b"seen\n", "as its variable")


@COMMANDS.add("Commands", COMMAND)
def an_argument_list_meets_no_shell(box: SandboxSubject) -> None:
    box.expect_output(["echo", "$HOME", "a  b"], b"$HOME a  b\n")


@COMMANDS.add("Commands", COMMAND, BackendToolFilesWrite)
def output_that_is_not_text_is_kept(box: SandboxSubject) -> None:
    box.write("a.bin", b"\xff\xfe")
    box.expect_output("cat a.bin", b"\xff\xfe")


@COMMANDS.add("Commands", COMMAND)
def output_and_errors_are_kept_apart(box: SandboxSubject) -> None:
    box.need_shell()
    found = box.run("echo out; echo err >&2")
    expect_equal((found.stdout, found.stderr), (b"out\n", b"err\n"), "apart")


@COMMANDS.add("Commands", *FILE, COMMAND)
def a_command_starts_where_it_is_told(box: SandboxSubject) -> None:
    box.need_shell()
    box.write("below/here.txt", "here")
    expect_equal(box.run("cat here.txt", cwd="below").stdout, b"here", "from its directory")
    box.ask(BackendToolCommandRun("true", cwd="no-such-place"), ToolExecutionFailure)


@COMMANDS.add("Commands", *FILE, COMMAND)
def commands_and_files_share_the_workspace(box: SandboxSubject) -> None:
    box.write("a.txt", "shared\n")
    box.expect_output("cat a.txt", b"shared\n")


@COMMANDS.add("Long outputs to read in parts", *FILE, COMMAND)
def a_long_output_is_read_afterwards(box: SandboxSubject) -> None:
    box.need_shell()
    found = box.run("n=0; while [ $n -lt 9000 ]; do n=$((n + 1)); echo $n; done")
    if found.stdout_full is None:
        raise Unlike(f"expected stdout_full with {len(found.stdout)} bytes, got None")
    path = output_path(found.stdout_full.digest)
    part = box.ask(BackendToolFilesRead(path, offset=8999), FileContent)
    expect_equal(part.data, "9000\n", "as its last line")


@COMMANDS.add("Input of commands", COMMAND)
def a_command_reads_what_it_is_given(box: SandboxSubject) -> None:
    found = box.sandbox.dispatch(BackendToolCommandRun("cat", stdin=b"given"))
    if isinstance(found, ToolExecutionFailure) and found.kind == "unsupported_tool":
        raise Skipped(found.message)
    expect_equal(box.run("cat", stdin=b"given").stdout, b"given", "as its input")


@COMMANDS.add("Environment is not inherited", COMMAND)
def variables_of_this_process_are_not_seen(box: SandboxSubject) -> None:
    os.environ[_CANARY] = "seen"
    try:
        found = box.run(f"printenv {_CANARY}")
    finally:
        del os.environ[_CANARY]
    expect(b"seen" not in found.stdout, f"no variable of this process, got {found!r}")


@COMMANDS.add(_DEADLINES, COMMAND)
def a_command_that_takes_too_long_is_a_failure_to_read(box: SandboxSubject) -> None:
    started = time.monotonic()
    box.expect_refusal("timeout", BackendToolCommandRun("sleep 30", timeout=0.1))
    expect(time.monotonic() - started < 20, "the end of a command of 30 s soon after 0.1 s")
    box.run("echo still here")


@COMMANDS.add(_DEADLINES, *FILE, BackendToolFilesExists, COMMAND)
def after_a_timeout_nothing_goes_on(box: SandboxSubject) -> None:
    box.need_shell()
    _expect_no_orphan(box, "sh")


@COMMANDS.add(_DEADLINES, *FILE, BackendToolFilesExists, COMMAND)
def after_a_timeout_nothing_of_another_session_goes_on(box: SandboxSubject) -> None:
    box.need_shell()
    if box.run("setsid true").exit_code != 0:
        raise Skipped("its commands know no setsid, so that none can leave its group")
    _expect_no_orphan(box, "setsid sh")


def _expect_no_orphan(box: SandboxSubject, start: str) -> None:
    """Let a command reach its deadline while something that it started still writes."""
    for patience in (0.2, 2.0, 10.0):
        script, trace = new_name("orphan"), new_name("trace")
        box.write(script, _ORPHAN)
        line = f"({start} {script} {trace} </dev/null >/dev/null 2>&1 &); sleep 60"
        box.expect_refusal("timeout", BackendToolCommandRun(line, timeout=patience))
        if box.exists(trace):
            break
    else:
        raise Unlike("expected a process in the background to begin within 10 s")
    written = box.read(trace)
    box.run("sleep 0.5")
    expect(box.read(trace) == written, f"no process that outlived its command: {start!r}")


@COMMANDS.add("Code", BackendToolCodeRun)
def code_tells_output_and_error(box: SandboxSubject) -> None:
    found = box.ask(BackendToolCodeRun("print(6 * 7)"), CodeResult)
    expect(found.stdout.strip() == b"42" and found.error is None, f"42, got {found!r}")
    broken = box.ask(BackendToolCodeRun("raise ValueError('no')"), CodeResult)
    expect("ValueError" in (broken.error or ""), f"the error's name, got {broken!r}")


@COMMANDS.add("Code", BackendToolCodeRun)
def a_language_it_cannot_run_is_a_failure_to_read(box: SandboxSubject) -> None:
    box.expect_refusal("unsupported_tool", BackendToolCodeRun("x", language="no-such-language"))


# ---------------------------------------------------------------- confinement

_confined = CONFINEMENT.add("Commands stay inside", COMMAND, offer="confines_commands")


@_confined
def files_of_this_host_are_not_written(box: SandboxSubject) -> None:
    with tempfile.TemporaryDirectory(prefix="rath-conformance-") as outside:
        target = Path(outside) / "reached.txt"
        box.run(f"mkdir -p {outside}; echo x > {target}")
        expect(not target.exists(), f"no write to {target}")


@_confined
def secrets_in_the_home_are_not_read(box: SandboxSubject) -> None:
    home = Path.home()
    if not os.access(home, os.W_OK):
        raise Skipped(f"the home {str(home)!r} cannot be written to")
    with tempfile.NamedTemporaryFile(dir=home, prefix=".rath-conformance-") as secret:
        secret.write(b"canary")
        secret.flush()
        found = box.run(f"cat {secret.name}; ls -a {home}")
    expect(b"canary" not in found.stdout, "no file of the home to be read")
    expect(os.path.basename(secret.name).encode() not in found.stdout, "the home to be hidden")


@_confined
def the_network_is_not_reached(box: SandboxSubject) -> None:
    if box.sandbox.spec is not None and box.sandbox.spec.network:
        raise Skipped("its spec says network=True")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        line = f"echo begun; exec 3<>/dev/tcp/127.0.0.1/{port} && echo reached"
        found = box.sandbox.dispatch(BackendToolCommandRun(["bash", "-c", line]))
    if not isinstance(found, CommandResult) or b"begun" not in found.stdout:
        raise Skipped("it has no bash that could try it")
    expect(b"reached" not in found.stdout, f"no connection to this host, got {found!r}")


@_confined
def processes_of_this_host_are_not_reached(box: SandboxSubject) -> None:
    name = f"rath-conformance-{token_hex(8)}"
    # Its name stands on its command line and in its environment, and nowhere in the search.
    pattern = f"[{name[0]}]{name[1:]}"
    code = "import sys; sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, name], env=dict(os.environ, NAME=name), stdin=subprocess.PIPE
    ) as bystander:
        where = f"/proc/[0-9]*/cmdline /proc/{bystander.pid}/environ"
        seen = box.run(f"cat {where} | tr '\\0' '\\n' | grep {pattern}")
        # A process inside may have the same number; then /proc shows it.
        hidden = f"kill -0 {bystander.pid} && ! test -e /proc/{bystander.pid} && echo reached"
        reached = box.run(hidden)
        bystander.kill()
    expect(name.encode() not in seen.stdout, f"no process of this host to be seen, got {seen!r}")
    expect(b"reached" not in reached.stdout, "no process of this host to be signalled")


@_confined
def more_privileges_are_not_had(box: SandboxSubject) -> None:
    if box.backend.capabilities().isolation in (IsolationLevel.MICROVM, IsolationLevel.VM):
        raise Skipped("whoever rules a machine of its own rules nothing outside")
    found = box.run("grep -E '^(NoNewPrivs|CapEff)' /proc/self/status")
    expect(b"NoNewPrivs:\t1" in found.stdout, f"no new privileges, got {found!r}")
    expect(b"CapEff:\t0000000000000000" in found.stdout, f"no capabilities, got {found!r}")
