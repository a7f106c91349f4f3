"""Nothing that a command started outlives it, whatever ends us."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import select
import signal
import subprocess
import sys
from contextvars import Context, ContextVar, copy_context
from pathlib import Path
from weakref import ReferenceType, ref

import pytest

from rath._async.runtime import runtime
from rath.backend import (
    BackendSandbox,
    BackendToolCommandRun,
    CommandResult,
    ToolExecutionFailure,
)
from rath.backend.host.backend import deadline_failure
from rath.backend.host.process import CommandEnd, HostCommand, run_process
from rath.backend.host.supervisor import (
    MIN_IDLE,
    SupervisedCommand,
    SupervisorClient,
    is_supported,
    supervisor,
)
from tests.support.command_witness import Witness
from tests.support.waiting import PATIENCE, at_a_deadline, wait_until

pytestmark = pytest.mark.skipif(not is_supported(), reason="no commands are supervised here")


@pytest.fixture
def pipe(workspace: Path) -> Witness:
    return Witness(workspace / "pids")


# Three that left the group: by setsid, by setsid twice, and by a fork in between.
ESCAPED = (
    "exec 9>pids; "
    "setsid sh -c 'echo $$ >&9; exec sleep 60' & "
    "setsid sh -c '(setsid sh -c \"echo \\$\\$ >&9; exec sleep 60\" &) ; exec sleep 60' & "
    "(setsid sh -c 'trap \"\" TERM HUP INT; echo $$ >&9; exec sleep 60' &) ; "
)


def wait_gone(pid: int) -> None:
    """Wait for the end of a process that is not ours."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    assert select.select([pidfd], [], [], PATIENCE)[0], f"process {pid} is still there"
    os.close(pidfd)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def run_to_a_deadline(
    sandbox: BackendSandbox, pipe: Witness, line: str, n_pids: int
) -> tuple[ToolExecutionFailure, list[int]]:
    """Run a line until a deadline that comes after so many have told their ids."""

    def run_until(deadline: float) -> tuple[ToolExecutionFailure, list[int]]:
        result = sandbox.dispatch(BackendToolCommandRun(line, timeout=deadline))
        assert isinstance(result, ToolExecutionFailure)
        return result, pipe.pids_by_now()

    result, pids = at_a_deadline(run_until, lambda ran: len(ran[1]) == n_pids)
    assert len(pids) == n_pids
    pipe.let_go()
    return result, pids


def test_a_timeout_ends_what_left_the_group(sandbox: BackendSandbox, pipe: Witness) -> None:
    result, _ = run_to_a_deadline(sandbox, pipe, ESCAPED + "sleep 60", 3)
    assert result.kind == "timeout"
    pipe.wait_all_gone()


def test_cancelling_ends_what_left_the_group(sandbox: BackendSandbox, pipe: Witness) -> None:
    call = BackendToolCommandRun(ESCAPED + "sleep 60")
    running = runtime().submit(lambda: sandbox.adispatch(call), label="a command")
    pipe.pids(3)
    runtime().cancel(running)
    assert isinstance(running.future.exception(), asyncio.CancelledError)
    pipe.wait_all_gone()


def test_a_server_lives_until_its_sandbox_is_closed(
    sandbox: BackendSandbox, workspace: Path, pipe: Witness
) -> None:
    os.mkfifo(workspace / "go")
    call = BackendToolCommandRun(ESCAPED + "read line < go; echo started")
    running = runtime().submit(lambda: sandbox.adispatch(call), label="a command")
    pids = pipe.pids(3)
    (workspace / "go").write_text("now\n")
    assert isinstance(running.future.result(PATIENCE), CommandResult)
    sandbox.dispatch(BackendToolCommandRun("true"))
    for pid in pids:
        os.kill(pid, 0)
    sandbox.backend.close(sandbox)
    pipe.wait_all_gone()


def test_without_anybody_to_keep_them_leftovers_end_with_the_command(
    workspace: Path, pipe: Witness
) -> None:
    os.mkfifo(workspace / "go")
    line = ESCAPED + "read line < go"
    command = HostCommand(["sh", "-c", line], str(workspace), {"PATH": os.defpath})
    running = runtime().submit(lambda: run_process(command), label="a command")
    pipe.pids(3)
    (workspace / "go").write_text("now\n")
    assert running.future.result(PATIENCE).result.exit_code == 0
    pipe.wait_all_gone()


PROGRAM = """
import os, sys, threading
from rath.backend import BackendSandboxSpec, BackendToolCommandRun, get
sandbox = get("local").open(BackendSandboxSpec(working_dir=sys.argv[1]))
def run(line):
    threading.Thread(
        target=sandbox.dispatch, args=[BackendToolCommandRun(line)], daemon=True
    ).start()
"""


def start(program: str, workspace: Path, *, first: str = "") -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", first + PROGRAM + program, str(workspace), ESCAPED],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_killing_this_process_leaves_nothing(workspace: Path, pipe: Witness) -> None:
    with start("run(sys.argv[2] + 'sleep 60'); sys.stdin.read()", workspace) as child:
        first = pipe.pids(3)[0]
        keeper = parent_of(first) if parent_of(first) != 1 else None
        child.kill()
        pipe.wait_all_gone()
        if keeper is not None:
            wait_gone(keeper)


def test_killing_this_process_leaves_nothing_though_a_fork_of_it_lives(
    workspace: Path, pipe: Witness
) -> None:
    program = """
run(sys.argv[2] + 'sleep 60')
sys.stdin.readline()
if os.fork() == 0:
    os.write(2, b"forked")
    sys.stdin.read()
    os._exit(0)
sys.stdin.read()
"""
    with start(program, workspace) as child:
        pipe.pids(3)
        assert child.stdin is not None
        assert child.stderr is not None
        child.stdin.write(b"\n")
        child.stdin.flush()
        assert child.stderr.read(6) == b"forked"
        child.kill()
        pipe.wait_all_gone()
        child.stdin.close()


def test_a_forked_child_can_run_commands_of_its_own(workspace: Path) -> None:
    program = """
sandbox.dispatch(BackendToolCommandRun("true"))
pid = os.fork()
if pid == 0:
    again = get("local").open(BackendSandboxSpec(working_dir=sys.argv[1]))
    result = again.dispatch(BackendToolCommandRun("echo child"))
    os.write(2, result.stdout)
    os._exit(0)
os.waitpid(pid, 0)
os.write(2, sandbox.dispatch(BackendToolCommandRun("echo parent")).stdout)
"""
    with start(program, workspace) as child:
        _, said = child.communicate()
    assert said == b"child\nparent\n"


def run_at_once(sandbox: BackendSandbox, lines: list[str]) -> list[bytes]:
    async def all_of_them() -> list[object]:
        calls = [BackendToolCommandRun(line) for line in lines]
        return await asyncio.gather(*(sandbox.adispatch(call) for call in calls))

    results = runtime().run(all_of_them, label="many commands")
    return [result.stdout for result in results if isinstance(result, CommandResult)]


def test_two_hundred_commands_run_at_once(sandbox: BackendSandbox) -> None:
    outputs = run_at_once(sandbox, [f"echo {n}" for n in range(200)])
    assert outputs == [b"%d\n" % n for n in range(200)]


def test_commands_that_run_at_once_again_need_no_other_runners(
    sandbox: BackendSandbox, workspace: Path
) -> None:
    n = 2 * MIN_IDLE

    def run_all() -> set[bytes]:
        # Each waits for all others, so that no two run below one runner.
        (workspace / "met").write_text("")
        meet = f"echo >> met; until [ $(wc -l < met) -ge {n} ]; do sleep 0.01; done; echo $PPID"
        return set(run_at_once(sandbox, [meet] * n))

    runtime().run(lambda: supervisor().aclose(), label="ending the supervisor")
    first = run_all()
    assert len(first) == n
    assert run_all() == first


async def started(client: SupervisorClient, directory: Path, line: str) -> SupervisedCommand:
    """Start a shell whose output goes nowhere."""
    device = os.open("/dev/null", os.O_RDWR)
    payload = b"\0".join([b"3", b"1,2", os.fsencode(directory), b"/bin/sh", b"-c", line.encode()])
    try:
        return await client.start(payload, [device, device], program="sh", directory="/")
    finally:
        os.close(device)


def test_an_idle_runner_that_was_killed_gets_no_command(workspace: Path) -> None:
    async def run() -> tuple[int, int]:
        client = SupervisorClient()
        runners = list[int]()
        for name in ("first", "second"):
            command = await started(client, workspace, f"echo $PPID > {name}")
            await asyncio.wait([command.cleared])
            runners.append(int((workspace / name).read_text()))
            if name == "first":
                # Before the event loop can notice that it has gone.
                os.kill(runners[0], signal.SIGKILL)
                wait_gone(runners[0])
        await client.aclose()
        return runners[0], runners[1]

    killed, other = runtime().run(run, label="two commands")
    assert other != killed


def test_of_the_runners_that_nobody_uses_few_are_left(workspace: Path) -> None:
    async def run() -> tuple[SupervisorClient, list[int]]:
        client = SupervisorClient(idle_seconds=0.05)
        line = "echo $PPID >> runners; until [ -e go ]; do sleep 0.01; done"
        commands = [await started(client, workspace, line) for _ in range(2 * MIN_IDLE)]
        (workspace / "go").touch()
        await asyncio.wait([each.cleared for each in commands])
        runners = [int(pid) for pid in (workspace / "runners").read_text().split()]
        return client, runners

    client, runners = runtime().run(run, label="many commands")
    assert len(set(runners)) == 2 * MIN_IDLE

    def n_left() -> int:
        return sum(os.path.exists(f"/proc/{pid}") for pid in runners)

    wait_until(lambda: n_left() == MIN_IDLE, "another number of idle runners is left")
    runtime().run(client.aclose, label="ending the supervisor")
    wait_until(lambda: n_left() == 0, "runners go on without their supervisor")


def test_what_a_killed_runner_had_is_ended_and_reported_lost(
    sandbox: BackendSandbox, pipe: Witness
) -> None:
    call = BackendToolCommandRun("exec 9>pids; echo $PPID >&9; " + ESCAPED + "sleep 60")
    running = runtime().submit(lambda: sandbox.adispatch(call), label="a command")
    os.kill(pipe.pids(4)[0], signal.SIGKILL)
    result = running.future.result(PATIENCE)
    assert isinstance(result, ToolExecutionFailure)
    assert (result.kind, "killed" in result.message) == ("os_error", True)
    pipe.wait_all_gone()


def test_a_stopped_runner_saves_nothing_from_a_timeout(
    sandbox: BackendSandbox, pipe: Witness
) -> None:
    line = ESCAPED + "kill -STOP $PPID; sleep 60"
    result, _ = run_to_a_deadline(sandbox, pipe, line, 3)
    assert (result.kind, "was ended" in result.message) == ("timeout", True)
    pipe.wait_all_gone()


def test_a_stopped_runner_saves_nothing_from_closing(
    sandbox: BackendSandbox, workspace: Path, pipe: Witness
) -> None:
    os.mkfifo(workspace / "go")
    # Stopped by what the command leaves behind, after its end.
    parent = "read stat < /proc/$$/stat; set -- ${stat##*)}"
    stopper = f"read line < go; {parent}; kill -STOP $2; echo $$ >&9; exec sleep 60"
    line = f"exec 9>pids; setsid sh -c '{stopper}' >/dev/null 2>&1 &"
    assert isinstance(sandbox.dispatch(BackendToolCommandRun(line)), CommandResult)
    (workspace / "go").write_text("now\n")
    pipe.pids(1)
    sandbox.backend.close(sandbox)
    pipe.wait_all_gone()


def test_who_stops_the_supervisor_too_is_ended_all_the_same(
    sandbox: BackendSandbox, pipe: Witness
) -> None:
    line = (
        "exec 9>pids; read line < /proc/$PPID/stat; set -- ${line##*)}; "
        "echo $2 >&9; echo $$ >&9; kill -STOP $2 $PPID; sleep 60"
    )
    result, (above, _) = run_to_a_deadline(sandbox, pipe, line, 2)
    os.kill(above, signal.SIGCONT)
    assert result.kind == "timeout"
    pipe.wait_all_gone()


def test_what_cannot_be_ended_is_not_reported_as_ended() -> None:
    end = CommandEnd(CommandResult(-9, b"", b"", 1.0), True, has_exited=False)
    message = deadline_failure(end, 2.0).message
    assert ("was ended" in message, "may still run" in message) == (False, True)


@pytest.mark.parametrize(
    "setting",
    [
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD, signal.SIGTERM])",
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
    ],
    ids=["blocked", "children ignored", "ignored"],
)
def test_signals_that_this_process_blocks_or_ignores_reach_a_command(
    workspace: Path, setting: str
) -> None:
    program = """
result = sandbox.dispatch(BackendToolCommandRun("kill -TERM $$; echo not ended", timeout=50.0))
os.write(2, repr(result).encode())
"""
    # First, so that every thread has it from the one that started it.
    with start(program, workspace, first=f"import signal\n{setting}\n") as child:
        _, said = child.communicate()
    assert b"exit_code=-15" in said


def test_what_sits_in_the_background_may_make_a_session_of_its_own(
    sandbox: BackendSandbox, workspace: Path, pipe: Witness
) -> None:
    for at in range(10):
        # One for each: readers of the same pipe may take a line from another.
        os.mkfifo(workspace / f"go{at}")
        server = f"echo $$ >&9; read line < go{at}; echo $$ >&9; exec sleep 60"
        line = f"exec 9>pids; setsid sh -c '{server}' >/dev/null 2>&1 &"
        assert isinstance(sandbox.dispatch(BackendToolCommandRun(line)), CommandResult)
    for at in range(10):
        (workspace / f"go{at}").write_text("now\n")
    assert len(pipe.pids(20)) == 20
    sandbox.backend.close(sandbox)
    pipe.wait_all_gone()


def test_an_empty_program_is_refused_and_harms_nobody(sandbox: BackendSandbox) -> None:
    refused = sandbox.dispatch(BackendToolCommandRun([""]))
    assert isinstance(refused, ToolExecutionFailure)
    assert "name a program" in refused.message
    assert isinstance(sandbox.dispatch(BackendToolCommandRun("true")), CommandResult)


def test_a_request_that_no_program_can_be_leaves_its_keeper_alive() -> None:
    async def run() -> tuple[SupervisedCommand, SupervisedCommand]:
        devices = [os.open("/dev/null", os.O_RDWR) for _ in range(2)]
        started: list[SupervisedCommand] = []
        for program in (b"", b"/bin/true"):
            payload = b"1\x001,2\x00/\x00" + program
            one = await supervisor().start(payload, devices, program="it", directory="/")
            await one.cleared
            started.append(one)
        for device in devices:
            os.close(device)
        return started[0], started[1]

    empty, well = runtime().run(run, label="two commands")
    assert empty.failure is not None
    assert (empty.failure.errno, well.failure, well.exit_code) == (errno.EINVAL, None, 0)


def test_an_argument_that_is_too_long_says_what_to_do(sandbox: BackendSandbox) -> None:
    failed = sandbox.dispatch(BackendToolCommandRun(["echo", "x" * 3_000_000]))
    assert isinstance(failed, ToolExecutionFailure)
    assert "stdin" in failed.message


class Marked:
    """Something that lives in a context."""


mark: ContextVar[Marked] = ContextVar("mark")


def test_nothing_of_a_run_lives_as_long_as_the_supervisor_or_a_leftover(
    sandbox: BackendSandbox,
) -> None:
    async def begin() -> asyncio.TimerHandle:
        await supervisor().aclose()
        # An earlier timer, behind which one that was cancelled stays in the loop.
        return asyncio.get_running_loop().call_later(2 * PATIENCE, int, context=Context())

    timer = runtime().run(begin, label="ending the supervisor")

    def first_run() -> ReferenceType[Marked]:
        marked = Marked()
        mark.set(marked)
        sandbox.dispatch(BackendToolCommandRun("setsid sleep 60 >/dev/null 2>&1 &"))
        return ref(marked)

    alive = copy_context().run(first_run)

    # The thread of the runtime lets go of it a moment after the result can be read.
    def is_forgotten() -> bool:
        gc.collect()
        return alive() is None

    try:
        wait_until(is_forgotten, "the context of the run is held")
    finally:
        timer.cancel()


def test_a_killed_supervisor_is_started_anew(sandbox: BackendSandbox) -> None:
    keeper = sandbox.dispatch(BackendToolCommandRun("echo $PPID"))
    assert isinstance(keeper, CommandResult)
    above = parent_of(int(keeper.stdout))
    os.kill(above, signal.SIGKILL)
    wait_gone(above)
    results = [
        runtime().submit(
            lambda: sandbox.adispatch(BackendToolCommandRun("sleep 0.1; echo ok")), label="one"
        )
        for _ in range(20)
    ]
    said = [each.future.result(PATIENCE) for each in results]
    assert {each.stdout for each in said if isinstance(each, CommandResult)} == {b"ok\n"}
    assert len(said) == 20
    sandbox.backend.close(sandbox)
    # For the next test: nobody is above the keepers of the one that was killed.
    runtime().run(lambda: supervisor().aclose(), label="ending the supervisor")


def test_the_supervisor_holds_nothing_of_ours(sandbox: BackendSandbox, workspace: Path) -> None:
    held = os.open(workspace, os.O_RDONLY)
    os.set_inheritable(held, True)

    async def fresh() -> None:
        await supervisor().aclose()

    runtime().run(fresh, label="ending the supervisor")
    told = sandbox.dispatch(BackendToolCommandRun("echo $PPID"))
    assert isinstance(told, CommandResult)
    keeper = int(told.stdout)
    for pid in (keeper, parent_of(keeper)):
        links = [*Path(f"/proc/{pid}/fd").iterdir(), Path(f"/proc/{pid}/cwd")]
        assert str(workspace) not in {os.readlink(link) for link in links}
        assert b"PATH=" not in Path(f"/proc/{pid}/environ").read_bytes()
    os.close(held)


def test_a_command_gets_no_descriptor_but_its_three(sandbox: BackendSandbox) -> None:
    shown = sandbox.dispatch(BackendToolCommandRun(["ls", "/proc/self/fd"]))
    assert isinstance(shown, CommandResult)
    assert shown.stdout.split() == [b"0", b"1", b"2", b"3"]  # the last one is the listing's own


@pytest.mark.parametrize(
    ("program", "cwd", "named", "number"),
    [
        (["no-such-program"], ".", "no-such-program", "FileNotFoundError"),
        (["./data"], ".", "./data", "PermissionError"),
        (["true"], "missing", "missing", "FileNotFoundError"),
        (["true"], "data", "data", "NotADirectoryError"),
        (["./data/x"], ".", "./data/x", "NotADirectoryError"),
    ],
)
def test_what_cannot_start_says_what_and_why(
    workspace: Path, program: list[str], cwd: str, named: str, number: str
) -> None:
    (workspace / "data").write_text("no program")
    directory = os.path.normpath(workspace / cwd)
    command = HostCommand(program, directory, {"PATH": os.defpath})
    with pytest.raises(OSError, match=r".") as caught:
        runtime().run(lambda: run_process(command), label="a command")
    assert type(caught.value).__name__ == number
    assert os.path.basename(str(caught.value.filename)) == os.path.basename(named)


def test_a_program_is_found_on_the_path_of_the_command(workspace: Path) -> None:
    first, second = workspace / "first", workspace / "second"
    for directory in (first, second):
        directory.mkdir()
        (directory / "tool").write_text(f"#!/bin/sh\necho {directory.name}\n")
    (second / "tool").chmod(0o755)
    (workspace / "tool").symlink_to("missing")
    path = f"{workspace}:{first}:{second}:/nowhere"
    command = HostCommand(["tool"], str(workspace), {"PATH": path})
    end = runtime().run(lambda: run_process(command), label="a command")
    assert end.result.stdout == b"second\n"


def test_large_arguments_reach_the_command(workspace: Path) -> None:
    argv = ["sh", "-c", 'echo "$#" "${#1}"', "sh", *(["x" * 100_000] * 12)]
    command = HostCommand(argv, str(workspace), {"PATH": os.defpath})
    end = runtime().run(lambda: run_process(command), label="a command")
    assert end.result.stdout == b"12 100000\n"


def test_large_input_reaches_the_command(workspace: Path) -> None:
    command = HostCommand(
        ["wc", "-c"], str(workspace), {"PATH": os.defpath}, stdin=bytes(3_000_000)
    )
    end = runtime().run(lambda: run_process(command), label="a command")
    assert end.result.stdout == b"3000000\n"


def test_a_supervisor_that_cannot_start_is_a_failure_that_says_so(
    sandbox: BackendSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime().run(lambda: supervisor().aclose(), label="ending the supervisor")
    monkeypatch.setattr(sys, "executable", "/bin/false")
    failed = sandbox.dispatch(BackendToolCommandRun("true"))
    assert isinstance(failed, ToolExecutionFailure)
    assert (failed.kind, "did not start" in failed.message) == ("os_error", True)
    monkeypatch.undo()
    assert isinstance(sandbox.dispatch(BackendToolCommandRun("true")), CommandResult)


def test_leaving_the_supervisor_ends_what_runs(sandbox: BackendSandbox, pipe: Witness) -> None:
    call = BackendToolCommandRun(ESCAPED + "sleep 60")
    running = runtime().submit(lambda: sandbox.adispatch(call), label="a command")
    pipe.pids(3)
    runtime().run(lambda: supervisor().aclose(), label="ending the supervisor")
    assert isinstance(running.future.result(PATIENCE), ToolExecutionFailure)
    pipe.wait_all_gone()


@pytest.mark.parametrize("env", [{"A=B": "x"}, {"": "x"}, {"A": "x\0y"}])
def test_variables_that_cannot_be_are_refused(workspace: Path, env: dict[str, str]) -> None:
    command = HostCommand(["true"], str(workspace), env)
    with pytest.raises(ValueError, match="variable"):
        runtime().run(lambda: run_process(command), label="a command")
