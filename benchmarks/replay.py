"""A stored session loaded and run again from its record, beside parsing its bytes as JSON."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from benchmarks.by_hand import add_tool
from benchmarks.endpoint import Endpoint
from benchmarks.measure import interleave, measure
from benchmarks.ours import AddTool, provider
from benchmarks.sizes import Sizes
from benchmarks.table import AtMost, AtMostTimes, Line, Reference, Target
from rath.session import Session, create_system_session, run_session_loop
from rath.session.loading import load
from rath.session.persistence.bundle import BundleStore, pack
from rath.session.persistence.store import FileStore


def lines(endpoint: Endpoint, sizes: Sizes) -> list[Line]:
    """Load and replay one run of many turns, and a chain of runs with one turn each."""
    return [
        *_measured(
            _long_run(endpoint, sizes.turns),
            f"{sizes.turns} turns",
            sizes,
            AtMostTimes(2),
            AtMost(1000),
        ),
        *_measured(
            _chain(endpoint, sizes.turns // 10),
            f"{sizes.turns // 10} runs",
            sizes,
            None,
            AtMostTimes(8),
        ),
    ]


def _measured(
    session: Session, name: str, sizes: Sizes, load_target: Target | None, replay_target: Target
) -> list[Line]:
    with tempfile.TemporaryDirectory() as folder:
        store = FileStore(Path(folder))
        session.save(store=store)
        bundle = pack(store, [session.id])
        held = BundleStore(bundle, "in memory")
        logs = [log.data for log in bundle.logs.values()]

        def parse() -> None:
            for data in logs:
                for line in data.split(b"\n")[:-1]:
                    json.loads(line)

        def ours() -> None:
            loaded = load(store, session.id).session
            assert len(loaded.replay().chunk_table) == len(session.chunk_table)

        def read() -> None:
            load(held, session.id)

        cost = interleave(
            {
                "ours": lambda: measure(ours),
                "load": lambda: measure(read),
                "parse": lambda: measure(parse),
            },
            repeats=sizes.repeats,
        )
    parsed = Reference("json.loads", cost["parse"].wall)
    return [
        Line(f"load of {name}", cost["load"].wall, "ms", parsed, load_target),
        Line(f"load and replay of {name}", cost["ours"].wall, "ms", parsed, replay_target),
    ]


def _long_run(endpoint: Endpoint, turns: int) -> Session:
    return run_session_loop(
        Session.from_user_message(add_tool.QUESTION),
        create_system_session(add_tool.SYSTEM),
        agent_provider=provider(endpoint.url(f"tools-{turns - 1}")),
        tools=[AddTool()],
        max_tool_rounds=turns,
    ).synchronize()


def _chain(endpoint: Endpoint, runs: int) -> Session:
    session, agent = Session.from_user_message("hi"), create_system_session(add_tool.SYSTEM)
    for _ in range(runs):
        session = run_session_loop(session, agent, agent_provider=provider(endpoint.url("tools-0")))
    return session.synchronize()
