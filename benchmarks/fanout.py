"""Many sessions with one slow model call each, all at once: wall time in a fresh process.

Run as `python -m benchmarks.fanout CONTENDER URL N` it does one fan-out and prints its cost as
JSON; a first call opens the client and loads what is loaded late, so only the fan-out counts.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass

from openai import AsyncOpenAI

from benchmarks.by_hand import bare_asyncio, openai_sdk, plain_httpx
from benchmarks.endpoint import Endpoint
from benchmarks.measure import Sample, interleave
from benchmarks.ours import provider
from benchmarks.sizes import Sizes
from benchmarks.table import AtLeast, AtMost, AtMostTimes, Line, Reference
from rath.flow import Agent
from rath.session import Session

# Long enough that every call has been sent before the first answer comes.
_SLOW = "delay-3000ms"
# No source: a runtime thread, its neighbours and a few workers fit in; a thread a session does not.
_MAX_THREADS = 16


@dataclass(frozen=True, slots=True)
class Cost:
    """One fan-out."""

    cpu: float
    wall: float
    n_threads: int
    """Threads alive while all calls were in flight."""


def lines(endpoint: Endpoint, sizes: Sizes) -> list[Line]:
    """Wall, CPU a call, calls in flight, threads."""
    url, n_calls = endpoint.url("delay-100ms"), sizes.sessions

    def contend(name: str) -> Callable[[], Sample]:
        def run() -> Sample:
            cost = _run_fresh(name, url, n_calls)
            return Sample(cpu=cost.cpu, wall=cost.wall)

        return run

    cost = interleave({name: contend(name) for name in _CONTENDERS}, repeats=sizes.repeats)
    endpoint.take_peak()
    slow = _run_fresh("ours", endpoint.url(_SLOW), n_calls)
    peak = endpoint.take_peak()
    ours = cost.pop("ours")
    row = f"{n_calls} sessions of 100 ms"
    target = {"openai SDK, async": AtMostTimes(0.6)}
    walls = [
        Line(f"{row}, wall", ours.wall, "ms", Reference(name, sample.wall), target.get(name))
        for name, sample in cost.items()
    ]
    per_call = [
        Line(f"{row}, CPU a call", ours.cpu / n_calls, "ms", Reference(name, sample.cpu / n_calls))
        for name, sample in cost.items()
    ]
    return [
        *walls,
        *per_call,
        Line(f"{n_calls} sessions, calls in flight", peak, "count", target=AtLeast(n_calls)),
        Line(f"{n_calls} sessions, threads", slow.n_threads, "count", target=AtMost(_MAX_THREADS)),
    ]


def _run_fresh(contender: str, url: str, n_calls: int) -> Cost:
    """One fan-out in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.fanout", contender, url, str(n_calls)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=120).stdout
    return Cost(**json.loads(output))


def fan_out_ours(url: str, n_calls: int) -> Cost:
    """Through the public interface, from synchronous code."""
    with Agent("You answer.", provider(url), system_tools=False) as agent:
        agent(Session.from_user_message("first")).synchronize()
        cpu, wall = time.process_time(), time.perf_counter()
        sessions = [agent(Session.from_user_message(f"question {i}")) for i in range(n_calls)]
        texts = [sessions[0].text()]
        n_threads = threading.active_count()
        texts += [session.text() for session in sessions[1:]]
        cost = Cost(time.process_time() - cpu, time.perf_counter() - wall, n_threads)
    assert all(texts)
    return cost


def fan_out_sdk(url: str, n_calls: int) -> Cost:
    """On the official asynchronous SDK."""

    async def run() -> Cost:
        async with AsyncOpenAI(base_url=url, api_key="x") as client:
            await openai_sdk.ask(client, "first")
            return await _cost(openai_sdk.fan_out(client, n_calls))

    return asyncio.run(run())


def fan_out_httpx(url: str, n_calls: int) -> Cost:
    """On plain httpx."""

    async def run() -> Cost:
        async with plain_httpx.open_async_httpx(url) as client:
            await plain_httpx.ask(client, "first")
            return await _cost(plain_httpx.fan_out(client, n_calls))

    return asyncio.run(run())


def fan_out_httpx2(url: str, n_calls: int) -> Cost:
    """On plain httpx2."""

    async def run() -> Cost:
        async with plain_httpx.open_async_httpx2(url) as client:
            await plain_httpx.ask(client, "first")
            return await _cost(plain_httpx.fan_out(client, n_calls))

    return asyncio.run(run())


def fan_out_asyncio(url: str, n_calls: int) -> Cost:
    """On asyncio streams."""

    async def run() -> Cost:
        await bare_asyncio.ask(url, "first")
        return await _cost(bare_asyncio.fan_out(url, n_calls))

    return asyncio.run(run())


async def _cost(work: Awaitable[list[str]]) -> Cost:
    cpu, wall = time.process_time(), time.perf_counter()
    texts = await work
    cost = Cost(time.process_time() - cpu, time.perf_counter() - wall, threading.active_count())
    assert all(texts)
    return cost


_CONTENDERS: dict[str, Callable[[str, int], Cost]] = {
    "ours": fan_out_ours,
    "openai SDK, async": fan_out_sdk,
    "httpx, async": fan_out_httpx,
    "httpx2, async": fan_out_httpx2,
    "bare asyncio": fan_out_asyncio,
}

if __name__ == "__main__":
    contender, base_url, count = sys.argv[1:]
    print(json.dumps(asdict(_CONTENDERS[contender](base_url, int(count)))))
