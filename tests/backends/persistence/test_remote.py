"""Remote sandboxes that are known by an index file."""

from __future__ import annotations

import json
import logging
import os
import stat
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from rath import backend
from rath._core.files import FileLock, StrPath
from rath.backend import BackendSandbox, BackendSandboxSpec, BackendToolFilesExists
from rath.backend import registry as backends
from rath.backend.persistence import (
    PersistentSandboxRegistry,
    RemoteSandboxRecord,
    opensandbox_index_path,
    opensandbox_root,
)
from rath.errors import BackendError, BackendNotFound
from rath.testing import FakeBackend

AT_ONCE = timedelta()
WEEK = timedelta(days=7)
ALL_KEYS = ["schema_version", "id", "backend", "remote_id", "spec", "created_at", "last_used_at"]


@pytest.fixture
def registry() -> PersistentSandboxRegistry:
    return PersistentSandboxRegistry()


@pytest.fixture
def far() -> Iterator[None]:
    """A backend whose sandboxes are somewhere else; the one named "gone" is not."""

    @backend.register("far")
    class Far(FakeBackend):
        def attach(
            self, remote_id: str, *, spec: BackendSandboxSpec | None = None
        ) -> BackendSandbox:
            if remote_id == "gone":
                raise BackendError("no such container")
            sandbox = self.open(spec)
            sandbox.remote_id = remote_id  # type: ignore[attr-defined]  # seen by the tests
            return sandbox

    yield
    backends.unregister("far")


def no_wait(_: float) -> None:
    """Take the place of `time.sleep`."""


def index(sandbox_id: UUID) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(opensandbox_index_path(sandbox_id).read_bytes())
    return found


def change(sandbox_id: UUID, **values: object) -> None:
    """Write other values into an index file."""
    opensandbox_index_path(sandbox_id).write_text(json.dumps({**index(sandbox_id), **values}))


def age(sandbox_id: UUID, by: timedelta) -> None:
    """Let everything that tells a last use be that long ago."""
    then = datetime.now(UTC) - by
    change(sandbox_id, last_used_at=then.isoformat())
    use = opensandbox_index_path(sandbox_id).with_suffix(".use")
    if use.exists():
        os.utime(use, (then.timestamp(), then.timestamp()))


def test_recorded_sandbox_is_found_by_its_id(registry: PersistentSandboxRegistry) -> None:
    spec = BackendSandboxSpec(image="python:3", entrypoint=("sh",), timeout=timedelta(minutes=5))
    before = datetime.now(UTC)
    sandbox_id = registry.record_remote("far", "c-1", spec)
    record = registry.load_remote(str(sandbox_id))
    assert record is not None
    assert before <= record.created_at == record.last_used_at <= datetime.now(UTC)
    assert record == RemoteSandboxRecord(
        schema_version=1,
        id=sandbox_id,
        backend="far",
        remote_id="c-1",
        spec=spec,
        created_at=record.created_at,
        last_used_at=record.last_used_at,
        path=opensandbox_index_path(sandbox_id),
    )


def test_index_file_is_private_and_as_documented(registry: PersistentSandboxRegistry) -> None:
    sandbox_id = registry.record_remote("far", "c-1", BackendSandboxSpec(env={"KEY": "canary"}))
    path = opensandbox_index_path(sandbox_id)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(index(sandbox_id)) == ALL_KEYS
    assert path.read_text().startswith('{\n  "schema_version": 1,')
    assert "canary" not in path.read_text()


def test_a_file_of_version_1_is_read(registry: PersistentSandboxRegistry) -> None:
    sandbox_id = uuid4()
    registry.ensure_dirs()
    raw = {
        "schema_version": 1, "id": str(sandbox_id), "backend": "opensandbox", "remote_id": "r",
        "spec": None, "created_at": "2025-01-02T03:04:05", "last_used_at": "2025-01-02T05:04:05+02",
    }  # fmt: skip
    opensandbox_index_path(sandbox_id).write_text(json.dumps(raw))
    (record,) = registry.list_remote()
    assert record.created_at == datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert record.last_used_at == record.created_at


def test_given_id_takes_the_place_of_what_was_known(registry: PersistentSandboxRegistry) -> None:
    sandbox_id = registry.record_remote("far", "c-1")
    assert registry.record_remote("far", "c-2", sandbox_id=sandbox_id) == sandbox_id
    assert [record.remote_id for record in registry.list_remote()] == ["c-2"]


@pytest.mark.parametrize(("name", "remote_id"), [("", "c"), ("far", "")])
def test_what_names_nothing_is_refused(
    registry: PersistentSandboxRegistry, name: str, remote_id: str
) -> None:
    with pytest.raises(ValueError, match="needs the name of its backend and its id"):
        registry.record_remote(name, remote_id)


def test_list_is_sorted_by_time_of_creation(registry: PersistentSandboxRegistry) -> None:
    ids = [registry.record_remote("far", f"c-{n}") for n in range(3)]
    change(ids[2], created_at="2020-01-01T00:00:00+00:00")
    assert [record.id for record in registry.list_remote()] == [ids[2], ids[0], ids[1]]


def test_unknown_sandbox_is_none_and_a_touch_of_it_nothing(
    registry: PersistentSandboxRegistry,
) -> None:
    assert registry.list_remote() == []
    assert registry.load_remote(uuid4()) is None
    registry.touch_remote(uuid4())
    assert not registry.delete_remote(uuid4())
    assert not opensandbox_root().exists()


def test_touch_moves_the_last_use_and_keeps_what_it_does_not_know(
    registry: PersistentSandboxRegistry,
) -> None:
    sandbox_id = registry.record_remote("far", "c-1")
    age(sandbox_id, WEEK)
    change(sandbox_id, label="mine")
    registry.touch_remote(sandbox_id)
    record = registry.load_remote(sandbox_id)
    assert record is not None
    assert datetime.now(UTC) - record.last_used_at < WEEK
    assert index(sandbox_id)["label"] == "mine"


DAMAGE = [
    pytest.param(b"{", id="torn"),
    pytest.param(b"[]", id="no object"),
    pytest.param(b"{}", id="empty"),
    pytest.param(b'{"schema_version": 2}', id="newer"),
    pytest.param(b"\xff", id="no text"),
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_index_is_reported_and_preserved(
    registry: PersistentSandboxRegistry, caplog: pytest.LogCaptureFixture, damage: bytes
) -> None:
    good, bad = registry.record_remote("far", "c-1"), registry.record_remote("far", "c-2")
    opensandbox_index_path(bad).write_bytes(damage)
    with caplog.at_level(logging.WARNING, "rath.backend.persistence"):
        assert [record.id for record in registry.list_remote()] == [good]
    assert str(bad) in caplog.text
    registry.touch_remote(bad)
    assert registry.prune_remote(older_than=AT_ONCE) == [good]
    assert opensandbox_index_path(bad).read_bytes() == damage
    assert registry.delete_remote(bad)


@pytest.mark.parametrize(
    "wrong",
    [{"id": str(uuid4())}, {"backend": ""}, {"remote_id": 3}, {"spec": {"env": [1]}}],
    ids=["id of another", "no backend", "remote id", "spec"],
)
def test_index_that_contradicts_itself_is_left_out(
    registry: PersistentSandboxRegistry, wrong: dict[str, object]
) -> None:
    sandbox_id = registry.record_remote("far", "c-1")
    change(sandbox_id, **wrong)
    assert registry.load_remote(sandbox_id) is None


@pytest.mark.usefixtures("far")
def test_reattach_gives_the_sandbox_and_counts_as_a_use(
    registry: PersistentSandboxRegistry,
) -> None:
    sandbox_id = registry.record_remote("far", "c-1", BackendSandboxSpec(image="i"))
    age(sandbox_id, WEEK)
    with registry.reattach_remote(sandbox_id) as sandbox:
        assert getattr(sandbox, "remote_id", "") == "c-1"
        assert sandbox.spec == BackendSandboxSpec(image="i")
        assert registry.prunable_remote(older_than=WEEK) == []


@pytest.mark.usefixtures("far")
def test_what_is_attached_is_neither_pruned_nor_deleted(
    registry: PersistentSandboxRegistry,
) -> None:
    sandbox_id = registry.record_remote("far", "c-1")
    sandbox = registry.reattach_remote(sandbox_id)
    age(sandbox_id, WEEK)
    assert registry.prunable_remote(older_than=AT_ONCE) == []
    assert registry.prune_remote(older_than=AT_ONCE) == []
    with pytest.raises(BackendError, match="is in use"):
        registry.delete_remote(sandbox_id)
    backend.get("far").close(sandbox)
    record = registry.load_remote(sandbox_id)
    assert record is not None
    assert datetime.now(UTC) - record.last_used_at < WEEK
    assert registry.prune_remote(older_than=WEEK) == []
    assert registry.prune_remote(older_than=AT_ONCE) == [sandbox_id]


def test_use_between_the_look_and_the_removal_keeps_a_remote_sandbox(
    registry: PersistentSandboxRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox_id = registry.record_remote("far", "c-1")
    age(sandbox_id, WEEK * 2)
    use = opensandbox_index_path(sandbox_id).with_suffix(".use")
    really = os.open

    def used_just_now(path: StrPath, flags: int, mode: int = 0o777) -> int:
        if not use.exists():
            os.close(really(use, os.O_CREAT | os.O_WRONLY, 0o600))
        return really(path, flags, mode)

    monkeypatch.setattr(os, "open", used_just_now)
    assert registry.prune_remote(older_than=WEEK) == []
    assert registry.load_remote(sandbox_id) is not None


@pytest.mark.usefixtures("far")
def test_operations_count_as_uses(
    registry: PersistentSandboxRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox_id = registry.record_remote("far", "c-1")
    sandbox = registry.reattach_remote(sandbox_id)
    age(sandbox_id, WEEK)
    later = time.monotonic() + 61
    monkeypatch.setattr(time, "monotonic", lambda: later)
    sandbox.dispatch(BackendToolFilesExists("x"))
    record = registry.load_remote(sandbox_id)
    assert record is not None
    assert datetime.now(UTC) - record.last_used_at < WEEK
    monkeypatch.undo()
    backend.get("far").close(sandbox)


@pytest.mark.usefixtures("far")
def test_failed_reattach_holds_nothing(registry: PersistentSandboxRegistry) -> None:
    sandbox_id = registry.record_remote("far", "gone")
    with pytest.raises(BackendError, match="no such container"):
        registry.reattach_remote(sandbox_id)
    assert registry.delete_remote(sandbox_id)


def test_reattach_of_what_is_not_known(registry: PersistentSandboxRegistry) -> None:
    with pytest.raises(KeyError, match="no remote sandbox"):
        registry.reattach_remote(uuid4())


def test_reattach_through_a_backend_that_cannot(registry: PersistentSandboxRegistry) -> None:
    sandbox_id = registry.record_remote("local", "c-1")
    with pytest.raises(AttributeError, match="does not support reattach"):
        registry.reattach_remote(sandbox_id)


def test_reattach_through_a_backend_that_is_not_here(registry: PersistentSandboxRegistry) -> None:
    sandbox_id = registry.record_remote("nowhere", "c-1")
    with pytest.raises(BackendNotFound):
        registry.reattach_remote(sandbox_id)


@pytest.mark.parametrize("method", ["load_remote", "touch_remote", "delete_remote"])
def test_nothing_but_a_uuid_is_an_id(registry: PersistentSandboxRegistry, method: str) -> None:
    with pytest.raises(ValueError, match="expected a UUID"):
        getattr(registry, method)("../../etc/passwd")


def test_writer_that_does_not_end_is_an_error(
    registry: PersistentSandboxRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.ensure_dirs()
    seconds = iter(range(1000))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(seconds)))
    monkeypatch.setattr(time, "sleep", no_wait)
    with (
        FileLock(opensandbox_root() / ".lock"),
        pytest.raises(BackendError, match="another program has been writing"),
    ):
        registry.record_remote("far", "c-1")


def test_what_cannot_be_written_is_an_error(
    registry: PersistentSandboxRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    registry.ensure_dirs()
    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(BackendError, match="No space left"):
        registry.record_remote("far", "c-1")
