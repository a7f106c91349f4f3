"""Snapshots of directories: who may change them when, and what is lost."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rath._core import retention
from rath.backend import (
    BackendSandbox,
    BackendSandboxSpec,
    BackendToolFilesList,
    ToolExecutionFailure,
)
from rath.backend.host.layers import CopyFailed, SharedJob
from rath.backend.host.snapshots import TREES, HostSnapshot, freeze_tree
from rath.backend.local import LocalBackend
from rath.backend.persistence import PersistentSandboxRegistry
from rath.backend.snapshots import SnapshotLineage, WorkspaceTree, WorkspaceTrees
from rath.errors import BackendError
from tests.support.waiting import wait_until
from tests.support.workspaces import (
    EmptySnapshot,
    begun,
    content_of,
    forked,
    opened,
    put,
    sh,
    text_of,
    wait_for,
)


@pytest.fixture
def kept() -> BackendSandbox:
    """A sandbox in a kept workspace, with a file."""
    registry = PersistentSandboxRegistry()
    sandbox = opened(LocalBackend(), registry.local_path(registry.alloc_local_id()))
    put(sandbox, "a", "one")
    return sandbox


def delete(sandbox: BackendSandbox) -> bool:
    return PersistentSandboxRegistry().delete_local(Path(sandbox.handle).name)


def test_a_preserved_workspace_is_in_use_while_a_fork_needs_its_files(kept: BackendSandbox) -> None:
    fork = forked(kept)
    kept.backend.close(kept)
    with pytest.raises(BackendError, match="in use"):
        delete(kept)
    assert text_of(fork, "a") == "one"


def test_a_fork_that_has_its_own_files_lets_the_workspace_go(kept: BackendSandbox) -> None:
    fork = forked(kept)
    put(fork, "a", "two")
    kept.backend.close(kept)
    assert delete(kept)
    assert text_of(fork, "a") == "two"


def test_nobody_uses_a_workspace_whose_forks_are_gone(kept: BackendSandbox) -> None:
    kept.freeze()
    kept.backend.close(kept)
    assert delete(kept)


def test_a_workspace_frozen_before_it_was_opened_is_in_use() -> None:
    registry = PersistentSandboxRegistry()
    sandbox_id = registry.alloc_local_id()
    path = registry.local_path(sandbox_id)
    (path / "a").write_text("one")
    backend = LocalBackend()
    lazy = backend.lazy(BackendSandboxSpec(working_dir=str(path)))
    held = lazy.freeze()
    with pytest.raises(BackendError, match="in use"):
        registry.delete_local(sandbox_id)
    assert content_of(held, "a") == b"one"


def test_files_that_were_removed_from_outside_are_never_taken_for_none(
    sandbox: BackendSandbox, workspace: Path
) -> None:
    put(sandbox, "a", "one")
    held = sandbox.freeze()
    fork = begun(sandbox.backend, held)
    shutil.rmtree(workspace)
    listed = fork.dispatch(BackendToolFilesList("."))
    assert isinstance(listed, ToolExecutionFailure)
    assert listed.kind == "workspace_copy_failed"
    assert "the directory is gone" in listed.message
    for read in (held.amanifest, lambda: held.aread("a"), fork.aworkspace_digest):
        with pytest.raises(BackendError, match="lost"):
            wait_for(read)


def test_the_digest_of_a_directory_that_is_gone_is_not_known(
    sandbox: BackendSandbox, workspace: Path
) -> None:
    assert sandbox.workspace_digest() is not None
    shutil.rmtree(workspace)
    assert sandbox.workspace_digest() is None


def test_what_one_sandbox_left_running_changes_nothing_that_another_one_freezes(
    sandbox: BackendSandbox, workspace: Path, tmp_path: Path
) -> None:
    put(sandbox, "a", "one")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    sh(sandbox, f"setsid -f sh -c 'read _ < {pipe}; echo two > a' > /dev/null 2>&1")
    other = opened(LocalBackend(), workspace)
    lazy = LocalBackend().lazy(sandbox.spec)
    held = [other.freeze(), lazy.freeze()]
    assert isinstance(held[0], HostSnapshot)
    wait_for(held[0].asecure)  # as was submitted; joins it
    pipe.write_text("go\n")
    wait_until(lambda: (workspace / "a").read_text() == "two\n")
    assert [content_of(each, "a") for each in held] == [b"one", b"one"]


class _Running:
    is_empty = False


def test_a_tree_is_restless_while_something_runs_above_or_below_it() -> None:
    trees: WorkspaceTrees[EmptySnapshot] = WorkspaceTrees()
    running = _Running()
    tree = trees.at("/w/sub")
    trees.watch(running, trees.at("/w"))
    assert trees.is_restless(tree)
    assert not trees.is_restless(trees.at("/other"))
    running.is_empty = True
    assert not trees.is_restless(tree)


def test_what_is_frozen_while_a_command_runs_is_exposed_to_what_it_leaves() -> None:
    trees: WorkspaceTrees[EmptySnapshot] = WorkspaceTrees()
    tree = trees.at("/w")
    pinned = trees.freeze(tree, None, EmptySnapshot)
    assert trees.exposed(trees.at("/")) == [pinned]
    wait_for(pinned.asecure)
    assert trees.exposed(tree) == []


def test_the_root_overlaps_with_everything() -> None:
    root: WorkspaceTree[EmptySnapshot] = WorkspaceTree("/", "/")
    below: WorkspaceTree[EmptySnapshot] = WorkspaceTree("/w", "/w")
    assert root.overlaps(below)
    assert below.overlaps(root)


def test_the_root_of_the_machine_cannot_be_frozen() -> None:
    with opened(LocalBackend(), Path("/")) as sandbox, pytest.raises(BackendError, match="root of"):
        sandbox.freeze()


def test_a_directory_in_which_something_is_mounted_cannot_be_frozen(
    sandbox: BackendSandbox, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(f"36 35 98:0 / {workspace} rw - ext4 x rw\n36 35 98:0 / {workspace}/m rw\n")
    monkeypatch.setattr(retention, "MOUNT_TABLE", table)
    with pytest.raises(BackendError, match="mounted in it, at"):
        sandbox.freeze()
    with pytest.raises(BackendError, match="mounted in it, at"):
        LocalBackend().lazy(sandbox.spec).freeze()


def test_a_mount_point_itself_can_be_frozen(
    sandbox: BackendSandbox, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(f"36 35 98:0 / {workspace} rw - ext4 x rw\n36 35 98:0 / / rw - ext4 x rw\n")
    monkeypatch.setattr(retention, "MOUNT_TABLE", table)
    sandbox.freeze()


def test_the_manifest_passes_nothing_over(sandbox: BackendSandbox) -> None:
    sh(sandbox, "mkdir -p .git venv/lib; echo x > .git/HEAD; echo y > venv/lib/z")
    assert sorted(wait_for(sandbox.freeze().amanifest)) == [".git/HEAD", "venv/lib/z"]


def test_the_manifest_holds_the_largest_files(
    sandbox: BackendSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(sandbox, "a", "more than three")
    monkeypatch.setattr("rath.backend.host.scan.MAX_HASHED_BYTES", 3)
    assert sandbox.workspace_digest() is None
    assert wait_for(sandbox.freeze().amanifest)["a"].size == 15


FILES = ("a", "b")


async def write(tree: WorkspaceTree[HostSnapshot], value: int, n_steps: int) -> None:
    async with TREES.writing(tree):
        for name in FILES:
            Path(tree.door, name).write_text(str(value))  # noqa: ASYNC240  # a moment
            await steps(n_steps)


async def steps(n_steps: int) -> None:
    for _ in range(n_steps):
        await asyncio.sleep(0)


async def freeze_and_look(tree: WorkspaceTree[HostSnapshot], n_steps: int) -> None:
    frozen = freeze_tree(tree, tree.door, None)
    seen: set[tuple[bytes, bytes]] = set()
    for _ in range(3):
        seen.add((await frozen.aread("a"), await frozen.aread("b")))
        await steps(n_steps)
    assert len(seen) == 1


@given(seed=st.integers(0, 10_000))
@settings(max_examples=25)
def test_frozen_files_are_those_of_one_moment(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    root = tmp_path_factory.mktemp("tree")
    (root / "a").write_text("0")
    (root / "b").write_text("0")
    tree = TREES.at(str(root))
    chance = random.Random(seed)

    async def one(number: int) -> None:
        await steps(chance.randrange(20))
        if chance.random() < 0.5:
            await freeze_and_look(tree, chance.randrange(5))
            return
        writing = asyncio.ensure_future(write_all(number))
        if chance.random() < 0.2:
            await steps(chance.randrange(5))
            writing.cancel()
        await asyncio.wait([writing])

    async def write_all(number: int) -> None:
        # Whole even when cancelled: what is torn is not the fault of the tree.
        await asyncio.shield(write(tree, number, chance.randrange(4)))

    async def all_of_them() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(12):
                group.create_task(one(number))

    wait_for(all_of_them)
    assert tree.n_writers == tree.n_readers == 0


def test_a_cancelled_writer_keeps_nobody_waiting(tmp_path: Path) -> None:
    tree = TREES.at(str(tmp_path))

    async def cancel_one() -> None:
        async with TREES.writing(tree):
            kept = freeze_tree(tree, tree.door, None)
            waiting = asyncio.ensure_future(write(tree, 1, 0))
            await steps(3)
            waiting.cancel()
            await asyncio.wait([waiting])
        await write(tree, 2, 0)
        assert await kept.amanifest() == {}

    wait_for(cancel_one)
    assert (tmp_path / "a").read_text() == "2"


def test_a_forked_child_waits_for_no_operation_of_its_parent() -> None:
    trees: WorkspaceTrees[EmptySnapshot] = WorkspaceTrees()
    tree = trees.at("/nowhere")

    async def begin() -> None:
        await trees.writing(tree).__aenter__()
        trees.start_afresh()
        await trees.quiet(tree)
        async with trees.writing(tree):
            pass

    wait_for(begin)


def test_trees_that_nobody_holds_are_forgotten() -> None:
    trees: WorkspaceTrees[EmptySnapshot] = WorkspaceTrees()
    trees.freeze(trees.at("/one"), None, EmptySnapshot)
    assert trees.at("/one").pinned is None
    kept = trees.freeze(trees.at("/two"), SnapshotLineage(), EmptySnapshot)
    assert trees.at("/two").pinned is kept


@pytest.mark.parametrize(
    ("other", "overlaps"),
    [("/a/b", True), ("/a/b/c", True), ("/a", True), ("/a/bc", False), ("/x", False)],
)
def test_directories_in_each_other_overlap(other: str, overlaps: bool) -> None:
    assert WorkspaceTree[EmptySnapshot]("/a/b", "").overlaps(WorkspaceTree(other, "")) is overlaps
    assert WorkspaceTree[EmptySnapshot](other, "").overlaps(WorkspaceTree("/a/b", "")) is overlaps


def test_a_job_runs_again_after_it_failed() -> None:
    job: SharedJob[int] = SharedJob()
    n_runs = 0

    def run() -> int:
        nonlocal n_runs
        n_runs += 1
        if n_runs == 1:
            raise CopyFailed("a", "no room")
        return n_runs

    assert not job.is_started
    with pytest.raises(CopyFailed, match="'a' cannot be copied: no room"):
        wait_for(lambda: job.aresult(run))
    assert not job.is_started
    assert wait_for(lambda: job.aresult(run)) == wait_for(lambda: job.aresult(run)) == 2
    assert job.is_started
