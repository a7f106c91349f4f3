"""Overlays: mounted for the commands of one sandbox, gone with it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rath._core.files import FileLock
from rath._core.retention import remove_tree
from rath.backend import (
    BackendSandbox,
    BackendToolCommandRun,
    CommandResult,
    ToolExecutionFailure,
)
from rath.backend.host.layer_directory import LOCK_NAME, LayerDirectory
from rath.backend.host.overlay import (
    OverlayFailed,
    OverlayLayer,
    Tools,
    overlay_tools,
    tools_to_try,
)
from rath.backend.host.process import Command
from rath.backend.host.sandbox import HostSandbox
from rath.backend.local import LocalBackend
from rath.backend.persistence.paths import forks_root
from tests.support.waiting import at_a_deadline, wait_until
from tests.support.workspaces import (
    fork_directories,
    forked,
    has,
    opened,
    origin_of,
    put,
    sh,
    text_of,
    wait_until_removed,
)


@pytest.fixture
def parent(workspace: Path) -> Iterator[BackendSandbox]:
    directory = LayerDirectory()
    works = overlay_tools(directory) is not None
    directory.remove()
    if not works:
        pytest.skip("overlays cannot be mounted here")
    sandbox = opened(LocalBackend(), workspace)
    put(sandbox, "a", "one")
    yield sandbox
    sandbox.backend.close(sandbox)


@pytest.fixture
def fork(parent: BackendSandbox) -> Iterator[BackendSandbox]:
    sandbox = forked(parent)
    put(sandbox, "b", "two")
    yield sandbox
    sandbox.backend.close(sandbox)


def test_a_path_of_the_parent_means_the_own_layer(
    parent: BackendSandbox, fork: BackendSandbox, workspace: Path
) -> None:
    sh(fork, f"cd /; echo changed > {workspace}/a; mkdir {workspace}/new; touch {workspace}/new/x")
    put(fork, f"{workspace}/c", "three")
    assert sh(fork, "cat a c") == "changed\nthree"
    assert sh(parent, "ls; cat a") == "a\none"
    assert fork.describe().root == parent.describe().root == str(workspace)


def test_the_mount_is_seen_by_nobody_else(fork: BackendSandbox, workspace: Path) -> None:
    assert "overlay" in sh(fork, f"grep ' {workspace} ' /proc/self/mountinfo")
    assert str(workspace) not in Path("/proc/self/mountinfo").read_text()
    assert str(forks_root()) not in Path("/proc/self/mountinfo").read_text()


def test_commands_start_in_new_directories(fork: BackendSandbox, workspace: Path) -> None:
    put(fork, "only here/x", "")
    result = fork.dispatch(BackendToolCommandRun(["pwd"], cwd="only here"))
    assert isinstance(result, CommandResult)
    assert result.stdout.decode() == f"{workspace}/only here\n"


def test_what_was_changed_lies_in_the_upper_directory(fork: BackendSandbox) -> None:
    sh(fork, "echo changed > a")
    native = fork.native
    assert isinstance(native, HostSandbox)
    assert native.guard.layer is not None
    assert native.guard.layer.upper is not None
    assert sorted(os.listdir(native.guard.layer.upper)) == ["a", "b"]


def test_a_command_is_ended_at_its_deadline(fork: BackendSandbox) -> None:
    line = "sleep 600 & echo $! > pid; wait"
    result = at_a_deadline(
        lambda deadline: fork.dispatch(BackendToolCommandRun(line, timeout=deadline)),
        lambda _: has(fork, "pid") and text_of(fork, "pid") != "",
    )
    assert isinstance(result, ToolExecutionFailure)
    assert result.kind == "timeout"
    assert not Path(f"/proc/{text_of(fork, 'pid').strip()}").exists()


def test_a_fork_survives_the_removal_of_its_parents_directory(
    parent: BackendSandbox, fork: BackendSandbox, workspace: Path
) -> None:
    shutil.rmtree(workspace)
    assert sh(fork, "cat a b; echo c > c") == "onetwo"
    assert text_of(fork, "c") == "c\n"
    assert sh(fork, "pwd").strip() == fork.describe().root == f"{fork.handle}/files"
    workspace.mkdir()


def test_frozen_files_of_another_home_are_copied(
    parent: BackendSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen = parent.freeze()
    put(parent, "a", "changed")
    monkeypatch.setenv("OPENRATH_HOME", str(tmp_path / "second"))
    fork = forked(parent)
    early = parent.backend.lazy(origin=origin_of(frozen)).acquire()
    assert sh(early, "cat a; echo x > b") == "one"
    assert early.describe().layer in {"copy", "reflink"}
    assert early.describe().root == f"{early.handle}/files"
    assert not has(fork, "b")


def test_closing_ends_the_holder(parent: BackendSandbox) -> None:
    fork = forked(parent)
    put(fork, "a", "two")
    assert len(list(working_in(forks_root()))) == 1
    fork.backend.close(fork)
    assert list(working_in(forks_root())) == []
    assert fork.handle not in fork_directories()


@pytest.mark.parametrize(
    ("unshare", "reason"),
    [
        (("/nowhere/unshare",), "cannot be started: No such file"),
        (("/bin/false",), "was not mounted"),
        (("/bin/echo", "no room"), "no room"),
        (("/bin/sh", "-c", "echo ready; exec cat"), "cannot be reached"),
    ],
    ids=["missing", "silent", "refusing", "not mounting"],
)
def test_what_cannot_be_mounted_says_why(unshare: tuple[str, ...], reason: str) -> None:
    lower, directory = LayerDirectory(), LayerDirectory()
    os.mkdir(lower.files)
    try:
        with pytest.raises(OverlayFailed, match=reason):
            OverlayLayer(directory, lower, None, Tools(unshare, ()))
    finally:
        lower.remove()
        directory.remove()


@pytest.mark.parametrize("tools", tools_to_try(), ids=["root", "own user"][-len(tools_to_try()) :])
def test_every_way_to_mount_gives_the_same(tools: Tools) -> None:
    lower, directory = LayerDirectory(), LayerDirectory()
    os.makedirs(os.path.join(lower.files, "d", "e"))
    Path(lower.files, "kept").write_text("kept")
    try:
        layer = OverlayLayer(directory, lower, None, tools)
    except OverlayFailed as exc:
        lower.remove()
        directory.remove()
        pytest.skip(str(exc))
    try:
        Path(layer.door, "here").write_text("from here")
        line = "rm -r d; mkdir d; touch d/x; mv kept moved; cat here; id -u"
        command = Command(["/bin/sh", "-c", line], layer.root, {})
        shown = subprocess.run(
            layer.entering(command).argv, capture_output=True, text=True, check=False, timeout=50
        )
        assert (shown.stdout, shown.stderr) == (f"from here{os.geteuid()}\n", "")
        assert sorted(os.listdir(layer.door)) == ["d", "here", "moved"]
        assert os.listdir(os.path.join(layer.door, "d")) == ["x"]
        assert sorted(os.listdir(lower.files)) == ["d", "kept"]
    finally:
        layer.close()
        layer.close()
        lower.remove()
        directory.remove()
    assert fork_directories() == set()


SCRIPT = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from rath.backend.local import LocalBackend
from tests.support.workspaces import forked, opened, put
parent = opened(LocalBackend())
put(parent, "a", "one")
forks = [forked(parent) for _ in range(3)]
for fork in forks:
    put(fork, "a", "two")
frozen = forks[0].freeze()
put(forks[0], "a", "three")
"""


FORK = """
ready, tell = os.pipe()
if os.fork() == 0:
    os.write(tell, b"x")
    os.read(int(sys.argv[2]), 1)
    os._exit(0)
os.read(ready, 1)
"""


def run_script(script: str, *descriptors: int) -> int:
    argv = [sys.executable, "-c", script, str(Path(__file__).parents[3]), *map(str, descriptors)]
    return subprocess.run(argv, timeout=60, check=False, pass_fds=descriptors).returncode


def test_a_process_that_ends_leaves_nothing(parent: BackendSandbox) -> None:
    assert run_script(SCRIPT) == 0
    assert fork_directories() == set()
    assert list(working_in(forks_root())) == []


def test_a_killed_process_leaves_files_that_others_may_delete(parent: BackendSandbox) -> None:
    killed = run_script(f"{SCRIPT}\nos.kill(os.getpid(), signal.SIGKILL)")
    assert killed == -signal.SIGKILL
    wait_until_alone(forks_root())
    assert str(forks_root()) not in Path("/proc/self/mountinfo").read_text()
    left = list(forks_root().iterdir())
    assert len(left) == 5
    for directory in left:
        with FileLock(directory / LOCK_NAME) as lock:
            assert lock.held
            remove_tree(directory)
    wait_until_removed()


def test_a_child_that_lives_on_holds_nothing_of_a_killed_process(parent: BackendSandbox) -> None:
    waiting, waker = os.pipe()
    try:
        killed = run_script(f"{SCRIPT}{FORK}os.kill(os.getpid(), signal.SIGKILL)", waiting)
        assert killed == -signal.SIGKILL
        wait_until_alone(forks_root())
        for directory in forks_root().iterdir():
            with FileLock(directory / LOCK_NAME) as lock:
                assert lock.held
                remove_tree(directory)
    finally:
        os.close(waker)
        os.close(waiting)


def wait_until_alone(directory: Path) -> None:
    """Wait until no process works in `directory`."""
    wait_until(lambda: not any(working_in(directory)), f"nothing works in {directory}")


def working_in(directory: Path) -> Iterator[str]:
    """Yield the working directories below `directory` of all processes."""
    for process in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            path = os.readlink(process)
            if path.startswith(f"{directory}/"):
                yield path
