"""Nothing that is wrong with an index keeps a question from being answered."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import stat
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from rath.errors import PersistenceError
from rath.session.log.index import SessionFilter, StoreIndex, index_file
from rath.session.persistence.store import FileStore
from tests.support.api import INDEX_FILE_NAME, INDEX_VERSION, BlobStore, Database
from tests.support.logs import LogMaker, MemoryStore

N_LOGS = 7


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with a few logs."""
    made = tmp_path / "sessions"
    made.mkdir()
    for number in range(N_LOGS):
        keep(made, LogMaker().said(f"word{number}").ended())
    return made


def keep(directory: Path, log: LogMaker) -> None:
    """Write a finished log."""
    (directory / f"{log.session}.jsonl").write_bytes(log.data)


def count(directory: Path, **options: float) -> tuple[int, str]:
    """How many sessions an index of a directory knows, and what it notes."""
    with StoreIndex(FileStore(directory), **options) as index:  # type: ignore[arg-type]  # a float
        return len(index.summaries()), index.note


def test_the_index_of_files_stands_beside_them_for_their_owner_alone(directory: Path) -> None:
    assert count(directory) == (N_LOGS, "")
    file = directory / INDEX_FILE_NAME
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert index_file(FileStore(directory)) == file


def test_it_is_kept_for_the_next_process(directory: Path) -> None:
    count(directory)
    read: list[int] = []
    with StoreIndex(FileStore(directory), progress=lambda done, of: read.append(of)) as index:
        assert len(index.summaries()) == N_LOGS
    assert read == []


def test_a_question_makes_no_store(tmp_path: Path) -> None:
    assert count(tmp_path / "none") == (0, "")
    assert not (tmp_path / "none").exists()


def test_the_index_of_another_store_stands_in_the_home(tmp_path: Path) -> None:
    store, other = MemoryStore().put(LogMaker()), MemoryStore()
    with StoreIndex(store) as index:
        assert len(index.summaries()) == 1
    file = index_file(store)
    assert file is not None
    assert file.is_file()
    assert file.is_relative_to(os.environ["OPENRATH_HOME"])
    assert file != index_file(other)


def test_without_a_home_it_is_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENRATH_HOME", os.devnull)
    with StoreIndex(MemoryStore().put(LogMaker())) as index:
        assert index.path is None
        assert len(index.summaries()) == 1
        assert index.note == ""


@pytest.mark.parametrize("content", [b"", b"garbage" * 1000, b"SQLite format 3\0" + b"x" * 5000])
def test_a_damaged_file_is_made_again(directory: Path, content: bytes) -> None:
    (directory / INDEX_FILE_NAME).write_bytes(content)
    assert count(directory) == (N_LOGS, "")
    assert (directory / INDEX_FILE_NAME).stat().st_size > len(content)


@pytest.mark.parametrize("place", [0, 100, 4096, 8192, 20000, -3000])
def test_damage_anywhere_in_it_is_mended(directory: Path, place: int) -> None:
    count(directory)
    file = directory / INDEX_FILE_NAME
    data = bytearray(file.read_bytes())
    at = place % len(data)
    data[at : at + 2000] = b"\xff" * min(2000, len(data) - at)
    file.write_bytes(data)
    keep(directory, LogMaker().said("one more").ended())
    with StoreIndex(FileStore(directory)) as index:
        assert len(index.summaries()) == N_LOGS + 1
        assert len(index.search("one more")) == 1


def test_one_of_another_version_is_made_again(directory: Path) -> None:
    count(directory)
    with sqlite3.connect(directory / INDEX_FILE_NAME) as connection:
        connection.execute(f"PRAGMA user_version = {INDEX_VERSION + 1}")
        connection.execute("DELETE FROM sessions")
    connection.close()
    assert count(directory) == (N_LOGS, "")


def test_the_database_of_somebody_else_is_taken_for_damaged(directory: Path) -> None:
    with sqlite3.connect(directory / INDEX_FILE_NAME) as connection:
        connection.execute("CREATE TABLE sessions (x)")
    connection.close()
    assert count(directory) == (N_LOGS, "")


def test_what_cannot_be_written_is_kept_in_memory_with_a_note(directory: Path) -> None:
    (directory / INDEX_FILE_NAME).mkdir()
    n_sessions, noted = count(directory)
    assert n_sessions == N_LOGS
    assert "is no regular file" in noted
    assert INDEX_FILE_NAME in noted


def test_one_that_others_hold_is_made_in_memory(directory: Path) -> None:
    count(directory)
    keep(directory, LogMaker().ended())
    other = Database(directory / INDEX_FILE_NAME)
    with other.writing():
        n_sessions, noted = count(directory, busy_seconds=0.01)
    other.close()
    assert n_sessions == N_LOGS + 1
    assert "locked" in noted


def test_an_open_index_that_is_damaged_is_made_again(directory: Path) -> None:
    with StoreIndex(FileStore(directory)) as index:
        index.refresh()
        (directory / INDEX_FILE_NAME).unlink()
        (directory / INDEX_FILE_NAME).write_bytes(b"nothing" * 9000)
        index.close()
        assert len(index.summaries()) == N_LOGS
        assert index.note == ""


def test_one_that_cannot_be_removed_is_made_in_memory(directory: Path) -> None:
    (directory / INDEX_FILE_NAME).write_bytes(b"garbage" * 1000)
    (directory / f"{INDEX_FILE_NAME}-wal").mkdir()
    n_sessions, noted = count(directory)
    assert n_sessions == N_LOGS
    assert "cannot be used" in noted


def test_what_sqlite_refuses_in_memory_too_is_an_error(directory: Path) -> None:
    too_many = SessionFilter(states=[str(number) for number in range(300_000)])
    with StoreIndex(FileStore(directory)) as index:
        with pytest.raises(sqlite3.OperationalError, match="too many SQL variables"):
            index.summaries(too_many)
        assert len(index.summaries()) == N_LOGS
        # Now it is in memory.
        with pytest.raises(sqlite3.OperationalError, match="too many SQL variables"):
            index.summaries(too_many)


def test_a_store_that_cannot_be_read_is_an_error() -> None:
    class Broken(MemoryStore):
        def stamps(self) -> dict[UUID, str]:
            raise PersistenceError("no connection")

    with StoreIndex(Broken()) as index, pytest.raises(PersistenceError, match="no connection"):
        index.summaries()


def test_a_question_that_cannot_be_asked_is_an_error_of_its_caller(directory: Path) -> None:
    (directory / INDEX_FILE_NAME).mkdir()
    with StoreIndex(FileStore(directory)) as index:
        index.refresh()
        with pytest.raises(OverflowError):
            index.summaries(SessionFilter(limit=1 << 70))


def _read_and_write(directory: str, number: int) -> None:
    path = Path(directory)
    for _ in range(5):
        keep(path, LogMaker().said(f"from {number}").ended())
        _, noted = count(path)
        assert noted == ""


@pytest.mark.parametrize("is_damaged", [False, True])
def test_several_processes_use_one_index(directory: Path, is_damaged: bool) -> None:
    if is_damaged:
        (directory / INDEX_FILE_NAME).write_bytes(b"garbage" * 5000)
    context = multiprocessing.get_context("spawn")
    with context.Pool(3) as pool:
        pool.starmap(_read_and_write, [(str(directory), number) for number in range(3)])
    assert count(directory) == (N_LOGS + 15, "")


def test_a_sweep_of_contents_takes_the_index_for_no_session(directory: Path) -> None:
    digest = "ab" * 32
    keep(directory, LogMaker().said(f'{{"record_type": "header"}} {digest}').ended())
    count(directory)
    for file in directory.glob("*.jsonl"):
        file.unlink()
    blobs = directory / "blobs"
    blobs.mkdir()
    (blobs / digest).write_bytes(b"x")
    BlobStore(directory).sweep()
    assert not (blobs / digest).exists()


def test_a_session_that_was_deleted_is_forgotten(directory: Path) -> None:
    store = FileStore(directory)
    with StoreIndex(store) as index:
        gone = index.summaries()[0].id
        store.delete(gone)
        assert index.summary(gone) is not None
        index.refresh()
        assert index.summary(gone) is None
        assert index.summary(uuid4()) is None
