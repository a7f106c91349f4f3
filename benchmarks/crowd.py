"""Thousands of sessions with one slow model call each: memory, threads, descriptors and wall time.

Run as `python -m benchmarks.crowd CONTENDER URL N` it starts all at once in a fresh process and
prints its figures as JSON; a first call opens the client and loads what is loaded late.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from urllib.parse import urlsplit

from benchmarks.by_hand import bare_asyncio
from benchmarks.endpoint import Endpoint
from benchmarks.machine import status_of
from benchmarks.measure import Figures, interleave_figures, run_fresh
from benchmarks.ours import provider
from benchmarks.sizes import Sizes
from benchmarks.table import AtMost, AtMostTimes, Line, Reference
from rath.flow import Agent
from rath.session import Session

_CONNECTIONS = 1000
"""The most that our pool opens to an endpoint; the reference has as many."""

_OTHER_DESCRIPTORS = 50
"""Pipes, event loops, files; a guess."""

_DELAY = "delay-1000ms"
_POLL_SECONDS = 0.2
_SETTLED_SECONDS = 15.0
# So long that all have started before the first answer comes.
_LONG_DELAY = "delay-30000ms"


def lines(endpoint: Endpoint, sizes: Sizes) -> list[Line]:
    """The wall of all answers, and what those in flight take."""
    n = sizes.crowd
    url = endpoint.url(_DELAY)
    cost = interleave_figures(
        {name: partial(_run_fresh, name, url, n) for name in ("ours", "bare")},
        repeats=max(1, sizes.repeats // 2),
        warms_up=False,
    )
    row = f"{n} sessions in flight"
    by_hand = Reference("bare asyncio on as many connections", cost["bare"]["wall"])
    made = [Line(f"{row}, wall", cost["ours"]["wall"], "s", by_hand, AtMostTimes(1.3))]
    try:
        status_of()
    except OSError:
        print("crowd: this system does not tell what a process takes", file=sys.stderr)
        return made
    held = _run_fresh("held", endpoint.url(_LONG_DELAY), n)
    return [
        *made,
        Line(f"{row}, memory of each beside its rows", held["kilobytes"] / n, "KB",
             target=AtMost(25)),
        Line(f"{row}, threads", held["threads"], "count", target=AtMost(4)),
        Line(f"{row}, descriptors", held["descriptors"], "count",
             target=AtMost(_CONNECTIONS + _OTHER_DESCRIPTORS)),
    ]  # fmt: skip


def _run_fresh(contender: str, url: str, n: int) -> Figures:
    return run_fresh("-m", "benchmarks.crowd", contender, url, str(n))


def ask_all(url: str, n: int) -> Figures:
    """Through the public interface, from synchronous code, until all have answered."""
    with Agent("You answer.", provider(url), system_tools=False) as agent:
        agent(Session.from_user_message("first")).synchronize()
        start = time.perf_counter()
        sessions = [agent(Session.from_user_message(f"question {i}")) for i in range(n)]
        assert all(session.text() for session in sessions)
        return {"wall": time.perf_counter() - start}


def hold_all(url: str, n: int) -> Figures:
    """Start all, and tell what the process takes while none has answered; then cancel them."""
    with Agent("You answer.", provider(url), system_tools=False) as agent:
        short = provider(url.replace(_LONG_DELAY, "reply"))
        Agent("You answer.", short, system_tools=False)(
            Session.from_user_message("first")
        ).synchronize()
        asked = [Session.from_user_message(f"question {i}") for i in range(n)]
        gc.collect()
        before = status_of()
        sessions = [agent(session) for session in asked]
        _await_calls(url, min(n, _CONNECTIONS))
        gc.collect()
        during = status_of()
        for session in sessions:
            session.cancel()
    return {
        "kilobytes": during["VmRSS"] - before["VmRSS"],
        "threads": during["Threads"],
        "descriptors": during["Descriptors"],
    }


def _await_calls(url: str, n: int) -> None:
    """Wait until the server holds so many calls, or holds no more for seconds."""
    endpoint = Endpoint(urlsplit(url).port or 0)
    most, last_change = 0, time.monotonic()
    while most < n and time.monotonic() - last_change < _SETTLED_SECONDS:
        peak = endpoint.take_peak()
        if peak > most:
            most, last_change = peak, time.monotonic()
        time.sleep(_POLL_SECONDS)


def ask_all_bare(url: str, n: int) -> Figures:
    """On asyncio streams."""

    async def run() -> Figures:
        await bare_asyncio.ask(url, "first")
        start = time.perf_counter()
        assert all(await bare_asyncio.fan_out_over(url, n, n_connections=_CONNECTIONS))
        return {"wall": time.perf_counter() - start}

    return asyncio.run(run())


_CONTENDERS: dict[str, Callable[[str, int], Figures]] = {
    "ours": ask_all,
    "held": hold_all,
    "bare": ask_all_bare,
}

if __name__ == "__main__":
    contender, base_url, count = sys.argv[1:]
    print(json.dumps(_CONTENDERS[contender](base_url, int(count))))
