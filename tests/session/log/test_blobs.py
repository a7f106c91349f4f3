"""The bytes of images beside session files: written once, checked, and removed last."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rath._core.files import FileLock
from rath.errors import PersistenceError
from rath.llm.image import MAX_IMAGE_BYTES
from rath.session.chunk import ChunkRow, ChunkTable, user_text_chunk
from rath.session.persistence import (
    SessionWriter,
    delete_session,
    load_session,
    prune_sessions,
    session_file,
    sessions_dir,
)
from rath.session.persistence.store import FileStore
from rath.session.session import Session
from tests.support.api import BlobStore, blobs_module
from tests.support.images import picture, pictures
from tests.support.store_lines import write as write_stored

CAT, DOG = picture(b"cat"), picture(b"dog")


def write(*rows: ChunkRow, path: Path | None = None) -> Session:
    session = Session(ChunkTable(rows))
    with SessionWriter(session, path=path) as writer:
        for index, row in enumerate(session.chunk_table):
            writer.write_chunk(index, row)
    return session


def removed(session_id: UUID, *, path: Path | None = None) -> bool:
    """Delete a session for good; tell whether there was one."""
    was_there = delete_session(session_id, path=path)
    FileStore(sessions_dir() if path is None else path.parent).empty_trash()
    return was_there


def stored(*contents: bytes, path: Path | None = None, days_old: int = 0) -> UUID:
    """Write a session that shows these pictures, perhaps days ago."""
    session = Session(ChunkTable((user_text_chunk("look", images=contents),)))
    store = FileStore() if path is None else FileStore.at(path, session.id)
    write_stored(store, session, at=datetime.now(UTC) - timedelta(days=days_old))
    return session.id


def blob_of(content: bytes, directory: Path | None = None) -> Path:
    return (directory or sessions_dir()) / "blobs" / sha256(content).hexdigest()


def names(directory: Path | None = None) -> set[str]:
    return {file.name for file in ((directory or sessions_dir()) / "blobs").iterdir()} - {".lock"}


def digests(*contents: bytes) -> set[str]:
    return {sha256(content).hexdigest() for content in contents}


def test_the_path_and_the_bytes_of_an_image_stand_in_no_log(tmp_path: Path) -> None:
    path = tmp_path / "very-private-name.png"
    path.write_bytes(picture(b"canary"))
    session = write(user_text_chunk("look", images=[path]))
    files = [file for file in sessions_dir().rglob("*") if file.is_file()]
    assert len(files) == 3
    assert not any(b"very-private" in file.read_bytes() for file in files)
    assert "very-private" not in repr(session) + repr(session.chunk_table)
    line = session_file(session.id).read_bytes().split(b"\n")[1]
    assert b"canary" not in line
    assert json.loads(line)["payload"]["images"] == [
        {"sha256": sha256(picture(b"canary")).hexdigest(), "mime": "image/png", "size": 14}
    ]


def disk_is_full(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(blobs_module, "atomic_write_bytes", fail)


def file_in_the_way(blobs: Path, _: pytest.MonkeyPatch) -> None:
    blobs.touch()


def folder_for_the_lock(blobs: Path, _: pytest.MonkeyPatch) -> None:
    (blobs / ".lock").mkdir(parents=True)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (disk_is_full, "cannot be written: No space left"),
        (file_in_the_way, "blobs cannot be created"),
        (folder_for_the_lock, "blobs cannot be locked"),
    ],
)
def test_bytes_that_cannot_be_written_fail_the_write(
    harm: Callable[[Path, pytest.MonkeyPatch], None],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = Session.from_user_message("look", images=[CAT])
    writer = SessionWriter(session)
    harm(sessions_dir() / "blobs", monkeypatch)
    with pytest.raises(PersistenceError, match=message):
        writer.write_chunk(0, session.chunk_table[0])
    with pytest.raises(PersistenceError, match="stays unfinished"):
        writer.close()
    assert len(load_session(session.id).chunk_table) == 0


def test_a_store_that_stays_locked_fails_the_write(monkeypatch: pytest.MonkeyPatch) -> None:
    stored(DOG)
    monkeypatch.setattr(blobs_module, "_LOCK_SECONDS", 0.02)
    with (
        FileLock(sessions_dir() / "blobs" / ".lock"),
        pytest.raises(PersistenceError, match=r"locked by another process for 0\.02 s"),
    ):
        stored(CAT)


def put_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


HARMS: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "damaged": lambda file: file.write_bytes(DOG),
    "cut": lambda file: file.write_bytes(CAT[:-1]),
    "directory": put_directory,
    "too large": lambda file: os.truncate(file, MAX_IMAGE_BYTES + 1),
}


@pytest.mark.parametrize("harm", HARMS)
def test_lost_bytes_hide_nothing_but_themselves_and_are_mended(harm: str) -> None:
    session = write(user_text_chunk("look", images=[CAT, DOG]), user_text_chunk("and?"))
    HARMS[harm](blob_of(CAT))
    loaded = load_session(session.id)
    assert loaded.chunk_table == session.chunk_table
    lost, complete = loaded.chunk_table[0].images
    assert complete.blob.data == DOG
    assert "image/png" in repr(loaded.to_resumable_pair()[0])
    with pytest.raises(PersistenceError, match="are missing or damaged"):
        lost.to_base64()
    if blob_of(CAT).is_dir():
        blob_of(CAT).rmdir()
    stored(CAT)
    assert blob_of(CAT).read_bytes() == CAT


def test_a_digest_in_a_file_is_no_path(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(CAT)
    path = tmp_path / "run.jsonl"
    shown = {"sha256": "../secret", "mime": "image/png", "size": len(CAT)}
    session = write(ChunkRow("user", {"content": "look", "images": [shown]}), path=path)
    (row,) = load_session(session.id, path=path).chunk_table
    assert row.images[0].blob.data is None
    with pytest.raises(PersistenceError, match="does not name it by a sha256"):
        row.images[0].to_base64()


# What is removed, and what never is.


@pytest.mark.parametrize(
    "name", ["two.jsonl", "two.jsonl.__partial__", "two.jsonl.bak", "two.log.__partial__"]
)
def test_a_file_that_is_named_like_a_session_keeps_its_images(name: str, tmp_path: Path) -> None:
    session_id = stored(CAT, DOG, path=tmp_path / "run.jsonl")
    (tmp_path / name).write_text(f"damaged {sha256(DOG).hexdigest()}!")
    assert removed(session_id, path=tmp_path / "run.jsonl")
    assert names(tmp_path) == digests(DOG)


def test_a_session_of_any_name_keeps_its_images(tmp_path: Path) -> None:
    session_id = stored(CAT, DOG, path=tmp_path / "run.jsonl")
    stored(DOG, path=tmp_path / "my run")
    assert removed(session_id, path=tmp_path / "run.jsonl")
    assert names(tmp_path) == digests(DOG)


def test_partial_and_set_away_files_keep_their_images() -> None:
    session = Session.from_user_message("look", images=[CAT])
    for content in (CAT, DOG):
        writer = SessionWriter(session)
        writer.write_chunk(0, user_text_chunk("look", images=[content]))
        writer.abandon()
    assert removed(stored(CAT, DOG))
    assert names() == digests(CAT, DOG)
    assert removed(session.id)
    assert names() == set()


def test_prune_removes_all_that_nothing_names_and_no_file_of_others() -> None:
    orphan = picture(b"orphan")
    old, new = stored(CAT, DOG, days_old=8), stored(DOG)
    blob_of(orphan).write_bytes(orphan)
    (sessions_dir() / "blobs" / "mine.png").touch()
    assert prune_sessions(older_than=timedelta(days=7)) == [old]
    assert names() == digests(CAT, DOG) | {"mine.png"}
    assert prune_sessions(older_than=timedelta(days=7)) == []
    assert names() == digests(DOG) | {"mine.png"}
    assert load_session(new).chunk_table[0].images[0].blob.data == DOG


def test_a_file_that_cannot_be_read_keeps_everything(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gone, unreadable = stored(CAT), stored(DOG)
    system_open = Path.open

    def refuse(path: Path, mode: str) -> object:
        if path.stem == str(unreadable):
            raise PermissionError(errno.EACCES, "Permission denied")
        return system_open(path, mode)

    monkeypatch.setattr(Path, "open", refuse)
    assert removed(gone)
    assert names() == digests(CAT, DOG)
    assert "nothing more is removed" in caplog.text


@pytest.mark.parametrize("at", [0, 1, 31, 63, 64])
def test_a_digest_is_found_anywhere(
    at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs_module, "_CHUNK_BYTES", 64)
    store, digest = BlobStore(tmp_path), sha256(CAT).hexdigest()
    store.path.mkdir()
    (store.path / digest).write_bytes(CAT)
    (tmp_path / "named.jsonl").write_text(" " * at + digest + '"')
    store.sweep()
    assert (store.path / digest).exists()


def test_a_row_that_is_written_during_a_sweep_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    removed(stored(DOG))
    blob_of(CAT).write_bytes(CAT)
    session = Session.from_user_message("look", images=[CAT])
    writer = SessionWriter(session)
    system_stat, system_acquire = Path.stat, FileLock.acquire

    def write_first(lock: FileLock, *, timeout: float | None = 0.0) -> bool:
        patched.setattr(FileLock, "acquire", system_acquire)
        writer.write_chunk(0, session.chunk_table[0])
        patched.setattr(Path, "stat", close_first)
        return system_acquire(lock, timeout=timeout)

    def close_first(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if path == writer.partial_path:
            patched.setattr(Path, "stat", system_stat)
            writer.close()
        return system_stat(path, follow_symlinks=follow_symlinks)

    with monkeypatch.context() as patched:
        patched.setattr(FileLock, "acquire", write_first)
        BlobStore(sessions_dir()).sweep()
    assert writer.closed
    assert names() == digests(CAT)


def test_bytes_that_a_sweep_took_are_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Path] = []
    system_acquire = FileLock.acquire

    def sweep_first(lock: FileLock, *, timeout: float | None = 0.0) -> bool:
        if not taken:
            taken.append(blob_of(CAT))
            blob_of(CAT).unlink()
        return system_acquire(lock, timeout=timeout)

    session = Session.from_user_message("look", images=[CAT])
    with SessionWriter(session) as writer, monkeypatch.context() as patched:
        patched.setattr(FileLock, "acquire", sweep_first)
        writer.write_chunk(0, session.chunk_table[0])
    assert taken
    assert names() == digests(CAT)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(
    shown=st.lists(st.lists(pictures, max_size=3), min_size=1, max_size=4),
    gone=st.sets(st.integers(0, 3)),
)
def test_any_deletions_leave_exactly_what_is_named(
    tmp_path_factory: pytest.TempPathFactory, shown: list[list[bytes]], gone: set[int]
) -> None:
    directory = tmp_path_factory.mktemp("sessions")
    for index, contents in enumerate(shown):
        stored(*contents, path=directory / f"{index}.jsonl")
    for index in gone:
        removed(uuid4(), path=directory / f"{index}.jsonl")
    remaining = [
        content for i, contents in enumerate(shown) if i not in gone for content in contents
    ]
    assert (names(directory) if any(shown) else set[str]()) == digests(*remaining)
