"""Many sessions with one slow model call each, all at once: wall time in a fresh process.

Run as `python -m benchmarks.fanout CONTENDER URL N` it does one fan-out and prints its cost as
JSON; a first call opens the client and loads what is loaded late, so only the fan-out counts.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial

from openai import AsyncOpenAI

from benchmarks.by_hand import bare_asyncio, openai_sdk, plain_httpx
from benchmarks.endpoint import Endpoint
from benchmarks.measure import Figures, interleave_figures, run_fresh
from benchmarks.ours import provider
from benchmarks.sizes import Sizes
from benchmarks.table import AtLeast, AtMost, AtMostTimes, Line, Reference, Target
from rath.flow import Agent
from rath.session import Session

# Long enough that every call has been sent before the first answer comes.
_SLOW = "delay-3000ms"
_MAX_THREADS = 4
_WALL_TARGETS: dict[str, Target] = {"openai SDK, async": AtMostTimes(0.6)}
_CPU_TARGETS: dict[str, Target] = {
    "openai SDK, async": AtMostTimes(0.5),
    "httpx2, async": AtMostTimes(1.3),
}


def lines(endpoint: Endpoint, sizes: Sizes) -> list[Line]:
    """Wall, CPU a call, calls in flight, threads."""
    url, n_calls = endpoint.url("delay-100ms"), sizes.sessions
    cost = interleave_figures(
        {name: partial(_run_fresh, name, url, n_calls) for name in _CONTENDERS},
        repeats=sizes.repeats,
    )
    endpoint.take_peak()
    slow = _run_fresh("ours", endpoint.url(_SLOW), n_calls)
    peak = endpoint.take_peak()
    ours = cost.pop("ours")
    row = f"{n_calls} sessions of 100 ms"
    return [
        *(
            Line(f"{row}, wall", ours["wall"], "ms", Reference(name, theirs["wall"]),
                 _WALL_TARGETS.get(name))
            for name, theirs in cost.items()
        ),
        *(
            Line(f"{row}, CPU a call", ours["cpu"] / n_calls, "ms",
                 Reference(name, theirs["cpu"] / n_calls), _CPU_TARGETS.get(name))
            for name, theirs in cost.items()
        ),
        Line(f"{n_calls} sessions, calls in flight", peak, "count", target=AtLeast(n_calls)),
        Line(f"{n_calls} sessions, threads", slow["threads"], "count",
             target=AtMost(_MAX_THREADS)),
    ]  # fmt: skip


def _run_fresh(contender: str, url: str, n_calls: int) -> Figures:
    """One fan-out in a process of its own."""
    return run_fresh("-m", "benchmarks.fanout", contender, url, str(n_calls))


def fan_out_ours(url: str, n_calls: int) -> Figures:
    """Through the public interface, from synchronous code."""
    with Agent("You answer.", provider(url), system_tools=False) as agent:
        agent(Session.from_user_message("first")).synchronize()
        cpu, wall = time.process_time(), time.perf_counter()
        sessions = [agent(Session.from_user_message(f"question {i}")) for i in range(n_calls)]
        texts = [sessions[0].text()]
        n_threads = threading.active_count()  # while all calls are in flight
        texts += [session.text() for session in sessions[1:]]
        cost = _figures(cpu, wall, n_threads)
    assert all(texts)
    return cost


def fan_out_sdk(url: str, n_calls: int) -> Figures:
    """On the official asynchronous SDK."""

    async def run() -> Figures:
        async with AsyncOpenAI(base_url=url, api_key="x") as client:
            await openai_sdk.ask(client, "first")
            return await _cost(openai_sdk.fan_out(client, n_calls))

    return asyncio.run(run())


def fan_out_httpx(url: str, n_calls: int) -> Figures:
    """On plain httpx."""

    async def run() -> Figures:
        async with plain_httpx.open_async_httpx(url) as client:
            await plain_httpx.ask(client, "first")
            return await _cost(plain_httpx.fan_out(client, n_calls))

    return asyncio.run(run())


def fan_out_httpx2(url: str, n_calls: int) -> Figures:
    """On plain httpx2."""

    async def run() -> Figures:
        async with plain_httpx.open_async_httpx2(url) as client:
            await plain_httpx.ask(client, "first")
            return await _cost(plain_httpx.fan_out(client, n_calls))

    return asyncio.run(run())


def fan_out_asyncio(url: str, n_calls: int) -> Figures:
    """On asyncio streams."""

    async def run() -> Figures:
        await bare_asyncio.ask(url, "first")
        return await _cost(bare_asyncio.fan_out(url, n_calls))

    return asyncio.run(run())


async def _cost(work: Awaitable[list[str]]) -> Figures:
    cpu, wall = time.process_time(), time.perf_counter()
    texts = await work
    cost = _figures(cpu, wall, threading.active_count())
    assert all(texts)
    return cost


def _figures(cpu: float, wall: float, n_threads: int) -> Figures:
    """The cost since both clocks were read."""
    return {
        "cpu": time.process_time() - cpu,
        "wall": time.perf_counter() - wall,
        "threads": n_threads,
    }


_CONTENDERS: dict[str, Callable[[str, int], Figures]] = {
    "ours": fan_out_ours,
    "openai SDK, async": fan_out_sdk,
    "httpx, async": fan_out_httpx,
    "httpx2, async": fan_out_httpx2,
    "bare asyncio": fan_out_asyncio,
}

if __name__ == "__main__":
    contender, base_url, count = sys.argv[1:]
    print(json.dumps(_CONTENDERS[contender](base_url, int(count))))
