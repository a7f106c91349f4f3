"""One round of tool calls that only wait, side by side or in order: wall time of the round."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.by_hand import add_tool, plain_httpx, ready_bodies
from benchmarks.endpoint import Endpoint
from benchmarks.measure import Runs, interleave, measure
from benchmarks.ours import AddTool, open_agent
from benchmarks.sizes import Sizes
from benchmarks.table import AtMost, Line, Reference
from rath.session import Session

_CALLS = 8
_SECONDS = 0.05


class SlowTool(AddTool):
    """Waits 50 ms in a plain function; each call has a resource of its own."""

    def resource_key(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        return ("slot", str(arguments["b"]))

    def __call__(self, session: Session, arguments: Mapping[str, Any]) -> str:
        time.sleep(_SECONDS)
        return super().__call__(session, arguments)


class SharedTool(SlowTool):
    """The same, all calls on one resource, so that they run in order."""

    def resource_key(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        return ("slot",)


def lines(endpoint: Endpoint, sizes: Sizes) -> list[Line]:
    """The wall of a run less the wall of its two model calls alone."""
    url = endpoint.url(f"tools-1x{_CALLS}")
    posts = asyncio.run(_post_walls(url, ready_bodies.collect(url), repeats=sizes.repeats))
    calls = f"{_CALLS} tool calls of {_SECONDS * 1000:.0f} ms, wall"
    return [
        _line(url, sizes, SlowTool(), _CALLS, posts, f"parallel: {calls}", 65),
        _line(url, sizes, SharedTool(), 1, posts, f"with one resource key: {calls}", 430),
    ]


def _line(
    url: str, sizes: Sizes, tool: AddTool, n_threads: int, posts: Runs, row: str, limit: float
) -> Line:
    with (
        open_agent(url, tool, max_tool_rounds=2) as agent,
        ThreadPoolExecutor(n_threads) as pool,
    ):
        question = add_tool.QUESTION
        cost = interleave(
            {
                "ours": lambda: measure(lambda: agent(Session.from_user_message(question)).text()),
                "pool": lambda: measure(lambda: list(pool.map(time.sleep, [_SECONDS] * _CALLS))),
            },
            repeats=sizes.repeats,
        )
    reference = Reference("a pool of threads", cost["pool"].wall)
    return Line(row, cost["ours"].wall - posts, "ms", reference, AtMost(limit))


async def _post_walls(url: str, bodies: list[bytes], *, repeats: int) -> Runs:
    """Seconds of the model calls of one run, by hand on an open connection."""
    walls: list[float] = []
    async with plain_httpx.open_async_httpx2(url) as client:
        for _ in range(repeats + 1):
            start = time.perf_counter()
            await ready_bodies.post_all(client, bodies)
            walls.append(time.perf_counter() - start)
    return Runs.of(walls[1:])
