"""The programs that every framework runs, in its own environment; needs the standard library only.

A module `on_...` opens an agent of its framework. Run as `python -m benchmarks.peers.on_...
PROGRAM URL N` it runs one program and prints its figures as JSON:

    tools  CPU of a run of N tool rounds, the second one in its process
    fanout CPU and wall of N questions at once
    disk   bytes that the framework's own persistence writes in a run of N tool rounds; 0 without
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.by_hand.add_tool import QUESTION

MODEL = "fake"

Ask = Callable[[str], Awaitable[str]]
"""Answers a question in a conversation of its own."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an agent finds its model, and where it writes."""

    url: str
    """Ends with `/v1`."""
    rounds: int
    """Tool rounds that a run must be allowed."""
    folder: Path | None = None
    """None for a run in memory."""


OpenAgent = Callable[[Place], AbstractAsyncContextManager[Ask]]


def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


def run_program(open_agent: OpenAgent) -> None:
    """Run the program that the command line names, and print its figures."""
    program, url, count = sys.argv[1:4]
    programs = {"tools": _tools, "fanout": _fanout, "disk": _disk}
    print(json.dumps(asyncio.run(programs[program](open_agent, url, int(count)))))


async def _tools(open_agent: OpenAgent, url: str, n: int) -> dict[str, float]:
    async with open_agent(Place(url, n)) as ask:
        assert await ask(QUESTION)
        return await _cost(ask(QUESTION))


async def _fanout(open_agent: OpenAgent, url: str, n: int) -> dict[str, float]:
    async with open_agent(Place(url, 0)) as ask:
        assert await ask("first")
        return await _cost(asyncio.gather(*(ask(f"question {i}") for i in range(n))))


async def _disk(open_agent: OpenAgent, url: str, n: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="rath-peers-") as folder:
        async with open_agent(Place(url, n, Path(folder))) as ask:
            assert await ask(QUESTION)
        return {"bytes": _size(Path(folder))}


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


async def _cost(work: Awaitable[object]) -> dict[str, float]:
    cpu, wall = time.process_time(), time.perf_counter()
    assert await work
    return {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}
