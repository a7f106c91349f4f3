"""Our own side."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from benchmarks.ours import AddTool, open_agent
from benchmarks.peers.program import Ask, Place, run_program
from rath.session import Session


@asynccontextmanager
async def _open_agent(place: Place) -> AsyncGenerator[Ask]:
    is_written = place.folder is not None
    if is_written:
        os.environ["OPENRATH_HOME"] = str(place.folder)
    agent = open_agent(place.url, AddTool(), max_tool_rounds=place.rounds + 1, persist=is_written)

    async def ask(question: str) -> str:
        session = await agent(Session.from_user_message(question))
        return session.text() or ""

    with agent:
        yield ask


if __name__ == "__main__":
    run_program(_open_agent)
