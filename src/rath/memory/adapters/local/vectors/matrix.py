"""Comparing vectors, with numpy; the rest of the package does without it."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rath._async.runtime import runtime
from rath.memory.adapters.local.vectors.record_file import HEADER_BYTES, KEY_BYTES, RecordFile

Floats: TypeAlias = NDArray[np.float32]

_KEY_FLOATS = KEY_BYTES // 4
_FIRST_RANKED = 64
_MAX_THREADS = 4
_ROWS_OF_A_THREAD = 16_384
"""Fewer rows take less time than waking a thread."""

_GROWTH = 8


def normalised(vectors: Any) -> list[bytes | None]:
    """Return vectors at length 1 as float32; None for one that is zero or not finite.

    Raises:
        ValueError: They are no vectors of one length.
    """
    try:
        given = np.asarray(vectors, dtype=np.float64)
    except TypeError as exc:
        raise ValueError(f"not vectors of numbers: {exc}") from exc
    if given.ndim != 2 or given.shape[1] == 0:
        raise ValueError(f"not vectors of one length: an array of shape {given.shape}")
    # By the largest number first, whose square may not be a number any more.
    largest = np.abs(given).max(axis=1, keepdims=True)
    usable = np.isfinite(largest[:, 0]) & (largest[:, 0] > 0)
    scaled = np.divide(given, largest, out=np.zeros_like(given), where=usable[:, np.newaxis])
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
        kept = scores[candidates]
        if candidates.size > size:
            order = np.argpartition(kept, kept.size - size)
            best, candidates = candidates[order[-size:]], candidates[order[:-size]]
        else:
            best, candidates = candidates, candidates[:0]
        best = best[np.argsort(-scores[best], kind="stable")]
        yield list(zip(best.tolist(), scores[best].tolist(), strict=True))
        size *= _GROWTH
