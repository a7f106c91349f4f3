"""Recall among many notes in a local store, beside a bare FTS5 table: wall time a query."""

from __future__ import annotations

import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import rath.memory
from benchmarks.by_hand import fts5
from benchmarks.endpoint import Endpoint
from benchmarks.notes import iter_notes, queries
from benchmarks.sizes import Sizes
from benchmarks.table import AtMost, Line, Reference
from rath.memory import MemoryFindResult, MemoryOpFind, MemoryStore, MemoryStoreSpec

_TOP_K = 4


def lines(endpoint: Endpoint, sizes: Sizes) -> list[Line]:
    """The median of the query set, the slowest query, and the first recall after the notes came."""
    del endpoint
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        fts5.build(home / "bare.sqlite3", iter_notes(sizes.notes))
        store_folder = home / "store"
        _write_notes(store_folder, sizes.notes)
        with _open(store_folder) as store:
            start = time.perf_counter()
            _find(store, queries()[0])
            first = time.perf_counter() - start
        with _open(store_folder) as store:  # a second opening: what a restarted program sees
            assert _find(store, queries()[-1]) == _TOP_K
            ours = _times(lambda query: _find(store, query), repeats=sizes.repeats)
        bare = sqlite3.connect(home / "bare.sqlite3")
        theirs = _times(
            lambda query: len(fts5.recall(bare, query, top_k=_TOP_K)), repeats=sizes.repeats
        )
        bare.close()
    row = f"recall among {sizes.notes} notes"
    return [
        Line(
            f"{row}, median query",
            statistics.median(ours),
            "ms",
            Reference("bare FTS5", statistics.median(theirs)),
            AtMost(10),
        ),
        Line(f"{row}, slowest query", max(ours), "ms", Reference("bare FTS5", max(theirs))),
        Line(f"{row}, first after {sizes.notes} new files", first, "s"),
    ]


def _open(folder: Path) -> MemoryStore:
    return rath.memory.get("local").open(MemoryStoreSpec(options={"path": str(folder)}))


def _find(store: MemoryStore, query: str) -> int:
    """How many notes a query recalls; a few notes need not hold a rare word."""
    found = store.dispatch(MemoryOpFind(query, top_k=_TOP_K))
    if not isinstance(found, MemoryFindResult):
        raise TypeError(f"recall of {query!r} gave {found!r}")
    return len(found.hits)


def _write_notes(store: Path, n_notes: int) -> None:
    """Write the documented files of a store, as another program may have left them."""
    folder = store / "user" / "memories" / "preferences"
    folder.mkdir(parents=True)
    for name, text in iter_notes(n_notes):
        (folder / f"{name}.md").write_text(text, encoding="utf-8")


def _times(ask: Callable[[str], int], *, repeats: int) -> list[float]:
    """Seconds of each query, each the median of its repeats; one uncounted pass comes first."""
    times: dict[str, list[float]] = {query: [] for query in queries()}
    for repeat in range(repeats + 1):
        for query, found in times.items():
            start = time.perf_counter()
            ask(query)
            if repeat:
                found.append(time.perf_counter() - start)
    return [statistics.median(found) for found in times.values()]
