"""One turn, and a run of many tool rounds, beside the same by hand: CPU of the client process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from anthropic import Anthropic
from openai import AsyncOpenAI

from benchmarks.by_hand import add_tool, anthropic_sdk, openai_sdk, plain_httpx
from benchmarks.endpoint import Endpoint
from benchmarks.measure import Costs, Sample, interleave, measure
from benchmarks.ours import AddTool, open_agent, provider
from benchmarks.sizes import Sizes
from benchmarks.table import AtMostTimes, Line, Reference, Target
from rath.flow import Agent, Provider
from rath.session import Session

_OURS = "ours"
_SDK = "openai SDK"
_ASYNC_SDK = "openai SDK, async"
_HTTPX = "httpx"
_HTTPX2 = "httpx2"
_TARGETS: dict[str, Target] = {_SDK: AtMostTimes(0.2), _HTTPX: AtMostTimes(1.5)}
_TURNS = 20


def lines(endpoint: Endpoint, sizes: Sizes) -> list[Line]:
    """The run of the budget."""
    return _lines(endpoint, sizes.rounds, repeats=sizes.repeats, targets=_TARGETS)


def long_lines(endpoint: Endpoint, sizes: Sizes) -> list[Line]:
    """A run so long that encoding the history again each round decides its cost."""
    return _lines(endpoint, sizes.depth, repeats=1, targets={})


def turn_lines(endpoint: Endpoint, sizes: Sizes) -> list[Line]:
    """One plain turn on a warm agent, for each vendor whose SDK there is."""
    openai_url = endpoint.url("reply")
    anthropic_url = endpoint.url("message").removesuffix("/v1")
    claude = Provider(base_url=anthropic_url, api_key="x", model="fake", provider_kind="anthropic")
    with (
        Agent(add_tool.SYSTEM, provider(openai_url), system_tools=False) as openai_agent,
        Agent(add_tool.SYSTEM, claude, system_tools=False) as anthropic_agent,
        openai_sdk.open_client(openai_url) as openai_client,
        Anthropic(base_url=anthropic_url, api_key="x") as anthropic_client,
    ):
        works: dict[str, Callable[[str], str | None]] = {
            "openai": lambda text: openai_agent(Session.from_user_message(text)).text(),
            "openai SDK": lambda text: openai_sdk.ask_once(openai_client, text),
            "anthropic": lambda text: anthropic_agent(Session.from_user_message(text)).text(),
            "anthropic SDK": lambda text: anthropic_sdk.ask_once(anthropic_client, text),
        }
        cost = _interleave(
            {name: partial(_in_turn, work) for name, work in works.items()}, repeats=sizes.repeats
        )
    return [
        Line(f"one turn, {vendor}, CPU", cost[vendor].cpu / _TURNS, "ms",
             Reference(f"{vendor} SDK", cost[f"{vendor} SDK"].cpu / _TURNS), AtMostTimes(limit))
        for vendor, limit in (("openai", 0.7), ("anthropic", 0.8))
    ]  # fmt: skip


def _in_turn(ask: Callable[[str], str | None]) -> str | None:
    texts = [ask(f"question {number}") for number in range(_TURNS)]
    assert all(texts), texts
    return texts[-1]


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


def _interleave(works: dict[str, Callable[[], str | None]], *, repeats: int) -> dict[str, Costs]:
    def contend(work: Callable[[], str | None]) -> Callable[[], Sample]:
        return lambda: measure(work)

    return interleave({name: contend(work) for name, work in works.items()}, repeats=repeats)
