"""Traces of what was removed go from every file of the store, at the latest when it is closed."""

from __future__ import annotations

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
from rath.memory import MemoryOpForget, MemoryOpWrite
from rath.memory.adapters.local import notes
from rath.memory.adapters.local.catalog import Catalog
from rath.memory.adapters.local.forgetting import ForgottenFiles, forget, scrub, sweep_and_scrub
from rath.memory.adapters.local.index import NoteIndex
from rath.memory.adapters.local.layout import FORGOTTEN_NAME, INDEX_NAME
from rath.memory.adapters.local.store import LocalStore
from tests.support import forgetting as support

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


def test_words_that_another_note_has_stay(store: LocalStore) -> None:
    for name, text in (("a", "zebra giraffe"), ("b", "giraffe")):
        notes.write(store, MemoryOpWrite(f"memory://user/{name}", text))
    forget(store, MemoryOpForget(A))
    assert support.files_with(store.root, "zebra") == []
    assert "user/b.md" in support.files_with(store.root, "giraffe")


def test_an_older_text_of_a_note_goes_too(store: LocalStore) -> None:
    # Some builds of SQLite overwrite what is deleted by themselves.
    store.catalog.use(lambda index: index.rows("PRAGMA secure_delete = OFF"))
    for text in ("zebra " * 2000, "giraffe"):
        notes.write(store, MemoryOpWrite(A, text))
    forget(store, MemoryOpForget(A))
    assert support.files_with(store.root, "zebra") == []


def test_a_draft_that_a_crash_left_goes_too(store: LocalStore) -> None:
    notes.write(store, MemoryOpWrite(A, "x"))
    (store.root / ".drafts").mkdir(exist_ok=True)
    (store.root / ".drafts/.atomic_1.tmp").write_text("zebra")
    (store.root / ".drafts/mine").write_text("giraffe")
    forget(store, MemoryOpForget(A))
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
            forget(store, MemoryOpForget(A))
        assert "removed later" in caplog.text
        assert (store.root / FORGOTTEN_NAME).is_dir()
    sweep_and_scrub(store)
    assert not (store.root / FORGOTTEN_NAME).is_dir()
    assert support.files_with(store.root, "zebra") == []


def test_a_writer_delays_it_too(store: LocalStore, caplog: pytest.LogCaptureFixture) -> None:
    notes.write(store, MemoryOpWrite(A, "zebra"))
    ForgottenFiles(store.root)
    other = NoteIndex(store.root / INDEX_NAME)
    other.begin()
    assert not scrub(store)
    assert "there may be traces" in caplog.text
    other.roll_back()
    other.close()
    assert scrub(store)


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
    trash = ForgottenFiles(store.root)
    scrub(store)
    assert not (store.root / FORGOTTEN_NAME).is_dir()
    taken = trash.take(store.root / "a")
    assert taken is not None
    assert taken.read_text() == "x"
    assert trash.take(store.root / "a") is None
    assert trash.take(store.root / "none") is None
    assert scrub(store)
    assert scrub(store)


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
    forget(store, MemoryOpForget(A))
    catalog.close()
    assert catalog.n_recoveries
    again = LocalStore(root, Catalog(root))
    sweep_and_scrub(again)
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
        forget(store, MemoryOpForget(f"memory://user/{name}"))
        assert not (store.root / f"user/{name}.md").exists()
    store.pace.finish()
    assert support.files_with(store.root, "zebra") == []
    assert not (store.root / FORGOTTEN_NAME).is_dir()
