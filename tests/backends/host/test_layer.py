"""Workspaces of their own on this host: overlays and copies."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rath.backend import (
    Backend,
    BackendError,
    BackendSandbox,
    BackendToolCodeRun,
    BackendToolFilesEdit,
    BackendToolFilesList,
    BackendToolFilesWrite,
    CodeResult,
    FileEntries,
    ToolExecutionFailure,
)
from rath.backend.bubblewrap import BubblewrapBackend
from rath.backend.effects import observe_effects
from rath.backend.host.layers import LOCK_NAME, MAX_DEPTH, CopyFailed, Layer, LayerDirectory
from rath.backend.host.overlay import overlay_tools
from rath.backend.local import LocalBackend
from rath.backend.snapshots import NewFile
from tests.support.workspaces import (
    CopyingBackend,
    begun,
    fork_directories,
    forked,
    has,
    opened,
    put,
    sh,
    text_of,
    wait_for,
    wait_until_removed,
)

FILE = 0o100644
LINK = 0o120777


def overlays_work() -> bool:
    directory = LayerDirectory()
    try:
        return overlay_tools(directory) is not None
    finally:
        directory.remove()


class BubblewrapCopyingBackend(BubblewrapBackend):
    """Copies where others mount an overlay."""

    mounts_layers = False


BACKENDS: dict[str, type[LocalBackend | BubblewrapBackend]] = {
    "overlay": LocalBackend,
    "copy": CopyingBackend,
    "bubblewrap overlay": BubblewrapBackend,
    "bubblewrap copy": BubblewrapCopyingBackend,
}


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Backend:
    made = BACKENDS[request.param]
    if "overlay" in request.param and not overlays_work():
        pytest.skip("overlays cannot be mounted here")
    if not made.is_available():
        pytest.skip(str(made.unavailable_reason()))
    return made()


@pytest.fixture
def parent(backend: Backend, workspace: Path) -> Iterator[BackendSandbox]:
    sandbox = opened(backend, workspace)
    yield sandbox
    backend.close(sandbox)


def test_neither_side_sees_what_the_other_writes_later(parent: BackendSandbox) -> None:
    put(parent, "a", "one")
    fork = forked(parent)
    put(parent, "a", "parent")
    assert text_of(fork, "a") == "one"
    put(fork, "a", "fork")
    sh(fork, "echo new > b")
    assert text_of(parent, "a") == "parent"
    assert not has(parent, "b")
    assert sh(fork, "cat a b") == "forknew\n"
    assert sh(parent, "cat a; ls") == "parenta\n"


def test_the_first_to_write_may_be_the_fork(parent: BackendSandbox) -> None:
    put(parent, "a", "one")
    fork = forked(parent)
    assert sh(fork, "cat a; rm a; ls") == "one"
    assert text_of(parent, "a") == "one"


def test_a_fork_reads_the_frozen_files_without_a_layer(
    parent: BackendSandbox, workspace: Path
) -> None:
    put(parent, "below/a", "one")
    fork = forked(parent)
    assert text_of(fork, "below/a") == "one"
    listed = fork.dispatch(BackendToolFilesList("below"))
    assert isinstance(listed, FileEntries)
    root = fork.describe().root
    assert [entry.path for entry in listed.entries] == [f"{root}/below/a"]
    assert text_of(fork, f"{root}/below/a") == "one"
    assert fork.describe().layer == "frozen"
    (directory,) = fork_directories()
    assert fork.handle.endswith(directory)
    assert os.listdir(fork.handle) == [LOCK_NAME]


def test_it_says_what_its_layer_is(parent: BackendSandbox) -> None:
    fork = forked(parent)
    put(fork, "a", "one")
    mounts = type(parent.backend).mounts_layers  # type: ignore[attr-defined]
    assert fork.describe().layer in ({"overlay"} if mounts else {"copy", "reflink"})
    assert parent.describe().layer is None
    assert sh(fork, "pwd").strip() == fork.describe().root
    assert (fork.describe().root == parent.describe().root) is mounts


def test_code_runs_in_the_layer(parent: BackendSandbox) -> None:
    put(parent, "a", "one")
    fork = forked(parent)
    code = "print(open('a').read()); open('a', 'w').write('two')"
    result = fork.dispatch(BackendToolCodeRun(code))
    assert isinstance(result, CodeResult)
    assert (result.error, result.stdout) == (None, b"one\n")
    assert text_of(fork, "a") == "two"
    assert text_of(parent, "a") == "one"


def test_links_and_modes_are_kept(parent: BackendSandbox) -> None:
    sh(parent, "mkdir d; echo x > d/f; ln -s d/f link; ln -s nowhere gone; chmod 750 d/f")
    fork = forked(parent)
    put(fork, "other", "")
    assert sh(fork, "readlink link gone; stat -c %a d/f") == "d/f\nnowhere\n750\n"
    assert text_of(fork, "link") == "x\n"
    put(fork, "link", "y")
    assert text_of(parent, "d/f") == "x\n"


def test_what_a_fork_removes_stays_with_its_parent(parent: BackendSandbox) -> None:
    sh(parent, "mkdir d; touch d/a d/b")
    fork = forked(parent)
    sh(fork, "rm -r d; mkdir d; touch d/c")
    assert sh(fork, "ls d") == "c\n"
    assert sh(parent, "ls d") == "a\nb\n"


def test_changes_are_there_from_the_beginning(parent: BackendSandbox) -> None:
    sh(parent, "mkdir d; echo a > d/a; echo b > b; ln -s b c")
    fork = forked(
        parent,
        {
            "d/a": None,
            "d": NewFile(b"file now", FILE),
            "b": NewFile(b"new", 0o100755),
            "c": NewFile(b"d", LINK),
            "new/below/x": NewFile(b"x", FILE),
            "missing/file": None,
        },
    )
    assert has(fork, "new/below/x")
    assert sh(fork, "cat d b new/below/x; readlink c; stat -c %a b") == "file nownewxd\n755\n"
    assert sh(parent, "cat d/a b; ls") == "a\nb\nb\nc\nd\n"


@pytest.mark.parametrize("path", ["../outside", "below/../../outside", "..", ""])
def test_changes_outside_are_refused(parent: BackendSandbox, path: str, tmp_path: Path) -> None:
    fork = forked(parent, {path: NewFile(b"x", FILE)})
    result = fork.dispatch(BackendToolFilesWrite("a", "x"))
    assert isinstance(result, ToolExecutionFailure)
    assert result.kind == "workspace_copy_failed"
    assert not (tmp_path / "outside").exists()


def test_forks_of_forks_are_apart(parent: BackendSandbox) -> None:
    put(parent, "a", "0")
    chain = [parent]
    for depth in range(1, 4):
        chain.append(forked(chain[-1]))
        sh(chain[-1], f"echo {depth} >> a")
    put(chain[1], "a", "changed")
    assert [text_of(each, "a") for each in chain] == ["0", "changed", "01\n2\n", "01\n2\n3\n"]


def test_fifty_forks_share_one_copy(parent: BackendSandbox) -> None:
    sh(parent, "for i in $(seq 200); do echo $i > f$i; done")
    forks = [forked(parent) for _ in range(50)]
    put(parent, "f1", "changed")
    assert {text_of(fork, "f1") for fork in forks} == {"1\n"}
    copies = [each for each in forks if len(os.listdir(each.handle)) > 1]
    assert copies == []
    assert len(fork_directories()) == 51
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put_own_name, forks[:10]))
    assert all(text_of(fork, "f2") == fork.handle for fork in forks[:10])
    assert text_of(parent, "f2") == "2\n"


def put_own_name(fork: BackendSandbox) -> None:
    put(fork, "f2", fork.handle)


def test_first_writes_side_by_side_make_one_layer(parent: BackendSandbox) -> None:
    put(parent, "a", "one")
    fork = forked(parent)
    start = threading.Barrier(9)

    def write(name: str, sandbox: BackendSandbox) -> None:
        start.wait()
        put(sandbox, name, name)

    with ThreadPoolExecutor(9) as pool:
        running = [pool.submit(write, f"f{i}", fork) for i in range(8)]
        running.append(pool.submit(write, "a", parent))
        for each in running:
            each.result()
    assert sh(fork, "ls; cat a") == "a\n" + "".join(f"f{i}\n" for i in range(8)) + "one"
    assert sh(parent, "ls; cat a") == "a\na"
    assert len(fork_directories()) == 2


def test_effects_of_a_fork_are_those_of_its_layer(parent: BackendSandbox) -> None:
    put(parent, "a", "one")
    fork = forked(parent)
    with observe_effects() as effects:
        sh(fork, "echo two > a; echo new > b")
        put(fork, "c", "three")
        fork.dispatch(BackendToolFilesEdit("c", "three", "four"))
    assert sorted((effect.path, effect.kind) for effect in effects) == [
        ("a", "changed"),
        ("b", "created"),
        ("c", "changed"),
        ("c", "created"),
    ]
    assert effects.gaps == []


def test_equal_files_have_equal_digests(parent: BackendSandbox) -> None:
    sh(parent, "mkdir d; echo x > d/a; echo y > b")
    fork = forked(parent)
    digest = wait_for(parent.aworkspace_digest)
    assert wait_for(fork.aworkspace_digest) == digest
    put(fork, "b", "z")
    assert wait_for(fork.aworkspace_digest) != digest
    put(fork, "b", "y\n")
    assert wait_for(fork.aworkspace_digest) == digest == wait_for(parent.aworkspace_digest)


def test_closing_a_fork_leaves_nothing(parent: BackendSandbox) -> None:
    fork, unused = forked(parent), forked(parent)
    put(fork, "a", "one")
    assert not has(unused, "a")
    fork.backend.close(fork)
    fork.backend.close(fork)
    unused.release()
    del fork, unused
    wait_until_removed()


def test_a_fork_outlives_its_parent(backend: Backend) -> None:
    parent = opened(backend)
    put(parent, "a", "one")
    fork, late = forked(parent), forked(parent)
    put(fork, "b", "two")
    parent.backend.close(parent)
    assert sh(fork, "cat a b") == "onetwo"
    assert sh(late, "cat a") == "one"


def test_what_is_frozen_of_a_fork_outlives_it(parent: BackendSandbox) -> None:
    fork = forked(parent)
    put(fork, "a", "one")
    frozen = fork.freeze()
    fork.backend.close(fork)
    assert wait_for(lambda: frozen.aread("a")) == b"one"
    assert text_of(begun(parent.backend, frozen), "a") == "one"


def test_a_fork_without_a_copy_says_so(parent: BackendSandbox, workspace: Path) -> None:
    deep = workspace.joinpath(*["d"] * (MAX_DEPTH + 1))
    deep.mkdir(parents=True)
    fork = forked(parent)
    result = fork.dispatch(BackendToolFilesWrite("a", "x"))
    assert isinstance(result, ToolExecutionFailure)
    assert result.kind == "workspace_copy_failed"
    deep.rmdir()
    put(fork, "a", "x")
    assert not has(parent, "a")


def test_a_workspace_that_holds_the_home_can_be_forked(
    backend: Backend, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENRATH_HOME", str(workspace / ".openrath"))
    parent = opened(backend, workspace)
    put(parent, "a", "one")
    fork = forked(parent)
    assert sh(fork, "cat a; echo two > a; cat a") == "onetwo\n"
    below = forked(fork)
    assert sh(below, "cat a; echo three > a; cat a") == "two\nthree\n"
    assert text_of(parent, "a") == "one"


def test_a_layer_that_cannot_be_copied_leaves_nothing() -> None:
    directory = LayerDirectory()
    try:
        with pytest.raises(CopyFailed):
            Layer(directory, "/nowhere")
        assert os.listdir(directory.path) == [LOCK_NAME]
    finally:
        directory.remove()


def test_a_closing_that_cannot_keep_frozen_files_leaves_nothing(
    parent: BackendSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork = forked(parent)
    put(fork, "a", "two")
    frozen = fork.freeze()

    def full(*_: object) -> None:
        raise CopyFailed("a", "No space left on device")

    before = fork_directories()
    monkeypatch.setattr("rath.backend.host.snapshots.copy_tree", full)
    with pytest.raises(BackendError, match="No space left"):
        fork.backend.close(fork)
    assert len(fork_directories()) == len(before) - 1
    with pytest.raises(BackendError, match="lost"):
        wait_for(lambda: frozen.aread("a"))
