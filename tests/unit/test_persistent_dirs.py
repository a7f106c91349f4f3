"""What is kept by id: directories, who holds them, and which go."""

from __future__ import annotations

import itertools
import os
import time
from datetime import timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from rath._core.persistent_dirs import PersistentDirectories, PersistentKind, listed_ids
from rath._core.usage_locks import claimed, use_file
from rath.errors import RathError

ID = UUID("0f0f0f0f-0000-4000-8000-000000000001")
DAY = 86_400.0
WEEK = timedelta(days=7)
THING = PersistentKind("thing", RathError, "put it down")


def no_wait(_: float) -> None:
    """Take the place of `time.sleep`."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of uses that is not there yet, in a directory that is not there either."""
    return tmp_path / "kept" / "local" / f"{uuid4()}.use"


def days_ago(number: float) -> float:
    return time.time() - number * DAY


def test_a_removal_without_end_is_an_error_of_the_user(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.parent.mkdir(parents=True)
    seconds = itertools.count()
    monkeypatch.setattr(time, "monotonic", lambda: float(next(seconds)))
    monkeypatch.setattr(time, "sleep", no_wait)
    with claimed(file, used_at=0.0), pytest.raises(RathError, match="is being removed"):
        THING.begin_use(file)


def test_what_cannot_be_locked_is_an_error(file: Path) -> None:
    file.mkdir(parents=True)
    with pytest.raises(RathError, match="cannot be marked as in use"):
        THING.begin_use(file)


def test_what_a_directory_tells_of_its_use_counts_where_it_is_later(tmp_path: Path) -> None:
    told = {UUID(int=1): days_ago(1), UUID(int=2): days_ago(30)}
    kept = PersistentDirectories(tmp_path, THING, recorded_use=lambda path: told[UUID(path.name)])
    for known in told:
        kept.ensure(known)
        os.utime(use_file(kept.path(known)), (days_ago(20), days_ago(20)))
    assert kept.prunable(older_than=WEEK) == kept.prune(older_than=WEEK) == [UUID(int=2)]


def test_what_a_directory_tells_stands_for_a_time_that_nobody_kept(tmp_path: Path) -> None:
    kept = PersistentDirectories(tmp_path, THING, recorded_use=lambda _: days_ago(30))
    (tmp_path / str(ID)).mkdir()
    assert kept.prune(older_than=WEEK) == [ID]


def test_what_is_wanted_is_not_pruned_and_may_be_deleted(tmp_path: Path) -> None:
    kept = PersistentDirectories(tmp_path, THING, is_wanted=lambda path: path.name == str(ID))
    other = kept.alloc()
    kept.ensure(ID)
    assert kept.prunable(older_than=timedelta()) == kept.prune(older_than=timedelta()) == [other]
    assert kept.delete(ID)
    assert kept.ids() == []


def test_what_is_not_there_cannot_be_deleted(tmp_path: Path) -> None:
    assert not PersistentDirectories(tmp_path, THING).delete(ID)
    assert list(tmp_path.iterdir()) == []


def test_words_of_an_error_are_those_of_the_sort(tmp_path: Path) -> None:
    kept = PersistentDirectories(tmp_path, THING)
    use = THING.begin_use(use_file(kept.ensure(ID)))
    with pytest.raises(RathError, match=r"the thing .* is in use.*; put it down, then try again"):
        kept.delete(ID)
    use.end()
    with pytest.raises(ValueError, match="not a thing id"):
        kept.path("notes")


def test_listing_holds_only_real_directories_named_by_an_id(tmp_path: Path) -> None:
    root = tmp_path / "root"
    assert listed_ids(root) == []
    other = UUID(int=1)
    for name in (str(ID), str(other), "notes", ".trash", ID.hex.upper()):
        (root / name).mkdir(parents=True)
    (root / str(UUID(int=2))).touch()
    (root / str(UUID(int=3))).symlink_to(tmp_path)
    assert listed_ids(root) == [other, ID]


def test_listing_of_files_holds_only_files(tmp_path: Path) -> None:
    (tmp_path / f"{ID}.json").touch()
    (tmp_path / f"{UUID(int=1)}.json").mkdir()
    (tmp_path / f"{UUID(int=2)}.use").touch()
    assert listed_ids(tmp_path, suffix=".json") == [ID]
    assert listed_ids(tmp_path / f"{ID}.json") == []


def test_listing_by_prefix_holds_only_what_has_it(tmp_path: Path) -> None:
    (tmp_path / str(ID)).mkdir()
    (tmp_path / f".{UUID(int=1)}").mkdir()
    assert listed_ids(tmp_path, prefix=".") == [UUID(int=1)]
