"""Overlays: mounted for the commands of one sandbox, gone with it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings

from rath._core.blobs import Blob
from rath._core.files import FileLock
from rath._core.retention import remove_tree
from rath.backend import (
    BackendSandbox,
    BackendSandboxSpec,
    BackendToolCommandRun,
    BackendToolFilesWrite,
    CommandResult,
    FileEffect,
    ToolExecutionFailure,
    observe_effects,
)
from rath.backend.changes import EffectPolicy, FileState, Manifest, TreeDiff, diff
from rath.backend.host.layers import LOCK_NAME, LayerDirectory
from rath.backend.host.overlay import (
    Namespace,
    OverlayFailed,
    OverlayLayer,
    OverlaySource,
    Tools,
    overlay_tools,
    tools_to_try,
)
from rath.backend.host.paths import MAX_DEPTH
from rath.backend.host.process import HostCommand
from rath.backend.host.sandbox import HostSandbox
from rath.backend.host.scan import scan
from rath.backend.local import LocalBackend
from rath.backend.persistence.paths import forks_root
from rath.backend.snapshots import Seed
from tests.support.shell_scripts import changed, read_tree, scripts, told, undone
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
    assert isinstance(native.layer, OverlayLayer)
    assert sorted(os.listdir(native.layer.upper)) == ["a", "b"]


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
        command = HostCommand(["/bin/sh", "-c", line], layer.root, {})
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


POLICY = EffectPolicy()


@contextmanager
def mounted(line: str) -> Generator[tuple[LayerDirectory, OverlayLayer]]:
    """An overlay over what a script made."""
    below, above = LayerDirectory(), LayerDirectory()
    tools = overlay_tools(above)
    if tools is None:
        pytest.skip("no overlay can be mounted here")
    try:
        os.mkdir(below.files)
        shell(line, below.files)
        layer = OverlayLayer(above, below, None, tools)
        try:
            yield below, layer
        finally:
            layer.close()
    finally:
        above.remove()
        below.remove()


def shell(line: str, cwd: str) -> None:
    subprocess.run(["/bin/sh", "-c", line], cwd=cwd, check=True)


def effects(below: LayerDirectory, layer: OverlayLayer) -> list[FileEffect]:
    found = upper_diff(layer.upper, below.files, layer.source().namespace)
    assert found.gaps == []
    return found.effects


def upper_diff(upper: str, lower: str, namespace: Namespace = "trusted") -> TreeDiff:
    """What the upper directory changes; the merged files are not looked at."""
    source = OverlaySource(lower, upper, "/nowhere", namespace)
    contents: dict[str, bytes] = {}
    before = source.below(POLICY)
    after = source(POLICY, known={}, keep=contents.__setitem__)

    def content(state: FileState) -> Blob:
        return Blob(state.digest, state.size, contents.get(state.digest))

    return diff(before, after, {}, to_blob=content, attribution="window")


@settings(max_examples=25, deadline=None)
@given(first=scripts(max_size=8), then=scripts(max_size=8))
def test_effects_from_the_upper_directory_undone_give_the_lower_one(first: str, then: str) -> None:
    with mounted(first) as (below, layer):
        before = read_tree(Path(below.files))
        shell(then, layer.door)
        after = read_tree(Path(layer.door))
        found = effects(below, layer)
    assert undone(after, found) == before
    assert told(found) == changed(before, after)


@settings(max_examples=25, deadline=None)
@given(first=scripts(max_size=8), then=scripts(max_size=8))
def test_looking_at_both_directories_gives_what_the_merged_one_holds(first: str, then: str) -> None:
    with mounted(first) as (_, layer):
        source = layer.source()
        source(POLICY, known={}, keep=None)
        shell(then, layer.door)
        state = source(POLICY, known={}, keep=None)
        source.read_all(POLICY, keep=None)
        assert state.manifest() == whole(layer.door)


def whole(root: str) -> Manifest | None:
    return scan(root, EffectPolicy()).manifest()


@pytest.fixture
def lower(tmp_path: Path) -> Path:
    path = tmp_path / "lower"
    (path / "d").mkdir(parents=True)
    (path / "d" / "a").write_text("below")
    (path / "b").write_text("below")
    return path


@pytest.fixture
def upper(tmp_path: Path) -> Path:
    path = tmp_path / "upper"
    (path / "d").mkdir(parents=True)
    return path


def mark(path: Path, name: str, value: bytes) -> None:
    """Put a mark on a file that the kernel would put there for a user's own overlay."""
    try:
        os.setxattr(path, f"user.overlay.{name}", value)
    except OSError:
        pytest.skip("this file system keeps no attributes of the user")


def kinds(difference: TreeDiff) -> list[tuple[str, str]]:
    return [(effect.path, effect.kind) for effect in difference.effects]


def test_an_opaque_directory_hides_what_is_below(lower: Path, upper: Path) -> None:
    mark(upper / "d", "opaque", b"y")
    (upper / "d" / "new").write_text("above")
    found = upper_diff(str(upper), str(lower), "user")
    assert kinds(found) == [("d/a", "deleted"), ("d/new", "created")]


def test_marks_of_the_other_namespace_are_not_believed(lower: Path, upper: Path) -> None:
    mark(upper / "d", "opaque", b"y")
    assert kinds(upper_diff(str(upper), str(lower), "trusted")) == []


def test_a_directory_in_the_place_of_a_file_removes_it(lower: Path, upper: Path) -> None:
    (upper / "b").mkdir()
    assert kinds(upper_diff(str(upper), str(lower))) == [("b", "deleted")]


def test_a_file_in_the_place_of_a_directory_removes_it(lower: Path, upper: Path) -> None:
    (upper / "d").rmdir()
    (upper / "d").write_text("a file")
    found = upper_diff(str(upper), str(lower))
    assert kinds(found) == [("d", "created"), ("d/a", "deleted")]


@pytest.mark.parametrize(
    ("path", "name", "value"),
    [("d", "redirect", b"/d"), ("d", "opaque", b"x"), ("b", "metacopy", b"")],
    ids=["redirect", "other whiteouts", "metadata only"],
)
def test_the_merged_files_are_looked_at_when_only_the_kernel_resolves_the_upper_ones(
    lower: Path, upper: Path, tmp_path: Path, path: str, name: str, value: bytes
) -> None:
    merged = tmp_path / "merged"
    shutil.copytree(lower, merged)
    source = OverlaySource(str(lower), str(upper), str(merged), "user")
    before = source(POLICY, known={}, keep=None)
    (upper / "b").write_text("")
    mark(upper / path, name, value)
    (merged / "b").write_text("above")
    after = source(POLICY, known={}, keep=None)
    found = diff(before, after, {}, to_blob=blob, attribution="window")
    assert (kinds(found), found.gaps) == ([("b", "changed")], [])


def blob(state: FileState) -> Blob:
    return Blob(state.digest, state.size)


def test_what_nobody_changed_is_not_read(lower: Path, upper: Path) -> None:
    (upper / "b").write_text("above")
    read: list[bytes] = []
    source = OverlaySource(str(lower), str(upper), str(lower), "trusted")
    source(POLICY, known={}, keep=lambda _, content: read.append(content))
    assert sorted(read) == [b"above", b"below"]


@pytest.mark.parametrize("max_files", [0, 1, 2])
def test_too_many_files_are_given_up(lower: Path, upper: Path, max_files: int) -> None:
    (upper / "c").write_text("above")
    source = OverlaySource(str(lower), str(upper), str(lower), "trusted")
    assert source(EffectPolicy(max_files=max_files), known={}, keep=None).is_too_large


def test_an_upper_directory_that_is_gone_changes_nothing(lower: Path, tmp_path: Path) -> None:
    assert kinds(upper_diff(str(tmp_path / "gone"), str(lower))) == []


def test_no_depth_ends_a_look(lower: Path, upper: Path) -> None:
    for tree in (lower, upper):
        deep(tree, 700)
    found = upper_diff(str(upper), str(lower))
    assert found.effects == []
    assert len(found.gaps) == 1
    assert f"more than {MAX_DEPTH} directories deep" in found.gaps[0]


def deep(directory: Path, n_levels: int) -> None:
    """Make directories in each other, with a file in the last one."""
    fd = os.open(directory, os.O_RDONLY)
    for _ in range(n_levels):
        os.mkdir("x", dir_fd=fd)
        below = os.open("x", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)


def test_pipes_of_both_directories_are_seen(lower: Path, upper: Path) -> None:
    os.mkfifo(lower / "one")
    os.mkfifo(upper / "two")
    source = OverlaySource(str(lower), str(upper), str(lower), "trusted")
    assert set(source(POLICY, known={}, keep=None).others) == {"one", "two"}


def test_commands_in_a_fork_tell_their_effects(workspace: Path) -> None:
    (workspace / "a").write_text("before")
    backend = LocalBackend()
    parent = backend.open(BackendSandboxSpec(working_dir=str(workspace)))

    async def origin() -> Seed:
        return Seed(parent.freeze())

    with parent, backend.lazy(origin=origin) as child:
        first = child.workspace_digest()
        with observe_effects() as effects:
            child.dispatch(BackendToolCommandRun("echo after > a; echo new > b"))
            child.dispatch(BackendToolFilesWrite("b", "newer"))
        assert parent.workspace_digest() == first
        assert child.workspace_digest() != first
    assert [(each.path, each.kind, each.attribution) for each in effects] == [
        ("a", "changed", "window"),
        ("b", "created", "window"),
        ("b", "changed", "exact"),
    ]
    before = effects[0].before
    assert before is not None
    assert before.data == b"before"
