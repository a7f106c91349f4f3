"""The index follows the files, whoever changes them."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rath import memory
from rath._async.runtime import runtime
from rath.memory.adapters.local.catalog import (
    Catalog,
    RebuildReport,
    rebuild,
    shared_catalog,
    time_of,
)
from rath.memory.adapters.local.extraction import commit
from rath.memory.adapters.local.files import Stamp
from rath.memory.adapters.local.index import INDEX_VERSION, IndexEntry, NoteIndex
from rath.memory.adapters.local.layout import INDEX_NAME
from rath.memory.adapters.local.notes import write
from rath.memory.adapters.local.pacing import DelayedWork
from rath.memory.adapters.local.search import find
from rath.memory.adapters.local.store import LocalStore
from tests.memory.adapters.local.conftest import Find
from tests.support.memory_index import kept, rebuilt


@contextmanager
def opened(
    root: Path, *, small_store: int = 2000, busy_seconds: float = 5.0
) -> Generator[LocalStore]:
    """A local store without a backend around it."""
    catalog = Catalog(root, small_store=small_store, busy_seconds=busy_seconds)
    try:
        yield LocalStore(root, catalog)
    finally:
        catalog.close()


def hits(store: LocalStore, query: str) -> tuple[memory.MemoryHit, ...]:
    """What a query finds."""
    result = runtime().run(lambda: find(store, memory.MemoryOpFind(query, top_k=50)), label="find")
    assert isinstance(result, memory.MemoryFindResult), result
    return result.hits


def found(store: LocalStore, query: str) -> list[str]:
    """URIs that a query finds, at most eight."""
    return [hit.uri for hit in hits(store, query)[:8]]


def note(store: LocalStore, place: str, text: str) -> None:
    """Write a note through the store."""
    write(store, memory.MemoryOpWrite(f"memory://{place}", text))


def by_hand(root: Path, place: str, text: str) -> None:
    """Write a file past the store."""
    path = root / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


places = st.sampled_from(["user/a", "user/b", "user/d/a", "user/d/e/b", "agent/a.b", "session/s/n"])
words = st.sampled_from(["tea", "milk", "sugar and milk", "", "茶", "tea\ud800", "\x00 \x1f"])
steps = st.lists(
    st.tuples(
        st.sampled_from(["write", "by hand", "in place", "delete", "drop", "commit", "find"]),
        places,
        words,
    ),
    max_size=12,
)


def perform(store: LocalStore, step: str, place: str, text: str) -> None:
    """Do one step to a store, through rath or past it."""
    path = store.root / f"{place}.md"
    match step:
        case "write":
            note(store, place, text)
        case "by hand":
            by_hand(store.root, f"{place}.md", text.replace("\ud800", "?"))
        case "in place" if path.is_file():
            with path.open("r+b") as file:
                file.write(b"water")
        case "delete":
            path.unlink(missing_ok=True)
        case "drop":
            shutil.rmtree(path.parent, ignore_errors=True)
        case "commit":
            op = memory.MemoryOpCommit("s", ({"role": "user", "content": text},))
            runtime().run(lambda: commit(store, op), label="commit")
        case _:
            found(store, text)


@given(steps, st.sampled_from([0, 2000]))
@settings(max_examples=30)
def test_the_index_equals_one_built_from_the_files(
    performed: list[tuple[str, str, str]], small_store: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name).resolve()
        with opened(root, small_store=small_store) as store:
            for step in performed:
                perform(store, *step)
        with opened(root) as store:
            found(store, "tea")
        assert kept(root) == rebuilt(root)


@given(steps, words)
@settings(max_examples=30)
def test_what_is_found_is_there_and_has_a_word_of_the_query(
    performed: list[tuple[str, str, str]], query: str
) -> None:
    with tempfile.TemporaryDirectory() as name, opened(Path(name).resolve()) as store:
        for step in performed:
            perform(store, *step)
        for hit in hits(store, query):
            place = hit.uri.removeprefix("memory://")
            files = [store.root / place, store.root / f"{place}.md"]
            text = next(file for file in files if file.is_file()).read_text("utf-8")
            assert any(word in text for word in ("tea", "milk", "sugar", "and", "茶"))
            assert hit.score > 0


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Directory of a store."""
    place = tmp_path.resolve() / "store"
    place.mkdir()
    return place


@pytest.mark.parametrize("small_store", [0, 2000], ids=["large", "small"])
def test_what_people_add_replace_and_delete_is_seen_at_once(root: Path, small_store: int) -> None:
    with opened(root, small_store=small_store) as store:
        note(store, "user/a", "tea")
        assert found(store, "tea milk water") == ["memory://user/a"]
        by_hand(root, "user/b.md", "milk")
        by_hand(root, "agent/x/c.md", "water")
        assert set(found(store, "tea milk water")) == {
            "memory://user/a",
            "memory://user/b",
            "memory://agent/x/c",
        }
        by_hand(root, "user/new", "sugar")
        (root / "user/new").replace(root / "user/a.md")
        shutil.rmtree(root / "agent")
        assert found(store, "tea water") == []
        assert found(store, "sugar") == ["memory://user/a"]


def test_an_edit_in_place_of_the_same_size_is_seen(root: Path) -> None:
    with opened(root) as store:
        for before, after in [("teas", "milk"), ("milk", "cafe"), ("cafe", "beer")]:
            note(store, "user/a", before)
            assert found(store, before) == ["memory://user/a"]
            by_hand(root, "user/a.md", after)
            assert found(store, before) == []
            assert found(store, after) == ["memory://user/a"]


def test_a_note_that_changed_is_not_found_by_what_it_was_in_a_large_store(root: Path) -> None:
    with opened(root, small_store=0) as store:
        note(store, "user/a", "teas")
        assert found(store, "teas") == ["memory://user/a"]
        by_hand(root, "user/a.md", "milk")
        assert found(store, "teas") == []
        assert found(store, "milk") == ["memory://user/a"]


def test_the_walk_over_a_large_store_sees_edits_in_place(root: Path) -> None:
    with opened(root) as store:
        note(store, "user/a", "teas")
        note(store, "user/b", "more")
        by_hand(root, "user/a.md", "milk")
    with opened(root, small_store=0) as store:
        found(store, "more")
        store.catalog.wait_for_walk()
        assert found(store, "milk") == ["memory://user/a"]


def test_an_index_survives_its_store_being_closed(root: Path) -> None:
    with opened(root) as store:
        note(store, "user/a", "tea")
    before = (root / INDEX_NAME).stat().st_ino
    with opened(root) as store:
        assert found(store, "tea") == ["memory://user/a"]
    assert (root / INDEX_NAME).stat().st_ino == before


def _torn(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(8192))


def _other_version(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {INDEX_VERSION + 1}")


def _other_program(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE theirs (x)")


def _missing_table(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE notes")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "garbage": lambda path: path.write_bytes(b"this is no database, but longer than a head" * 100),
    "empty": lambda path: path.write_bytes(b""),
    "torn": _torn,
    "other version": _other_version,
    "other program": _other_program,
    "missing table": _missing_table,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_index_is_built_again(
    root: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(root) as store:
        for name in "abcdefghij":
            note(store, f"user/{name}", f"tea {name} " * 50)
    DAMAGES[damage](root / INDEX_NAME)
    with opened(root) as store:
        assert len(found(store, "tea")) == 8
        note(store, "user/new", "milk")
        assert found(store, "milk") == ["memory://user/new"]
    assert kept(root) == rebuilt(root)


def test_an_index_that_was_deleted_under_our_feet_hides_nothing(root: Path) -> None:
    with opened(root) as store, opened(root) as other:
        note(store, "user/a", "tea")
        for suffix in ("", "-wal", "-shm"):
            Path(f"{root / INDEX_NAME}{suffix}").unlink(missing_ok=True)
        note(other, "user/b", "tea")
        assert set(found(store, "tea")) == {"memory://user/a", "memory://user/b"}
        assert set(found(other, "tea")) == {"memory://user/a", "memory://user/b"}


def test_an_index_that_cannot_be_written_hides_nothing_and_warns_once(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    by_hand(root, "user/a.md", "tea")
    (root / INDEX_NAME).mkdir()
    with caplog.at_level(logging.WARNING), opened(root) as store:
        assert found(store, "tea") == ["memory://user/a"]
        note(store, "user/b", "tea and milk")
        assert set(found(store, "tea")) == {"memory://user/a", "memory://user/b"}
    assert len([each for each in caplog.records if "in memory" in each.message]) == 1


def test_a_large_store_without_an_index_file_still_sees_edits(root: Path) -> None:
    by_hand(root, "user/a.md", "tea")
    (root / INDEX_NAME).mkdir()
    with opened(root, small_store=0) as store:
        assert found(store, "tea") == ["memory://user/a"]


def test_a_note_is_stored_while_the_index_is_locked(root: Path) -> None:
    with opened(root, busy_seconds=0.05) as store:
        note(store, "user/a", "tea")
        with closing(sqlite3.connect(root / INDEX_NAME, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            note(store, "user/b", "tea")
            assert found(store, "tea") == ["memory://user/a"]
        assert set(found(store, "tea")) == {"memory://user/a", "memory://user/b"}


def test_the_users_of_a_store_in_one_process_share_its_catalog(root: Path) -> None:
    first, second = shared_catalog(root), shared_catalog(root)
    assert first is second
    first.close()
    assert second.use(lambda index: index.count()) == 0
    second.close()
    third = shared_catalog(root)
    assert third is not second
    third.close()


@pytest.mark.parametrize("n_directories", [1, 3])
def test_a_directory_is_not_read_again_for_writes_of_several_processes(
    root: Path, n_directories: int
) -> None:
    # Each catalog stands for a process; both write in turns.
    with opened(root) as one, opened(root) as other:
        for number in range(6):
            below = "/".join(f"d{number % n_directories}" for _ in range(n_directories))
            note((one, other)[number % 2], f"user/{below}/{number}", "tea")
        with closing(NoteIndex(root / INDEX_NAME)) as index:
            for path, time_ns in index.directories().items():
                assert time_ns == time_of(root / path), path


def test_a_large_directory_is_not_read_again_after_a_change_by_hand_was_seen(root: Path) -> None:
    with opened(root, small_store=0) as store:
        note(store, "user/a", "tea")
        by_hand(root, "user/b.md", "tea")
        assert len(found(store, "tea")) == 2
        store.catalog.wait_for_walk()
        found(store, "tea")
        note(store, "user/c", "tea")
        with closing(NoteIndex(root / INDEX_NAME)) as index:
            assert index.directory_time("user") == time_of(root / "user")


def test_a_note_that_waits_is_indexed_like_any_other(root: Path) -> None:
    with opened(root) as store:
        write(store, memory.MemoryOpWrite("memory://user/a", "tea", wait=True))
        write(store, memory.MemoryOpWrite("memory://user/a", "tea", wait=True))
        write(store, memory.MemoryOpWrite("memory://user/a", "milk", wait=True))
        assert found(store, "milk") == ["memory://user/a"]
    assert kept(root) == rebuilt(root)


def test_a_note_that_is_replaced_keeps_its_rights(root: Path) -> None:
    with opened(root) as store:
        note(store, "user/a", "tea")
        (root / "user/a.md").chmod(0o640)
        note(store, "user/a", "milk")
        assert (root / "user/a.md").stat().st_mode & 0o777 == 0o640


def test_an_index_that_somebody_deletes_again_and_again_hides_nothing(root: Path) -> None:
    with opened(root) as store, opened(root) as other:
        for number in range(3):
            note(store, f"user/{number}", "tea")
            (root / INDEX_NAME).unlink()
            assert len(found(other, "tea")) == number + 1
            assert len(found(store, "tea")) == number + 1
    assert kept(root) == rebuilt(root)


def test_a_walk_that_fails_in_an_unforeseen_way_keeps_no_note_from_the_disk(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forced: list[int] = []
    syncing = DelayedWork[str](lambda paths: forced.append(len(paths)), delay_seconds=0.5)
    catalog = Catalog(root, small_store=0, syncing=syncing)
    note(LocalStore(root, catalog), "user/a", "tea")

    def fail(*_: object, **__: object) -> None:
        raise ValueError("unforeseen")

    monkeypatch.setattr("rath.memory.adapters.local.catalog.update_all", fail)
    catalog.catch_up()
    with pytest.raises(ValueError, match="unforeseen"):
        catalog.close()
    assert forced == [1]


@pytest.fixture
def notes(store: memory.MemoryStore, find: Find) -> list[str]:
    """Three notes that are in the index."""
    uris = [f"memory://user/{name}" for name in "abc"]
    for uri in uris:
        store.dispatch(memory.MemoryOpWrite(uri, "tea"))
    assert set(find("tea")) == set(uris)
    return uris


@pytest.mark.usefixtures("notes")
def test_an_index_that_is_right_is_left_as_it_is(root: Path) -> None:
    assert rebuild(root) == rebuild(root) == RebuildReport(n_files=3, n_wrong=0)


@pytest.mark.usefixtures("notes")
def test_wrong_missing_and_superfluous_entries_are_put_right(root: Path, find: Find) -> None:
    with closing(NoteIndex(root / INDEX_NAME)) as index, index.writing():
        status = (root / "user/a.md").stat()
        stamp = Stamp(status.st_mtime_ns, status.st_size)
        index.put([IndexEntry("user", "a.md", "note", stamp, ["milk"])])
        index.put([IndexEntry("gone", "x.md", "note", stamp, ["milk"])])
        index.remove("user", "b.md")
    assert rebuild(root) == RebuildReport(n_files=3, n_wrong=3)
    assert kept(root) == rebuilt(root)
    assert len(find("tea")) == 3
    assert find("milk") == []


@pytest.mark.usefixtures("notes")
def test_wrong_sums_are_put_right(root: Path) -> None:
    with closing(NoteIndex(root / INDEX_NAME)) as index, index.writing():
        index.run("UPDATE totals SET documents = 9, terms = 9")
        index.run("DELETE FROM vocabulary")
        index.run("INSERT INTO vocabulary VALUES ('m', 4, 'milk', 0, 1)")
    rebuild(root)
    assert kept(root) == rebuilt(root)


@pytest.mark.usefixtures("notes")
def test_an_edit_in_place_that_keeps_time_and_size_is_seen(root: Path, find: Find) -> None:
    path = root / "user/a.md"
    times = path.stat()
    path.write_text("cup")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert find("cup") == []
    assert rebuild(root) == RebuildReport(n_files=3, n_wrong=1)
    assert find("cup") == ["memory://user/a"]


@pytest.mark.usefixtures("notes")
def test_tables_of_terms_that_are_damaged_are_built_again(root: Path, find: Find) -> None:
    with closing(NoteIndex(root / INDEX_NAME)) as index, index.writing():
        index.run("DELETE FROM notes_data WHERE id > 10")
    assert rebuild(root) == RebuildReport(n_files=3, n_wrong=3)
    assert len(find("tea")) == 3


@pytest.mark.parametrize("table", ["files", "directories", "vocabulary"])
def test_a_rebuild_makes_a_damaged_index_anew(root: Path, table: str) -> None:
    with opened(root) as store:
        for number in range(50):
            note(store, f"user/n{number}", "tea")
    with closing(sqlite3.connect(root / INDEX_NAME)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        ((page,),) = connection.execute(
            "SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)
        )
        ((size,),) = connection.execute("PRAGMA page_size")
    with (root / INDEX_NAME).open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xa5" * size)
    assert rebuild(root) == RebuildReport(n_files=50, n_wrong=50)
    assert kept(root) == rebuilt(root)


def test_an_index_is_made_where_there_is_none(root: Path) -> None:
    (root / "user").mkdir(parents=True)
    (root / "user/a.md").write_text("tea")
    assert rebuild(root) == RebuildReport(n_files=1, n_wrong=1)


def test_an_index_that_cannot_be_a_file_is_looked_through_all_the_same(root: Path) -> None:
    (root / "user").mkdir(parents=True)
    (root / "user/a.md").write_text("tea")
    (root / INDEX_NAME).mkdir()
    assert rebuild(root).n_files == 1


def test_an_open_store_goes_on_while_it_is_rebuilt(store: memory.MemoryStore, root: Path) -> None:
    for name in "abc":
        store.dispatch(memory.MemoryOpWrite(f"memory://user/{name}", "tea"))
        assert rebuild(root).n_wrong == 0
        result = store.dispatch(memory.MemoryOpFind("tea"))
        assert isinstance(result, memory.MemoryFindResult)
        assert f"memory://user/{name}" in {hit.uri for hit in result.hits}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_child_that_is_forked_in_a_transaction_can_write(tmp_path: Path) -> None:
    catalog = shared_catalog(tmp_path)
    is_in_use, is_forking = threading.Event(), threading.Event()

    def use(index: NoteIndex) -> None:
        with index.writing():
            is_in_use.set()
            is_forking.wait(0.2)

    def write(index: NoteIndex) -> None:
        with index.writing():
            index.put_directory("user", 1)

    thread = threading.Thread(target=catalog.use, args=(use,))
    thread.start()
    is_in_use.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(50)
        catalog.use(write)
        os._exit(0)
    is_forking.set()
    thread.join()
    _, status = os.waitpid(child, 0)
    catalog.close()
    assert status == 0
