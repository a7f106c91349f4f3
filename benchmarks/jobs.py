"""`flow.map` over many items beside a bare gather of the same agents, both recorded.

Run as `python -m benchmarks.jobs CONTENDER URL N` it does one of them in a fresh process and prints
its figures as JSON; a first call opens the client and loads what is loaded late.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import tempfile
import time
from functools import partial

from benchmarks.endpoint import Endpoint
from benchmarks.measure import Figures, interleave_figures, run_fresh
from benchmarks.sizes import Sizes
from benchmarks.table import AtMost, AtMostTimes, Line, Reference
from rath import flow
from rath.session import Session
from rath.session.persistence.store import FileStore

_AT_ONCE = 100
_MAX_MORE_MB = 30


def lines(endpoint: Endpoint, sizes: Sizes) -> list[Line]:
    """CPU and wall of a job, and the memory that it takes beyond the gather."""
    n_items, url = sizes.items, endpoint.url("delay-100ms")
    cost = interleave_figures(
        {name: partial(_run_fresh, name, url, n_items) for name in ("gather", "map", "procs")},
        repeats=sizes.repeats,
    )
    ours, gather = cost["map"], cost["gather"]
    row = f"{n_items} items, {_AT_ONCE} in flight"
    reference = "gather of the same agents"
    return [
        Line(f"{row}, CPU", ours["cpu"], "s", Reference(reference, gather["cpu"]),
             AtMostTimes(1.1)),
        Line(f"{row}, wall", ours["wall"], "s", Reference(reference, gather["wall"])),
        Line(f"{row}, memory beyond the gather", ours["mb"] - gather["mb"], "count",
             target=AtMost(_MAX_MORE_MB)),
        Line(f"{row}, procs:4, CPU of all processes", cost["procs"]["cpu"], "s",
             Reference("in this process", ours["cpu"])),
    ]  # fmt: skip


def _run_fresh(contender: str, url: str, n_items: int) -> Figures:
    return run_fresh("-m", "benchmarks.jobs", contender, url, str(n_items))


def _provider(url: str) -> flow.Provider:
    """Return the fake server as a provider whose key each process has in its environment."""
    return flow.Provider(base_url=url, model="fake")


class Team(flow.Workflow):
    """Two agents, one after the other."""

    def __init__(self, url: str, store: FileStore | None = None) -> None:
        super().__init__()
        self.first = flow.Agent("You draft.", _provider(url), system_tools=False, store=store)
        self.second = flow.Agent("You edit.", _provider(url), system_tools=False, store=store)

    def forward(self, session: Session) -> Session:
        return self.second(self.first(session))


def gather(url: str, n_items: int, store: FileStore) -> None:
    """Call the workflow on each item, so many at once."""
    team = Team(url, store)

    async def run() -> None:
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(index: int) -> Session:
            async with gate:
                return await team(Session.from_user_message(f"question {index}"))

        await asyncio.gather(*(one(index) for index in range(n_items)))

    asyncio.run(run())


def map_items(url: str, n_items: int, store: FileStore, engine: str | None = None) -> None:
    """Run the workflow on each item as a job."""
    items = [f"question {index}" for index in range(n_items)]
    job = flow.map(Team(url), items, store=store, engine=engine, concurrency=_AT_ONCE)
    assert all(item.state == "done" for item in job.synchronize().items)


def main(contender: str, url: str, n_items: int) -> Figures:
    """Run one contender, and return what it took."""
    engine = "procs:4" if contender == "procs" else None
    work = gather if contender == "gather" else partial(map_items, engine=engine)
    with tempfile.TemporaryDirectory() as folder:
        store = FileStore(folder)
        work(url, 2, store)
        cpu, wall = _cpu_seconds(), time.perf_counter()
        work(url, n_items, store)
        wall = time.perf_counter() - wall
        cpu = _cpu_seconds() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"cpu": cpu, "wall": wall, "mb": peak / (1 << 20 if sys.platform == "darwin" else 1024)}


def _cpu_seconds() -> float:
    """Return the CPU time of this process and of those that it has waited for."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


if __name__ == "__main__":
    name, base_url, count = sys.argv[1:]
    os.environ["OPENAI_API_KEY"] = "x"
    print(json.dumps(main(name, base_url, int(count))))
