"""A scan tells what a tree holds, reads only what is new, and never follows a link."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import tempfile
import time
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rath._core.blobs import MAX_BLOB_BYTES
from rath.backend.changes import EffectPolicy, FileState, ScanCache, ScannedFile, manifest_digest
from rath.backend.host import scan as scanning
from rath.backend.host.paths import forget_temporary, new_temporary
from rath.backend.host.scan import ContentStore, fill, scan, stat_scan

POLICY = EffectPolicy()

names = st.sampled_from(["a", "b", "c.txt", "d e", "ü"])
paths = st.lists(names, min_size=1, max_size=3).map("/".join)


def whole(content: bytes, mode: int) -> FileState:
    return FileState(sha256(content).hexdigest(), len(content), mode)


def by_reading(root: Path) -> dict[str, FileState]:
    """What stands below `root`, the slow way."""
    found: dict[str, FileState] = {}
    for path in root.rglob("*"):
        state = path.lstat()
        if stat.S_ISLNK(state.st_mode):
            content = os.fsencode(path.readlink())
        elif stat.S_ISREG(state.st_mode):
            content = path.read_bytes()
        else:
            continue
        found[path.relative_to(root).as_posix()] = whole(content, state.st_mode)
    return found


def make_old(root: Path) -> None:
    """Wait until no file may change unseen any more."""
    newest = max((path.lstat().st_ctime_ns for path in root.rglob("*")), default=0)
    while time.time_ns() - newest <= scanning.RACY_NS:
        os.sched_yield()


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(files=st.dictionaries(paths, st.binary(max_size=40)), links=st.sets(names))
def test_a_scan_is_what_reading_everything_gives(
    files: dict[str, bytes], links: set[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("tree")
    for path, content in files.items():
        make(root, path, content)
    for name in links - {path.split("/")[0] for path in files}:
        (root / name).symlink_to("..")
    snapshot = scan(str(root), POLICY)
    assert snapshot.manifest() == by_reading(root)


def make(root: Path, path: str, content: bytes) -> None:
    """Write a file where none of its parents is a file and it is no directory."""
    place = root / path
    if any(parent.is_file() for parent in place.parents) or place.is_dir():
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)


def test_what_did_not_change_is_not_read_again(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one")
    make_old(tmp_path)
    known: ScanCache = {}
    read: list[bytes] = []
    first = scan(str(tmp_path), POLICY, known=known, keep=lambda _, content: read.append(content))
    again = scan(str(tmp_path), POLICY, known=known, keep=lambda _, content: read.append(content))
    assert read == [b"one"]
    assert again.files["a"] is first.files["a"]


def test_a_renamed_directory_is_not_read_again(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a").write_text("one")
    make_old(tmp_path)
    known: ScanCache = {}
    first = scan(str(tmp_path), POLICY, known=known)
    (tmp_path / "d").rename(tmp_path / "e")
    again = scan(str(tmp_path), POLICY, known=known)
    assert again.files["e/a"] is first.files["d/a"]


def test_a_file_that_changed_a_moment_ago_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("one")
    known: ScanCache = {}
    first = scan(str(tmp_path), POLICY, known=known).files["a"]
    assert not first.is_settled
    assert known == {}


def test_same_size_and_time_but_another_content_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "a"
    known: ScanCache = {}
    for n in range(30):
        path.write_text(f"{n:02}")
        os.utime(path, ns=(1, 1))
        state = scan(str(tmp_path), POLICY, known=known).files["a"].state
        assert state == whole(f"{n:02}".encode(), path.stat().st_mode)


def test_links_are_never_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(outside)
    (root / "dead").symlink_to("nowhere")
    snapshot = scan(str(root), POLICY)
    assert set(snapshot.files) == {"link", "dead"}
    assert snapshot.files["dead"].state == whole(b"nowhere", 0o120777)


def test_ignored_directories_are_passed_over_at_any_depth(tmp_path: Path) -> None:
    for path in ("node_modules/a", "x/.git/b", "x/c"):
        make(tmp_path, path, b"")
    make(tmp_path, "x/venv", b"a file of that name")
    assert set(scan(str(tmp_path), POLICY).files) == {"x/c", "x/venv"}


def test_too_many_files_are_given_up_without_reading(tmp_path: Path) -> None:
    for n in range(4):
        make(tmp_path, f"d{n}/a", b"x")
    read: list[bytes] = []
    policy = EffectPolicy(max_files=3)
    snapshot = scan(str(tmp_path), policy, keep=lambda _, content: read.append(content))
    assert snapshot.is_too_large
    assert (snapshot.files, read, snapshot.manifest()) == ({}, [], None)


def test_as_many_files_as_allowed_are_looked_at(tmp_path: Path) -> None:
    for n in range(3):
        make(tmp_path, f"d{n}/a", b"x")
    assert len(scan(str(tmp_path), EffectPolicy(max_files=3)).files) == 3


def test_pipes_and_sockets_are_named_and_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "sock"))
        snapshot = scan(str(tmp_path), POLICY)
    assert snapshot.others == {"pipe": "a named pipe", "sock": "a socket"}
    assert snapshot.files == {}


def test_a_name_that_is_not_utf8_survives(tmp_path: Path) -> None:
    with open(os.fsencode(tmp_path) + b"/\xff", "wb") as file:
        file.write(b"x")
    snapshot = scan(str(tmp_path), POLICY)
    assert os.fsencode(next(iter(snapshot.files))) == b"\xff"
    assert manifest_digest(snapshot.manifest() or {})


def test_a_huge_sparse_file_is_known_by_its_stat_only(tmp_path: Path) -> None:
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 40)
    snapshot = scan(str(tmp_path), POLICY)
    assert snapshot.files["huge"].state is None
    assert snapshot.manifest() is None


def test_a_large_file_has_a_digest_but_its_content_is_not_preserved(tmp_path: Path) -> None:
    content = b"x" * (MAX_BLOB_BYTES + 1)
    (tmp_path / "large").write_bytes(content)
    (tmp_path / "fits").write_bytes(content[1:])
    kept: list[int] = []
    snapshot = scan(str(tmp_path), POLICY, keep=lambda _, content: kept.append(len(content)))
    assert snapshot.files["large"].state == whole(content, (tmp_path / "large").stat().st_mode)
    assert kept == [MAX_BLOB_BYTES]


def test_what_one_scan_has_no_room_for_the_next_one_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanning, "MAX_SCAN_BYTES", 4)
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"123")
    make_old(tmp_path)
    known: ScanCache = {}
    first = [seen.state for seen in scan(str(tmp_path), POLICY, known=known).files.values()]
    second = [seen.state for seen in scan(str(tmp_path), POLICY, known=known).files.values()]
    assert (first.count(None), second.count(None)) == (1, 0)


def test_too_deep_directories_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "MAX_DEPTH", 2)
    make(tmp_path, "1/2/3/a", b"")
    make(tmp_path, "1/2/b", b"")
    snapshot = scan(str(tmp_path), POLICY)
    assert set(snapshot.files) == {"1/2/b"}
    assert snapshot.unseen == {"1/2/3/": "it lies more than 2 directories deep"}


def test_a_root_that_is_gone_is_empty(tmp_path: Path) -> None:
    snapshot = scan(str(tmp_path / "gone"), POLICY)
    assert snapshot.manifest() == {}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_cannot_be_read_is_reported(tmp_path: Path) -> None:
    make(tmp_path, "closed/a", b"x")
    make(tmp_path, "b", b"x")
    (tmp_path / "b").chmod(0)
    (tmp_path / "closed").chmod(0)
    snapshot = scan(str(tmp_path), POLICY)
    (tmp_path / "closed").chmod(0o700)
    assert snapshot.unseen == {"closed/": "Permission denied"}
    assert snapshot.files["b"].state is None


def test_files_of_this_process_are_passed_over_while_they_are_used(tmp_path: Path) -> None:
    name = new_temporary(".rath_", ".tmp")
    (tmp_path / name).write_text("x")
    during = scan(str(tmp_path), POLICY).files
    forget_temporary(name)
    assert (set(during), set(scan(str(tmp_path), POLICY).files)) == (set(), {name})


def test_a_file_that_changes_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    path.write_text("one")
    make_old(tmp_path)
    read = os.read

    def read_and_change(fd: int, size: int) -> bytes:
        content = read(fd, size)
        path.write_text("two, longer")
        return content

    known: ScanCache = {}
    monkeypatch.setattr(os, "read", read_and_change)
    seen: ScannedFile = scan(str(tmp_path), POLICY, known=known).files["a"]
    assert (seen.is_settled, known) == (False, {})


def test_a_directory_that_cannot_be_opened_is_reported_and_a_file_is_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, "closed/a", b"x")
    make(tmp_path, "secret", b"x")
    opened = os.open

    def refuse(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path in ("closed", "secret"):
            raise PermissionError(13, "Permission denied")
        return opened(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", refuse)
    snapshot = scan(str(tmp_path), POLICY)
    assert snapshot.unseen == {"closed/": "Permission denied"}
    assert snapshot.files["secret"].state is None
    assert snapshot.manifest() is None


def test_what_goes_while_it_is_scanned_is_as_good_as_gone(tmp_path: Path) -> None:
    for path in ("a", "b", "d/e/c"):
        make(tmp_path, path, b"x")
    (tmp_path / "link").symlink_to("a")

    def remove(digest: str, content: bytes) -> None:
        for path in tmp_path.iterdir():
            path.unlink() if not path.is_dir() else shutil.rmtree(path)

    snapshot = scan(str(tmp_path), POLICY, keep=remove)
    assert len(snapshot.files) == 1


def test_files_are_read_later_if_they_were_not_at_first(tmp_path: Path) -> None:
    make(tmp_path, "d/a", b"one")
    make(tmp_path, "b", b"two")
    make(tmp_path, "c", b"three")
    read: list[bytes] = []
    snapshot = stat_scan(str(tmp_path), POLICY)
    (tmp_path / "c").unlink()
    for _ in range(2):
        fill(str(tmp_path), snapshot, ["d/a", "c"], keep=lambda _, content: read.append(content))
    states = {path: seen.state for path, seen in snapshot.files.items()}
    mode = (tmp_path / "b").stat().st_mode
    assert (states, read) == ({"d/a": whole(b"one", mode), "b": None, "c": None}, [b"one"])


def digest(content: bytes) -> str:
    return sha256(content).hexdigest()


@given(kept=st.lists(st.binary(max_size=50)), wanted=st.sets(st.integers(0, 9)))
def test_what_is_wanted_survives_any_compaction(kept: list[bytes], wanted: set[int]) -> None:
    store = ContentStore()
    for content in kept:
        assert store.put(digest(content), content)
    chosen = {digest(content) for n, content in enumerate(kept) if n in wanted}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scanning, "MIN_WASTE_BYTES", 1)
        store.keep_only(chosen)
    for content in kept:
        assert store.get(digest(content)) in (
            {content} if digest(content) in chosen else {content, None}
        )
    store.close()


def test_a_content_is_preserved_once() -> None:
    store = ContentStore()
    assert store.put("one", b"abc")
    assert store.put("one", b"abc")
    assert store.n_bytes == 3
    store.close()


def test_a_full_store_refuses_and_keeps_what_it_has() -> None:
    store = ContentStore(max_bytes=4)
    assert store.put("one", b"abc")
    assert not store.put("two", b"de")
    assert (store.get("one"), store.get("two")) == (b"abc", None)
    store.close()


def test_compaction_frees_what_nobody_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "MIN_WASTE_BYTES", 4)
    store = ContentStore()
    store.put("one", b"abc")
    store.put("two", b"defgh")
    store.keep_only({"one"})
    assert (store.n_bytes, store.get("one"), store.get("two")) == (3, b"abc", None)
    store.close()


def test_little_waste_is_not_worth_a_copy() -> None:
    store = ContentStore()
    store.put("one", b"abc")
    store.keep_only(set())
    assert store.get("one") == b"abc"
    store.close()


def test_its_file_has_no_name() -> None:
    before = set(os.listdir(tempfile.gettempdir()))
    store = ContentStore()
    made = set(os.listdir(tempfile.gettempdir())) - before
    assert not {name for name in made if name.startswith("rath-contents-")}
    store.close()


def test_nothing_is_preserved_after_closing() -> None:
    store = ContentStore()
    store.put("one", b"abc")
    store.close()
    assert store.get("one") is None


def full_disk(*_: object, **__: object) -> int:
    raise OSError(28, "No space left on device")


def test_a_full_disk_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    store = ContentStore()
    monkeypatch.setattr(os, "pwrite", full_disk)
    assert not store.put("one", b"abc")
    store.close()


@pytest.mark.parametrize("broken", ["os.pwrite", "tempfile.mkstemp"])
def test_without_room_for_a_copy_nothing_is_dropped(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanning, "MIN_WASTE_BYTES", 1)
    store = ContentStore()
    store.put("one", b"abc")
    store.put("two", b"defgh")
    monkeypatch.setattr(broken, full_disk)
    store.keep_only({"one"})
    assert (store.get("one"), store.get("two")) == (b"abc", b"defgh")
    store.close()
