"""Expired notes go, and nothing that goes leaves a trace."""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import rath
from rath.memory import MemoryOpForget, MemoryOpWrite, MemoryStore
from rath.memory.adapters.local import forgetting, notes
from rath.memory.adapters.local.catalog import Catalog
from rath.memory.adapters.local.index import NoteIndex
from rath.memory.adapters.local.layout import FORGOTTEN_NAME, INDEX_NAME
from rath.memory.adapters.local.store import SWEEP_SECONDS, Expiry, LocalStore
from tests.support import memories as support
from tests.support.memories import Clock, files_with, found, listed, opened, read, write

A = "memory://user/a"

HOLDER = """
import sys
from rath.memory import MemoryOpFind, MemoryStoreSpec, get
with get("local").open(MemoryStoreSpec(options={"path": sys.argv[1]})) as store:
    print(len(store.dispatch(MemoryOpFind("zebra")).hits), flush=True)
    sys.stdin.readline()
    print(len(store.dispatch(MemoryOpFind("zebra")).hits), flush=True)
"""


@pytest.fixture
def store(root: Path) -> Iterator[LocalStore]:
    """A store without a backend around it, which waits for nobody."""
    root.mkdir()
    catalog = Catalog(root, busy_seconds=0.01)
    yield LocalStore(root, catalog)
    catalog.close()


def test_an_older_text_of_a_note_goes_too(store: LocalStore) -> None:
    # Some builds of SQLite overwrite what is deleted by themselves.
    store.catalog.use(lambda index: index.rows("PRAGMA secure_delete = OFF"))
    for text in ("zebra " * 2000, "giraffe"):
        notes.write(store, MemoryOpWrite(A, text))
    forgetting.forget(store, MemoryOpForget(A))
    assert support.files_with(store.root, "zebra") == []


def test_a_draft_that_a_crash_left_goes_too(store: LocalStore) -> None:
    notes.write(store, MemoryOpWrite(A, "x"))
    (store.root / ".drafts").mkdir(exist_ok=True)
    (store.root / ".drafts/.atomic_1.tmp").write_text("zebra")
    (store.root / ".drafts/mine").write_text("giraffe")
    forgetting.forget(store, MemoryOpForget(A))
    assert support.files_with(store.root, "zebra") == []
    assert support.files_with(store.root, "giraffe") == [".drafts/mine"]


def test_a_reader_delays_it_to_the_closing(
    store: LocalStore, caplog: pytest.LogCaptureFixture
) -> None:
    notes.write(store, MemoryOpWrite(A, "zebra"))
    with closing(sqlite3.connect(store.root / INDEX_NAME, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM files").fetchall()
        with caplog.at_level(logging.INFO, "rath.memory.local"):
            forgetting.forget(store, MemoryOpForget(A))
        assert "removed later" in caplog.text
        assert (store.root / FORGOTTEN_NAME).is_dir()
    forgetting.sweep_and_scrub(store)
    assert not (store.root / FORGOTTEN_NAME).is_dir()
    assert support.files_with(store.root, "zebra") == []


def test_a_writer_delays_it_too(store: LocalStore, caplog: pytest.LogCaptureFixture) -> None:
    notes.write(store, MemoryOpWrite(A, "zebra"))
    forgetting.ForgottenFiles(store.root)
    other = NoteIndex(store.root / INDEX_NAME)
    other.begin()
    assert not forgetting.scrub(store)
    assert "there may be traces" in caplog.text
    other.roll_back()
    other.close()
    assert forgetting.scrub(store)


def test_what_a_killed_process_had_moved_away_is_removed_at_the_next_opening(root: Path) -> None:
    clock = support.Clock()
    with support.opened(root, clock) as opened:
        support.write(opened, A, "zebra")
    left = root / FORGOTTEN_NAME / "0123"
    left.mkdir(parents=True)
    (root / "user/a.md").rename(left / "1")
    with support.opened(root, clock) as opened:
        assert support.files_with(root, "zebra") == []
        assert support.found(opened, "zebra") == []
    assert not (root / FORGOTTEN_NAME).is_dir()


def test_a_store_without_an_index_has_no_traces_in_one(root: Path) -> None:
    (root / FORGOTTEN_NAME / "0123").mkdir(parents=True)
    with support.opened(root, support.Clock()):
        assert not (root / FORGOTTEN_NAME).is_dir()
        assert not (root / INDEX_NAME).exists()


def test_somebody_else_may_scrub_meanwhile(store: LocalStore) -> None:
    (store.root / "a").write_text("x")
    trash = forgetting.ForgottenFiles(store.root)
    forgetting.scrub(store)
    assert not (store.root / FORGOTTEN_NAME).is_dir()
    taken = trash.take(store.root / "a")
    assert taken is not None
    assert taken.read_text() == "x"
    assert trash.take(store.root / "a") is None
    assert trash.take(store.root / "none") is None
    assert forgetting.scrub(store)
    assert forgetting.scrub(store)


def test_another_process_may_have_the_store_open(root: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(rath.__file__).parents[1])}
    with support.opened(root, support.Clock()) as opened:
        support.write(opened, A, "zebra")
        with subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(root)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "1\n"
            assert support.forget(opened, A) == (A,)
            assert support.files_with(root, "zebra") == []
            assert holder.communicate("go\n")[0] == "0\n"
        assert holder.returncode == 0
    assert support.files_with(root, "zebra") == []


def test_traces_in_an_index_that_is_out_of_reach_go_when_it_is_in_reach_again(root: Path) -> None:
    root.mkdir()
    catalog = Catalog(root)
    store = LocalStore(root, catalog)
    notes.write(store, MemoryOpWrite(A, "zebra"))
    # As on a full disk; an index in memory takes its place.
    catalog.use(lambda index: index.rows("PRAGMA max_page_count = 1"))
    notes.write(store, MemoryOpWrite("memory://user/b", " ".join(map(str, range(20_000)))))
    forgetting.forget(store, MemoryOpForget(A))
    catalog.close()
    assert catalog.n_recoveries
    again = LocalStore(root, Catalog(root))
    forgetting.sweep_and_scrub(again)
    again.catalog.close()
    assert support.files_with(root, "zebra") == []
    assert not (root / FORGOTTEN_NAME).is_dir()


def test_what_is_forgotten_in_a_row_in_a_large_store_leaves_no_traces_in_the_end(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rath.memory.adapters.local.forgetting.LARGE_STORE", 0)
    for name in "abc":
        notes.write(store, MemoryOpWrite(f"memory://user/{name}", f"zebra {name}"))
    for name in "abc":
        forgetting.forget(store, MemoryOpForget(f"memory://user/{name}"))
        assert not (store.root / f"user/{name}.md").exists()
    store.scrubbing.flush()
    assert support.files_with(store.root, "zebra") == []
    assert not (store.root / FORGOTTEN_NAME).is_dir()


B = "memory://user/dir/b"


@pytest.fixture
def expiring(root: Path, clock: Clock) -> Iterator[MemoryStore]:
    """An open store on that clock."""
    with opened(root, clock) as kept:
        yield kept


def seen(expiring: MemoryStore, uri: str) -> set[bool]:
    """What reading, listing and searching say about a note."""
    return {
        read(expiring, uri) is not None,
        uri in listed(expiring),
        uri in found(expiring, "zebra"),
    }


def test_a_note_is_seen_until_its_end_and_not_at_it(expiring: MemoryStore, clock: Clock) -> None:
    write(expiring, A, "zebra", until=clock.after(10))
    clock.turn(9.999)
    assert seen(expiring, A) == {True}
    clock.turn(0.001)
    assert seen(expiring, A) == {False}


def test_expired_notes_take_no_places_from_others(expiring: MemoryStore, clock: Clock) -> None:
    for number in range(60):
        write(expiring, f"memory://user/{number}", "zebra", until=clock.after(1))
    write(expiring, A, "zebra and many other animals of the plains")
    clock.turn(1)
    assert found(expiring, "zebra") == [A]


@pytest.mark.parametrize("moment", ["opening", "closing"])
def test_expired_notes_are_removed_with_all_traces(
    root: Path, clock: Clock, moment: str, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(root, clock) as expiring:
        write(expiring, A, "zebra", until=clock.after(1))
        write(expiring, B, "giraffe")
        clock.turn(1 if moment == "closing" else 0)
    clock.turn(1)
    with opened(root, clock) as expiring:
        assert found(expiring, "zebra giraffe") == [B]
    assert files_with(root, "zebra") == []
    assert files_with(root, "a.meta.json") == []
    assert not (root / ".forgotten").exists()
    assert [each for each in caplog.records if each.name == "rath.memory.local"] == []


def test_expired_notes_are_removed_now_and_then_with_a_write(
    expiring: MemoryStore, root: Path, clock: Clock
) -> None:
    write(expiring, A, "zebra", until=clock.after(1))
    clock.turn(SWEEP_SECONDS - 1)
    write(expiring, B, "x")
    assert (root / "user/a.md").exists()
    clock.turn(1)
    write(expiring, B, "y")
    assert not (root / "user/a.md").exists()
    clock.turn(-2 * SWEEP_SECONDS)
    assert seen(expiring, A) == {False}


def test_a_note_that_was_given_more_time_by_hand_stays(
    expiring: MemoryStore, root: Path, clock: Clock
) -> None:
    write(expiring, A, "zebra", until=clock.after(1))
    path = root / "user/a.meta.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "expires_at": clock.after(1000)}))
    clock.turn(SWEEP_SECONDS)
    write(expiring, B, "x")
    assert seen(expiring, A) == {True}


def test_more_notes_than_a_batch(
    expiring: MemoryStore, root: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rath.memory.adapters.local.forgetting.BATCH", 2)
    for number in range(5):
        write(expiring, f"memory://user/{number}", "x", until=clock.after(1))
    clock.turn(SWEEP_SECONDS)
    write(expiring, B, "x")
    assert [path.name for path in (root / "user").glob("*.md")] == []


def test_a_sweep_that_cannot_be_made_waits_for_the_next(
    root: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(root, clock) as expiring:
        write(expiring, A, "zebra", until=clock.after(1))
    clock.turn(1)
    catalog = Catalog(root, busy_seconds=0.01)
    other = NoteIndex(root / INDEX_NAME)
    other.begin()
    with caplog.at_level(logging.INFO, "rath.memory.local"):
        forgetting.sweep(LocalStore(root, catalog, expiry=Expiry(clock)))
    assert "are removed later" in caplog.text
    assert (root / "user/a.md").exists()
    other.roll_back()
    other.close()
    forgetting.sweep(LocalStore(root, catalog, expiry=Expiry(clock)))
    assert not (root / "user/a.md").exists()
    catalog.close()


def test_looking_for_expired_notes_needs_no_look_at_the_others(root: Path, clock: Clock) -> None:
    with opened(root, clock) as expiring:
        write(expiring, A, "x", until=clock.after(1))
    with sqlite3.connect(root / INDEX_NAME) as connection:
        plan = connection.execute(
            "EXPLAIN QUERY PLAN SELECT directory, name FROM files WHERE expires_at <= 5"
        ).fetchall()
    connection.close()
    assert "USING INDEX files_to_expire" in plan[0][3]


def test_expired_notes_do_not_fill_what_is_looked_at(
    expiring: MemoryStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rath.memory.adapters.local.search.MAX_POSTINGS", 2)
    write(expiring, "memory://user/stays", "zebra")
    for number in range(3):
        write(expiring, f"memory://user/{number}", "zebra", until=clock.after(10))
    clock.turn(20)
    assert found(expiring, "zebra") == ["memory://user/stays"]


def test_a_sweep_of_very_many_is_gone_on_with_by_the_next(
    root: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rath.memory.adapters.local.forgetting.BATCH", 2)
    monkeypatch.setattr("rath.memory.adapters.local.forgetting._SWEEP_SECONDS", -1.0)
    with opened(root, clock) as expiring:
        for name in "abc":
            write(expiring, f"memory://user/{name}", "zebra", until=clock.after(5))
        clock.turn(10)
        native = LocalStore(root, Catalog(root), expiry=Expiry(clock))
        forgetting.sweep(native)
        assert (len(list(root.glob("user/*.md"))), found(expiring, "zebra")) == (1, [])
        forgetting.sweep(native)
        assert list(root.glob("user/*.md")) == []
        native.catalog.close()
