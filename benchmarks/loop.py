"""A run of many tool rounds over HTTP, beside the same loop by hand: CPU of the client process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from openai import AsyncOpenAI

from benchmarks.by_hand import add_tool, openai_sdk, plain_httpx
from benchmarks.endpoint import Endpoint
from benchmarks.measure import Sample, interleave, measure
from benchmarks.ours import AddTool, open_agent
from benchmarks.sizes import Sizes
from benchmarks.table import AtMostTimes, Line, Reference, Target
from rath.session import Session

_OURS = "ours"
_SDK = "openai SDK"
_ASYNC_SDK = "openai SDK, async"
_HTTPX = "httpx"
_HTTPX2 = "httpx2"
_TARGETS: dict[str, Target] = {_SDK: AtMostTimes(0.2), _HTTPX: AtMostTimes(2.0)}


def lines(endpoint: Endpoint, sizes: Sizes) -> list[Line]:
    """The run of the budget."""
    return _lines(endpoint, sizes.rounds, repeats=sizes.repeats, targets=_TARGETS)


def long_lines(endpoint: Endpoint, sizes: Sizes) -> list[Line]:
    """A run so long that encoding the history again each round decides its cost."""
    return _lines(endpoint, sizes.depth, repeats=1, targets={})


def _lines(
    endpoint: Endpoint, rounds: int, *, repeats: int, targets: dict[str, Target]
) -> list[Line]:
    url = endpoint.url(f"tools-{rounds}")
    agent = open_agent(url, AddTool(), max_tool_rounds=rounds + 1)
    async_sdk = AsyncOpenAI(base_url=url, api_key="x")

    with (
        agent,
        asyncio.Runner() as runner,
        openai_sdk.open_client(url) as sdk,
        plain_httpx.open_httpx(url) as httpx_client,
        plain_httpx.open_httpx2(url) as httpx2_client,
    ):
        works: dict[str, Callable[[], str | None]] = {
            _OURS: lambda: agent(Session.from_user_message(add_tool.QUESTION)).text(),
            _SDK: lambda: openai_sdk.run_tools(sdk),
            _ASYNC_SDK: lambda: runner.run(openai_sdk.arun_tools(async_sdk)),
            _HTTPX: lambda: plain_httpx.run_tools(httpx_client),
            _HTTPX2: lambda: plain_httpx.run_tools(httpx2_client),
        }
        cpu = {name: s.cpu for name, s in _interleave(works, repeats=repeats).items()}
        runner.run(async_sdk.close())
    row = f"{rounds} tool rounds, CPU"
    return [
        Line(row, cpu[_OURS], "ms", Reference(name, value), targets.get(name))
        for name, value in cpu.items()
        if name != _OURS
    ]


def _interleave(works: dict[str, Callable[[], str | None]], *, repeats: int) -> dict[str, Sample]:
    def contend(work: Callable[[], str | None]) -> Callable[[], Sample]:
        return lambda: measure(work)

    return interleave({name: contend(work) for name, work in works.items()}, repeats=repeats)
