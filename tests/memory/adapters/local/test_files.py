"""Files are written whole, opened where they are regular, and forced to disk."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Collection
from pathlib import Path

import pytest

from rath.memory.adapters.local.catalog import Catalog
from rath.memory.adapters.local.files import Draft, Stamp, Syncing, mark_as_ours, sync
from rath.memory.adapters.local.layout import DRAFTS_NAME


def left(root: Path) -> list[str]:
    """The names of the drafts that lie about."""
    return os.listdir(root / DRAFTS_NAME)


def test_a_draft_is_in_its_place_whole_and_leaves_nothing_behind(tmp_path: Path) -> None:
    target = tmp_path / "a.md"
    with Draft(tmp_path, b"tea") as draft:
        assert not target.exists()
        stamp = draft.place(target)
    status = target.stat()
    assert target.read_bytes() == b"tea"
    assert stamp == Stamp(status.st_mtime_ns, status.st_size)
    assert left(tmp_path) == []


def test_a_draft_that_is_not_placed_is_removed(tmp_path: Path) -> None:
    with Draft(tmp_path, b"tea"):
        assert len(left(tmp_path)) == 1
    assert left(tmp_path) == []


def test_a_draft_has_the_rights_that_it_is_given(tmp_path: Path) -> None:
    target = tmp_path / "a.md"
    with Draft(tmp_path, b"tea", mode=0o600) as draft:
        draft.force_to_disk()
        draft.set_mode(0o640)
        draft.place(target)
    assert target.stat().st_mode & 0o777 == 0o640


def test_a_note_is_written_where_no_drafts_can_be_made(tmp_path: Path) -> None:
    (tmp_path / DRAFTS_NAME).write_text("")
    target = tmp_path / "a.md"
    with Draft(tmp_path, b"tea", mode=0o600) as draft:
        draft.set_mode(0o640)
        draft.force_to_disk()
        stamp = draft.place(target)
    assert target.read_bytes() == b"tea"
    assert target.stat().st_mode & 0o777 == 0o640
    assert stamp == Stamp(target.stat().st_mtime_ns, 3)


def test_what_stands_in_the_way_of_a_note_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.md").mkdir()
    with Draft(tmp_path, b"tea") as draft, pytest.raises(OSError, match=r"a\.md") as told:
        draft.place(tmp_path / "a.md")
    assert told.value.errno in {errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY, errno.EACCES}
    assert left(tmp_path) == []


def test_a_mark_is_the_time_of_change(tmp_path: Path) -> None:
    assert mark_as_ours(tmp_path) == tmp_path.stat().st_mtime_ns
    assert mark_as_ours(tmp_path / "none") is None


def test_a_draft_that_somebody_removed_is_written_again(tmp_path: Path) -> None:
    target = tmp_path / "a.md"
    with Draft(tmp_path, b"tea", mode=0o600) as draft:
        [name] = left(tmp_path)
        (tmp_path / DRAFTS_NAME / name).unlink()
        draft.set_mode(0o640)
        draft.force_to_disk()
        draft.place(target)
    assert (target.read_bytes(), target.stat().st_mode & 0o777) == (b"tea", 0o640)


FOREVER = 1000.0


class Disk:
    """Takes what is forced to disk; fails as long as it is full."""

    def __init__(self) -> None:
        self.kept: list[set[str]] = []
        self.was_used = threading.Event()
        self.is_full = False

    def __call__(self, root: Path, paths: Collection[str]) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "full")
        self.kept.append(set(paths))
        self.was_used.set()


@pytest.fixture
def disk() -> Disk:
    """A disk that works."""
    return Disk()


def test_notes_that_come_together_go_together(tmp_path: Path, disk: Disk) -> None:
    syncing = Syncing(tmp_path, delay_seconds=FOREVER, act=disk)
    paths = [tmp_path / name for name in "abc"]
    for path in paths:
        syncing.add(path)
    syncing.flush()
    assert disk.kept == [set(map(str, paths))]


def test_nothing_is_forced_twice(tmp_path: Path, disk: Disk) -> None:
    syncing = Syncing(tmp_path, delay_seconds=FOREVER, act=disk)
    for name in ("a", "b"):
        syncing.add(tmp_path / name)
        syncing.flush()
    syncing.flush()
    assert disk.kept == [{str(tmp_path / "a")}, {str(tmp_path / "b")}]


def test_notes_get_to_disk_without_being_waited_for(tmp_path: Path, disk: Disk) -> None:
    syncing = Syncing(tmp_path, delay_seconds=0.0, act=disk)
    syncing.add(tmp_path / "a")
    assert disk.was_used.wait(50)
    assert disk.kept == [{str(tmp_path / "a")}]


def test_a_failure_in_the_background_is_logged_and_told_once(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    syncing = Syncing(tmp_path, delay_seconds=FOREVER, act=disk)
    disk.is_full = True
    syncing.add(tmp_path / "a")
    with caplog.at_level(logging.ERROR), pytest.raises(OSError, match="may not be on disk") as told:
        syncing.flush()
    assert told.value.errno == errno.ENOSPC
    assert "1 new notes of" in caplog.text
    syncing.flush()


def test_a_failure_in_the_background_is_told_to_a_write_that_waits(
    tmp_path: Path, disk: Disk
) -> None:
    syncing = Syncing(tmp_path, delay_seconds=FOREVER, act=disk)
    disk.is_full = True
    syncing.add(tmp_path / "a")
    syncing.wait()
    disk.is_full = False
    with pytest.raises(OSError, match="full"):
        syncing.force(tmp_path / "b")
    assert disk.kept == [{str(tmp_path / "b")}]


@pytest.mark.parametrize("n_files", [1, 40], ids=["few", "many"])
def test_files_that_are_gone_are_no_error(tmp_path: Path, n_files: int) -> None:
    paths = [tmp_path / "d" / str(number) for number in range(n_files)]
    (tmp_path / "d").mkdir()
    for path in paths[1:]:
        path.write_text("tea")
    sync(tmp_path, [*map(str, paths), str(tmp_path / "none/x")])


def test_a_store_that_is_gone_is_no_error(tmp_path: Path) -> None:
    sync(tmp_path / "gone", [str(tmp_path / "gone" / str(number)) for number in range(40)])


def test_who_waits_does_not_wait_for_notes_that_come_later(tmp_path: Path) -> None:
    names = iter("bcdefghij")

    def sync_slowly(root: Path, paths: Collection[str]) -> None:
        # Another writer is always there.
        for name in names:
            syncing.add(root / name)
            break

    syncing = Syncing(tmp_path, delay_seconds=FOREVER, act=sync_slowly)
    syncing.add(tmp_path / "a")
    syncing.flush()
    assert next(names) == "c"


def test_closing_a_store_tells_what_may_not_be_on_disk(tmp_path: Path, disk: Disk) -> None:
    catalog = Catalog(tmp_path, syncing=Syncing(tmp_path, delay_seconds=FOREVER, act=disk))
    catalog.change("user", "a.md", lambda: catalog.syncing.add(tmp_path / "user/a.md"))
    disk.is_full = True
    with pytest.raises(OSError, match="may not be on disk"):
        catalog.close()


def test_an_unforeseen_error_does_not_stop_what_comes_after_it(tmp_path: Path) -> None:
    seen: list[set[str]] = []

    def act(_: Path, paths: Collection[str]) -> None:
        seen.append(set(paths))
        if len(seen) == 1:
            raise ValueError

    syncing = Syncing(tmp_path, delay_seconds=0, act=act)
    syncing.add(tmp_path / "a")
    with pytest.raises(OSError, match="may not be on disk"):
        syncing.flush()
    syncing.add(tmp_path / "b")
    syncing.flush()
    assert seen == [{str(tmp_path / "a")}, {str(tmp_path / "b")}]
