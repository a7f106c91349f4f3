"""Files are written whole, opened where they are regular, and forced to disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from rath.memory.adapters.local.files import Draft, Stamp, sync_notes
from rath.memory.adapters.local.layout import DRAFTS_NAME


def left(root: Path) -> list[str]:
    """The names of the drafts that lie about."""
    return os.listdir(root / DRAFTS_NAME)


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


def test_what_stands_in_the_way_of_a_note_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a.md").mkdir()
    with Draft(tmp_path, b"tea") as draft, pytest.raises(OSError, match=r"a\.md") as told:
        draft.place(tmp_path / "a.md")
    assert told.value.errno in {errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY, errno.EACCES}
    assert left(tmp_path) == []


def test_a_draft_that_somebody_removed_is_written_again(tmp_path: Path) -> None:
    target = tmp_path / "a.md"
    with Draft(tmp_path, b"tea", mode=0o600) as draft:
        [name] = left(tmp_path)
        (tmp_path / DRAFTS_NAME / name).unlink()
        draft.set_mode(0o640)
        draft.force_to_disk()
        draft.place(target)
    assert (target.read_bytes(), target.stat().st_mode & 0o777) == (b"tea", 0o640)


@pytest.mark.parametrize("n_files", [1, 40], ids=["few", "many"])
def test_files_that_are_gone_are_no_error(tmp_path: Path, n_files: int) -> None:
    paths = [tmp_path / "d" / str(number) for number in range(n_files)]
    (tmp_path / "d").mkdir()
    for path in paths[1:]:
        path.write_text("tea")
    sync_notes(tmp_path, [*map(str, paths), str(tmp_path / "none/x")])


def test_a_store_that_is_gone_is_no_error(tmp_path: Path) -> None:
    sync_notes(tmp_path / "gone", [str(tmp_path / "gone" / str(number)) for number in range(40)])


def test_notes_that_may_not_be_on_disk_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    (tmp_path / "a").write_text("tea")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=r"1 new notes of .* may not be on disk: .*full") as failure:
        sync_notes(tmp_path, [str(tmp_path / "a")])
    assert failure.value.errno == errno.ENOSPC
