"""An endpoint in virtual time, and a client of ours for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import uuid4

from rath.errors import ProviderServerError, RateLimitError
from rath.llm import Provider
from rath.llm.credentials import RequestTarget
from rath.llm.evidence import CallEvidence
from rath.llm.openai.client import CompletionsClient
from rath.llm.transport import Transport, WireReply
from tests.support.asking import ask

T = TypeVar("T")

USAGE = {"prompt_tokens": 1000, "completion_tokens": 1000, "total_tokens": 2000}
ANSWER = json.dumps(
    {"id": "1", "choices": [{"message": {"content": "hello"}}], "usage": USAGE}
).encode()


@dataclass(slots=True)
class Endpoint:
    """An endpoint in virtual time: who was there, and when."""

    root: str = field(default_factory=lambda: f"https://{uuid4()}.test")
    takes: float = 10
    """Seconds that an answer needs."""
    n_failing: int = 0
    """Calls that it still refuses, at once."""
    capacity: float = float("inf")
    """It answers further calls with status 429, after the time that an answer needs."""
    n_refused: int = 0
    begun: list[float] = field(default_factory=list[float])
    n_open: int = 0
    most_open: int = 0

    @asynccontextmanager
    async def answering(self) -> AsyncGenerator[None]:
        self.begun.append(asyncio.get_running_loop().time())
        self.n_open += 1
        self.most_open = max(self.most_open, self.n_open)
        try:
            if self.n_failing:
                self.n_failing -= 1
                raise ProviderServerError("down", endpoint=self.root, status=500)
            if self.n_open > self.capacity:
                self.n_refused += 1
                await asyncio.sleep(self.takes)
                raise RateLimitError("too many", endpoint=self.root, status=429)
            yield
        finally:
            self.n_open -= 1


class TimedWire:
    """A way to such an endpoint; a stream gives its one chunk in the middle of the time."""

    sdk_version = None
    credential = None

    def __init__(self, at: Endpoint, url: str) -> None:
        self._at = at
        self.endpoint = url

    async def post(self, body: bytes) -> WireReply:
        async with self._at.answering():
            await asyncio.sleep(self._at.takes)
        return WireReply(200, ANSWER)

    @asynccontextmanager
    async def stream(self, body: bytes) -> AsyncGenerator[TimedStream]:
        async with self._at.answering():
            yield TimedStream(self._at.takes)

    async def models(self) -> tuple[str, ...]:
        return ()


class TimedStream:
    status = 200
    content_type = "text/event-stream"

    def __init__(self, takes: float) -> None:
        self._takes = takes
        self._chunks = [
            b'data: {"choices": [{"delta": {"content": "hi"}}]}\n\n',
            b"data: [DONE]\n\n",
        ]

    async def next_chunk(self) -> bytes:
        await asyncio.sleep(self._takes / 2)
        return self._chunks.pop(0)

    async def drain(self) -> None:
        pass


class TimedClient(CompletionsClient):
    """A client of ours for such an endpoint."""

    kind = "timed"
    target_model = "m"

    def __init__(self, at: Endpoint, *, path: str = "/v1", **limits: Any) -> None:
        super().__init__(Provider(model="m", retry_base_seconds=100, **limits))
        self._at = at
        self._url = at.root + path

    def target(self, model: str | None) -> RequestTarget:
        return RequestTarget(kind=self.kind, endpoint=self._url, model=self.target_model)

    async def connect(self, target: RequestTarget) -> Transport:
        return TimedWire(self._at, self._url)


async def call(client: TimedClient, *, streamed: bool = False) -> CallEvidence:
    """Ask once."""
    draft = client.open_draft(ask(), streaming=streamed, provider_origin="call")
    exchange = await draft.asend(on_delta=(lambda _: None) if streamed else None)
    return exchange.evidence


async def at_once(*calls: Coroutine[Any, Any, T]) -> list[T]:
    return list(await asyncio.gather(*calls))


def most_in_a_minute(begun: list[float]) -> int:
    return max(sum(0 <= at - first < 60 for at in begun) for first in begun)
