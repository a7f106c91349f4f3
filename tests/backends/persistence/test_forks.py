"""What forks with a workspace of their own keep."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from rath._core import retention
from rath._core.files import FileLock
from rath.backend.persistence import prunable_forks, prune_forks
from rath.backend.persistence.paths import fork_dir, forks_root

HOUR = timedelta(hours=1)


@pytest.fixture
def left() -> UUID:
    """A fork whose owner has gone, with a file in it."""
    fork_id = uuid4()
    (fork_dir(fork_id) / "upper").mkdir(parents=True)
    (fork_dir(fork_id) / "upper" / "file").touch()
    (fork_dir(fork_id) / "lock").touch()
    return fork_id


def test_fork_of_a_living_owner_is_preserved(left: UUID) -> None:
    with FileLock(fork_dir(left) / "lock"):
        assert prunable_forks() == []
        assert prune_forks() == []
    assert fork_dir(left).is_dir()


def test_fork_whose_owner_has_gone_is_removed(left: UUID) -> None:
    assert prunable_forks() == [left]
    assert fork_dir(left).is_dir()
    assert prune_forks() == [left]
    assert prune_forks() == []
    assert not fork_dir(left).exists()
    assert retention.in_trash(forks_root()) == []


def test_young_fork_is_preserved_where_an_age_is_asked_for(left: UUID) -> None:
    assert prune_forks(older_than=HOUR) == []
    then = time.time() - HOUR.total_seconds()
    os.utime(fork_dir(left) / "lock", (then, then))
    assert prune_forks(older_than=HOUR) == [left]


def test_directory_without_a_lock_is_given_up_after_an_hour() -> None:
    path = fork_dir(uuid4())
    path.mkdir(parents=True)
    assert prune_forks() == []
    then = time.time() - HOUR.total_seconds()
    os.utime(path, (then, then))
    assert prune_forks() == [UUID(path.name)]


def test_fork_that_is_being_made_is_given_up_after_an_hour(left: UUID) -> None:
    making = fork_dir(left).rename(forks_root() / f".{left}")
    assert prune_forks() == []
    assert making.is_dir()
    then = time.time() - HOUR.total_seconds()
    os.utime(making / "lock", (then, then))
    assert prune_forks() == []
    assert not making.exists()


def test_a_fork_that_cannot_be_inspected_is_preserved() -> None:
    path = fork_dir(uuid4())
    (path / "lock").mkdir(parents=True)
    assert prune_forks() == []
    assert path.is_dir()


def test_fork_in_which_something_is_mounted_is_preserved(
    left: UUID, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(f"36 35 98:0 / {fork_dir(left)}/merged rw - overlay overlay rw\n")
    monkeypatch.setattr(retention, "MOUNT_TABLE", table)
    assert prune_forks() == []
    assert fork_dir(left).is_dir()


def test_prune_finishes_what_a_crash_left(left: UUID) -> None:
    assert retention.move_to_trash(fork_dir(left))
    assert prune_forks() == []
    assert retention.in_trash(forks_root()) == []
