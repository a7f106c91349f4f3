"""Files that are written whole, locked, removed, brought back, and named by their content."""

from __future__ import annotations

import copy
import errno
import json
import logging
import os
import pickle
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rath._core import retention
from rath._core.blobs import MAX_BLOB_BYTES, Blob, is_digest
from rath._core.files import (
    FileLock,
    atomic_write_bytes,
    atomic_write_json,
    atomic_write_text,
    make_private_directory,
    safe_child,
    sync_directory,
)
from rath._core.retention import (
    empty_trash,
    in_trash,
    mount_below,
    mount_in,
    move_to_trash,
    remove_directory,
    remove_tree,
)

on_posix = pytest.mark.skipif(os.name != "posix", reason="permission bits are a POSIX matter")
per_example = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text("ab\u2028\n"), inner),
)


def permissions(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@per_example
@given(st.binary())
def test_bytes_come_back_as_written(tmp_path: Path, data: bytes) -> None:
    atomic_write_bytes(tmp_path / "f", data)
    assert (tmp_path / "f").read_bytes() == data


@per_example
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_text_keeps_its_line_ends(tmp_path: Path, text: str) -> None:
    atomic_write_text(tmp_path / "f", text)
    assert (tmp_path / "f").read_bytes() == text.encode()


@per_example
@given(json_values, st.booleans())
def test_json_comes_back_as_written(tmp_path: Path, value: object, ensure_ascii: bool) -> None:
    atomic_write_json(tmp_path / "f", value, ensure_ascii=ensure_ascii)
    text = (tmp_path / "f").read_text(encoding="utf-8")
    assert json.loads(text) == value
    assert text.endswith("\n")


def test_newline_is_added_once(tmp_path: Path) -> None:
    atomic_write_text(tmp_path / "f", "a", newline=True)
    atomic_write_text(tmp_path / "g", "a\n", newline=True)
    assert (tmp_path / "f").read_bytes() == (tmp_path / "g").read_bytes() == b"a\n"


def test_reader_sees_the_old_or_the_new_content_and_never_a_part(tmp_path: Path) -> None:
    path = tmp_path / "f"
    contents = [letter * 200_000 for letter in (b"a", b"b")]
    atomic_write_bytes(path, contents[0])
    done = threading.Event()
    seen: set[bytes] = set()

    def read() -> None:
        while not done.is_set():
            seen.add(path.read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    for turn in range(40):
        atomic_write_bytes(path, contents[turn % 2])
    done.set()
    reader.join()
    assert seen <= set(contents)


@pytest.mark.parametrize(
    "payload", [{"a": object()}, {"a": "\ud800"}], ids=["not-json", "not-unicode"]
)
def test_what_cannot_be_written_leaves_the_file_and_directory_as_they_were(
    tmp_path: Path, payload: object
) -> None:
    atomic_write_json(tmp_path / "f", {"a": 1})
    with pytest.raises((TypeError, UnicodeEncodeError)):
        atomic_write_json(tmp_path / "f", payload)
    assert json.loads((tmp_path / "f").read_text()) == {"a": 1}
    assert os.listdir(tmp_path) == ["f"]


def test_temporary_file_is_gone_when_the_target_cannot_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    with pytest.raises(OSError, match="f"):
        atomic_write_bytes(tmp_path / "f", b"x")
    assert os.listdir(tmp_path) == ["f"]


def test_the_error_of_a_full_disk_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", is_full)
    with pytest.raises(OSError, match=r"No space left on device: '.*/note'$"):
        atomic_write_text(tmp_path / "note", "text")
    assert list(tmp_path.iterdir()) == []


def test_missing_directory_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        atomic_write_bytes(tmp_path / "no" / "f", b"x")


@on_posix
def test_mode_of_a_replaced_file_is_preserved(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.touch()
    path.chmod(0o640)
    atomic_write_bytes(path, b"x")
    assert permissions(path) == 0o640


@on_posix
@pytest.mark.parametrize("before", [None, 0o644], ids=["new", "replaced"])
def test_given_mode_is_set(tmp_path: Path, before: int | None) -> None:
    path = tmp_path / "f"
    if before is not None:
        path.touch()
        path.chmod(before)
    atomic_write_bytes(path, b"x", mode=0o600)
    assert permissions(path) == 0o600


@on_posix
def test_symbolic_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    atomic_write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_sync_skips_what_cannot_be_forced_to_disk() -> None:
    sync_directory(os.devnull)


@on_posix
def test_sync_of_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        sync_directory(tmp_path / "no")


def test_second_lock_on_a_file_does_not_get_it(tmp_path: Path) -> None:
    first, second = FileLock(tmp_path / "l"), FileLock(tmp_path / "l")
    assert first.acquire()
    assert not second.acquire()
    assert not second.acquire(timeout=0.02)
    first.release()
    assert second.acquire()
    second.release()


def test_lock_taken_twice_by_one_object_is_an_error(tmp_path: Path) -> None:
    with FileLock(tmp_path / "l") as lock, pytest.raises(RuntimeError, match="already held"):
        lock.acquire()


def test_release_without_the_lock_does_nothing(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "l")
    lock.release()
    assert not lock.held


def test_lock_on_a_descriptor_leaves_it_open(tmp_path: Path) -> None:
    with (tmp_path / "l").open("a") as handle:
        with FileLock(handle.fileno()) as lock:
            assert lock.held
            assert not FileLock(tmp_path / "l").acquire()
        handle.write("still open")
    assert (tmp_path / "l").read_text() == "still open"


def test_lock_on_a_closed_descriptor_is_an_error(tmp_path: Path) -> None:
    with (tmp_path / "l").open("a") as handle:
        lock = FileLock(handle.fileno())
    with pytest.raises(OSError, match="descriptor"):
        lock.acquire()


def test_waiting_lock_gets_it_when_the_holder_lets_go(tmp_path: Path) -> None:
    holder = FileLock(tmp_path / "l")
    holder.acquire()
    timer = threading.Timer(0.02, holder.release)
    timer.start()
    assert FileLock(tmp_path / "l").acquire(timeout=50)
    timer.join()


def test_shared_locks_exclude_only_an_exclusive_one(tmp_path: Path) -> None:
    shared = [FileLock(tmp_path / "l", kind="shared") for _ in range(2)]
    assert [lock.acquire() for lock in shared] == [True, True]
    exclusive = FileLock(tmp_path / "l")
    shared[0].release()
    assert not exclusive.acquire()
    shared[1].release()
    assert exclusive.acquire()
    assert not shared[0].acquire()
    exclusive.release()


def test_lock_is_seen_by_another_process(tmp_path: Path) -> None:
    code = (
        "import sys; from rath._core.files import FileLock; "
        "sys.exit(0 if FileLock(sys.argv[1]).acquire() else 3)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "l")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with FileLock(tmp_path / "l"):
        while_held = subprocess.run(command, env=env, check=False).returncode
    after = subprocess.run(command, env=env, check=False).returncode
    assert (while_held, after) == (3, 0)


def test_safe_child_joins_a_plain_name(tmp_path: Path) -> None:
    assert safe_child(tmp_path, "note.md") == tmp_path / "note.md"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "/etc", "C:x", "a\0", "a\n"])
def test_safe_child_refuses_what_is_not_one_plain_component(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="cannot name a file"):
        safe_child(tmp_path, name)


def test_private_directories_are_made_with_all_above_them(tmp_path: Path) -> None:
    make_private_directory(tmp_path / "a" / "b")
    make_private_directory(tmp_path / "a" / "b")
    for made in ("a", "a/b"):
        assert stat.S_IMODE((tmp_path / made).stat().st_mode) == 0o700


def test_private_directory_where_a_file_stands_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        make_private_directory(tmp_path / "file")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with a file, a directory, and a file in that."""
    directory = tmp_path / "work"
    (directory / "deep").mkdir(parents=True)
    (directory / "deep" / "file").touch()
    (directory / "other").touch()
    return directory


def test_directories_get_the_rights_that_it_takes(directory: Path) -> None:
    (directory / "deep").chmod(0)
    remove_directory(directory)
    assert not directory.exists()


def test_directory_that_cannot_be_listed_is_reported_and_the_rest_goes(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep, really = (directory / "deep").stat(), os.listdir

    def refuse(fd: int) -> list[str]:
        if os.path.samestat(os.fstat(fd), deep):
            raise PermissionError(errno.EACCES, "Permission denied")
        return really(fd)

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(PermissionError, match="Permission denied"):
        remove_directory(directory)
    assert sorted(path.name for path in directory.rglob("*")) == ["deep", "file"]


def test_file_that_cannot_be_read_from_the_disk_is_reported(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str, *, dir_fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "unlink", fail)
    with pytest.raises(OSError, match="Input/output error"):
        remove_directory(directory)


def test_walk_stops_where_a_directory_is_moved_under_its_feet(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").touch()
    deep, really = directory / "deep", os.unlink

    def move_first(name: str, *, dir_fd: int) -> None:
        if name == "file":
            deep.rename(elsewhere / "deep")
        really(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", move_first)
    with pytest.raises(OSError, match="was moved while it was removed"):
        remove_directory(directory)
    assert (elsewhere / "kept").exists()


def test_directory_that_another_one_removes_first_is_no_failure(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = os.rmdir

    def come_second(name: str, *, dir_fd: int) -> None:
        really(name, dir_fd=dir_fd)
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr(os, "rmdir", come_second)
    remove_directory(directory)
    assert not directory.exists()


def test_systems_that_open_no_directories_remove_by_path(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "supports_dir_fd", set[object]())
    remove_tree(directory)
    remove_tree(directory)
    assert not directory.exists()


IS_ROOT = os.name == "posix" and os.geteuid() == 0


@pytest.fixture
def linked_directory(tmp_path: Path) -> Path:
    """A directory with a file and a link to a directory that is not its own."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept").touch()
    linked_directory = tmp_path / "root" / "work"
    (linked_directory / "deep").mkdir(parents=True)
    (linked_directory / "deep" / "file").write_text("x")
    (linked_directory / "link").symlink_to(tmp_path / "elsewhere")
    return linked_directory


def test_what_is_moved_is_in_the_trash_until_that_is_emptied(linked_directory: Path) -> None:
    root = linked_directory.parent
    moved = move_to_trash(linked_directory)
    assert moved is not None
    assert not linked_directory.exists()
    assert in_trash(root) == [moved]
    assert (moved / "deep" / "file").read_text() == "x"
    empty_trash(root)
    assert in_trash(root) == []


def test_links_are_removed_and_not_followed(linked_directory: Path, tmp_path: Path) -> None:
    remove_tree(linked_directory)
    assert not linked_directory.exists()
    assert (tmp_path / "elsewhere" / "kept").exists()


def test_one_name_is_moved_as_often_as_it_is_made(linked_directory: Path) -> None:
    assert move_to_trash(linked_directory)
    linked_directory.mkdir()
    assert move_to_trash(linked_directory)
    assert len(in_trash(linked_directory.parent)) == 2


def test_the_trash_of_another_directory_may_be_named(
    linked_directory: Path, tmp_path: Path
) -> None:
    moved = move_to_trash(linked_directory, root=tmp_path)
    assert moved is not None
    assert in_trash(tmp_path) == [moved]
    assert in_trash(linked_directory.parent) == []


def test_link_in_the_place_of_the_trash_is_not_followed(
    linked_directory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = linked_directory.parent
    (root / retention.TRASH_DIR_NAME).symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "theirs").mkdir()
    assert move_to_trash(linked_directory) is None
    assert "is a link" in caplog.text
    assert in_trash(root) == []
    empty_trash(root)
    assert (tmp_path / "elsewhere" / "theirs").is_dir()
    assert linked_directory.is_dir()


def test_what_is_not_there_is_not_moved(tmp_path: Path) -> None:
    assert move_to_trash(tmp_path / "gone") is None
    empty_trash(tmp_path / "nowhere")


def test_what_cannot_be_moved_is_preserved_and_reported(
    linked_directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def busy(*_: object) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(Path, "rename", busy)
    with caplog.at_level(logging.WARNING, "rath._core.retention"):
        assert move_to_trash(linked_directory) is None
    assert linked_directory.exists()
    assert "busy" in caplog.text


def test_what_cannot_be_removed_stays_in_the_trash_and_is_reported(
    linked_directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    moved = move_to_trash(linked_directory)
    monkeypatch.setattr(os, "rmdir", refuse)
    with caplog.at_level(logging.WARNING, "rath._core.retention"):
        empty_trash(linked_directory.parent)
    assert in_trash(linked_directory.parent) == [moved]
    assert "remove it by hand" in caplog.text


@pytest.mark.skipif(IS_ROOT, reason="the superuser may do everything")
def test_directories_without_rights_are_removed(linked_directory: Path) -> None:
    (linked_directory / "deep").chmod(0)
    remove_tree(linked_directory)
    assert not linked_directory.exists()


def test_all_but_what_cannot_be_removed_is_removed(
    linked_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = os.unlink

    def refuse_one(name: str, *, dir_fd: int) -> None:
        if name == "file":
            raise PermissionError(errno.EPERM, "Operation not permitted")
        really(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", refuse_one)
    with pytest.raises(PermissionError, match="not permitted"):
        remove_tree(linked_directory)
    assert [str(each.relative_to(linked_directory)) for each in linked_directory.rglob("*")] == [
        "deep",
        "deep/file",
    ]


def test_link_in_the_place_of_a_directory_is_not_followed(linked_directory: Path) -> None:
    with pytest.raises(OSError, match="directory"):
        remove_tree(linked_directory / "link")
    assert (linked_directory.parent.parent / "elsewhere" / "kept").exists()


def test_what_is_gone_already_is_no_error(linked_directory: Path) -> None:
    remove_tree(linked_directory.parent / "gone")
    remove_tree(linked_directory.parent / "gone" / "with its parent")


def test_no_depth_stands_in_the_way(linked_directory: Path) -> None:
    made_deep(linked_directory, 1500)
    moved = move_to_trash(linked_directory)
    assert moved is not None
    empty_trash(linked_directory.parent)
    assert in_trash(linked_directory.parent) == []


def made_deep(linked_directory: Path, n_levels: int) -> None:
    """Make directories in each other, deeper than any path can tell."""
    fd = os.open(linked_directory, os.O_RDONLY)
    for _ in range(n_levels):
        os.mkdir("below", dir_fd=fd)
        below = os.open("below", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)


def mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *points: str) -> None:
    """Let these be the mount points, as the kernel tells them."""
    table = tmp_path / "mountinfo"
    lines = (f"36 35 98:0 / {point} rw,noatime - ext4 /dev/x rw" for point in points)
    table.write_text("".join(f"{line}\n" for line in lines))
    monkeypatch.setattr(retention, "MOUNT_TABLE", table)


def test_directory_in_which_something_is_mounted_is_preserved(
    linked_directory: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    mounts(tmp_path, monkeypatch, "/", f"{linked_directory}/deep", f"{linked_directory}er")
    with caplog.at_level(logging.WARNING, "rath._core.retention"):
        assert move_to_trash(linked_directory) is None
    assert "is mounted in it" in caplog.text
    with pytest.raises(OSError, match="is mounted there"):
        remove_tree(linked_directory)
    assert (linked_directory / "deep" / "file").exists()


def test_mount_points_are_found_under_their_escaped_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts(tmp_path, monkeypatch, "/", "/with\\040space/\\134x")
    assert mount_in(Path("/with space")) == Path("/with space/\\x")
    assert mount_in(Path("/with")) is None
    assert mount_in(Path("/")) == Path("/")


def test_what_is_mounted_below_is_found_and_the_directory_itself_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts(tmp_path, monkeypatch, "/", "/with\\040space/\\134x", "/work", "/works/x")
    assert mount_below("/with space") == Path("/with space/\\x")
    assert mount_below("/with space/\\x") is None
    assert mount_below("/work") is None
    assert mount_below("/") == Path("/with space/\\x")


def test_without_a_table_only_the_directory_itself_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "MOUNT_TABLE", tmp_path / "nothing")
    assert mount_in(tmp_path) is None
    assert mount_in(Path("/")) == Path("/")


@given(content=st.binary(max_size=50), keep=st.integers(0, 50))
def test_content_is_held_up_to_the_limit_and_known_beyond_it(content: bytes, keep: int) -> None:
    blob = Blob.from_bytes(content, keep=keep)
    assert (blob.digest, blob.size) == (sha256(content).hexdigest(), len(content))
    assert blob.data == (content if len(content) <= keep else None)


@given(one=st.binary(max_size=3), other=st.binary(max_size=3))
def test_blobs_are_equal_when_their_content_is_held_or_not(one: bytes, other: bytes) -> None:
    assert (Blob.from_bytes(one) == Blob.from_bytes(other, keep=0)) == (one == other)


def test_the_limit_is_inclusive() -> None:
    assert Blob.from_bytes(bytes(MAX_BLOB_BYTES)).data is not None
    assert Blob.from_bytes(bytes(MAX_BLOB_BYTES + 1)).data is None


def test_repr_shows_no_content() -> None:
    assert "secret" not in repr(Blob.from_bytes(b"secret"))


@given(content=st.binary(max_size=9))
def test_a_blob_is_named_by_a_digest(content: bytes) -> None:
    assert is_digest(Blob.from_bytes(content).digest)


@pytest.mark.parametrize(
    "text", ["", "0" * 63, "0" * 65, "A" * 64, "g" * 64, "0" * 64 + "\n", "../" + "0" * 61]
)
def test_other_text_is_no_digest(text: str) -> None:
    assert not is_digest(text)


def fetched(content: bytes | None, asked: list[str]) -> Blob:
    """Return a blob that is fetched, and notes for which digests it was asked."""

    def fetch(digest: str) -> bytes | None:
        asked.append(digest)
        return content

    whole = Blob.from_bytes(content or b"x")
    return Blob.fetched(whole.digest, whole.size, fetch)


def test_content_is_fetched_when_it_is_read_and_only_once() -> None:
    asked: list[str] = []
    blob = fetched(b"content", asked)
    assert (blob.size, blob.is_kept, asked) == (7, True, [])
    assert blob.data == blob.data == b"content"
    assert asked == [blob.digest]


def test_content_that_is_lost_is_none() -> None:
    blob = fetched(None, [])
    assert blob.data is None
    assert blob.is_kept


def test_fetched_blob_equals_the_one_that_holds_its_content() -> None:
    asked: list[str] = []
    blob, whole = fetched(b"content", asked), Blob.from_bytes(b"content")
    assert blob == whole
    assert hash(blob) == hash(whole)
    assert repr(blob) == repr(whole)
    assert asked == []


@pytest.mark.parametrize(
    "copied", [pickle.loads, copy.copy, copy.deepcopy], ids=["pickle", "copy", "deepcopy"]
)
def test_a_copy_of_a_fetched_blob_holds_its_content(copied: Callable[..., Blob]) -> None:
    blob = fetched(b"content", [])
    # A function that fetches cannot be written; what it gives can.
    made = copied(pickle.dumps(blob) if copied is pickle.loads else blob)
    assert (made, made.data) == (blob, b"content")


def test_fetched_blob_is_as_frozen_as_any() -> None:
    blob = fetched(b"content", [])
    with pytest.raises(FrozenInstanceError):
        blob.data = b"other"
    assert blob.without_data().data is None
    with pytest.raises(AttributeError, match="no attribute 'dat'"):
        getattr(blob, "dat")  # noqa: B009  # a name that checkers would refuse


def test_only_what_has_bytes_is_preserved() -> None:
    assert Blob.from_bytes(b"x").is_kept
    assert not Blob.from_bytes(b"x", keep=0).is_kept
