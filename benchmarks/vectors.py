"""Recall by vectors among many notes, beside a plain matrix product in numpy: wall time a query."""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.endpoint import Endpoint
from benchmarks.notes import TOP_K, find, iter_notes, open_store, queries, times
from benchmarks.sizes import Sizes
from benchmarks.table import AtMost, Line, Reference
from rath.memory import MemoryStore

_DIMENSION = 384
_FILLED_SECONDS = 300

Floats: TypeAlias = NDArray[np.float32]


class _Random:
    """An embedding model whose vectors mean nothing; it takes no time to speak of."""

    def __init__(self) -> None:
        self.n_texts = 0
        self._generator = np.random.default_rng(20261122)

    def embed(self, texts: Sequence[str]) -> Floats:
        self.n_texts += len(texts)
        return self._generator.standard_normal((len(texts), _DIMENSION), dtype=np.float32)


def lines(endpoint: Endpoint, sizes: Sizes) -> list[Line]:
    """Queries by vectors and by both means after a restart, filling, and the memory of it."""
    del endpoint
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "store"
        filled = _fill(folder, sizes.notes)
        by_vectors = _times_in(folder, "vectors", repeats=sizes.repeats)
        hybrid = _times_in(folder, "hybrid", repeats=sizes.repeats)
        plain = _plain_times(sizes.notes, repeats=sizes.repeats)
        peak = _peak_mb(folder)
    row = f"recall among {sizes.notes} vectors"
    numpy = Reference("numpy matrix @ query", statistics.median(plain))
    matrix = Reference("the matrix", sizes.notes * _DIMENSION * 4 / 1e6)
    return [
        Line(f"{row}, median query", statistics.median(by_vectors), "ms", numpy, AtMost(10)),
        Line(f"{row} and words, median query", statistics.median(hybrid), "ms", numpy),
        Line(f"{row} and words, slowest query", max(hybrid), "ms", numpy),
        Line(f"storing {sizes.notes} vectors", filled, "s"),
        Line(f"{row}, peak memory of the process", peak, "MB", matrix),
    ]


def _fill(folder: Path, n_notes: int) -> float:
    """Write notes, and return the seconds until each has its vector."""
    place = folder / "user" / "memories" / "preferences"
    place.mkdir(parents=True)
    for name, text in iter_notes(n_notes):
        (place / f"{name}.md").write_text(text, encoding="utf-8")
    model = _Random()
    with _open(folder, "bm25", model) as store:
        find(store, "index")
    start = time.perf_counter()
    with _open(folder, "hybrid", model) as store:
        find(store, "fill")
        while model.n_texts < n_notes and time.perf_counter() - start < _FILLED_SECONDS:
            time.sleep(0.05)
    return time.perf_counter() - start


def _times_in(folder: Path, ranking: str, *, repeats: int) -> list[float]:
    with _open(folder, ranking, _Random()) as store:
        return times(lambda query: find(store, query), repeats=repeats)


def _plain_times(n_notes: int, *, repeats: int) -> list[float]:
    """Seconds that a matrix product and the choice of the best take."""
    model = _Random()
    matrix = model.embed([""] * n_notes)
    vector = model.embed([""])[0]

    def ask(_: str) -> object:
        scores = matrix @ vector
        return np.argpartition(scores, -TOP_K)[-TOP_K:]

    return times(ask, repeats=repeats)


def _peak_mb(folder: Path) -> float:
    """Peak memory of a fresh process that recalls a few times, with the mapped file, in MB."""
    command = [sys.executable, "-m", "benchmarks.vectors", str(folder)]
    done = subprocess.run(command, check=True, capture_output=True, timeout=120)
    peak: float = json.loads(done.stdout)
    return peak


def _open(folder: Path, ranking: str, model: object) -> AbstractContextManager[MemoryStore]:
    # Random vectors are all far from each other.
    options: dict[str, Any] = {
        "path": str(folder),
        "embedding": model,
        "ranking": ranking,
        "min_similarity": 0.0,
    }
    return open_store(options)


def _main() -> None:
    with _open(Path(sys.argv[1]), "hybrid", _Random()) as store:
        for query in queries():
            find(store, query)
    usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(usage / (1e6 if sys.platform == "darwin" else 1e3))


if __name__ == "__main__":
    _main()
