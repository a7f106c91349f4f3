"""The base of embedding clients: batches side by side, retries, evidence."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import ClassVar

from rath import __version__
from rath._async.lanes import gather
from rath._async.retry import (
    DEFAULT_BASE_SECONDS,
    DEFAULT_MAX_ATTEMPTS,
    RetryPolicy,
    Sleep,
    retry,
)
from rath._async.runtime import runtime
from rath.errors import ProviderError, ProviderProtocolError
from rath.llm.call import CallFacts, OpenCall
from rath.llm.chat_response import RathLLMChatResponse
from rath.llm.embedding.decode import Embedded, Vector
from rath.llm.embedding.encode import embedding_body
from rath.llm.embedding.provider import EmbeddingProvider
from rath.llm.exchange import CallEvidence, JsonValue
from rath.llm.failure import retry_verdict
from rath.llm.offline import refuse_live_call
from rath.llm.vendor import Route

__all__ = ["Batch", "EmbeddingClient", "Vector"]

MAX_TEXTS = 2048
"""Texts of one request: the most that OpenAI takes (API reference, "Create embeddings")."""

MAX_BYTES = 300_000
"""Bytes of the texts of one request. OpenAI takes 300,000 tokens, and none is less than a byte."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The texts of one request, and the request."""

    texts: tuple[str, ...]
    body: bytes


class EmbeddingClient(ABC):
    """Turns texts into vectors, many at a time; a subclass knows who does it.

    Args:
        provider: What the client is made for.
        sleep: Waits between tries; for tests.
    """

    kind: ClassVar[str]
    renderer: ClassVar[str]
    """Name and version of the code that writes requests."""

    sdk: ClassVar[str | None] = None
    at_once: ClassVar[int] = 4
    """Requests that one call of `embed` has under way; a guess that fills a connection or two."""

    def __init__(self, provider: EmbeddingProvider, *, sleep: Sleep = asyncio.sleep) -> None:
        self._provider = provider
        self._sleep = sleep
        attempts, base = provider.retry_max_attempts, provider.retry_base_seconds
        self._policy = RetryPolicy(
            max_attempts=DEFAULT_MAX_ATTEMPTS if attempts is None else attempts,
            base=DEFAULT_BASE_SECONDS if base is None else base,
        )

    @property
    def provider(self) -> EmbeddingProvider:
        """The provider that the client was made for."""
        return self._provider

    def embed(self, texts: Sequence[str]) -> tuple[Vector, ...]:
        """Return a vector for each text, in their order; waits for them.

        Many texts are sent in several requests. No texts give no vectors, without a call.

        Raises:
            ProviderError: A request failed.
            TypeError: `texts` is no sequence of texts; a single one is for `embed_one`.
            ValueError: A text is blank.
        """
        checked = _checked(texts)
        return runtime().run(lambda: self.aembed(checked), label="embedding texts")

    def embed_one(self, text: str) -> Vector:
        """Return the vector of one text; see `embed`."""
        return self.embed((text,))[0]

    async def aembed(
        self, texts: Sequence[str], *, on_call: Callable[[CallEvidence], None] | None = None
    ) -> tuple[Vector, ...]:
        """Return what `embed` does; runs on the runtime loop.

        Args:
            texts: What to embed.
            on_call: Is told of every request when it has ended, failed and cancelled ones included.
        """
        parameters = self.parameters()
        gate = asyncio.Semaphore(self.at_once)

        async def ask(part: tuple[str, ...]) -> tuple[Vector, ...]:
            async with gate:
                batch = Batch(part, embedding_body(part, parameters))
                call = OpenCall(
                    self._facts(), parameters=parameters, digest=sha256(batch.body).hexdigest()
                )
                try:
                    return await self._call(batch, call)
                finally:
                    if on_call is not None:
                        on_call(call.evidence())

        try:
            parts = await gather([partial(ask, part) for part in _split(_checked(texts))])
        except ExceptionGroup as failed:
            first = failed.exceptions[0]
            raise first from first.__cause__
        vectors = tuple(vector for part in parts for vector in part)
        if len({len(vector) for vector in vectors}) > 1:
            raise ProviderProtocolError(
                f"{self.route().endpoint or self._provider.model} gave vectors of different "
                "lengths for the parts of one list of texts; they cannot be compared"
            )
        return vectors

    @abstractmethod
    def parameters(self) -> Mapping[str, JsonValue]:
        """Return what a request says beside its texts."""

    @abstractmethod
    def route(self) -> Route:
        """Return where the calls go."""

    @abstractmethod
    async def ask(self, batch: Batch, call: OpenCall) -> Embedded:
        """Try once to embed a batch; runs on the runtime loop.

        Args:
            batch: What to embed.
            call: Is told where the endpoint is.

        Raises:
            ProviderError: It failed.
        """

    async def _call(self, batch: Batch, call: OpenCall) -> tuple[Vector, ...]:
        async def attempt(_: int) -> Embedded:
            asked = call.facts.endpoint, call.facts.requested_model
            refuse_live_call(*asked, kind=call.facts.provider_kind)
            return await self.ask(batch, call)

        try:
            embedded = await retry(
                attempt,
                policy=self._policy,
                retryable=retry_verdict,
                on_attempt=call.attempts.append,
                sleep=self._sleep,
            )
        except Exception as exc:
            evidence = call.fail(exc)
            if isinstance(exc, ProviderError):
                exc.evidence = evidence
            raise
        call.served.model = embedded.model
        # As far as evidence goes, it is an answer without choices.
        model = embedded.model or self.provider.model
        call.finish(RathLLMChatResponse("", (), 0, model, usage=embedded.usage))
        return embedded.vectors

    def _facts(self) -> CallFacts:
        route = self.route()
        return CallFacts(
            provider_kind=self._provider.provider_kind or self.kind,
            adapter=f"{type(self).__module__}:{type(self).__qualname__}",
            adapter_version=__version__,
            renderer=self.renderer,
            sdk=self.sdk,
            endpoint=route.endpoint,
            requested_model=route.model,
            origins=route.origins,
        )


def _checked(texts: Iterable[object]) -> tuple[str, ...]:
    if isinstance(texts, str):
        raise TypeError("texts must be a list of texts, not one text; embed_one takes one")
    checked: list[str] = []
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"texts[{index}] must be a text, not {type(text).__name__}")
        if not text.strip():
            raise ValueError(
                f"texts[{index}] is blank, and nothing has no meaning to compare; leave it out"
            )
        checked.append(text)
    return tuple(checked)


def _split(texts: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Give the texts in parts that one request can hold."""
    part: list[str] = []
    size = 0
    for text in texts:
        n_bytes = len(text.encode(errors="replace"))
        if part and (len(part) == MAX_TEXTS or size + n_bytes > MAX_BYTES):
            yield tuple(part)
            part, size = [], 0
        part.append(text)
        size += n_bytes
    if part:
        yield tuple(part)
