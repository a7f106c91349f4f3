"""Directories that outlive their process, and who uses them."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from rath._core.persistent_dirs import PersistentDirectories, PersistentKind, listed_ids
from rath._core.usage_locks import Use, begin, claimed, forget_unused, is_used, last_use, use_file
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


def test_what_a_directory_tells_stands_for_a_time_that_nobody_preserved(tmp_path: Path) -> None:
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


LONG_AGO = 1_000_000.0


def begun(file: Path) -> Use:
    """A use that has begun."""
    use = begin(file)
    assert use is not None
    return use


def test_what_is_being_removed_is_not_held(file: Path) -> None:
    file.parent.mkdir(parents=True)
    with claimed(file, used_at=LONG_AGO) as is_free:
        assert is_free
        assert begin(file, timeout=0.0) is None


def test_file_of_uses_stands_next_to_what_is_preserved() -> None:
    known = UUID(int=7)
    assert use_file(Path("/kept", str(known))) == Path("/kept", f"{known}.use")
    assert use_file(Path("/kept", f"{known}.json")) == Path("/kept", f"{known}.use")
    with pytest.raises(ValueError, match="badly formed"):
        use_file(Path("/kept/notes"))


def test_many_users_hold_a_sandbox_at_once(file: Path) -> None:
    first, second = begun(file), begun(file)
    first.end()
    assert is_used(file)
    second.end()
    assert not is_used(file)


def test_end_is_safe_to_repeat(file: Path) -> None:
    hold = begun(file)
    hold.end()
    hold.end()
    assert not is_used(file)


def test_a_forgotten_use_ends(file: Path) -> None:
    hold = begun(file)
    assert is_used(file)
    del hold
    gc.collect()
    assert not is_used(file)


def test_a_sandbox_nobody_ever_used_is_not_used(file: Path) -> None:
    assert not is_used(file)
    assert not file.exists()


def test_what_cannot_be_looked_at_counts_as_used(file: Path) -> None:
    file.mkdir(parents=True)
    assert is_used(file)


def test_claim_fails_while_somebody_uses_it(file: Path) -> None:
    hold = begun(file)
    with claimed(file, used_at=0.0) as is_free:
        assert not is_free
    hold.end()
    with claimed(file, used_at=0.0) as is_free:
        assert is_free


def test_claim_keeps_the_time_of_last_use(file: Path) -> None:
    file.parent.mkdir(parents=True)
    with claimed(file, used_at=LONG_AGO) as is_free:
        assert is_free
    assert last_use(file) == LONG_AGO
    with claimed(file, used_at=LONG_AGO * 2):
        assert last_use(file) == LONG_AGO


def test_user_waits_for_a_removal_and_gets_a_lock_on_the_new_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.parent.mkdir(parents=True)
    removal = claimed(file, used_at=0.0)
    assert removal.__enter__()

    def finish(_: float) -> None:
        file.unlink()
        removal.__exit__(None, None, None)

    monkeypatch.setattr(time, "sleep", finish)
    hold = begun(file)
    assert is_used(file)
    hold.end()


def test_begin_and_end_are_uses(file: Path) -> None:
    hold = begun(file)
    assert (last_use(file) or 0) > LONG_AGO
    os.utime(file, (LONG_AGO, LONG_AGO))
    hold.end()
    assert (last_use(file) or 0) > LONG_AGO


def test_touch_keeps_the_time_once_a_minute(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hold = begun(file)
    os.utime(file, (LONG_AGO, LONG_AGO))
    hold.touch()
    assert last_use(file) == LONG_AGO
    later = time.monotonic() + 61
    monkeypatch.setattr(time, "monotonic", lambda: later)
    hold.touch()
    assert (last_use(file) or 0) > LONG_AGO


def test_files_of_uses_without_a_sandbox_are_removed(tmp_path: Path) -> None:
    kept, used, left = (tmp_path / f"{UUID(int=n)}.use" for n in range(3))
    for file in (kept, left):
        file.touch()
    kept.with_suffix("").mkdir()
    hold = begun(used)
    forget_unused(tmp_path, "")
    assert sorted(tmp_path.glob("*.use")) == [kept, used]
    hold.end()


FORKED = """
import os, sys
from pathlib import Path
from rath._core.usage_locks import begin
hold = begin(Path(sys.argv[1]))
ready, tell = os.pipe()
if os.fork() == 0:
    os.write(tell, b"x")
    os.read(int(sys.argv[2]), 1)
    os._exit(0)
os.read(ready, 1)
os._exit(0)
"""


def test_forked_child_that_lives_on_holds_nothing(file: Path) -> None:
    waiting, waker = os.pipe()
    subprocess.run(
        [sys.executable, "-c", FORKED, str(file), str(waiting)], check=True, pass_fds=[waiting]
    )
    assert not is_used(file)
    os.close(waker)
    os.close(waiting)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_child_leaves_the_lock_to_its_parent(file: Path) -> None:
    hold = begun(file)
    child = os.fork()
    if child == 0:
        hold.end()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert is_used(file)
    hold.end()
