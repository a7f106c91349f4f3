"""The programs on the OpenAI Agents SDK, with its SQLite sessions."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

from benchmarks.by_hand.add_tool import SYSTEM
from benchmarks.peers.program import MODEL, Ask, Place, add, run_program


@asynccontextmanager
async def _open_agent(place: Place) -> AsyncGenerator[Ask]:
    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=place.url, api_key="x")
    model = OpenAIChatCompletionsModel(MODEL, openai_client=client)
    agent = Agent(name="adder", instructions=SYSTEM, model=model, tools=[function_tool(add)])
    names = itertools.count()

    async def ask(question: str) -> str:
        session = None
        if place.folder is not None:
            session = SQLiteSession(str(next(names)), place.folder / "sessions.sqlite3")
        result = await Runner.run(agent, question, max_turns=place.rounds + 2, session=session)
        return str(result.final_output)

    async with client:
        yield ask


if __name__ == "__main__":
    run_program(_open_agent)
