"""Chat clients of the kind that users bring, in front of the model of plain rules."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

from rath.errors import ModelNotFoundError
from rath.llm import (
    Provider,
    RathLLMChatRequest,
    RathLLMChatResponse,
    RathLLMStreamDelta,
    normalize_chat_completion,
    to_create_kwargs,
)
from rath.llm.stream import split
from tests.support.asking import KEY
from tests.support.served_model import MODEL, openai
from tests.support.served_model.model import Prompt, Said, answer

__all__ = ["AsyncRuleClient", "RuleClient", "SilentRuleClient"]


class SilentRuleClient:
    """Only knows `complete`."""

    def __init__(self) -> None:
        self.provider = Provider(model=MODEL, api_key=KEY)

    def complete(self, req: RathLLMChatRequest) -> RathLLMChatResponse:
        return self.respond(req)

    def respond(self, req: RathLLMChatRequest) -> RathLLMChatResponse:
        """Ask the model; broken clients begin here."""
        prompt = openai.read(to_create_kwargs(req, default_model=MODEL))
        if prompt.model != MODEL:
            raise ModelNotFoundError(f"there is no model {prompt.model!r}", status=404)
        return self.tell(prompt, self.think(prompt))

    def think(self, prompt: Prompt) -> Said:
        return answer(prompt)

    def tell(self, prompt: Prompt, said: Said) -> RathLLMChatResponse:
        return normalize_chat_completion(openai.completion(prompt, said))


class RuleClient(SilentRuleClient):
    """Plain functions."""

    def complete_stream(self, req: RathLLMChatRequest) -> Iterator[RathLLMStreamDelta]:
        yield from split(self.respond(req))


class AsyncRuleClient(SilentRuleClient):
    """Coroutines, and an asynchronous generator."""

    async def complete(self, req: RathLLMChatRequest) -> RathLLMChatResponse:  # type: ignore[override]  # a client may bring either
        await asyncio.sleep(0)
        return self.respond(req)

    async def complete_stream(self, req: RathLLMChatRequest) -> AsyncIterator[RathLLMStreamDelta]:
        for delta in split(self.respond(req)):
            await asyncio.sleep(0)
            yield delta
