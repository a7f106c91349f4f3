"""Logs as files: what a full disk, other programs and odd directories make of them."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from rath._core.blobs import Blob
from rath.errors import PersistenceError
from rath.session.persistence.store import FileStore

ID = UUID(int=7)
on_posix = pytest.mark.skipif(sys.platform == "win32", reason="POSIX only")


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "sessions")


def written(store: FileStore, *lines: bytes, session: UUID = ID) -> Path:
    """Write a finished log and return its file."""
    log = store.create(session)
    for line in lines:
        log.append(line)
    log.finish()
    return store.path(session)


def cut_off(store: FileStore, *lines: bytes, session: UUID = ID) -> Path:
    """Write an unfinished log and return its file."""
    log = store.create(session)
    for line in lines:
        log.append(line)
    log.abandon()
    return Path(log.where)


def names(directory: Path) -> list[str]:
    return sorted(each.name for each in directory.iterdir())


def failing(error: BaseException) -> Callable[..., Any]:
    def fail(*args: object) -> Any:
        raise error

    return fail


def data_of(store: FileStore, session: UUID = ID) -> bytes:
    found = store.read(session)
    assert found is not None
    return found.data


@on_posix
def test_all_files_are_private(store: FileStore) -> None:
    log = store.create(ID)
    log.append(b"1\n", blobs=[Blob.from_bytes(b"content")])
    log.finish()
    store.reopen(ID, 0).abandon()
    store.delete(ID)
    for each in [store.directory, *store.directory.rglob("*")]:
        assert stat.S_IMODE(each.stat().st_mode) == (0o700 if each.is_dir() else 0o600)


def test_a_full_disk_is_named(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    log = store.create(ID)
    log.append(b"1\n")
    complete = os.write

    def torn(fd: int, data: bytes) -> int:
        monkeypatch.setattr(os, "write", failing(OSError(*FULL)))
        return complete(fd, data[:3])

    monkeypatch.setattr(os, "write", torn)
    with pytest.raises(PersistenceError, match=r"No space left .* before can still be read"):
        log.append(b"22222\n")
    monkeypatch.setattr(os, "write", complete)
    with pytest.raises(PersistenceError, match="an earlier write to it failed"):
        log.append(b"3\n")
    with pytest.raises(PersistenceError, match="stays unfinished"):
        log.finish()
    assert log.closed
    found = store.read(ID)
    assert found is not None
    assert (found.data, found.is_finished) == (b"1\n222", False)


@pytest.mark.parametrize(
    ("name", "error", "options"),
    [
        ("write", KeyboardInterrupt(), {}),
        ("fsync", OSError(errno.EIO, "Input/output error"), {"durable": True}),
        ("fsync", OSError(errno.ENOSPC, "full"), {"blobs": [Blob.from_bytes(b"content")]}),
    ],
    ids=["interrupt", "durable", "content"],
)
def test_a_write_that_fails_ends_the_log(
    store: FileStore, monkeypatch: pytest.MonkeyPatch, name: str, error: Any, options: Any
) -> None:
    log = store.create(ID)
    log.append(b"1\n")
    with monkeypatch.context() as patched:
        patched.setattr(os, name, failing(error))
        with pytest.raises((PersistenceError, KeyboardInterrupt)):
            log.append(b"2\n", **options)
    with pytest.raises(PersistenceError, match="stays unfinished"):
        log.append(b"3\n")
    log.abandon()
    assert data_of(store) in (b"1\n", b"1\n2\n")


CONTENT = Blob.from_bytes(b"content")


def with_content(store: FileStore, *_: bytes) -> None:
    log = store.create(ID)
    log.append(b'{"%s": 1}\n' % CONTENT.digest.encode(), blobs=[CONTENT])
    log.finish()


def in_trash(store: FileStore, *lines: bytes) -> None:
    written(store, *lines)
    store.delete(ID)


def bytes_in(directory: Path) -> set[bytes]:
    return {each.read_bytes() for each in directory.rglob("*") if each.is_file()}


READ_ONLY, FULL = (errno.EROFS, "Read-only file system"), (errno.ENOSPC, "No space left on device")
BROKEN, DENIED = (errno.EIO, "Input/output error"), (errno.EACCES, "Permission denied")


Refused = tuple[
    Callable[..., object], Any, str, tuple[int, str], Callable[[FileStore], object], str
]
REFUSED: list[Refused] = [
    (written, os, "open", READ_ONLY, lambda s: s.create(uuid4()), "Read-only"),
    (written, os, "open", READ_ONLY, lambda s: s.reopen(ID, 0), "Read-only"),
    (written, os, "open", READ_ONLY, lambda s: s.delete(ID), "Read-only"),
    (written, os, "open", READ_ONLY, lambda s: s.append_to_finished(ID, 6, b""), "Read-only"),
    (cut_off, os, "open", DENIED, lambda s: s.is_being_written(ID), "read: Permission denied"),
    (written, os, "ftruncate", BROKEN, lambda s: s.reopen(ID, 2), "Input/output error"),
    (cut_off, os, "ftruncate", BROKEN, lambda s: s.reopen(ID, 2), "Input/output error"),
    (cut_off, os, "ftruncate", BROKEN, lambda s: s.replace(ID), "cannot be written"),
    (written, Path, "replace", DENIED, lambda s: s.reopen(ID, 6), "gone on with: Permission"),
    (in_trash, Path, "replace", DENIED, lambda s: s.restore(ID), "of the trash: Permission"),
    (written, Path, "read_bytes", BROKEN, lambda s: s.read(ID), "cannot be read: Input/output"),
    (with_content, Path, "read_bytes", BROKEN, lambda s: s.blob(CONTENT.digest), "Input/out"),
    (written, os, "fsync", FULL, lambda s: s.append_to_finished(ID, 6, b"x"), "as it was"),
    (written, os, "fsync", FULL, lambda s: s.rewrite(ID, b"2\n", size=6), "it is as it was"),
    (cut_off, os, "fsync", FULL, lambda s: s.rewrite(ID, b"2\n", size=6), "it is as it was"),
]


@pytest.mark.parametrize(("make", "owner", "name", "error", "ask", "message"), REFUSED)
@on_posix
def test_what_the_system_refuses_is_an_error_and_changes_no_file(
    store: FileStore, monkeypatch: pytest.MonkeyPatch, make: Callable[..., object], owner: Any,
    name: str, error: tuple[int, str], ask: Callable[[FileStore], object], message: str,
) -> None:  # fmt: skip
    make(store, b"1\n", b"torn")
    before, known = bytes_in(store.directory), store.read(ID)
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, failing(OSError(*error)))
        with pytest.raises(PersistenceError, match=message):
            ask(store)
    assert not store.is_being_written(ID)
    assert store.holds(ID) or store.restore(ID)
    found = store.read(ID)
    assert found is not None
    assert found.data in before <= bytes_in(store.directory)
    if known is not None and name != "ftruncate":  # it goes on by then, as far as it came
        assert found.is_finished == known.is_finished


def test_only_durable_lines_are_forced(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    forced: list[str] = []
    fsync = os.fsync

    def noting(fd: int) -> None:
        forced.append("directory" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file")
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noting)
    log = store.create(ID)
    log.append(b"1\n")
    assert forced == []
    log.append(b"2\n", durable=True)
    log.append(b"3\n", durable=True)
    assert forced == ["file", "directory", "file"]
    log.finish()
    assert forced[3:] == ["file", "directory"]


def test_finishing_a_log_that_another_program_removed_is_an_error(store: FileStore) -> None:
    log = store.create(ID)
    log.append(b"1\n")
    states = [log.is_lost]
    Path(log.where).unlink()
    states.append(log.is_lost)
    with pytest.raises(PersistenceError, match="renamed or removed by another program"):
        log.finish()
    assert log.closed
    assert [*states, log.is_lost] == [False, True, False]


def test_lines_that_a_reopening_cuts_off_are_stored_next_to_the_log(store: FileStore) -> None:
    partial = cut_off(store, b"1\n", b"torn")
    with pytest.raises(PersistenceError, match="is not finished: it goes on in"):
        store.append_to_finished(ID, 6, b"2\n")
    log = store.reopen(ID, 2)
    log.append(b"2\n")
    log.abandon()
    store.reopen(ID, 2).finish()
    assert partial.with_name(f"{partial.name}.1").read_bytes() == b"torn"
    assert partial.with_name(f"{partial.name}.2").read_bytes() == b"2\n"
    assert store.path(ID).read_bytes() == b"1\n"


def test_replacing_keeps_the_finished_log_until_the_end(store: FileStore) -> None:
    final = written(store, b"old\n")
    partial = final.with_name(f"{final.name}.__partial__")
    partial.write_bytes(b"left\n")
    log = store.replace(ID)
    log.append(b"new\n")
    assert final.read_bytes() == b"old\n"
    log.finish()
    assert final.read_bytes() == b"new\n"
    assert partial.with_name(f"{partial.name}.1").read_bytes() == b"left\n"


def test_files_of_others_are_no_logs(store: FileStore) -> None:
    written(store, b"1\n")
    for name in (f"{ID}.txt", "notes.jsonl", f"{ID}.jsonl.__partial__.1", "z" * 36 + ".jsonl"):
        (store.directory / name).write_text("x")
    folder = uuid4()
    store.path(folder).mkdir()
    assert list(store.stamps()) == [ID]
    with pytest.raises(AssertionError, match="nothing but a UUID"):
        store.path("../x")  # type: ignore[arg-type]  # what a caller without types may give
    with pytest.raises(PersistenceError, match="it is no file"):
        store.read(folder)
    inside = FileStore(store.path(ID))
    with pytest.raises(PersistenceError, match="cannot be created"):
        inside.create(ID)
    with pytest.raises(PersistenceError, match="cannot be read"):
        inside.stamps()


def test_a_file_under_another_name_is_the_log_of_its_session(tmp_path: Path) -> None:
    path = tmp_path / "new" / "run.jsonl"
    store, other = FileStore.at(path, ID), UUID(int=8)
    assert store.stamps() == {}
    log = store.create(ID)
    log.append(b"1\n")
    assert names(path.parent) == ["run.jsonl.__partial__"]
    assert store.stamps()[ID].startswith("partial-")
    log.finish()
    assert path.read_bytes() == b"1\n"
    assert store.stamps()[ID].startswith("finished-")
    with pytest.raises(PersistenceError, match="is there already"):
        store.create(ID)
    written(store, b"2\n", session=other)
    assert (names(path.parent), list(FileStore(path.parent).stamps())) == (
        [f"{other}.jsonl", "run.jsonl"], [other],
    )  # fmt: skip
    assert store.delete(ID)
    assert not path.exists()
    assert store.restore(ID)
    assert path.exists()


def test_all_that_was_cut_off_goes_to_the_trash_and_comes_back(store: FileStore) -> None:
    cut_off(store, b"1\n", b"2\n")
    store.reopen(ID, 2).finish()
    before = {name: (store.directory / name).read_bytes() for name in names(store.directory)}
    assert len(before) == 2
    assert store.delete(ID)
    assert names(store.directory) == [".trash"]
    assert store.restore(ID)
    after = {name: (store.directory / name).read_bytes() for name in before}
    assert after == before


@on_posix
def test_a_link_in_the_place_of_the_trash_is_not_followed(store: FileStore, tmp_path: Path) -> None:
    written(store, b"1\n")
    (tmp_path / "precious").mkdir()
    (store.directory / ".trash").symlink_to(tmp_path / "precious")
    with pytest.raises(PersistenceError, match="is a link"):
        store.delete(ID)
    assert store.read(ID) is not None
    assert names(tmp_path / "precious") == []


def test_strangers_in_the_trash_are_not_brought_back(store: FileStore) -> None:
    written(store, b"1\n")
    store.delete(ID)
    for name in ("stranger", f"{ID}.jsonl.x", f"{ID}.jsonl.9"):
        (store.directory / ".trash" / name).mkdir()
    assert store.restore(ID)
    assert store.path(ID).read_bytes() == b"1\n"


def test_following_a_log_that_was_cut_is_an_error(store: FileStore) -> None:
    cut_off(store, b"1\n", b"2\n")
    lines = store.follow(ID, 0)
    assert next(lines) == b"1\n2\n"
    store.reopen(ID, 2).abandon()
    with pytest.raises(PersistenceError, match="became shorter than the 4 bytes"):
        next(lines)


def test_a_log_deleted_meanwhile_is_gone(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(store, b"1\n")
    exists = Path.exists

    def removing(file: Path) -> bool:
        there = exists(file)
        monkeypatch.setattr(Path, "exists", exists)
        path.unlink()
        return there

    with monkeypatch.context() as patched:
        patched.setattr(Path, "exists", removing)
        assert not store.delete(ID)
    path.write_bytes(b"1\n")
    monkeypatch.setattr(Path, "exists", removing)
    with pytest.raises(PersistenceError, match="session file not found"):
        store.reopen(ID, 0)
    assert names(store.directory) == []
