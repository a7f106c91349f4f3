"""The same programs on other frameworks: rounds, fan-out, import and what each writes to disk."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.endpoint import Endpoint
from benchmarks.measure import Figures, Runs, interleave_figures, run_fresh
from benchmarks.peers.environments import python_of
from benchmarks.report import cache_folder
from benchmarks.sizes import Sizes
from benchmarks.startup import IMPORT, OUR_IMPORT
from benchmarks.table import Line, Reference, Unit

_ROOT = Path(__file__).parents[2]
_OURS = "ours"


@dataclass(frozen=True, slots=True)
class Peer:
    """A framework that is measured beside ours."""

    module: str
    imports: str
    """Statements that a program with a tool and a chat model begins with."""
    requirements: tuple[str, ...] = ()
    persists: bool = True


_PEERS = {
    _OURS: Peer("on_rath", f"{OUR_IMPORT}; from rath.flow import Agent, Provider"),
    "langgraph": Peer(
        "on_langgraph",
        "from langchain_openai import ChatOpenAI; from langgraph.graph import StateGraph; "
        "from langgraph.prebuilt import ToolNode",
        ("langgraph>=1.2,<2", "langchain-openai>=1.7,<2", "langgraph-checkpoint-sqlite>=3.1,<4"),
    ),
    "pydantic-ai": Peer(
        "on_pydantic_ai",
        "from pydantic_ai import Agent; from pydantic_ai.models.openai import OpenAIChatModel",
        ("pydantic-ai-slim[openai]>=2.68,<3",),
        persists=False,
    ),
    "openai-agents": Peer(
        "on_openai_agents",
        "from agents import Agent, OpenAIChatCompletionsModel, Runner",
        ("openai-agents>=0.24,<0.25",),
    ),
    "agent-framework": Peer(
        "on_agent_framework",
        "from agent_framework import Agent; "
        "from agent_framework_openai import OpenAIChatCompletionClient",
        ("agent-framework-core>=1.23,<2", "agent-framework-openai>=1.17,<2"),
    ),
}

Run = Callable[[Peer, str], Figures]


def lines(endpoint: Endpoint, sizes: Sizes) -> list[Line]:
    """One line for each framework that can be installed here, and each program."""
    pythons = _pythons()
    tools, delay = endpoint.url(f"tools-{sizes.rounds}"), endpoint.url("delay-100ms")

    def interleaved(run: Run, *, repeats: int) -> Mapping[str, Mapping[str, Runs]]:
        return interleave_figures(
            {name: partial(run, _PEERS[name], python) for name, python in pythons.items()},
            repeats=repeats,
        )

    rounds = interleaved(partial(_program, "tools", tools, sizes.rounds), repeats=sizes.repeats)
    fanout = interleaved(partial(_program, "fanout", delay, sizes.sessions), repeats=sizes.repeats)
    imports = interleaved(_import, repeats=sizes.repeats)
    disk = interleaved(partial(_disk, tools, sizes.rounds), repeats=1)
    return [
        *_beside(f"{sizes.rounds} tool rounds, CPU", rounds, "cpu", "ms"),
        *_beside(f"{sizes.sessions} sessions of 100 ms, CPU", fanout, "cpu", "ms"),
        *_beside(f"{sizes.sessions} sessions of 100 ms, wall", fanout, "wall", "ms"),
        *_beside("import of what a program needs, CPU", imports, "cpu", "ms"),
        *_beside("import of what a program needs, peak memory", imports, "peak", "MB"),
        *_beside(f"written in {sizes.rounds} tool rounds", disk, "kilobytes", "KB"),
    ]


def _pythons() -> dict[str, str]:
    """The interpreter of each framework that is there or can be installed."""
    found: dict[str, str] = {_OURS: sys.executable}
    for name, peer in _PEERS.items():
        if name == _OURS:
            continue
        try:
            found[name] = python_of(name, peer.requirements, cache=cache_folder() / "peers")
        except (OSError, subprocess.SubprocessError) as error:
            print(f"left out {name}: {error}", file=sys.stderr)
    return found


def _program(program: str, url: str, n: int, peer: Peer, python: str) -> Figures:
    module = f"benchmarks.peers.{peer.module}"
    return run_fresh("-m", module, program, url, str(n), python=python, cwd=_ROOT)


def _import(peer: Peer, python: str) -> Figures:
    return run_fresh("-c", IMPORT.format(program=peer.imports), python=python)


def _disk(url: str, n: int, peer: Peer, python: str) -> Figures:
    if not peer.persists:
        return {"kilobytes": 0.0}
    return {"kilobytes": _program("disk", url, n, peer, python)["bytes"] / 1e3}


def _beside(row: str, cost: Mapping[str, Mapping[str, Runs]], key: str, unit: Unit) -> list[Line]:
    """Ours beside each framework that has a figure."""
    return [
        Line(row, cost[_OURS][key], unit, Reference(name, figures[key]))
        for name, figures in cost.items()
        if name != _OURS and figures[key].median > 0
    ]
