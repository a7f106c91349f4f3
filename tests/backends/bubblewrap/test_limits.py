"""How much a sandbox can use, and that nothing of a command outlives it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rath._async.runtime import runtime
from rath.backend import (
    BackendSandbox,
    BackendSandboxSpec,
    BackendToolCodeRun,
    BackendToolCommandRun,
    CodeResult,
    CommandResult,
    SandboxLimits,
)
from rath.backend.bubblewrap import BubblewrapBackend
from tests.backends.bubblewrap.running import Open, printed
from tests.support.command_witness import Witness
from tests.support.waiting import wait_until
from tests.support.workspaces import run

SMALL = SandboxLimits(memory_bytes=256 << 20, processes=24)

BOMB = """
import os, time
n = 0
try:
    while n < 200:
        if os.fork() == 0:
            time.sleep(60)
        n += 1
except OSError:
    pass
print(n)
"""


# Also what leaves its session and its process group, and does not mind a polite signal.
BEGIN = (
    "exec 9>witness; trap '' TERM HUP; "
    "setsid sh -c 'trap \"\" TERM HUP; echo begun >&9; touch ready; sleep 60; sleep 60' & "
)


def test_a_fork_bomb_meets_its_limit(opened: Open) -> None:
    sandbox = opened(limits=SMALL)
    result = sandbox.dispatch(BackendToolCodeRun(BOMB, timeout=50.0))
    assert isinstance(result, CodeResult)
    assert 10 <= int(result.stdout) < 24
    # Nothing is left of it: the next command has room again.
    assert printed(sandbox, "echo well") == "well"


def test_a_memory_hog_ends_at_its_limit(opened: Open) -> None:
    sandbox = opened(limits=SMALL)
    hog = BackendToolCodeRun("x = bytearray(400 << 20); print('survived')", timeout=50.0)
    result = sandbox.dispatch(hog)
    assert isinstance(result, CodeResult)
    assert result.error is not None
    assert result.stdout == b""
    assert printed(sandbox, "echo well") == "well"


def test_less_memory_than_the_limit_is_there(opened: Open) -> None:
    result = opened(limits=SMALL).dispatch(BackendToolCodeRun("x = bytearray(100 << 20)"))
    assert isinstance(result, CodeResult)
    assert result.error is None


@pytest.mark.parametrize("place", ["/tmp", "/dev/shm", "/home/sandbox"])
def test_files_in_memory_are_memory(opened: Open, place: str) -> None:
    if BubblewrapBackend.limits_by() != "control groups":
        pytest.skip("resource limits do not count files in memory")
    result = run(opened(limits=SMALL), f"head -c 400M /dev/zero > {place}/x; echo survived")
    assert b"survived" not in result.stdout or result.stderr


@pytest.mark.parametrize("limits", [SandboxLimits(memory_bytes=0), SandboxLimits(processes=-1)])
def test_a_limit_below_one_is_refused(opened: Open, limits: SandboxLimits) -> None:
    with pytest.raises(ValueError, match="expected at least 1"):
        opened(limits=limits)


def test_too_few_processes_run_no_command(opened: Open) -> None:
    sandbox = opened(limits=SandboxLimits(processes=1))
    call = BackendToolCommandRun("/bin/true; /bin/true; echo ran", timeout=50.0)
    result = sandbox.dispatch(call)
    assert not isinstance(result, CommandResult) or result.stdout == b""


def test_two_sandboxes_have_limits_of_their_own(opened: Open, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    small, large = opened(limits=SMALL), opened(working_dir=tmp_path / "other")
    bomb = BackendToolCodeRun(BOMB, timeout=50.0)
    results = [sandbox.dispatch(bomb) for sandbox in (small, large)]
    assert [isinstance(each, CodeResult) and int(each.stdout) >= 200 for each in results] == [
        False,
        True,
    ]


def test_no_group_is_left_after_closing(backend: BubblewrapBackend, workspace: Path) -> None:
    others = groups_of(os.getpid())
    sandbox = backend.open(BackendSandboxSpec(working_dir=str(workspace)))
    run(sandbox, "true")
    has_groups = BubblewrapBackend.limits_by() == "control groups"
    assert (groups_of(os.getpid()) != others) == has_groups
    backend.close(sandbox)
    assert groups_of(os.getpid()) == others


def test_a_cancelled_closing_leaves_no_group(backend: BubblewrapBackend, workspace: Path) -> None:
    others = groups_of(os.getpid())
    sandbox = backend.open(BackendSandboxSpec(working_dir=str(workspace)))
    run(sandbox, "true")

    async def close() -> BaseException:
        closing = asyncio.ensure_future(backend.aclose(sandbox.native))
        await asyncio.sleep(0)  # a task that never began cleans nothing up
        while not closing.done():
            closing.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError) as ended:
            await closing
        return ended.value

    # Held, with the frames of the closing: nothing of it is collected meanwhile.
    ended = runtime().run(close, label="a test")
    wait_until(lambda: groups_of(os.getpid()) == others, "its control group is removed")
    del ended


def groups_of(pid: int) -> list[str]:
    found = subprocess.run(
        ["find", "/sys/fs/cgroup", "-type", "d", "-name", f"rath-bwrap-*-{pid}-*"],
        capture_output=True,
        check=False,
        text=True,
    )
    return sorted(found.stdout.split())


def test_the_end_of_a_command_ends_all_of_it(sandbox: BackendSandbox, witness: Witness) -> None:
    result = run(sandbox, BEGIN + "until [ -e ready ]; do sleep 0.02; done")
    assert result.exit_code == 0
    witness.wait_begun()
    witness.wait_all_gone()


def test_a_cancellation_ends_all_of_it(sandbox: BackendSandbox, witness: Witness) -> None:
    call = BackendToolCommandRun(BEGIN + "sleep 60")
    running = runtime().submit(lambda: sandbox.adispatch(call), label="a command")
    witness.wait_begun()
    runtime().cancel(running)
    assert isinstance(running.future.exception(), asyncio.CancelledError)
    witness.wait_all_gone()


def test_cancelling_at_once_leaves_nothing(sandbox: BackendSandbox, witness: Witness) -> None:
    call = BackendToolCommandRun("exec 9>witness; sleep 60")
    for _ in range(10):
        running = runtime().submit(lambda: sandbox.adispatch(call), label="a command")
        runtime().cancel(running)
        assert isinstance(running.future.exception(), asyncio.CancelledError)
    witness.let_go()
    witness.wait_all_gone()


PARENT = """
import sys
from rath.backend import BackendSandboxSpec, BackendToolCommandRun, get
sandbox = get("bubblewrap").open(BackendSandboxSpec(working_dir=sys.argv[1]))
sandbox.dispatch(BackendToolCommandRun(sys.argv[2]))
"""


def start_parent(workspace: Path, command: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    arguments = [sys.executable, "-c", PARENT, str(workspace), command]
    return subprocess.Popen(arguments, env=environment, stderr=subprocess.DEVNULL)


def test_killing_this_program_ends_all_of_it(
    backend: BubblewrapBackend, witness: Witness, workspace: Path
) -> None:
    with start_parent(workspace, BEGIN + "sleep 60") as parent:
        witness.wait_begun()
        parent.kill()
    witness.wait_all_gone()


def test_groups_and_files_of_a_killed_program_are_removed_later(
    backend: BubblewrapBackend, witness: Witness, workspace: Path, tmp_path: Path
) -> None:
    with start_parent(workspace, BEGIN + "sleep 60") as parent:
        witness.wait_begun()
        parent.send_signal(signal.SIGKILL)
    witness.wait_all_gone()
    sandbox = backend.open()
    run(sandbox, "true")
    assert groups_of(parent.pid) == []
    backend.close(sandbox)


def test_fifty_commands_run_at_once(sandbox: BackendSandbox) -> None:
    async def all_of_them() -> list[object]:
        calls = [BackendToolCommandRun(f"echo {n}") for n in range(50)]
        return await asyncio.gather(*(sandbox.adispatch(call) for call in calls))

    results = runtime().run(all_of_them, label="many commands")
    said = [result.stdout for result in results if isinstance(result, CommandResult)]
    assert said == [b"%d\n" % n for n in range(50)]


def test_no_terminal_of_this_program_is_reached(
    backend: BubblewrapBackend, workspace: Path
) -> None:
    program = """
import os, pty, sys
pid, terminal = pty.fork()
if pid == 0:
    from rath.backend import BackendSandboxSpec, BackendToolCommandRun, get
    sandbox = get("bubblewrap").open(BackendSandboxSpec(working_dir=sys.argv[1]))
    result = sandbox.dispatch(BackendToolCommandRun("exec 3<>/dev/tty && echo reached"))
    sys.exit(result.exit_code)
while True:
    try:
        if not os.read(terminal, 1000):
            break
    except OSError:
        break
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    arguments = [sys.executable, "-c", program, str(workspace)]
    said = subprocess.run(arguments, env=environment, capture_output=True, check=True)
    assert int(said.stdout) == 2
