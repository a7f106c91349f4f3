"""Writers, freezers and readers of one directory, side by side."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rath.backend.host.layers import CopyFailed, SharedJob
from rath.backend.host.snapshots import TREES, HostSnapshot, freeze_tree
from rath.backend.snapshots import SnapshotLineage, WorkspaceTree, WorkspaceTrees
from tests.support.workspaces import EmptySnapshot, wait_for

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
