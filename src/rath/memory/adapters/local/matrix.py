"""Comparing vectors, with numpy, and the documents that are nearest; the rest does without it."""

from __future__ import annotations

import mmap
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import field
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rath._async.runtime import runtime
from rath._core.dataclasses import dataclass
from rath.memory.adapters.local.catalog import Catalog
from rath.memory.adapters.local.index import TABLES, Match, NoteIndex
from rath.memory.adapters.local.layout import Kind
from rath.memory.adapters.local.vectors import (
    HEADER_BYTES,
    KEY_BYTES,
    DocumentPart,
    RecordFile,
    VectorStore,
    VectorView,
    find_parts,
)

Floats: TypeAlias = NDArray[np.float32]

RELATIVE_FLOOR = 0.7
"""A hit has at least this part of the best cosine; `MIN_SIMILARITY` tells how it was chosen."""

_KEY_FLOATS = KEY_BYTES // 4
_FIRST_RANKED = 64
_MAX_THREADS = 4
_ROWS_OF_A_THREAD = 16_384
"""Fewer rows take less time than waking a thread."""

_GROWTH = 8

_SMALL_SCOPE = 5000
"""Texts of a part of the store that are compared one by one, without the others."""

_MAX_GROUPS = 3
"""64, 512 and 4096 vectors are looked up at most: those of texts that are gone, have expired or lie
elsewhere stand among them."""

_ATTEMPTS = 3


def normalised(vectors: Any) -> list[bytes | None]:
    """Return vectors at length 1 as float32; None for one that is zero or not finite.

    Raises:
        ValueError: They are no vectors of one length.
    """
    try:
        array = np.asarray(vectors, dtype=np.float64)
    except TypeError as exc:
        raise ValueError(f"not vectors of numbers: {exc}") from exc
    if array.ndim != 2 or array.shape[1] == 0:
        raise ValueError(f"not vectors of one length: an array of shape {array.shape}")
    # By the largest number first, whose square may not be a number any more.
    largest = np.abs(array).max(axis=1, keepdims=True)
    usable = np.isfinite(largest[:, 0]) & (largest[:, 0] > 0)
    scaled = np.divide(array, largest, out=np.zeros_like(array), where=usable[:, np.newaxis])
    lengths = np.linalg.norm(scaled, axis=1, keepdims=True)
    unit = np.divide(scaled, lengths, out=scaled, where=usable[:, np.newaxis])
    rows = unit.astype(np.float32)
    return [row.tobytes() if good else None for row, good in zip(rows, usable, strict=True)]


def mapped(file: RecordFile) -> Floats:
    """Return the vectors of a file, shape (capacity, dimension), in place: nothing is read yet."""
    capacity = file.capacity()
    size = HEADER_BYTES + capacity * file.record_bytes
    memory = mmap.mmap(file.fd, size, access=mmap.ACCESS_READ)
    numbers = np.frombuffer(
        memory, np.float32, offset=HEADER_BYTES, count=(size - HEADER_BYTES) // 4
    )
    return numbers.reshape(capacity, -1)[:, _KEY_FLOATS:]


def cosines(matrix: Floats, vector: bytes, slots: Sequence[int] | None = None) -> Floats:
    """Return the cosine of each row, or of those in some slots, with a vector; in [-1, 1].

    All are of length 1, so it is their dot product. Many rows are shared out among threads.
    """
    query = np.frombuffer(vector, np.float32)
    if slots is not None:
        return _products(matrix[np.asarray(slots, dtype=np.intp)], query)
    n_parts = min(_MAX_THREADS, os.cpu_count() or 1, 1 + len(matrix) // _ROWS_OF_A_THREAD)
    first, *others = np.array_split(matrix, n_parts)
    waited_for = [runtime().start_in_worker(partial(_products, part, query)) for part in others]
    return np.concatenate([_products(first, query), *(each.result() for each in waited_for)])


def _products(rows: Floats, query: Floats) -> Floats:
    # `einsum` goes row by row at the speed of the memory. The matrix product of BLAS takes twice as
    # long on one thread: 15 against 7.7 ms for 100,000 x 384, 8 against 5.1 on two (two cores,
    # numpy 2.4); and how many threads it has is not for us to say.
    found: Floats = np.einsum("ij,j->i", rows, query)
    return found


def iter_best(scores: Floats, floor: float) -> Iterator[list[tuple[int, float]]]:
    """Give the places of the scores above a floor with these, in growing groups, the best first."""
    candidates = np.flatnonzero(scores > floor)
    size = _FIRST_RANKED
    while candidates.size:
        rest = scores[candidates]
        if candidates.size > size:
            order = np.argpartition(rest, rest.size - size)
            best, candidates = candidates[order[-size:]], candidates[order[:-size]]
        else:
            best, candidates = candidates, candidates[:0]
        best = best[np.argsort(-scores[best], kind="stable")]
        yield list(zip(best.tolist(), scores[best].tolist(), strict=True))
        size *= _GROWTH


@dataclass(slots=True)
class _Nearest:
    """The documents found so far, the closest first, each once."""

    limit: int
    """Of each kind."""
    least: float
    """Least cosine that counts; grows with the best one."""
    hidden: Collection[tuple[str, str]]
    totals: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(TABLES, 0))
    """How many documents of each kind there are."""
    matches: dict[Kind, dict[tuple[str, str], Match]] = field(
        default_factory=lambda: {kind: {} for kind in TABLES}
    )

    def add(self, documents: Iterable[DocumentPart], scores: dict[int, float]) -> None:
        """Add the documents that are close enough; groups come with falling cosines."""
        for each in sorted(
            documents, key=lambda each: (-scores[each.slot], each.directory, each.name)
        ):
            cosine = scores[each.slot]
            found = self.matches[each.kind]
            place = each.directory, each.name
            if place in self.hidden:
                continue
            self.least = max(self.least, RELATIVE_FLOOR * cosine)
            if cosine >= self.least and place not in found and len(found) < self.limit:
                found[place] = Match(*place, each.stamp, cosine, each.part)

    def is_enough(self, last_cosine: float) -> bool:
        """Return whether nothing can come after a cosine that would count."""
        are_full = all(
            len(self.matches[kind]) >= min(self.limit, n) for kind, n in self.totals.items()
        )
        return are_full or last_cosine < self.least


def nearest(
    catalog: Catalog,
    vectors: VectorStore,
    vector: bytes,
    limit: int,
    *,
    floor: float,
    below: str | None = None,
    hidden: Collection[tuple[str, str]] = (),
) -> dict[Kind, list[Match]]:
    """Return the documents whose vectors are closest to one of length 1, of each kind `limit`.

    Args:
        catalog: Of the store.
        vectors: Its vectors.
        vector: Float32 numbers.
        limit: How many of each kind.
        floor: Least cosine, 0 or more; what has none above 0 is never near.
        below: Directory to look in, or the path of one note without suffix.
        hidden: Directory and name of documents that do not count.
    """
    for _ in range(_ATTEMPTS):
        view = catalog.use(vectors.view)
        if view is None or view.matrix.shape[1] * 4 != len(vector):
            break
        found = _Nearest(limit, floor, hidden)
        _rank(catalog, view, vector, found, below=below)
        # Slots are those of the view only while its file is the current one.
        now = catalog.use(vectors.model)
        if now.token == view.model.token:
            return {kind: list(matches.values()) for kind, matches in found.matches.items()}
    return {kind: [] for kind in TABLES}


def _rank(
    catalog: Catalog, view: VectorView, vector: bytes, found: _Nearest, *, below: str | None
) -> None:
    def begin(index: NoteIndex) -> list[DocumentPart]:
        found.totals = {kind: index.totals(kind).documents for kind in TABLES}
        return (
            [] if below is None else find_parts(index, view.model, below=below, limit=_SMALL_SCOPE)
        )

    few = catalog.use(begin)
    if below is not None and len(few) < _SMALL_SCOPE:
        inside = [each for each in few if each.slot < len(view.matrix)]
        slots = sorted({each.slot for each in inside})
        scores = dict(zip(slots, cosines(view.matrix, vector, slots).tolist(), strict=True))
        found.add((each for each in inside if scores[each.slot] > 0), scores)
        return
    groups = iter_best(cosines(view.matrix, vector), found.least)
    for group, _ in zip(groups, range(_MAX_GROUPS), strict=False):
        scores = dict(group)
        look_up = partial(find_parts, model=view.model, slots=scores, below=below)
        found.add(catalog.use(look_up), scores)
        if found.is_enough(group[-1][1]):
            break
