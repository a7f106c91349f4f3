"""What it costs to write a run while it goes on, and how much is written: CPU, wall and bytes."""

from __future__ import annotations

from functools import partial
from typing import Literal

from benchmarks.by_hand import add_tool
from benchmarks.endpoint import Endpoint
from benchmarks.measure import Sample, interleave, quartile
from benchmarks.ours import AddTool, ClockedAddTool, new_home, provider
from benchmarks.sizes import Sizes
from benchmarks.table import AtMost, AtMostTimes, Line, Reference
from rath.flow.tool import FlowToolCall
from rath.session import Session, create_system_session, run_session_loop
from rath.session.persistence import session_file

Durability = Literal["turn", "row", "none"]

_FEW = 10
_POLICIES: tuple[Durability, ...] = ("none", "turn", "row")


def lines(endpoint: Endpoint, sizes: Sizes) -> list[Line]:
    """Cost of recording a round under each policy, and growth with rounds and with sessions."""
    return [*_costs(endpoint, sizes), *_growth(endpoint, sizes)]


def _costs(endpoint: Endpoint, sizes: Sizes) -> list[Line]:
    """From call to call of the tool, so that the beginning and the end of a run do not count."""
    url = endpoint.url(f"tools-{sizes.rounds}")

    def typical_round(policy: Durability | None) -> Sample:
        tool = ClockedAddTool()
        _run(url, sizes.rounds, policy, tool)
        return quartile(tool.rounds())

    policies: tuple[Durability | None, ...] = (None, *_POLICIES)
    with new_home():
        cost = interleave(
            {str(policy): partial(typical_round, policy) for policy in policies},
            repeats=sizes.repeats,
        )
    base = cost[str(None)]
    made: list[Line] = []
    for policy in _POLICIES:
        target = AtMost(0.3) if policy == "turn" else None
        row, memory = f"recording a round, {policy}", "in memory, with its post"
        cpu, wall = cost[policy].cpu - base.cpu, cost[policy].wall - base.wall
        made += [
            Line(f"{row}: CPU", cpu, "ms", Reference(memory, base.cpu), target),
            Line(f"{row}: wall", wall, "ms", Reference(memory, base.wall)),
        ]
    return made


def _growth(endpoint: Endpoint, sizes: Sizes) -> list[Line]:
    with new_home():
        few = _size(_run(endpoint.url(f"tools-{_FEW}"), _FEW, "none"))
        many = _size(_run(endpoint.url(f"tools-{sizes.depth}"), sizes.depth, "none"))
        later = (many - few) / (sizes.depth - _FEW)
        chain = _chain(endpoint.url("tools-0"), sizes.sessions // 2)
    return [
        Line("bytes a recorded round", many / sizes.depth, "count", target=AtMost(2000)),
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
