"""Kept workspaces of this host."""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from rath import backend
from rath._core.files import StrPath
from rath.backend import BackendSandbox, BackendSandboxSpec, BackendToolFilesWrite
from rath.backend.persistence import PersistentSandboxRegistry, local_root
from rath.errors import BackendError
from rath.session.session import Session

AT_ONCE = timedelta()
WEEK = timedelta(days=7)


@pytest.fixture
def registry() -> PersistentSandboxRegistry:
    return PersistentSandboxRegistry()


@pytest.fixture
def used(registry: PersistentSandboxRegistry) -> Iterator[BackendSandbox]:
    """An open sandbox on a kept workspace."""
    path = registry.local_path(registry.alloc_local_id())
    sandbox = backend.get("local").open(BackendSandboxSpec(working_dir=str(path)))
    yield sandbox
    backend.get("local").close(sandbox)


def id_of(sandbox: BackendSandbox) -> UUID:
    return UUID(Path(sandbox.handle).name)


def use_file(sandbox_id: UUID) -> Path:
    return local_root() / f"{sandbox_id}.use"


def age(sandbox_id: UUID, by: timedelta, *, is_directory: bool = False) -> None:
    """Let the last use, or the time of the directory, be that long ago."""
    then = time.time() - by.total_seconds()
    os.utime(local_root() / str(sandbox_id) if is_directory else use_file(sandbox_id), (then, then))


def test_new_workspace_is_empty_private_and_listed(registry: PersistentSandboxRegistry) -> None:
    assert registry.list_local() == []
    sandbox_id = registry.alloc_local_id()
    path = registry.local_path(sandbox_id)
    assert list(path.iterdir()) == []
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE(use_file(sandbox_id).stat().st_mode) == 0o600
    assert registry.list_local() == [sandbox_id]


def test_ensure_makes_a_workspace_once_and_keeps_its_files(
    registry: PersistentSandboxRegistry,
) -> None:
    sandbox_id = uuid4()
    (registry.ensure_local(sandbox_id) / "note").write_text("kept")
    assert (registry.ensure_local(str(sandbox_id)) / "note").read_text() == "kept"


def test_workspace_that_cannot_be_made_is_reported(registry: PersistentSandboxRegistry) -> None:
    sandbox_id = uuid4()
    registry.ensure_dirs()
    registry.local_path(sandbox_id).touch()
    with pytest.raises(BackendError, match="cannot be made"):
        registry.ensure_local(sandbox_id)


def test_files_of_one_session_are_there_for_the_next(registry: PersistentSandboxRegistry) -> None:
    spec = BackendSandboxSpec(working_dir=str(registry.local_path(registry.alloc_local_id())))
    with Session.from_user_message("a").to("local", spec=spec) as first:
        first.require_sandbox().dispatch(BackendToolFilesWrite("note", "kept"))
    assert (Path(spec.working_dir or "") / "note").read_text() == "kept"


def test_delete_of_what_cannot_be_moved_is_an_error(
    registry: PersistentSandboxRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    sandbox_id = registry.alloc_local_id()
    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(BackendError, match="cannot be moved away"):
        registry.delete_local(sandbox_id)
    assert registry.list_local() == [sandbox_id]


def test_delete_never_follows_a_link(registry: PersistentSandboxRegistry, tmp_path: Path) -> None:
    registry.ensure_dirs()
    sandbox_id = uuid4()
    (tmp_path / "own").mkdir()
    registry.local_path(sandbox_id).symlink_to(tmp_path / "own")
    assert not registry.delete_local(sandbox_id)
    assert registry.prune_local(older_than=AT_ONCE) == []
    assert (tmp_path / "own").is_dir()


def test_prune_goes_by_last_use_and_not_by_the_time_of_the_directory(
    registry: PersistentSandboxRegistry,
) -> None:
    stale, fresh = registry.alloc_local_id(), registry.alloc_local_id()
    age(stale, WEEK * 2)
    age(fresh, WEEK * 2, is_directory=True)
    assert registry.prunable_local(older_than=WEEK) == [stale]
    assert registry.prune_local(older_than=WEEK) == [stale]
    assert registry.list_local() == [fresh]


def test_without_a_time_of_use_the_time_of_the_directory_counts(
    registry: PersistentSandboxRegistry,
) -> None:
    stale, fresh = registry.alloc_local_id(), registry.alloc_local_id()
    for sandbox_id in (stale, fresh):
        use_file(sandbox_id).unlink()
    age(stale, WEEK * 2, is_directory=True)
    assert registry.prune_local(older_than=WEEK) == [stale]
    assert not use_file(fresh).exists()


def test_what_is_in_use_is_neither_deleted_nor_pruned(
    registry: PersistentSandboxRegistry, used: BackendSandbox
) -> None:
    with pytest.raises(BackendError, match="is in use"):
        registry.delete_local(id_of(used))
    age(id_of(used), WEEK)
    assert registry.prunable_local(older_than=AT_ONCE) == []
    assert registry.prune_local(older_than=AT_ONCE) == []
    backend.get("local").close(used)
    assert registry.prune_local(older_than=WEEK) == []  # it was used a moment ago
    assert registry.prune_local(older_than=AT_ONCE) == [id_of(used)]


def test_use_between_the_look_and_the_removal_keeps_a_workspace(
    registry: PersistentSandboxRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox_id = registry.alloc_local_id()
    age(sandbox_id, WEEK * 2)
    really = os.open

    def used_just_now(path: StrPath, flags: int, mode: int = 0o777) -> int:
        os.utime(use_file(sandbox_id))
        return really(path, flags, mode)

    monkeypatch.setattr(os, "open", used_just_now)
    assert registry.prune_local(older_than=WEEK) == []
    assert registry.list_local() == [sandbox_id]


def test_prune_leaves_foreign_files_and_directories(registry: PersistentSandboxRegistry) -> None:
    registry.ensure_dirs()
    (local_root() / "notes").mkdir()
    (local_root() / str(uuid4())).touch()
    before = sorted(local_root().iterdir())
    assert registry.prune_local(older_than=AT_ONCE) == []
    assert sorted(local_root().iterdir()) == before


def test_prune_keeps_what_it_may_not_lock(
    registry: PersistentSandboxRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    sandbox_id = registry.alloc_local_id()
    use_file(sandbox_id).unlink()
    use_file(sandbox_id).symlink_to(use_file(sandbox_id))  # a loop: nobody can open it
    with caplog.at_level(logging.WARNING, "rath._core.persistent_dirs"):
        assert registry.prune_local(older_than=AT_ONCE) == []
    assert "is kept" in caplog.text
    assert registry.list_local() == [sandbox_id]
