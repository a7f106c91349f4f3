"""Expired notes are gone at that moment, and removed now and then."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from rath.memory import MemoryStore
from rath.memory.adapters.local.catalog import Catalog
from rath.memory.adapters.local.forgetting import sweep
from rath.memory.adapters.local.index import NoteIndex
from rath.memory.adapters.local.layout import INDEX_NAME
from rath.memory.adapters.local.store import SWEEP_SECONDS, Expiry, LocalStore
from tests.support.forgetting import Clock, files_with, found, listed, opened, read, write

A, B = "memory://user/a", "memory://user/dir/b"


@pytest.fixture
def clock() -> Clock:
    """A clock to turn."""
    return Clock()


@pytest.fixture
def store(root: Path, clock: Clock) -> Iterator[MemoryStore]:
    """An open store on that clock."""
    with opened(root, clock) as kept:
        yield kept


def seen(store: MemoryStore, uri: str) -> set[bool]:
    """What reading, listing and searching say about a note."""
    return {read(store, uri) is not None, uri in listed(store), uri in found(store, "zebra")}


def test_a_note_is_seen_until_its_end_and_not_at_it(store: MemoryStore, clock: Clock) -> None:
    write(store, A, "zebra", until=clock.after(10))
    clock.turn(9.999)
    assert seen(store, A) == {True}
    clock.turn(0.001)
    assert seen(store, A) == {False}


def test_a_clock_that_jumps_back_shows_a_note_that_was_not_removed(
    store: MemoryStore, clock: Clock
) -> None:
    write(store, A, "zebra", until=clock.after(10))
    clock.turn(20)
    assert seen(store, A) == {False}
    clock.turn(-15)
    assert seen(store, A) == {True}


def test_expired_notes_take_no_places_from_others(store: MemoryStore, clock: Clock) -> None:
    for number in range(60):
        write(store, f"memory://user/{number}", "zebra", until=clock.after(1))
    write(store, A, "zebra and many other animals of the plains")
    clock.turn(1)
    assert found(store, "zebra") == [A]


@pytest.mark.parametrize("moment", ["opening", "closing"])
def test_expired_notes_are_removed_with_all_traces(
    root: Path, clock: Clock, moment: str, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(root, clock) as store:
        write(store, A, "zebra", until=clock.after(1))
        write(store, B, "giraffe")
        clock.turn(1 if moment == "closing" else 0)
    clock.turn(1)
    with opened(root, clock) as store:
        assert found(store, "zebra giraffe") == [B]
    assert files_with(root, "zebra") == []
    assert files_with(root, "a.meta.json") == []
    assert not (root / ".forgotten").exists()
    assert [each for each in caplog.records if each.name == "rath.memory.local"] == []


def test_expired_notes_are_removed_now_and_then_with_a_write(
    store: MemoryStore, root: Path, clock: Clock
) -> None:
    write(store, A, "zebra", until=clock.after(1))
    clock.turn(SWEEP_SECONDS - 1)
    write(store, B, "x")
    assert (root / "user/a.md").exists()
    clock.turn(1)
    write(store, B, "y")
    assert not (root / "user/a.md").exists()
    clock.turn(-2 * SWEEP_SECONDS)
    assert seen(store, A) == {False}


def test_a_note_that_was_given_more_time_by_hand_stays(
    store: MemoryStore, root: Path, clock: Clock
) -> None:
    write(store, A, "zebra", until=clock.after(1))
    path = root / "user/a.meta.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "expires_at": clock.after(1000)}))
    clock.turn(SWEEP_SECONDS)
    write(store, B, "x")
    assert seen(store, A) == {True}


def test_more_notes_than_a_batch(
    store: MemoryStore, root: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rath.memory.adapters.local.forgetting.BATCH", 2)
    for number in range(5):
        write(store, f"memory://user/{number}", "x", until=clock.after(1))
    clock.turn(SWEEP_SECONDS)
    write(store, B, "x")
    assert [path.name for path in (root / "user").glob("*.md")] == []


def test_a_sweep_that_cannot_be_made_waits_for_the_next(
    root: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(root, clock) as store:
        write(store, A, "zebra", until=clock.after(1))
    clock.turn(1)
    catalog = Catalog(root, busy_seconds=0.01)
    other = NoteIndex(root / INDEX_NAME)
    other.begin()
    with caplog.at_level(logging.INFO, "rath.memory.local"):
        sweep(LocalStore(root, catalog, expiry=Expiry(clock)))
    assert "are removed later" in caplog.text
    assert (root / "user/a.md").exists()
    other.roll_back()
    other.close()
    sweep(LocalStore(root, catalog, expiry=Expiry(clock)))
    assert not (root / "user/a.md").exists()
    catalog.close()


def test_looking_for_expired_notes_needs_no_look_at_the_others(root: Path, clock: Clock) -> None:
    with opened(root, clock) as store:
        write(store, A, "x", until=clock.after(1))
    with sqlite3.connect(root / INDEX_NAME) as connection:
        plan = connection.execute(
            "EXPLAIN QUERY PLAN SELECT directory, name FROM files WHERE expires_at <= 5"
        ).fetchall()
    connection.close()
    assert "USING INDEX files_to_expire" in plan[0][3]


def test_expired_notes_do_not_fill_what_is_looked_at(
    store: MemoryStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rath.memory.adapters.local.search.MAX_POSTINGS", 2)
    write(store, "memory://user/stays", "zebra")
    for number in range(3):
        write(store, f"memory://user/{number}", "zebra", until=clock.after(10))
    clock.turn(20)
    assert found(store, "zebra") == ["memory://user/stays"]


def test_a_sweep_of_very_many_is_gone_on_with_by_the_next(
    root: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rath.memory.adapters.local.forgetting.BATCH", 2)
    monkeypatch.setattr("rath.memory.adapters.local.forgetting._SWEEP_SECONDS", -1.0)
    with opened(root, clock) as store:
        for name in "abc":
            write(store, f"memory://user/{name}", "zebra", until=clock.after(5))
        clock.turn(10)
        native = LocalStore(root, Catalog(root), expiry=Expiry(clock))
        sweep(native)
        assert (len(list(root.glob("user/*.md"))), found(store, "zebra")) == (1, [])
        sweep(native)
        assert list(root.glob("user/*.md")) == []
        native.catalog.close()
