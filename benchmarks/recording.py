"""What it costs to write a run while it goes on, and how much is written: CPU, wall and bytes."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.by_hand import add_tool
from benchmarks.endpoint import Endpoint
from benchmarks.measure import Sample
from benchmarks.ours import AddTool, provider
from benchmarks.sizes import Sizes
from benchmarks.table import AtMost, AtMostTimes, Line, Reference
from rath.flow.tool import FlowToolCall
from rath.session import Session, create_system_session, run_session_loop
from rath.session.log.store import session_file
from rath.session.run.recorder import Durability

_FEW = 10
_POLICIES: tuple[Durability, ...] = ("none", "turn", "row")


def lines(endpoint: Endpoint, sizes: Sizes) -> list[Line]:
    """Cost of recording a round under each policy, and growth with rounds and with sessions."""
    return [*_costs(endpoint, sizes), *_growth(endpoint, sizes)]


class ClockedAddTool(AddTool):
    """Notes the CPU clock of the process and the time at each call."""

    def __init__(self) -> None:
        self.clock: list[tuple[float, float]] = []

    def __call__(self, session: Session, arguments: Mapping[str, Any]) -> str:
        self.clock.append((time.process_time(), time.perf_counter()))
        return super().__call__(session, arguments)


def _costs(endpoint: Endpoint, sizes: Sizes) -> list[Line]:
    """From call to call of the tool, so that the beginning and the end of a run do not count."""
    url = endpoint.url(f"tools-{sizes.rounds}")
    policies: tuple[Durability | None, ...] = (None, *_POLICIES)
    rounds: dict[Durability | None, list[Sample]] = {policy: [] for policy in policies}
    with _home():
        for repeat in range(sizes.repeats + 1):
            for policy in policies:
                tool = ClockedAddTool()
                _run(url, sizes.rounds, policy, tool)
                if repeat:  # the first run opens connections and loads what is loaded late
                    rounds[policy] += _rounds(tool)
    base = _typical(rounds[None])
    made: list[Line] = []
    for policy in _POLICIES:
        cost = _typical(rounds[policy])
        target = AtMost(0.3) if policy == "turn" else None
        row, memory = f"recording a round, {policy}", "in memory, with its post"
        cpu, wall = cost.cpu - base.cpu, cost.wall - base.wall
        made += [
            Line(f"{row}: CPU", cpu, "ms", Reference(memory, base.cpu), target),
            Line(f"{row}: wall", wall, "ms", Reference(memory, base.wall)),
        ]
    return made


def _rounds(tool: ClockedAddTool) -> list[Sample]:
    return [Sample(end[0] - start[0], end[1] - start[1]) for start, end in pairwise(tool.clock)]


def _typical(rounds: Sequence[Sample]) -> Sample:
    """The lower quartiles: whatever else runs on the machine only adds to some rounds."""
    return Sample(
        statistics.quantiles((each.cpu for each in rounds), n=4)[0],
        statistics.quantiles((each.wall for each in rounds), n=4)[0],
    )


def _growth(endpoint: Endpoint, sizes: Sizes) -> list[Line]:
    with _home():
        few = _size(_run(endpoint.url(f"tools-{_FEW}"), _FEW, "none"))
        many = _size(_run(endpoint.url(f"tools-{sizes.depth}"), sizes.depth, "none"))
        later = (many - few) / (sizes.depth - _FEW)
        chain = _chain(endpoint.url("tools-0"), sizes.sessions // 2)
    return [
        Line(
            f"bytes a round, up to {sizes.depth}",
            later,
            "count",
            Reference(f"up to {_FEW}", few / _FEW),
            AtMostTimes(1.1),
        ),
        Line(
            f"bytes of session {len(chain)} of a chain",
            chain[-1],
            "count",
            Reference("of the 2nd", chain[1]),
            AtMostTimes(1.1),
        ),
    ]


def _run(
    url: str, rounds: int, policy: Durability | None, tool: FlowToolCall | None = None
) -> Session:
    return run_session_loop(
        Session.from_user_message(add_tool.QUESTION),
        create_system_session(add_tool.SYSTEM),
        agent_provider=provider(url),
        tools=[tool or AddTool()],
        system_tools=False,
        max_tool_rounds=rounds + 1,
        persist=policy is not None,
        durability=policy,
    ).synchronize()


def _chain(url: str, n_sessions: int) -> list[int]:
    """Bytes of the logs of sessions that go on from one another, one answer each."""
    session, agent = Session.from_user_message(add_tool.QUESTION), create_system_session("x")
    sizes: list[int] = []
    for _ in range(n_sessions):
        session = run_session_loop(
            session, agent, agent_provider=provider(url), system_tools=False, persist=True
        )
        sizes.append(_size(session.synchronize()))
    return sizes


def _size(session: Session) -> int:
    return session_file(session.id).stat().st_size


@contextmanager
def _home() -> Generator[None]:
    """Write to a home of its own, which is removed afterwards."""
    before = os.environ["OPENRATH_HOME"]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["OPENRATH_HOME"] = str(Path(folder))
        try:
            yield
        finally:
            os.environ["OPENRATH_HOME"] = before
