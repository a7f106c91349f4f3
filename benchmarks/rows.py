"""Operations on a long transcript: wall time of one."""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.by_hand import add_tool
from benchmarks.endpoint import Endpoint
from benchmarks.measure import Runs, Sample, interleave, measure
from benchmarks.ours import AddTool, InProcessModel, open_agent
from benchmarks.sizes import Sizes
from benchmarks.table import AtMost, Line, Reference
from rath.session import ChunkTable, Session, user_text_chunk

_FEW = 10
_PER_BLOCK = 200
_BLOCKS = 15


def lines(endpoint: Endpoint, sizes: Sizes) -> list[Line]:
    """Each operation at many rows, beside the same at few, and beside a plain list."""
    del endpoint
    many, few = _table(sizes.table_rows), _table(_FEW)
    long, short = Session(many), Session(few)
    rows = list(many)
    copy = _times(rows.copy, n_calls=5)
    size, at_few = f"at {sizes.table_rows} rows", f"at {_FEW} rows"
    forks = _times(long.fork), _times(short.fork)
    appends = _append_times(many), _append_times(few)
    merges = _merge_times(long, short), _merge_times(short, Session(few))
    loops = _first_loops(sizes)
    return [
        Line(f"fork {size}", forks[0], "us", Reference(at_few, forks[1]), AtMost(20)),
        Line(f"fork {size}", forks[0], "us", Reference("list.copy", copy)),
        Line(f"append {size}", appends[0], "us", Reference(at_few, appends[1]), AtMost(5)),
        Line(f"merge of {_FEW} rows {size}", merges[0], "us", Reference(at_few, merges[1]),
             AtMost(100)),
        Line(f"first loop {size}", loops[0], "ms", Reference(at_few, loops[1]), AtMost(5)),
    ]  # fmt: skip


def _table(n_rows: int) -> ChunkTable:
    return ChunkTable().extend(*(user_text_chunk(f"row {i}") for i in range(n_rows)))


def _append_times(table: ChunkTable) -> Runs:
    """Seconds an append; each builds on the one before, as in a run."""
    row = user_text_chunk("one more")

    def append_block() -> None:
        grown = table
        for _ in range(_PER_BLOCK):
            grown = grown.extend(row)

    return _times(append_block, n_calls=1) / _PER_BLOCK


def _merge_times(session: Session, other: Session) -> Runs:
    return _times(lambda: session.merge(other).chunk_table, n_calls=20)


def _first_loops(sizes: Sizes) -> tuple[Runs, Runs]:
    """Seconds of a loop that adds three rows to rows which no loop has seen."""
    with open_agent(InProcessModel(1).provider, AddTool(), max_tool_rounds=2) as agent:

        def loop(n_rows: int) -> Sample:
            session = Session(_table(n_rows).extend(user_text_chunk(add_tool.QUESTION)))
            return measure(lambda: agent(session).synchronize())

        cost = interleave(
            {"many": lambda: loop(sizes.table_rows), "few": lambda: loop(_FEW)},
            repeats=sizes.repeats,
        )
    return cost["many"].wall, cost["few"].wall


def _times(operation: Callable[[], object], *, n_calls: int = _PER_BLOCK) -> Runs:
    """Seconds a call, in each block of calls."""
    return Runs.of(_block_time(operation, n_calls) / n_calls for _ in range(_BLOCKS))


def _block_time(operation: Callable[[], object], n_calls: int) -> float:
    start = time.perf_counter()
    for _ in range(n_calls):
        operation()
    return time.perf_counter() - start
