"""What a round costs on our side alone, in memory and on disk, early and late in a long run.

A tool reads the CPU clock once a round. From each round over HTTP the floor is taken: the CPU of
posting the same bodies, encoded beforehand, through httpx2. So neither the bytes on the wire count
nor what such a client costs. With a model in the process there is no floor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import pairwise

from benchmarks.by_hand import add_tool, plain_httpx, ready_bodies
from benchmarks.endpoint import Endpoint
from benchmarks.measure import Figures, Sample, interleave_figures, quartile
from benchmarks.ours import ClockedAddTool, InProcessModel, open_agent
from benchmarks.sizes import Sizes
from benchmarks.table import AtMost, AtMostTimes, Line, Reference
from rath.flow import Provider
from rath.session import Session

_ROWS_A_ROUND = 2
_EARLY = slice(2, 20)  # around the 10th round
_FIRST = slice(1, 8)  # around the 10th row
_LATE = slice(-20, None)


def lines(endpoint: Endpoint, sizes: Sizes) -> list[Line]:
    """Own CPU of a round over HTTP, and of a late one beside an early one."""
    url = endpoint.url(f"tools-{sizes.depth}")
    bodies = ready_bodies.collect(url)
    parts = {"shallow": slice(2, sizes.rounds), "early": _EARLY, "late": _LATE}

    def contend(run: Callable[[], list[Sample]]) -> Callable[[], Figures]:
        return lambda: _figures(run(), parts)

    cost = interleave_figures(
        {
            "in memory": contend(partial(_rounds, url, sizes.depth, persist=False)),
            "on disk": contend(partial(_rounds, url, sizes.depth, persist=True)),
            "floor": contend(partial(_floor, url, bodies)),
        },
        repeats=sizes.repeats,
    )
    floor = cost.pop("floor")
    own = {
        where: {part: rounds[part] - floor[part] for part in parts}
        for where, rounds in cost.items()
    }
    post = Reference("the HTTP post alone", floor["shallow"])
    limits = {"in memory": 0.2, "on disk": 0.5}
    return [
        *(
            Line(f"own CPU a round, {where}", each["shallow"], "ms", post, AtMost(limits[where]))
            for where, each in own.items()
        ),
        *(
            # With the same post in both: what is left without any may be nothing.
            Line(f"round at {sizes.depth}, {where}", each["late"] + floor["early"], "ms",
                 Reference(f"at {_EARLY.stop // 2}", cost[where]["early"]), AtMostTimes(1.2))
            for where, each in own.items()
        ),
    ]  # fmt: skip


def own_lines(endpoint: Endpoint, sizes: Sizes) -> list[Line]:
    """The same with a model in this process, and the CPU of each row that a run persists."""
    del endpoint
    n_rounds = 2 * sizes.depth
    model = InProcessModel(n_rounds).provider
    parts = {"first": _FIRST, "late": _LATE, "all": slice(2, None)}

    def contend(*, persist: bool) -> Callable[[], Figures]:
        return lambda: _figures(_rounds(model, n_rounds, persist=persist), parts)

    cost = interleave_figures(
        {"in memory": contend(persist=False), "on disk": contend(persist=True)},
        repeats=sizes.repeats,
    )
    memory = cost["in memory"]
    row = "own CPU a round, model in process"
    unpersisted, persisted = (each["all"] / _ROWS_A_ROUND for each in cost.values())
    return [
        Line(f"{row}, at 10 rows", memory["first"], "ms", target=AtMost(0.3)),
        Line(f"{row}, at {n_rounds * _ROWS_A_ROUND} rows", memory["late"], "ms",
             Reference("at 10 rows", memory["first"]), AtMost(0.3)),
        Line("rows persisted by a loop, CPU a row", persisted, "ms",
             Reference("in memory", unpersisted), AtMost(0.4)),
    ]  # fmt: skip


def _rounds(model: str | Provider, n_rounds: int, *, persist: bool) -> list[Sample]:
    """The cost of each round of one run of ours."""
    tool = ClockedAddTool()
    with open_agent(model, tool, max_tool_rounds=n_rounds + 1, persist=persist) as agent:
        agent(Session.from_user_message(add_tool.QUESTION)).synchronize()
    return tool.rounds()


def _floor(url: str, bodies: list[bytes]) -> list[Sample]:
    """The CPU of each post alone; the first body has no round before it."""

    async def post() -> list[float]:
        async with plain_httpx.open_async_httpx2(url) as client:
            await ready_bodies.post_all(client, bodies[:2])
            return await ready_bodies.post_all(client, bodies[1:-1])

    return [Sample(end - start, 0.0) for start, end in pairwise(asyncio.run(post()))]


def _figures(rounds: list[Sample], parts: dict[str, slice]) -> Figures:
    """The typical CPU of a round in each part of a run."""
    return {name: quartile(rounds[part]).cpu for name, part in parts.items()}
