"""What a round costs on our side alone, in memory and on disk, early and late in a long run.

A tool reads the CPU clock once a round. From each round the floor is taken: the CPU of posting the
same bodies, encoded beforehand, through the same kind of connection. So neither the bytes on the
wire nor the HTTP client count.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from openai import AsyncOpenAI

from benchmarks.by_hand import add_tool, ready_bodies
from benchmarks.endpoint import Endpoint
from benchmarks.ours import AddTool, open_agent
from benchmarks.sizes import Sizes
from benchmarks.table import AtMost, AtMostTimes, Line, Reference
from rath.session import Session

_EARLY = slice(2, 20)  # around the 10th round
_LATE = slice(-20, None)


class ClockedAddTool(AddTool):
    """Notes the CPU clock of the process at each call."""

    def __init__(self) -> None:
        self.clock: list[float] = []

    def __call__(self, session: Session, arguments: Mapping[str, Any]) -> str:
        self.clock.append(time.process_time())
        return super().__call__(session, arguments)


def lines(endpoint: Endpoint, sizes: Sizes) -> list[Line]:
    """Own CPU of a round, and of a late one beside an early one."""
    url = endpoint.url(f"tools-{sizes.depth}")
    bodies = ready_bodies.collect(url)
    memory: list[list[float]] = []
    disk: list[list[float]] = []
    floor: list[list[float]] = []
    for repeat in range(sizes.repeats + 1):
        runs = (
            _rounds(url, sizes, persist=False),
            _rounds(url, sizes, persist=True),
            _floor(url, bodies),
        )
        if repeat:  # the first run opens connections and loads what is loaded late
            memory.append(runs[0])
            disk.append(runs[1])
            floor.append(runs[2])
    shallow = slice(2, sizes.rounds)
    base = _typical(floor, shallow)
    early, late = (_typical(memory, part) - _typical(floor, part) for part in (_EARLY, _LATE))
    first, last = (_typical(disk, part) - _typical(floor, part) for part in (_EARLY, _LATE))
    post = Reference("the HTTP post alone", base)
    near = f"at {_EARLY.stop // 2}"
    return [
        Line(
            "own CPU a round, in memory", _typical(memory, shallow) - base, "ms", post, AtMost(0.2)
        ),
        Line("own CPU a round, on disk", _typical(disk, shallow) - base, "ms", post, AtMost(0.5)),
        Line(
            f"round at {sizes.depth}, in memory",
            late,
            "ms",
            Reference(near, early),
            AtMostTimes(1.2),
        ),
        Line(
            f"round at {sizes.depth}, on disk", last, "ms", Reference(near, first), AtMostTimes(1.2)
        ),
    ]


def _rounds(url: str, sizes: Sizes, *, persist: bool) -> list[float]:
    """CPU seconds of each round of one run of ours."""
    tool = ClockedAddTool()
    with open_agent(url, tool, max_tool_rounds=sizes.depth + 1, persist=persist) as agent:
        agent(Session.from_user_message(add_tool.QUESTION)).synchronize()
    return [end - start for start, end in pairwise(tool.clock)]


def _floor(url: str, bodies: list[bytes]) -> list[float]:
    """CPU seconds of each post alone; the first body has no round before it."""

    async def post() -> list[float]:
        async with AsyncOpenAI(base_url=url, api_key="x") as client:
            await ready_bodies.post_all(client, bodies[:2])
            return await ready_bodies.post_all(client, bodies[1:-1])

    return [end - start for start, end in pairwise(asyncio.run(post()))]


def _typical(runs: Sequence[Sequence[float]], part: slice) -> float:
    """The lower quartile of rounds: whatever else runs on the machine only adds to some of them."""
    return statistics.quantiles((value for run in runs for value in run[part]), n=4)[0]
