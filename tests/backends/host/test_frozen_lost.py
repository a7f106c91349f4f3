"""Frozen files that would be lost, or changed behind everybody's back."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from rath._core import retention
from rath.backend import (
    BackendSandbox,
    BackendSandboxSpec,
    BackendToolFilesList,
    ToolExecutionFailure,
)
from rath.backend.host.frozen import HostFrozen
from rath.backend.host.guard_trees import Pinned, Tree, Trees
from rath.backend.local import LocalBackend
from rath.backend.persistence import PersistentSandboxRegistry
from rath.errors import BackendError
from tests.support.waiting import wait_until
from tests.support.workspaces import (
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


def test_a_kept_workspace_is_in_use_while_a_fork_needs_its_files(kept: BackendSandbox) -> None:
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
    assert isinstance(held[0], HostFrozen)
    wait_for(held[0].asecure)  # as was submitted; joins it
    pipe.write_text("go\n")
    wait_until(lambda: (workspace / "a").read_text() == "two\n")
    assert [content_of(each, "a") for each in held] == [b"one", b"one"]


class _Running:
    is_empty = False


class _Pinned(Pinned):
    def __init__(self) -> None:
        self._is_secured = False

    @property
    def is_secured(self) -> bool:
        return self._is_secured

    async def asecure(self) -> None:
        self._is_secured = True


def test_a_tree_is_restless_while_something_runs_above_or_below_it() -> None:
    trees: Trees[_Pinned] = Trees()
    running = _Running()
    tree = trees.at("/w/sub")
    trees.watch(running, trees.at("/w"))
    assert trees.is_restless(tree)
    assert not trees.is_restless(trees.at("/other"))
    running.is_empty = True
    assert not trees.is_restless(tree)


def test_what_is_frozen_while_a_command_runs_is_exposed_to_what_it_leaves() -> None:
    trees: Trees[_Pinned] = Trees()
    tree = trees.at("/w")
    pinned = trees.freeze(tree, None, lambda _: _Pinned())
    assert trees.exposed(trees.at("/")) == [pinned]
    wait_for(pinned.asecure)
    assert trees.exposed(tree) == []


def test_the_root_overlaps_with_everything() -> None:
    root: Tree[_Pinned] = Tree("/", "/")
    below: Tree[_Pinned] = Tree("/w", "/w")
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
