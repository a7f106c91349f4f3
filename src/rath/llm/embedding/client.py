"""Clients for embeddings: batches side by side, over OpenAI's protocol or a driver of their own."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pkgutil import resolve_name
from typing import ClassVar

from rath._async.lanes import gather
from rath._async.retry import Sleep
from rath._async.runtime import runtime
from rath.errors import ProviderProtocolError
from rath.llm.body import to_json
from rath.llm.chat_response import RathLLMChatResponse
from rath.llm.credentials import RequestTarget
from rath.llm.embedding.decode import EmbeddingReply, Vector, decode_embeddings
from rath.llm.embedding.provider import EmbeddingProvider
from rath.llm.evidence import CallEvidence, CallRecorder, JsonValue
from rath.llm.one_shot import OneShotClient, PurposeEndpoint

__all__ = ["EmbeddingBatch", "EmbeddingClient", "RathOpenAIEmbeddingClient", "embedding_client_for"]

MAX_TEXTS = 2048
"""Texts of one request: the most that OpenAI takes (API reference, "Create embeddings")."""

MAX_BYTES = 300_000
"""Bytes of the texts of one request. OpenAI takes 300,000 tokens, and none is less than a byte."""

_LONG = 100_000
"""Bytes of an answer that are read on a worker thread, so that no other session waits."""


@dataclass(frozen=True, slots=True)
class EmbeddingBatch:
    """The texts of one request, and the request."""

    texts: tuple[str, ...]
    body: bytes


class EmbeddingClient(OneShotClient[EmbeddingProvider]):
    """Turns texts into vectors, many at a time; a subclass knows who does it.

    Args:
        provider: What the client is made for.
        sleep: Waits between tries; for tests.
    """

    at_once: ClassVar[int] = 4
    """Requests that one call of `embed` has under way; a guess that fills a connection or two."""

    def __init__(self, provider: EmbeddingProvider, *, sleep: Sleep = asyncio.sleep) -> None:
        super().__init__(provider, sleep=sleep)

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
            on_call: Called for every request when it has ended, failed and cancelled ones included.
        """
        parameters = self.parameters()
        gate = asyncio.Semaphore(self.at_once)

        async def ask(part: tuple[str, ...]) -> tuple[Vector, ...]:
            async with gate:
                batch = EmbeddingBatch(part, to_json({"input": list(part), **parameters}))
                call = self._open_call(batch.body, parameters)
                try:
                    reply = await self._complete(call, lambda: self.ask(batch, call))
                    call.served.model = reply.model
                    # As far as evidence goes, it is an answer without choices.
                    model = reply.model or self.provider.model
                    call.finish(RathLLMChatResponse("", (), 0, model, usage=reply.usage))
                    return reply.vectors
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
                f"{self.route().endpoint or self.provider.model} gave vectors of different "
                "lengths for the parts of one list of texts; they cannot be compared"
            )
        return vectors

    @abstractmethod
    def parameters(self) -> Mapping[str, JsonValue]:
        """Return the fields of a request beside its texts."""

    @abstractmethod
    async def ask(self, batch: EmbeddingBatch, call: CallRecorder) -> EmbeddingReply:
        """Try once to embed a batch; runs on the runtime loop.

        Args:
            batch: What to embed.
            call: Records where the endpoint is.

        Raises:
            ProviderError: It failed.
        """


class RathOpenAIEmbeddingClient(EmbeddingClient):
    """Asks OpenAI, Azure OpenAI, or any server that speaks their protocol, for embeddings.

    Args:
        provider: Endpoint, key, model and patience; see `EmbeddingProvider`.
        sleep: Waits between tries; for tests.

    Raises:
        ValueError: There is no key, or the base_url is not one.
    """

    kind: ClassVar[str] = "openai"
    renderer: ClassVar[str] = "openai-embeddings/1"
    sdk: ClassVar[str | None] = "openai"

    def __init__(self, provider: EmbeddingProvider, *, sleep: Sleep = asyncio.sleep) -> None:
        super().__init__(provider, sleep=sleep)
        self._endpoint = PurposeEndpoint(provider, purpose="embedding", path="/embeddings")

    def parameters(self) -> Mapping[str, JsonValue]:
        size = self.provider.dimensions
        # Base64 as in the official SDKs: for 2,048 texts of 1,536 dimensions that is 17 MB to read
        # instead of 44, in a quarter of the time.
        return {
            "model": self.provider.model,
            **({} if size is None else {"dimensions": size}),
            "encoding_format": "base64",
        }

    def route(self) -> RequestTarget:
        return self._endpoint.target

    async def ask(self, batch: EmbeddingBatch, call: CallRecorder) -> EmbeddingReply:
        content = await self._endpoint.post(batch.body, call)
        decode = partial(
            decode_embeddings,
            content,
            self._endpoint.target,
            n_texts=len(batch.texts),
            dimensions=self.provider.dimensions,
        )
        return await runtime().call_in_worker(decode) if len(content) > _LONG else decode()


_CLIENTS = {
    "local": "rath.llm.local.embedding:RathLocalEmbeddingClient",
    "openai": "rath.llm.embedding.client:RathOpenAIEmbeddingClient",
}
"""Client of each kind; imported on first use."""


def embedding_client_for(provider: EmbeddingProvider) -> EmbeddingClient:
    """Return a client for `provider`; its kind is "openai" when it names none.

    Raises:
        MissingExtra: The kind needs packages that are not installed.
        ValueError: No such kind; or the client finds no key.
    """
    kind = provider.provider_kind or "openai"
    if kind not in _CLIENTS:
        raise ValueError(
            f"no embeddings from provider_kind {kind!r}; known: {', '.join(_CLIENTS)}. A server "
            'that speaks the OpenAI protocol is of the kind "openai"'
        )
    client: EmbeddingClient = resolve_name(_CLIENTS[kind])(provider)
    return client


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
    """Yield the texts in parts that one request can hold."""
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
