"""The programs on Pydantic AI, which has no persistence of its own for runs of an agent."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import UsageLimits

from benchmarks.by_hand.add_tool import SYSTEM
from benchmarks.peers.program import MODEL, Ask, Place, add, run_program


@asynccontextmanager
async def _open_agent(place: Place) -> AsyncGenerator[Ask]:
    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=place.url, api_key="x"))
    agent = Agent(model, system_prompt=SYSTEM, tools=[add])

    async def ask(question: str) -> str:
        result = await agent.run(question, usage_limits=UsageLimits(request_limit=None))
        return str(result.output)

    yield ask


if __name__ == "__main__":
    run_program(_open_agent)
