"""Calls of a tool server on pipes: CPU and wall time beside the bare client of the official SDK."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters

from benchmarks.endpoint import Endpoint
from benchmarks.measure import Sample, interleave, measure
from benchmarks.sizes import Sizes
from benchmarks.table import Line, Reference
from rath.mcp import MCPClient

_SERVER = Path(__file__).with_name("mcp_server.py")
# Without -P the directory of the program would come first on the path, and `mcp` be this module.
_ARGV = [sys.executable, "-P", str(_SERVER)]
_AT_ONCE = 50
_BARE = "the SDK's client"

Call = Callable[[int], Awaitable[Any]]


def lines(endpoint: Endpoint, sizes: Sizes) -> list[Line]:
    """What a call costs on an open connection: one after another, and many at once."""
    del endpoint
    n_calls = sizes.server_calls
    with _own_loop() as run, MCPClient(_ARGV) as ours, _bare(run) as bare:
        contenders: dict[str, Call] = {
            "ours": lambda n: ours.acall_tool("add", {"a": n, "b": 1}),
            _BARE: lambda n: bare.call_tool("add", {"a": n, "b": 1}),
        }
        alone = interleave(
            {name: partial(_in_turn, run, call, n_calls) for name, call in contenders.items()},
            repeats=sizes.repeats,
        )
        together = interleave(
            {name: partial(_at_once, run, call, n_calls) for name, call in contenders.items()},
            repeats=sizes.repeats,
        )
        by_thread = measure(
            lambda: [ours.call_tool("add", {"a": n, "b": 1}) for n in range(n_calls)]
        )
    found: list[Line] = []
    for row, cost in (
        ("a call of an MCP server", alone),
        (f"the same, {_AT_ONCE} at once", together),
    ):
        for what, ours_cost, theirs in (
            ("CPU", cost["ours"].cpu, cost[_BARE].cpu),
            ("wall", cost["ours"].wall, cost[_BARE].wall),
        ):
            reference = Reference(_BARE, theirs / n_calls)
            found.append(Line(f"{row}, {what}", ours_cost / n_calls, "ms", reference))
    reference = Reference(_BARE, alone[_BARE].wall / n_calls)
    found.append(
        Line(
            "a call of an MCP server from a thread, wall", by_thread.wall / n_calls, "ms", reference
        )
    )
    return found


Run = Callable[[Coroutine[Any, Any, Any]], Any]


@contextmanager
def _own_loop() -> Generator[Run]:
    """An event loop in a thread, as a program without rath would have it."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield lambda work: asyncio.run_coroutine_threadsafe(work, loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def _bare(run: Run) -> Generator[Client]:
    """The SDK's client, open; one task opens and closes it, as it has to be."""
    opened: asyncio.Future[Client]
    ended: asyncio.Event

    async def hold() -> None:
        async with Client(StdioServerParameters(command=_ARGV[0], args=_ARGV[1:])) as client:
            opened.set_result(client)
            await ended.wait()

    async def start() -> tuple[asyncio.Task[None], Client]:
        nonlocal opened, ended
        opened, ended = asyncio.get_running_loop().create_future(), asyncio.Event()
        task = asyncio.create_task(hold())
        task.add_done_callback(lambda _: opened.cancel())
        try:
            return task, await opened
        except asyncio.CancelledError:
            await task  # says why it could not be opened
            raise

    async def end() -> None:
        ended.set()
        await task

    task, client = run(start())
    try:
        yield client
    finally:
        run(end())


def _in_turn(run: Run, call: Call, n_calls: int) -> Sample:
    async def work() -> None:
        for n in range(n_calls):
            await call(n)

    return measure(lambda: run(work()))


def _at_once(run: Run, call: Call, n_calls: int) -> Sample:
    async def work() -> None:
        for begin in range(0, n_calls, _AT_ONCE):
            await asyncio.gather(*(call(n) for n in range(begin, min(begin + _AT_ONCE, n_calls))))

    return measure(lambda: run(work()))
