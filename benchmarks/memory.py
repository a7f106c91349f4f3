"""A local store with many notes: recalling, writing, memory; beside a bare FTS5 table."""

from __future__ import annotations

import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from benchmarks.by_hand import fts5
from benchmarks.endpoint import Endpoint
from benchmarks.measure import run_fresh
from benchmarks.notes import TOP_K, find, iter_notes, open_store, queries, times
from benchmarks.sizes import Sizes
from benchmarks.table import AtLeast, AtMost, Line, Reference
from rath.memory import (
    MemoryFindResult,
    MemoryOpFind,
    MemoryOpWrite,
    MemoryStore,
    MemoryWriteResult,
)
from rath.memory.adapters.local.catalog import rebuild

_FIND_MS = 10
_WRITES = 1000


def lines(endpoint: Endpoint, sizes: Sizes) -> list[Line]:
    """Recall, also after a restart and after a write; writes a second; memory; a rebuild."""
    del endpoint
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        return [*_found(home, sizes), *_restarted(home, sizes), *_written(home, sizes)]


def _found(home: Path, sizes: Sizes) -> list[Line]:
    """The first recall after the notes came, and then the whole query set."""
    fts5.build(home / "bare.sqlite3", iter_notes(sizes.notes))
    _write_files(home / "store", sizes.notes)
    with _open(home / "store") as store:
        start = time.perf_counter()
        find(store, queries()[0])
        first = time.perf_counter() - start
    with _open(home / "store") as store:
        assert find(store, queries()[-1]) == TOP_K
        ours = times(lambda query: find(store, query), repeats=sizes.repeats)
    bare = sqlite3.connect(home / "bare.sqlite3")
    theirs = times(lambda query: len(fts5.recall(bare, query, top_k=TOP_K)), repeats=sizes.repeats)
    bare.close()
    row = f"recall among {sizes.notes} notes"
    return [
        Line(
            f"{row}, median query",
            statistics.median(ours),
            "ms",
            Reference("bare FTS5", statistics.median(theirs)),
            AtMost(_FIND_MS),
        ),
        Line(f"{row}, slowest query", max(ours), "ms", Reference("bare FTS5", max(theirs))),
        Line(f"{row}, first after {sizes.notes} new files", first, "s"),
    ]


def _restarted(home: Path, sizes: Sizes) -> list[Line]:
    """What a fresh process sees, and how long it takes to read every file again."""
    told = run_fresh("-m", "benchmarks.memory_restart", str(home / "store"))
    start = time.perf_counter()
    report = rebuild(home / "store")
    took = time.perf_counter() - start
    assert report.n_files == sizes.notes, report
    row = f"recall among {sizes.notes} notes after a restart"
    return [
        Line(f"{row}, first with opening", told["first"], "ms"),
        Line(f"{row}, median query", told["median"], "ms", target=AtMost(_FIND_MS)),
        Line(
            f"memory of a process that recalls among {sizes.notes} notes", told["megabytes"], "MB"
        ),
        Line(f"rebuild of an index of {sizes.notes} notes", took, "s"),
    ]


def _written(home: Path, sizes: Sizes) -> list[Line]:
    """One caller that writes one note after another, and finds each of some."""
    n_writes = max(200, sizes.notes // 50)
    bare = sqlite3.connect(home / "bare.sqlite3", isolation_level=None)
    bare.execute("PRAGMA journal_mode = WAL")
    bare.execute("PRAGMA synchronous = NORMAL")
    by_hand = home / "by hand"
    by_hand.mkdir()
    with _open(home / "empty") as empty, _open(home / "store") as store:
        rates = [_rate(partial(_write, each), n_writes) for each in (empty, store)]
        theirs = _rate(lambda uri, text: fts5.write(bare, by_hand, _name(uri), text), n_writes)
        after = statistics.median(_times_after_writes(store, sizes.repeats * 10))
    bare.close()
    reference = Reference("write, rename, FTS5 insert", theirs)
    return [
        Line("writes into an empty store", rates[0], "/s", target=AtLeast(_WRITES)),
        Line(
            f"writes into a store of {sizes.notes} notes",
            rates[1],
            "/s",
            reference,
            AtLeast(_WRITES),
        ),
        Line(
            f"recall among {sizes.notes} notes right after a write",
            after,
            "ms",
            target=AtMost(_FIND_MS),
        ),
    ]


def _rate(write: Callable[[str, str], object], n_writes: int) -> float:
    """How many new notes a second a plain loop of writes makes."""
    notes = [
        (f"memory://user/memories/preferences/new-{name}", text)
        for name, text in iter_notes(n_writes)
    ]
    start = time.perf_counter()
    for uri, text in notes:
        write(uri, text)
    return n_writes / (time.perf_counter() - start)


def _times_after_writes(store: MemoryStore, n_writes: int) -> list[float]:
    """Seconds of finding each of some notes, the moment after it was written."""
    times: list[float] = []
    for number in range(n_writes):
        uri = f"memory://user/memories/preferences/found-{number}"
        _write(store, uri, f"the colour of number{number}after is green")
        start = time.perf_counter()
        found = store.dispatch(MemoryOpFind(f"number{number}after colour", top_k=TOP_K))
        times.append(time.perf_counter() - start)
        assert isinstance(found, MemoryFindResult)
        assert found.hits[0].uri == uri, found
    return times


def _open(folder: Path) -> AbstractContextManager[MemoryStore]:
    return open_store({"path": str(folder)})


def _write(store: MemoryStore, uri: str, text: str) -> None:
    result = store.dispatch(MemoryOpWrite(uri, text))
    if not isinstance(result, MemoryWriteResult):
        raise TypeError(f"writing {uri!r} gave {result!r}")


def _name(uri: str) -> str:
    return uri.rpartition("/")[2]


def _write_files(store: Path, n_notes: int) -> None:
    """Write the documented files of a store, as another program may have left them."""
    folder = store / "user" / "memories" / "preferences"
    folder.mkdir(parents=True)
    for name, text in iter_notes(n_notes):
        (folder / f"{name}.md").write_text(text, encoding="utf-8")
