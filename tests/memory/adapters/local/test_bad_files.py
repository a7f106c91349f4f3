"""Whatever lies in a store, everything else in it is found, listed and read, and quickly."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rath import memory
from rath.memory.adapters.local.catalog import SMALL_STORE, rebuild, update_all, update_changed
from rath.memory.adapters.local.index import NoteIndex
from rath.memory.adapters.local.layout import INDEX_NAME
from tests.memory.adapters.local.conftest import Find
from tests.support.memories import failed, opened
from tests.support.memory_index import kept, rebuilt

GIGABYTE = 1 << 30
BAD = "memory://user/bad"


def assert_others_are_there(store: memory.MemoryStore) -> None:
    """The good notes, one older than the bad file and one newer, are found, listed and read."""
    found = store.dispatch(memory.MemoryOpFind("tea"))
    listed = store.dispatch(memory.MemoryOpList("memory://user"))
    tree = store.dispatch(memory.MemoryOpTree("memory://user"))
    assert isinstance(found, memory.MemoryFindResult)
    good = {"memory://user/a", "memory://user/zz"}
    assert {hit.uri for hit in found.hits} == good
    for result in (listed, tree):
        assert isinstance(result, memory.MemoryListResult), result
        assert good <= {entry.uri for entry in result.entries}
    for uri in good:
        read = store.dispatch(memory.MemoryOpRead(uri))
        assert isinstance(read, memory.MemoryReadResult)
        assert read.data == "tea"


def _huge(user: Path) -> None:
    with (user / "bad.md").open("wb") as file:
        file.truncate(4 * GIGABYTE)


def _socket(user: Path) -> None:
    # The path of a socket has at most about a hundred bytes.
    with tempfile.TemporaryDirectory(dir="/tmp") as short, socket.socket(socket.AF_UNIX) as made:
        made.bind(f"{short}/s")
        Path(short, "s").rename(user / "bad.md")


def _link_loop(user: Path) -> None:
    (user / "bad.md").symlink_to(user / "bad.md")
    (user / "loop").symlink_to(user)


def _link_out_of_the_store(user: Path) -> None:
    outside = user.parent.parent / "outside"
    outside.mkdir()
    (outside / "x.md").write_text("tea")
    (user / "bad.md").symlink_to(outside / "x.md")
    (user / "way").symlink_to(outside)


def _unreadable(user: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    (user / "bad.md").write_text("tea")
    (user / "bad.md").chmod(0)
    (user / "closed").mkdir(mode=0)


def _names(user: Path) -> None:
    for name in (".md", "..md", "a.b.c.md", "new\nline.md", "n" * 252 + ".md", "ä\u0301\u200f.md"):
        (user / name).write_text("milk")
    for foreign in (b"\xff.md", b"\xed\xa0\x80.md", b"\xff"):
        Path(os.fsdecode(os.fsencode(user) + b"/" + foreign)).write_text("milk")


def _sidecars(user: Path) -> None:
    (user / "a.vec").mkdir()
    (user / "a.meta.json").mkdir()
    (user / "zz.meta.json").write_bytes(b"\xff{")


def _transcripts(user: Path) -> None:
    for stamp, text in (("1", "[" * 100_000), ("2", '{"a": 1}'), ("3", "\x00"), ("4", "[[1], 2]")):
        place = user.parent / "session/s/commits" / stamp
        place.mkdir(parents=True)
        (place / "messages.json").write_text(text)
    (user.parent / "session/s/commits/5/messages.json").mkdir(parents=True)


def _file_for_scope(user: Path) -> None:
    (user.parent / "agent").write_text("milk")
    os.mkfifo(user.parent / "session")


Damage = Callable[[Path], object]

BAD_FILES: dict[str, Damage] = {
    "not UTF-8": lambda user: (user / "bad.md").write_bytes(b"\xff\xfe\x00"),
    "huge": _huge,
    "directory": lambda user: (user / "bad.md").mkdir(),
    "pipe": lambda user: os.mkfifo(user / "bad.md"),
    "socket": _socket,
    "device": lambda user: (user / "bad.md").symlink_to("/dev/zero"),
    "dangling link": lambda user: (user / "bad.md").symlink_to(user / "nowhere"),
    "link loop": _link_loop,
    "link out of the store": _link_out_of_the_store,
    "unreadable": _unreadable,
    "names": _names,
    "files beside notes": _sidecars,
    "transcripts": _transcripts,
    "file for a scope": _file_for_scope,
}


@pytest.mark.parametrize("name", BAD_FILES)
@pytest.mark.timeout(10)
def test_a_bad_file_hides_no_other(root: Path, name: str) -> None:
    user = root / "user"
    with opened(root) as store:
        store.dispatch(memory.MemoryOpWrite("memory://user/a", "tea"))
        BAD_FILES[name](user)
        (user / "zz.md").write_text("tea")
        assert_others_are_there(store)
        rebuild(root)
        assert_others_are_there(store)
    with opened(root) as store:
        assert_others_are_there(store)


@pytest.mark.parametrize(
    ("name", "reading", "writing"),
    [
        ("huge", "unsupported", None),
        ("directory", "not_found", "internal"),
        ("pipe", "not_found", None),
        ("socket", "not_found", None),
        ("device", "invalid_uri", "invalid_uri"),
        ("link loop", "not_found", None),
        ("link out of the store", "invalid_uri", "invalid_uri"),
    ],
)
@pytest.mark.timeout(10)
def test_what_is_no_note_is_neither_read_nor_waited_for(
    store: memory.MemoryStore,
    root: Path,
    name: str,
    reading: str,
    writing: str | None,
) -> None:
    (root / "user").mkdir()
    BAD_FILES[name](root / "user")
    assert failed(store, memory.MemoryOpRead(BAD)) == reading
    op = memory.MemoryOpWrite(BAD, "milk")
    if writing is not None:
        assert failed(store, op) == writing
    else:
        assert isinstance(store.dispatch(op), memory.MemoryWriteResult)
        assert (root / "user/bad.md").read_text() == "milk"


def test_a_name_that_is_too_long_names_no_place(store: memory.MemoryStore) -> None:
    uri = "memory://user/" + "n" * 300
    assert failed(store, memory.MemoryOpWrite(uri, "tea")) == "invalid_uri"
    assert failed(store, memory.MemoryOpRead(uri)) == "not_found"


def test_a_directory_that_became_a_link_out_of_the_store_is_forgotten(
    store: memory.MemoryStore, find: Find, root: Path, tmp_path: Path
) -> None:
    store.dispatch(memory.MemoryOpWrite("memory://user/d/a", "tea"))
    assert find("tea") == ["memory://user/d/a"]
    (root / "user/d").rename(tmp_path / "outside")
    (root / "user/d").symlink_to(tmp_path / "outside")
    assert find("tea") == []


@pytest.mark.parametrize("update", [update_all, update_changed])
def test_a_directory_below_a_link_out_of_the_store_is_forgotten(
    store: memory.MemoryStore,
    root: Path,
    tmp_path: Path,
    update: Callable[[NoteIndex, Path], object],
) -> None:
    store.dispatch(memory.MemoryOpWrite("memory://user/d/e/a", "tea"))
    (root / "user/d").rename(tmp_path / "outside")
    (tmp_path / "outside/e/b.md").write_text("tea")
    (root / "user/d").symlink_to(tmp_path / "outside")
    with closing(NoteIndex(root / INDEX_NAME)) as index:
        update(index, root)
        assert index.contents() == {}
        assert index.directories().keys() <= {"user", "agent"}


names = st.text(
    st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=60
).filter(lambda name: name not in {".", ".."})
contents = st.binary(max_size=40)


@given(st.dictionaries(names, contents, max_size=5))
@settings(max_examples=25)
def test_any_files_at_all_hide_no_note(files: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name).resolve()
        with opened(root) as store:
            store.dispatch(memory.MemoryOpWrite("memory://agent/good", "coffee"))
            for name, content in files.items():
                (root / "agent" / name).write_bytes(content)
            (root / "agent/good.md").write_bytes(b"coffee")
            result = store.dispatch(memory.MemoryOpFind("coffee", top_k=100))
            assert isinstance(result, memory.MemoryFindResult)
            assert "memory://agent/good" in {hit.uri for hit in result.hits}
            for op in (
                memory.MemoryOpList("memory://agent"),
                memory.MemoryOpTree("memory://agent"),
            ):
                assert isinstance(store.dispatch(op), memory.MemoryListResult)
        assert kept(root) == rebuilt(root)


def test_notes_that_come_and_go_under_a_search_hide_no_other(
    store: memory.MemoryStore, find: Find, root: Path
) -> None:
    for number in range(20):
        store.dispatch(memory.MemoryOpWrite(f"memory://user/{number}", f"tea tea {number}"))
    store.dispatch(memory.MemoryOpWrite("memory://user/stays", "tea and much else beside it"))
    ended = threading.Event()

    def come_and_go() -> None:
        while not ended.is_set():
            for number in range(20):
                path = root / f"user/{number}.md"
                path.unlink(missing_ok=True)
                path.write_text(f"milk {number}" if number % 2 else f"tea tea {number}")

    other = threading.Thread(target=come_and_go)
    other.start()
    try:
        for _ in range(30):
            assert "memory://user/stays" in find("tea", top_k=50)
    finally:
        ended.set()
        other.join()


def _index_short(path: Path) -> None:
    with opened(path.parent):
        pass
    path.write_bytes(b"SQLite format 3\0" + b"\0" * 50)


def _index_read_only(path: Path) -> None:
    with opened(path.parent) as store:
        store.dispatch(memory.MemoryOpFind("tea"))
    path.chmod(0o444)


OWN_FILES: dict[str, Damage] = {
    "index is a directory": lambda index: index.mkdir(),
    "index is a pipe": os.mkfifo,
    "index is garbage": lambda index: index.write_bytes(b"garbage" * 5000),
    "index is short": _index_short,
    "index is locked away": lambda index: index.with_name(f"{index.name}.lock").mkdir(),
    "index is read-only": _index_read_only,
    "meta is a directory": lambda index: index.with_name("meta.json").mkdir(),
    "meta is a pipe": lambda index: os.mkfifo(index.with_name("meta.json")),
    "meta is a list": lambda index: index.with_name("meta.json").write_text("[1]"),
    "drafts are a file": lambda index: index.with_name(".drafts").write_text("x"),
}


@pytest.mark.parametrize("name", OWN_FILES)
@pytest.mark.timeout(20)
def test_a_damaged_file_of_the_store_itself_hides_no_note(root: Path, name: str) -> None:
    (root / "user").mkdir(parents=True)
    (root / "user/a.md").write_text("tea")
    OWN_FILES[name](root / INDEX_NAME)
    for number in range(2):
        with opened(root) as store:
            written = store.dispatch(memory.MemoryOpWrite(f"memory://user/{number}", "tea"))
            assert isinstance(written, memory.MemoryWriteResult), written
            result = store.dispatch(memory.MemoryOpFind("tea"))
            assert isinstance(result, memory.MemoryFindResult)
            assert len(result.hits) == number + 2


@pytest.mark.timeout(60)
def test_bad_files_hide_nothing_in_a_large_store(root: Path) -> None:
    user = root / "user"
    user.mkdir(parents=True)
    for number in range(SMALL_STORE + 1):
        (user / f"n{number}.md").write_text("milk")
    with opened(root) as store:
        store.dispatch(memory.MemoryOpWrite("memory://user/a", "tea"))
        for name in ("not UTF-8", "files beside notes", "file for a scope"):
            BAD_FILES[name](user)
        (user / "zz.md").write_text("tea")
        assert_others_are_there(store)
