"""Reading a stored session back: wall time."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.by_hand import add_tool
from benchmarks.endpoint import Endpoint
from benchmarks.measure import interleave, measure
from benchmarks.ours import AddTool, provider
from benchmarks.sizes import Sizes
from benchmarks.table import AtMost, Line
from rath.session import Session, create_system_session, load_session, run_session_loop


def lines(endpoint: Endpoint, sizes: Sizes) -> list[Line]:
    """Load a session of many turns."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "session.jsonl"
        session = run_session_loop(
            Session.from_user_message(add_tool.QUESTION),
            create_system_session(add_tool.SYSTEM),
            agent_provider=provider(endpoint.url(f"tools-{sizes.turns - 1}")),
            tools=[AddTool()],
            max_tool_rounds=sizes.turns,
            persist_path=path,
        ).synchronize()

        def load() -> None:
            table = load_session(session.id, path=path).chunk_table
            assert len(table) == len(session.chunk_table)

        cost = interleave({"ours": lambda: measure(load)}, repeats=sizes.repeats)
    return [Line(f"load {sizes.turns} turns", cost["ours"].wall, "s", target=AtMost(1))]
