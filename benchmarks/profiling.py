"""A run of many tool rounds inside `rath.profiler.profile()`, beside the same run without it."""

from __future__ import annotations

import gc
import time

from benchmarks.by_hand import add_tool
from benchmarks.endpoint import Endpoint
from benchmarks.measure import Runs
from benchmarks.ours import AddTool, open_agent
from benchmarks.sizes import Sizes
from benchmarks.table import AtMost, AtMostTimes, Line, Reference
from rath import profiler
from rath.session import Session

_PAIRS = 40
"""Runs of each kind for a repeat, in turns: what is looked for is small beside their noise."""


def lines(endpoint: Endpoint, sizes: Sizes) -> list[Line]:
    """CPU of the run with and without the profiler, and of the table that is asked afterwards."""
    rounds = sizes.rounds
    agent = open_agent(endpoint.url(f"tools-{rounds}"), AddTool(), max_tool_rounds=rounds + 1)

    def plain() -> None:
        agent(Session.from_user_message(add_tool.QUESTION)).text()

    def profiled() -> profiler.Profile:
        with profiler.profile() as made:
            plain()
        return made

    bare: list[float] = []
    seen: list[float] = []
    tables: list[float] = []
    with agent:
        profiled().table()  # loads the price list
        for _ in range(sizes.repeats):
            pairs = [(_cpu(plain), _cpu(profiled)) for _ in range(_PAIRS)]
            bare.append(min(pair[0] for pair in pairs))
            seen.append(min(pair[1] for pair in pairs))
            made = profiled()
            tables.append(_cpu(made.table))
    row = f"{rounds} tool rounds in a profile, CPU"
    return [
        Line(row, Runs.of(seen), "ms", Reference("without", Runs.of(bare)), AtMostTimes(1.03)),
        Line(f"table of {rounds} tool rounds, CPU", Runs.of(tables), "ms", None, AtMost(20)),
    ]


def _cpu(work: object) -> float:
    assert callable(work)
    gc.collect()
    start = time.process_time()
    work()
    return time.process_time() - start
