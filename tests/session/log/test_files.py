"""Logs as files: what a full disk, other programs and odd directories make of them."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from rath._core.blobs import Blob
from rath.errors import PersistenceError
from rath.session.persistence.store import FileStore
from tests.support.api import BlobStore

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


def failing(code: int) -> Callable[..., int]:
    def fail(*args: object) -> int:
        raise OSError(code, os.strerror(code))

    return fail


def test_a_log_has_the_names_of_today(store: FileStore) -> None:
    log = store.create(ID)
    log.append(b"1\n")
    assert names(store.directory) == [f"{ID}.jsonl.__partial__"]
    log.finish()
    assert names(store.directory) == [f"{ID}.jsonl"]
    assert store.path(ID).read_bytes() == b"1\n"


def test_the_default_is_the_directory_of_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENRATH_HOME", str(tmp_path))
    assert FileStore().directory == tmp_path / "sessions"


@on_posix
def test_all_files_are_private(store: FileStore) -> None:
    log = store.create(ID)
    log.append(b"1\n", blobs=[Blob.from_bytes(b"content")])
    log.finish()
    store.reopen(ID, 0).abandon()
    store.delete(ID)
    for each in [store.directory, *store.directory.rglob("*")]:
        assert stat.S_IMODE(each.stat().st_mode) == (0o700 if each.is_dir() else 0o600)


def test_a_full_disk_is_an_error_that_says_what_can_be_read(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = store.create(ID)
    log.append(b"1\n")
    whole = os.write

    def torn(fd: int, data: bytes) -> int:
        monkeypatch.setattr(os, "write", failing(errno.ENOSPC))
        return whole(fd, data[:3])

    monkeypatch.setattr(os, "write", torn)
    with pytest.raises(PersistenceError, match=r"No space left .* before can still be read"):
        log.append(b"22222\n")
    monkeypatch.setattr(os, "write", whole)
    with pytest.raises(PersistenceError, match="an earlier write to it failed"):
        log.append(b"3\n")
    with pytest.raises(PersistenceError, match="stays unfinished"):
        log.finish()
    assert log.closed
    found = store.read(ID)
    assert found is not None
    assert (found.data, found.is_finished) == (b"1\n222", False)


def test_an_interrupt_in_the_middle_of_a_line_ends_the_log(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(fd: int, data: bytes) -> int:
        raise KeyboardInterrupt

    log = store.create(ID)
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            log.append(b"1\n")
    with pytest.raises(PersistenceError, match="stays unfinished"):
        log.append(b"2\n")
    log.abandon()


def test_what_cannot_be_forced_to_disk_stays_unfinished(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = store.create(ID)
    log.append(b"1\n")
    monkeypatch.setattr(os, "fsync", failing(errno.EIO))
    with pytest.raises(PersistenceError, match="Input/output error"):
        log.append(b"2\n", durable=True)
    log.abandon()
    log = store.create(uuid4())
    log.append(b"1\n")
    with pytest.raises(PersistenceError, match="Input/output error"):
        log.finish()
    assert log.closed
    assert not store.is_being_written(log.session)
    assert not store.path(log.session).exists()


def test_only_durable_lines_are_forced_to_disk(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_log_that_another_program_removed_is_not_said_to_be_finished(store: FileStore) -> None:
    log = store.create(ID)
    log.append(b"1\n")
    states = [log.is_lost]
    Path(log.where).unlink()
    states.append(log.is_lost)
    with pytest.raises(PersistenceError, match="renamed or removed by another program"):
        log.finish()
    assert log.closed
    assert [*states, log.is_lost] == [False, True, False]


def test_what_is_cut_off_is_kept_beside_the_log(store: FileStore) -> None:
    partial = cut_off(store, b"1\n", b"torn")
    log = store.reopen(ID, 2)
    log.append(b"2\n")
    log.abandon()
    store.reopen(ID, 2).finish()
    assert partial.with_name(f"{partial.name}.1").read_bytes() == b"torn"
    assert partial.with_name(f"{partial.name}.2").read_bytes() == b"2\n"
    assert store.path(ID).read_bytes() == b"1\n"


def test_what_cannot_be_kept_is_not_cut_off(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for make in (cut_off, written):
        session = uuid4()
        file = make(store, b"1\n", b"torn", session=session)
        with monkeypatch.context() as patched:
            patched.setattr(os, "ftruncate", failing(errno.EIO))
            with pytest.raises(PersistenceError, match="Input/output error"):
                store.reopen(session, 2)
        found = store.read(session)
        assert found is not None
        assert found.data == b"1\ntorn"
        assert not store.is_being_written(session)
        assert file.name.startswith(str(session))


def test_a_finished_log_that_cannot_be_renamed_stays_finished(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(store, b"1\n")
    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", failing(errno.EACCES))
        with pytest.raises(PersistenceError, match="cannot be gone on with: Permission denied"):
            store.reopen(ID, 2)
    assert names(store.directory) == [f"{ID}.jsonl"]
    assert not store.is_being_written(ID)


def test_replacing_keeps_what_was_cut_off_and_the_finished_log_until_the_end(
    store: FileStore,
) -> None:
    final = written(store, b"old\n")
    partial = final.with_name(f"{final.name}.__partial__")
    partial.write_bytes(b"left\n")
    log = store.replace(ID)
    log.append(b"new\n")
    assert final.read_bytes() == b"old\n"
    log.finish()
    assert final.read_bytes() == b"new\n"
    assert partial.with_name(f"{partial.name}.1").read_bytes() == b"left\n"


def test_what_cannot_be_set_aside_is_not_replaced(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    partial = cut_off(store, b"left\n")
    monkeypatch.setattr(os, "ftruncate", failing(errno.EIO))
    with pytest.raises(PersistenceError, match="cannot be written"):
        store.replace(ID)
    assert partial.read_bytes() == b"left\n"


def test_of_a_finished_and_an_unfinished_file_the_finished_one_counts(store: FileStore) -> None:
    final = written(store, b"1\n")
    partial = final.with_name(f"{final.name}.__partial__")
    partial.write_bytes(b"left\n")
    found = store.read(ID)
    assert found is not None
    assert found.data == b"1\n"
    assert store.stamps()[ID].startswith("finished-")
    log = store.reopen(ID, 2)
    log.append(b"2\n")
    log.abandon()
    assert partial.read_bytes() == b"1\n2\n"
    assert partial.with_name(f"{partial.name}.1").read_bytes() == b"left\n"


def test_a_place_that_cannot_be_written_is_an_error(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(store, b"1\n")
    monkeypatch.setattr(os, "open", failing(errno.EROFS))
    asked: tuple[Callable[[], object], ...] = (
        lambda: store.create(uuid4()),
        lambda: store.reopen(ID, 0),
        lambda: store.delete(ID),
        lambda: store.append_to_finished(ID, 2, b"2\n"),
    )
    for ask in asked:
        with pytest.raises(PersistenceError, match="Read-only file system"):
            ask()


def test_a_directory_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = FileStore(tmp_path / "file")
    with pytest.raises(PersistenceError, match="cannot be created"):
        store.create(ID)
    with pytest.raises(PersistenceError, match="cannot be read"):
        store.stamps()


def test_a_store_that_was_never_written_to_is_empty(store: FileStore) -> None:
    assert store.stamps() == {}
    assert store.read(ID) is None
    assert not store.is_being_written(ID)
    assert not store.delete(ID)
    assert not store.restore(ID)
    assert store.empty_trash() == 0
    assert not store.directory.exists()


def test_files_of_others_are_no_logs(store: FileStore) -> None:
    written(store, b"1\n")
    for name in (f"{ID}.txt", "notes.jsonl", f"{ID}.jsonl.__partial__.1", "z" * 36 + ".jsonl"):
        (store.directory / name).write_text("x")
    (store.directory / f"{uuid4()}.jsonl").mkdir()
    assert list(store.stamps()) == [ID]


def test_what_is_no_file_cannot_be_read(store: FileStore) -> None:
    store.path(ID).mkdir(parents=True)
    with pytest.raises(PersistenceError, match="it is no file"):
        store.read(ID)


def test_a_file_that_cannot_be_read_is_an_error(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(store, b"1\n")
    monkeypatch.setattr(Path, "read_bytes", failing(errno.EIO))
    with pytest.raises(PersistenceError, match="cannot be read: Input/output error"):
        store.read(ID)


def test_a_finished_log_that_lost_all_its_bytes_is_still_there(store: FileStore) -> None:
    os.truncate(written(store, b"1\n"), 0)
    found = store.read(ID)
    assert found is not None
    assert (found.data, found.is_finished) == (b"", True)
    with pytest.raises(PersistenceError, match="is there already"):
        store.create(ID)
    assert not store.append_to_finished(ID, 2, b"2\n")
    assert ID in store.stamps()


def test_a_log_that_is_finished_between_two_looks_is_found(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = store.create(ID)
    log.append(b"1\n")
    read_bytes = Path.read_bytes

    def finishing(path: Path) -> bytes:
        if path == Path(log.where):
            log.finish()
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", finishing)
    found = store.read(ID)
    assert found is not None
    assert found.is_finished


def test_a_late_line_that_fails_leaves_the_log_as_it_was(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(store, b"1\n")
    monkeypatch.setattr(os, "fsync", failing(errno.ENOSPC))
    with pytest.raises(PersistenceError, match=r"No space left .* it is as it was"):
        store.append_to_finished(ID, 2, b"2\n")
    assert path.read_bytes() == b"1\n"


def test_a_file_under_another_name_is_the_log_of_its_session(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    store = FileStore.at(path, ID)
    assert store.stamps() == {}
    log = store.create(ID)
    log.append(b"1\n")
    assert (tmp_path / "run.jsonl.__partial__").exists()
    assert store.stamps()[ID].startswith("partial-")
    log.finish()
    assert path.read_bytes() == b"1\n"
    assert store.stamps()[ID].startswith("finished-")
    written(store, b"2\n", session=UUID(int=8))
    assert (tmp_path / f"{UUID(int=8)}.jsonl").exists()
    assert store.delete(ID)
    assert not path.exists()
    assert store.restore(ID)
    assert path.exists()


def test_a_file_of_the_usual_name_is_a_log_of_its_directory(tmp_path: Path) -> None:
    store = FileStore.at(tmp_path / f"{ID}.jsonl", ID)
    written(store, b"1\n")
    assert list(FileStore(tmp_path).stamps()) == [ID]


def test_a_relative_directory_stays_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    store = FileStore("sessions")
    monkeypatch.chdir(tmp_path / "elsewhere")
    written(store, b"1\n")
    assert (tmp_path / "sessions" / f"{ID}.jsonl").exists()


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


def test_what_comes_back_takes_no_name_that_is_taken(store: FileStore) -> None:
    partial = cut_off(store, b"1\n", b"2\n")
    store.reopen(ID, 2).abandon()
    store.delete(ID)
    taken = partial.with_name(f"{partial.name}.1")
    taken.write_bytes(b"of another one")
    assert store.restore(ID)
    assert taken.read_bytes() == b"of another one"
    assert partial.with_name(f"{partial.name}.2").read_bytes() == b"2\n"


def test_both_files_of_a_log_go_to_the_trash(store: FileStore) -> None:
    final = written(store, b"1\n")
    final.with_name(f"{final.name}.__partial__").write_bytes(b"left\n")
    assert store.delete(ID)
    assert names(store.directory) == [".trash"]
    assert store.empty_trash() == 1
    assert not store.restore(ID)


@on_posix
def test_a_link_in_the_place_of_the_trash_is_not_followed(store: FileStore, tmp_path: Path) -> None:
    written(store, b"1\n")
    (tmp_path / "precious").mkdir()
    (store.directory / ".trash").symlink_to(tmp_path / "precious")
    with pytest.raises(PersistenceError, match="is a link"):
        store.delete(ID)
    assert store.read(ID) is not None
    assert names(tmp_path / "precious") == []


def test_what_cannot_be_moved_back_is_an_error(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(store, b"1\n")
    store.delete(ID)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", failing(errno.EACCES))
        with pytest.raises(PersistenceError, match="out of the trash: Permission denied"):
            store.restore(ID)
    assert store.restore(ID)


def test_strangers_in_the_trash_are_not_brought_back(store: FileStore) -> None:
    written(store, b"1\n")
    store.delete(ID)
    for name in ("stranger", f"{ID}.jsonl.x", f"{ID}.jsonl.9"):
        (store.directory / ".trash" / name).mkdir()
    assert store.restore(ID)
    assert store.path(ID).read_bytes() == b"1\n"


def test_content_that_cannot_be_read_is_an_error(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = Blob.from_bytes(b"content")
    log = store.create(ID)
    log.append(b'{"%s": 1}\n' % blob.digest.encode(), blobs=[blob])
    log.finish()
    file = store.directory / "blobs" / blob.digest
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", failing(errno.EIO))
        with pytest.raises(PersistenceError, match="Input/output error"):
            store.blob(blob.digest)
    file.write_bytes(b"changed")
    assert store.blob(blob.digest) is None


def test_a_full_disk_while_content_is_written_ends_the_log(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = store.create(ID)
    log.append(b"1\n")
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", failing(errno.ENOSPC))
        with pytest.raises(PersistenceError, match="No space left"):
            log.append(b"2\n", blobs=[Blob.from_bytes(b"content")])
    with pytest.raises(PersistenceError, match="stays unfinished"):
        log.append(b"3\n")
    log.abandon()
    found = store.read(ID)
    assert found is not None
    assert found.data == b"1\n"


def test_following_waits_for_whole_lines(store: FileStore) -> None:
    log = store.create(ID)
    log.append(b"1\n2")
    lines = store.follow(ID, 0)
    assert next(lines) == b"1\n"
    log.append(b"2\n3")
    assert next(lines) == b"22\n"
    log.abandon()
    assert list(lines) == []


def test_following_waits_until_there_is_more(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = store.create(ID)
    log.append(b"1\n")
    waited: list[float] = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        log.append(b"2\n")
        log.finish()

    monkeypatch.setattr("time.sleep", wait)
    assert list(store.follow(ID, 2)) == [b"2\n"]
    assert waited == [0.1]


def test_following_a_log_that_was_cut_is_an_error(store: FileStore) -> None:
    cut_off(store, b"1\n", b"2\n")
    lines = store.follow(ID, 0)
    assert next(lines) == b"1\n2\n"
    store.reopen(ID, 2).abandon()
    with pytest.raises(PersistenceError, match="became shorter than the 4 bytes"):
        next(lines)


def test_only_a_uuid_names_a_file(store: FileStore) -> None:
    with pytest.raises(AssertionError):
        store.path("../x")  # type: ignore[arg-type]  # what a caller without types may give


def test_a_writer_that_renames_its_file_meanwhile_is_waited_for(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    system_open = os.open
    store.directory.mkdir()

    def open_then_lose(path: Path, flags: int, mode: int = 0o777) -> int:
        fd = system_open(path, flags, mode)
        monkeypatch.setattr(os, "open", system_open)
        path.unlink()
        return fd

    monkeypatch.setattr(os, "open", open_then_lose)
    written(store, b"1\n")
    assert names(store.directory) == [f"{ID}.jsonl"]


def test_a_finished_file_that_is_replaced_meanwhile_is_opened_again(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(store, b"1\n")
    system_open = os.open

    def open_then_replace(file: Path, flags: int, mode: int = 0o777) -> int:
        fd = system_open(file, flags, mode)
        monkeypatch.setattr(os, "open", system_open)
        path.rename(path.with_name("old"))
        path.write_bytes(b"22\n")
        return fd

    monkeypatch.setattr(os, "open", open_then_replace)
    assert store.append_to_finished(ID, 3, b"3\n")
    assert path.read_bytes() == b"22\n3\n"


def test_a_late_line_of_a_log_that_goes_on_is_refused_by_name(store: FileStore) -> None:
    cut_off(store, b"1\n")
    with pytest.raises(PersistenceError, match="is not finished: it goes on in"):
        store.append_to_finished(ID, 2, b"2\n")


def test_a_log_may_stand_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "new" / "run.jsonl"
    store = FileStore.at(path, ID)
    log = store.create(ID)
    log.append(b"1\n")
    log.finish()
    with pytest.raises(PersistenceError, match="is there already"):
        store.create(ID)
    assert path.read_bytes() == b"1\n"
    assert names(path.parent) == ["run.jsonl"]


@on_posix
def test_whether_it_is_written_cannot_be_told_of_what_cannot_be_opened(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_off(store, b"1\n")
    monkeypatch.setattr(os, "open", failing(errno.EACCES))
    with pytest.raises(PersistenceError, match="cannot be read: Permission denied"):
        store.is_being_written(ID)


def test_a_log_that_is_deleted_between_two_looks_is_not_there(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_real_disk_that_is_full_leaves_whole_lines(tmp_path: Path) -> None:
    # A limit on the size of files acts like a full disk, and needs no mount.
    program = """
import resource, sys
from uuid import UUID
from rath.errors import PersistenceError
from rath.session.persistence.store import FileStore

resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
log = FileStore(sys.argv[1]).create(UUID(int=7))
try:
    while True:
        log.append(b"x" * 299 + b"\\n")
except PersistenceError as exc:
    print(exc)
"""
    if sys.platform == "win32":
        pytest.skip("no limits there")
    ended = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True,
        check=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert "cannot be written: File too large; what was written before can still be" in ended.stdout
    store = FileStore(tmp_path)
    found = store.read(ID)
    assert found is not None
    assert len(found.data) == 10_000
    keep = found.data.rfind(b"\n") + 1
    store.reopen(ID, keep, size=10_000).finish()
    assert store.path(ID).stat().st_size == keep == 9_900


def test_a_log_that_cannot_be_written_anew_is_as_it_was(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for make in (cut_off, written):
        session = uuid4()
        make(store, b"1\n", session=session)
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", failing(errno.ENOSPC))
            with pytest.raises(PersistenceError, match=r"No space left .* it is as it was"):
                store.rewrite(session, b"2\n", size=2)
        found = store.read(session)
        assert found is not None
        assert found.data == b"1\n"


def test_an_empty_file_that_is_only_locked_is_no_log(store: FileStore) -> None:
    log = store.create(ID)
    assert not store.holds(ID)
    log.append(b"1\n")
    assert store.holds(ID)
    log.abandon()


def test_content_of_the_trash_stays_whatever_else_lies_there(store: FileStore) -> None:
    blob, unnamed = Blob.from_bytes(b"content"), Blob.from_bytes(b"of nobody")
    log = store.create(ID)
    log.append(b'{"%s": 1}\n' % blob.digest.encode(), blobs=[blob])
    log.append(b"2\n", blobs=[unnamed])
    log.finish()
    store.delete(ID)
    (store.directory / ".trash" / "stray").write_text("")
    BlobStore(store.directory).sweep()
    assert store.blob(blob.digest) == b"content"
    assert store.blob(unnamed.digest) is None
