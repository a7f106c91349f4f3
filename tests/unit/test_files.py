"""Whole files and locks."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rath._core.files import (
    FileLock,
    atomic_write_bytes,
    atomic_write_json,
    atomic_write_text,
    make_private_directory,
    safe_child,
    sync_directory,
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


def test_missing_directory_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        atomic_write_bytes(tmp_path / "no" / "f", b"x")


@on_posix
def test_mode_of_a_replaced_file_is_kept(tmp_path: Path) -> None:
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
