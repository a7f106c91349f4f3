"""Fork and append on a long transcript: wall time of one operation."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from benchmarks.endpoint import Endpoint
from benchmarks.sizes import Sizes
from benchmarks.table import AtMost, Line, Reference
from rath.session import ChunkTable, Session, user_text_chunk

_FEW = 10
_PER_BLOCK = 200
_BLOCKS = 15


def lines(endpoint: Endpoint, sizes: Sizes) -> list[Line]:
    """Each operation at many rows, beside the same at few, and beside a plain list."""
    del endpoint
    rows = [user_text_chunk(f"row {i}") for i in range(sizes.table_rows)]
    many, few = ChunkTable().extend(*rows), ChunkTable().extend(*rows[:_FEW])
    long, short = Session(many), Session(few)
    copy = _block_time(rows.copy, n_calls=5) / 5
    size = f"at {sizes.table_rows} rows"
    forks = _time(long.fork), _time(short.fork)
    appends = _append_time(many), _append_time(few)
    return [
        Line(f"fork {size}", forks[0], "us", Reference(f"at {_FEW} rows", forks[1]), AtMost(20)),
        Line(f"fork {size}", forks[0], "us", Reference("list.copy", copy)),
        Line(
            f"append {size}", appends[0], "us", Reference(f"at {_FEW} rows", appends[1]), AtMost(5)
        ),
    ]


def _append_time(table: ChunkTable) -> float:
    """Seconds an append; each builds on the one before, as in a run."""
    row = user_text_chunk("one more")

    def append_block() -> None:
        grown = table
        for _ in range(_PER_BLOCK):
            grown = grown.extend(row)

    return (
        statistics.median(_block_time(append_block, n_calls=1) for _ in range(_BLOCKS)) / _PER_BLOCK
    )


def _time(operation: Callable[[], object]) -> float:
    """Seconds a call: the median over blocks of calls."""
    blocks = [_block_time(operation, n_calls=_PER_BLOCK) for _ in range(_BLOCKS)]
    return statistics.median(blocks) / _PER_BLOCK


def _block_time(operation: Callable[[], object], *, n_calls: int) -> float:
    start = time.perf_counter()
    for _ in range(n_calls):
        operation()
    return time.perf_counter() - start
