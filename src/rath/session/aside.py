"""Work that costs time for every row: beside the runtime thread when there are many."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from rath._async.runtime import runtime

T = TypeVar("T")

MANY_ROWS = 200
"""Above this a worker thread is used: at about 10 us a row the trip is short then; a guess."""


async def aside(n_rows: int, make: Callable[[], T]) -> T:
    """Return `make()`, which walks over `n_rows` rows; on a worker thread when they are many."""
    if n_rows <= MANY_ROWS:
        return make()
    return await runtime().call_in_worker(make)
