"""Opening and taking away files of SQLite among several processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from rath._core.files import FileLock
from rath._core.sqlite import files_of, identity_of, opening, take_away


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "index.sqlite3"


def test_what_an_old_file_left_next_to_it_goes_before_a_new_one_is_made(path: Path) -> None:
    files = files_of(path)
    for file in files[1:]:
        file.touch()
    with opening(path, seconds=1):
        assert [file.exists() for file in files] == [False, False, False, True]


def test_what_belongs_to_a_file_that_is_there_stays(path: Path) -> None:
    for file in files_of(path):
        file.touch()
    with opening(path, seconds=1):
        assert all(file.exists() for file in files_of(path))


def test_what_is_no_file_is_refused(path: Path) -> None:
    path.mkdir()
    with pytest.raises(FileExistsError, match="is no regular file"), opening(path, seconds=1):
        pass


def test_others_wait_while_it_is_opened(path: Path) -> None:
    with opening(path, seconds=1):
        assert not FileLock(files_of(path)[-1]).acquire()
    lock = FileLock(files_of(path)[-1])
    assert lock.acquire()
    with opening(path, seconds=0.01):  # goes on without the lock
        pass
    lock.release()


def test_a_file_is_taken_away_with_what_belongs_to_it(path: Path) -> None:
    for file in files_of(path):
        file.touch()
    assert take_away(path, identity_of(path), seconds=1)
    assert [file.exists() for file in files_of(path)] == [False, False, False, True]


def test_one_that_was_made_anew_meanwhile_stays(path: Path) -> None:
    path.touch()
    identity = identity_of(path)
    path.rename(path.with_name("old"))
    path.touch()
    assert take_away(path, identity, seconds=1)
    assert path.exists()


def test_what_cannot_be_removed_is_reported(path: Path) -> None:
    path.mkdir()
    assert not take_away(path, None, seconds=1)


def test_nothing_has_no_identity(path: Path) -> None:
    assert identity_of(path) is None
