"""Local memory stores that are kept in a home."""

from __future__ import annotations

import json
import logging
import os
import shutil
import stat
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from rath import memory
from rath._core.retention import in_trash
from rath._core.usage_locks import Use, is_used
from rath.errors import MemoryBackendError
from rath.memory import (
    MemoryOpRead,
    MemoryOpWrite,
    MemoryStore,
    MemoryStoreSpec,
    MemoryWriteResult,
)
from rath.memory.persistence import (
    PersistentMemoryRegistry,
    ensure_local_memory_root,
    local_memory_root,
    memory_root,
)
from rath.memory.persistence.registry import hold_store

AT_ONCE = timedelta()
WEEK = timedelta(days=7)
NOTE = "memory://user/memories/a"


@pytest.fixture
def registry() -> PersistentMemoryRegistry:
    return PersistentMemoryRegistry()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a project, in which the program runs."""
    root = tmp_path / "project"
    root.mkdir()
    (root / "pyproject.toml").touch()
    monkeypatch.chdir(root)
    return root


@pytest.fixture
def used(registry: PersistentMemoryRegistry) -> Iterator[MemoryStore]:
    """An open store that was made by the registry."""
    store = opened(registry, registry.alloc_local_id())
    yield store
    memory.get("local").close(store)


def opened(registry: PersistentMemoryRegistry, store_id: UUID) -> MemoryStore:
    path = str(registry.local_path(store_id))
    return memory.get("local").open(MemoryStoreSpec(options={"path": path}))


def made(path: str | Path | None = None, *, namespace: str | None = None) -> UUID:
    """Write a note to a store, close it and return its id."""
    options = None if path is None else {"path": str(path)}
    backend = memory.get("local")
    store = backend.open(MemoryStoreSpec(namespace=namespace, options=options))
    store.dispatch(MemoryOpWrite(NOTE, "tea"))
    backend.close(store)
    return id_of(store)


def id_of(store: MemoryStore) -> UUID:
    return UUID(Path(store.handle).name)


def use_file(store_id: UUID) -> Path:
    return local_memory_root() / f"{store_id}.use"


def age(store_id: UUID, by: timedelta = 2 * WEEK) -> None:
    """Let the last use be that long ago, by all that tells of it."""
    then = datetime.now(UTC) - by
    if use_file(store_id).exists():
        os.utime(use_file(store_id), (then.timestamp(), then.timestamp()))
    meta = local_memory_root() / str(store_id) / "meta.json"
    if meta.exists():
        told = {**json.loads(meta.read_text()), "last_used_at": then.isoformat()}
        meta.write_text(json.dumps(told))


# ---------------------------------------------------------------- making, listing, deleting


def test_new_store_is_empty_private_and_listed(registry: PersistentMemoryRegistry) -> None:
    assert registry.list_local() == []
    store_id = registry.alloc_local_id()
    path = registry.local_path(store_id)
    assert list(path.iterdir()) == []
    for directory in (path, local_memory_root(), memory_root()):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(use_file(store_id).stat().st_mode) == 0o600
    assert registry.list_local() == [store_id]


def test_ensure_makes_a_store_once_and_keeps_its_notes(registry: PersistentMemoryRegistry) -> None:
    store_id = uuid4()
    assert made(registry.ensure_local(store_id)) == store_id
    path = registry.ensure_local(str(store_id))
    assert (path / "user/memories/a.md").read_text() == "tea"


@pytest.mark.parametrize("bad", ["", "..", "../../etc", "notes"])
def test_nothing_but_a_uuid_becomes_a_path(registry: PersistentMemoryRegistry, bad: str) -> None:
    for call in (registry.ensure_local, registry.local_path, registry.delete_local):
        with pytest.raises(ValueError, match="not a memory store id; expected a UUID"):
            call(bad)


def test_root_that_cannot_be_made_is_an_error_of_the_plane() -> None:
    memory_root().parent.mkdir()
    memory_root().touch()
    with pytest.raises(MemoryBackendError, match="cannot be created"):
        ensure_local_memory_root()


def test_delete_removes_the_notes_of_a_project_too(
    registry: PersistentMemoryRegistry, project: Path
) -> None:
    store_id = made()
    assert registry.delete_local(store_id)
    assert not registry.delete_local(store_id)
    assert (registry.list_local(), in_trash(local_memory_root())) == ([], [])
    assert not use_file(store_id).exists()


# ---------------------------------------------------------------- in use


def test_open_store_is_neither_deleted_nor_pruned(
    registry: PersistentMemoryRegistry, used: MemoryStore
) -> None:
    age(id_of(used))
    assert registry.prunable_local(older_than=AT_ONCE) == []
    assert registry.prune_local(older_than=AT_ONCE) == []
    with pytest.raises(MemoryBackendError, match="in use, by this program or another one; close"):
        registry.delete_local(id_of(used))
    assert isinstance(used.dispatch(MemoryOpWrite(NOTE, "tea")), MemoryWriteResult)


def test_closing_is_a_use(registry: PersistentMemoryRegistry, used: MemoryStore) -> None:
    age(id_of(used))
    memory.get("local").close(used)
    assert not is_used(use_file(id_of(used)))
    assert registry.prune_local(older_than=WEEK) == []
    age(id_of(used))
    assert registry.prune_local(older_than=WEEK) == [id_of(used)]


def test_operations_are_uses(used: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    age(id_of(used))
    used.dispatch(MemoryOpRead(NOTE))
    assert time.time() - use_file(id_of(used)).stat().st_mtime > WEEK.total_seconds()
    later = time.monotonic() + 61
    monkeypatch.setattr(time, "monotonic", lambda: later)
    used.dispatch(MemoryOpRead(NOTE))
    assert time.time() - use_file(id_of(used)).stat().st_mtime < WEEK.total_seconds()


def test_store_that_cannot_be_opened_is_not_held(registry: PersistentMemoryRegistry) -> None:
    store_id = uuid4()
    ensure_local_memory_root()
    registry.local_path(store_id).touch()
    with pytest.raises(MemoryBackendError, match="cannot be made"):
        opened(registry, store_id)
    assert not is_used(use_file(store_id))


def test_store_whose_directory_is_gone_lets_go_all_the_same(used: MemoryStore) -> None:
    shutil.rmtree(used.handle)
    memory.get("local").close(used)
    assert not is_used(use_file(id_of(used)))


@pytest.mark.parametrize("name", ["notes", "memory/local/notes", "local/{id}", "{id}"])
def test_store_in_another_place_is_not_registered(tmp_path: Path, name: str) -> None:
    directory = tmp_path / "elsewhere" / name.format(id=uuid4())
    store = memory.get("local").open(MemoryStoreSpec(options={"path": str(directory)}))
    assert list(directory.parent.glob("*.use")) == []
    memory.get("local").close(store)


def test_store_that_cannot_be_locked_is_not_opened(registry: PersistentMemoryRegistry) -> None:
    store_id = registry.alloc_local_id()
    use_file(store_id).unlink()
    use_file(store_id).mkdir()
    with pytest.raises(MemoryBackendError, match="cannot be marked as in use"):
        opened(registry, store_id)


def test_store_is_held_by_its_real_path(registry: PersistentMemoryRegistry, tmp_path: Path) -> None:
    store_id = registry.alloc_local_id()
    (tmp_path / "link").symlink_to(registry.local_path(store_id))
    backend = memory.get("local")
    store = backend.open(MemoryStoreSpec(options={"path": str(tmp_path / "link")}))
    assert is_used(use_file(store_id))
    backend.close(store)


@pytest.mark.parametrize("linked", ["memory", "memory/local"])
def test_store_is_held_where_the_home_leads_to_another_disk(
    registry: PersistentMemoryRegistry, tmp_path: Path, linked: str
) -> None:
    link, disk = memory_root().parent / linked, tmp_path / "disk"
    disk.mkdir()
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(disk)
    backend = memory.get("local")
    store = opened(registry, registry.alloc_local_id())
    assert registry.prune_local(older_than=timedelta()) == []
    with pytest.raises(MemoryBackendError, match="is in use"):
        registry.delete_local(id_of(store))
    backend.close(store)


# ---------------------------------------------------------------- pruning


def test_store_of_openrath_1_tells_its_last_use_itself(registry: PersistentMemoryRegistry) -> None:
    stale, fresh = (made(registry.local_path(uuid4())) for _ in range(2))
    for store_id in (stale, fresh):
        use_file(store_id).unlink()
        then = time.time() - 2 * WEEK.total_seconds()
        os.utime(registry.local_path(store_id), (then, then))
    age(stale)
    assert registry.prune_local(older_than=WEEK) == [stale]


@pytest.mark.parametrize("told", ['{"last_used_at": "long ago"}', "{}", None])
def test_without_any_time_of_use_the_time_of_the_directory_counts(
    registry: PersistentMemoryRegistry, told: str | None
) -> None:
    stale, fresh = uuid4(), uuid4()
    for store_id in (stale, fresh):
        registry.local_path(store_id).mkdir(parents=True)
        if told is not None:
            (registry.local_path(store_id) / "meta.json").write_text(told)
    then = time.time() - 2 * WEEK.total_seconds()
    os.utime(registry.local_path(stale), (then, then))
    assert registry.prune_local(older_than=WEEK) == [stale]
    assert not use_file(fresh).exists()


def test_time_without_a_zone_is_taken_as_utc(registry: PersistentMemoryRegistry) -> None:
    path = registry.ensure_local(uuid4())
    now = datetime.now(UTC).replace(tzinfo=None)
    (path / "meta.json").write_text(json.dumps({"last_used_at": now.isoformat()}))
    use_file(UUID(path.name)).unlink()
    os.utime(path, (1.0, 1.0))
    assert registry.prune_local(older_than=timedelta(hours=1)) == []


@pytest.mark.parametrize("namespace", [None, "plans"])
def test_store_of_a_project_is_never_pruned_while_the_project_is_there(
    registry: PersistentMemoryRegistry, project: Path, namespace: str | None
) -> None:
    store_id = made(namespace=namespace)
    age(store_id, 500 * WEEK)
    assert registry.prunable_local(older_than=AT_ONCE) == []
    assert registry.prune_local(older_than=AT_ONCE) == []
    assert registry.list_local() == [store_id]


def test_store_of_a_project_that_is_gone_is_pruned_once_it_is_old(
    registry: PersistentMemoryRegistry, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_id = made()
    monkeypatch.chdir(project.parent)
    shutil.rmtree(project)
    assert registry.prune_local(older_than=WEEK) == []
    age(store_id)
    assert registry.prune_local(older_than=WEEK) == [store_id]


def test_project_that_is_out_of_reach_is_not_gone(
    registry: PersistentMemoryRegistry, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_id = made()
    age(store_id)
    really = os.stat

    def refuse(path: str | Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if path == project:
            raise PermissionError(13, "Permission denied")
        return really(path, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(os, "stat", refuse)
    assert registry.prune_local(older_than=WEEK) == []


@pytest.mark.parametrize("damaged", ["{", "[]", "\0"])
def test_store_that_cannot_be_judged_is_preserved(
    registry: PersistentMemoryRegistry, damaged: str, caplog: pytest.LogCaptureFixture
) -> None:
    store_id = made(registry.local_path(uuid4()))
    age(store_id)
    (registry.local_path(store_id) / "meta.json").write_text(damaged)
    with caplog.at_level(logging.WARNING, "rath.memory.persistence"):
        assert registry.prune_local(older_than=WEEK) == []
    assert "its meta.json cannot be read" in caplog.text


def test_opening_between_the_look_and_the_removal_keeps_a_store(
    registry: PersistentMemoryRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_id = made(registry.local_path(uuid4()))
    age(store_id)
    really, holds = os.open, list[Use | None]()

    def come_first(path: str | Path, flags: int, mode: int = 0o777) -> int:
        monkeypatch.setattr(os, "open", really)
        holds.append(hold_store(registry.local_path(store_id)))
        return really(path, flags, mode)

    monkeypatch.setattr(os, "open", come_first)
    assert registry.prune_local(older_than=WEEK) == []
    assert registry.list_local() == [store_id]
    (hold,) = holds
    assert hold is not None
    hold.end()


def test_only_the_home_that_is_in_force_is_looked_at(
    registry: PersistentMemoryRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = registry.local_path(registry.alloc_local_id())
    monkeypatch.setenv("OPENRATH_HOME", str(tmp_path / "other"))
    here = registry.alloc_local_id()
    assert registry.prune_local(older_than=AT_ONCE) == [here]
    assert before.is_dir()
