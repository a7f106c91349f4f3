"""The programs on Microsoft's Agent Framework, with its history in files."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from agent_framework import Agent, FileHistoryProvider
from agent_framework_openai import OpenAIChatCompletionClient

from benchmarks.by_hand.add_tool import SYSTEM
from benchmarks.peers.program import MODEL, Ask, Place, add, run_program


@asynccontextmanager
async def _open_agent(place: Place) -> AsyncGenerator[Ask]:
    client = OpenAIChatCompletionClient(MODEL, base_url=place.url, api_key="x")
    client.function_invocation_configuration["max_iterations"] = place.rounds + 2
    providers = [] if place.folder is None else [FileHistoryProvider(place.folder)]
    agent = Agent(client, SYSTEM, tools=[add], context_providers=providers)

    async def ask(question: str) -> str:
        session = agent.create_session()
        return str((await agent.run(question, session=session)).text)

    yield ask


if __name__ == "__main__":
    run_program(_open_agent)
