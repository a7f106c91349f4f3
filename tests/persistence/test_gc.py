"""Housekeeping over everything that is stored."""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from rath import memory
from rath._core.files import FileLock
from rath.backend.persistence import (
    PersistentSandboxRegistry,
    local_root,
    opensandbox_index_path,
)
from rath.backend.persistence.paths import fork_dir
from rath.memory import MemoryOpCommit, MemoryOpWrite, MemoryStore, MemoryStoreSpec
from rath.memory.persistence import PersistentMemoryRegistry
from rath.persistence import GCReport, gc
from rath.session.chunk import ChunkTable
from rath.session.persistence import list_persisted_sessions
from rath.session.persistence.store import default_store
from rath.session.session import Session
from tests.support.store_lines import write


@pytest.fixture
def old_and_new() -> tuple[UUID, UUID]:
    """A session that was written eight days ago, and one of now."""
    ids: list[UUID] = []
    for age in (timedelta(days=8), timedelta()):
        session = Session(ChunkTable())
        write(default_store(), session, at=datetime.now(UTC) - age)
        ids.append(session.id)
    return ids[0], ids[1]


def test_dry_run_is_the_default_and_deletes_nothing(old_and_new: tuple[UUID, UUID]) -> None:
    old, new = old_and_new
    assert gc(older_than=timedelta(days=7)) == GCReport(sessions=[old], dry_run=True)
    assert {meta.id for meta in list_persisted_sessions()} == {old, new}


def test_real_run_deletes_what_it_reports(old_and_new: tuple[UUID, UUID]) -> None:
    old, new = old_and_new
    report = gc(older_than=timedelta(days=7), dry_run=False)
    assert report == GCReport(sessions=[old], dry_run=False)
    assert [meta.id for meta in list_persisted_sessions()] == [new]


@pytest.fixture
def sandboxes() -> dict[str, UUID]:
    """A workspace, a remote sandbox and a fork that were last used eight days ago, and new ones."""
    registry, then = PersistentSandboxRegistry(), time.time() - timedelta(days=8).total_seconds()
    ids = {name: registry.alloc_local_id() for name in ("old local", "new local")}
    ids |= {name: registry.record_remote("far", "c") for name in ("old remote", "new remote")}
    for name in ("old fork", "new fork"):
        ids[name] = uuid4()
        fork_dir(ids[name]).mkdir(parents=True)
        (fork_dir(ids[name]) / "lock").touch()
    os.utime(local_root() / f"{ids['old local']}.use", (then, then))
    os.utime(fork_dir(ids["old fork"]) / "lock", (then, then))
    index = opensandbox_index_path(ids["old remote"])
    dated = {**json.loads(index.read_text()), "last_used_at": "2025-01-01T00:00:00+00:00"}
    index.write_text(json.dumps(dated))
    return ids


@pytest.mark.parametrize("dry_run", [True, False])
def test_sandboxes_go_by_last_use(sandboxes: dict[str, UUID], dry_run: bool) -> None:
    report = gc(older_than=timedelta(days=7), dry_run=dry_run)
    assert report == GCReport(
        local_sandboxes=[sandboxes["old local"]],
        remote_sandboxes=[sandboxes["old remote"]],
        forks=[sandboxes["old fork"]],
        dry_run=dry_run,
    )
    left = set(PersistentSandboxRegistry().list_local())
    assert (sandboxes["old local"] in left, sandboxes["new local"] in left) == (dry_run, True)


def test_what_is_in_use_is_preserved(sandboxes: dict[str, UUID]) -> None:
    path = PersistentSandboxRegistry().local_path(sandboxes["old local"])
    fork = FileLock(fork_dir(sandboxes["old fork"]) / "lock")
    with Session.from_user_message("a").to("local", spec=str(path)), fork:
        report = gc(older_than=timedelta(), dry_run=False)
        assert report.local_sandboxes == [sandboxes["new local"]]
        assert report.forks == [sandboxes["new fork"]]
        assert path.is_dir()


OLD_COMMIT = "session/s/commits/20250101T000000000000"


def opened(store_id: UUID) -> MemoryStore:
    path = str(PersistentMemoryRegistry().local_path(store_id))
    return memory.get("local").open(MemoryStoreSpec(options={"path": path}))


@pytest.fixture
def stores() -> dict[str, UUID]:
    """A store that was used eight days ago, and a new one; both hold an old transcript."""
    registry, then = PersistentMemoryRegistry(), datetime.now(UTC) - timedelta(days=8)
    ids = {name: registry.alloc_local_id() for name in ("old", "new")}
    for store_id in ids.values():
        store = opened(store_id)
        store.dispatch(MemoryOpWrite("memory://user/memories/a", "tea"))
        store.dispatch(MemoryOpCommit("s", ({"role": "user", "content": "tea?"},)))
        store.backend.close(store)
        (commit,) = registry.local_path(store_id).glob("session/s/commits/*")
        commit.rename(registry.local_path(store_id) / OLD_COMMIT)
    path = registry.local_path(ids["old"])
    os.utime(path.with_suffix(".use"), (then.timestamp(), then.timestamp()))
    meta = {**json.loads((path / "meta.json").read_text()), "last_used_at": then.isoformat()}
    (path / "meta.json").write_text(json.dumps(meta))
    return ids


@pytest.mark.parametrize("dry_run", [True, False])
def test_memories_go_by_last_use_and_transcripts_by_their_time(
    stores: dict[str, UUID], dry_run: bool
) -> None:
    registry = PersistentMemoryRegistry()
    commits = [registry.local_path(each) / OLD_COMMIT for each in sorted(stores.values())]
    report = gc(older_than=timedelta(days=7), dry_run=dry_run)
    assert report == GCReport(
        memory_stores=[stores["old"]], memory_commits=commits, dry_run=dry_run
    )
    assert all(commit.exists() == dry_run for commit in commits)
    assert set(registry.list_local()) == (set(stores.values()) if dry_run else {stores["new"]})


def test_memories_that_are_open_are_preserved_complete(stores: dict[str, UUID]) -> None:
    store = opened(stores["old"])
    report = gc(older_than=timedelta(), dry_run=False)
    assert report.memory_stores == [stores["new"]]
    assert Path(store.handle, OLD_COMMIT).is_dir()
    store.backend.close(store)


def test_only_the_home_that_is_in_force_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sandboxes: dict[str, UUID]
) -> None:
    user_home = local_root()
    monkeypatch.delenv("OPENRATH_HOME")
    (tmp_path / "project" / ".openrath").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project")
    here = PersistentSandboxRegistry().alloc_local_id()
    assert gc(older_than=timedelta(), dry_run=False).local_sandboxes == [here]
    assert (user_home / str(sandboxes["old local"])).is_dir()


def test_home_without_anything_gives_an_empty_report() -> None:
    assert gc(older_than=timedelta()) == GCReport()
