"""Texts as vectors: the provider, the decoder, and clients that send batches side by side."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import math
import sys
from abc import abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pkgutil import resolve_name
from typing import Any, ClassVar, Self, cast

from rath import config
from rath._async.lanes import gather
from rath._async.retry import Sleep
from rath._async.runtime import runtime
from rath._core.dataclasses import dataclass
from rath._core.text import valid_unicode
from rath.errors import ProviderProtocolError
from rath.llm.body import to_json
from rath.llm.chat_response import RathLLMChatResponse, RathLLMTokenUsage, count_of, fields_of
from rath.llm.credentials import RequestTarget, default_entry, entry_for
from rath.llm.errors import ModelLister, answer_error, protocol_error
from rath.llm.evidence import CallEvidence, CallRecorder, JsonValue
from rath.llm.one_shot import OneShotClient, PurposeEndpoint, PurposeProvider

DEFAULT_EMBEDDING_MODEL = "text-embedding-3-small"
"""OpenAI's model, where a config names none."""

LOCAL_EMBEDDING_MODEL = "all-MiniLM-L6-v2"
"""The model that the extra `local` brings: 384 dimensions, texts up to 256 tokens."""


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class EmbeddingProvider(PurposeProvider):
    """Names an embedding model and an endpoint.

    Endpoint and key are looked up when a client is made, if they are None here: in the
    environment, then in the config.

    Raises:
        TypeError: A field has a type that it can never have.
        ValueError: There is no model, or a number is out of its range.
    """

    _noun: ClassVar[str] = "an embedding model"

    dimensions: int | None = None
    """Length of the vectors, for models that can give shorter ones; the model's own by default."""

    provider_kind: str | None = None
    """Kind of endpoint: "openai", the default, or "local" for a model inside the process."""

    def __post_init__(self) -> None:
        PurposeProvider.__post_init__(self)  # a class with slots is made twice
        size: object = self.dimensions
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
            raise ValueError(f"dimensions must be a whole number of at least 1, not {size!r}")

    @classmethod
    def local(cls) -> Self:
        """Return the provider of the model inside the process: no key, no network."""
        return cls(provider_kind="local", model=LOCAL_EMBEDDING_MODEL)

    @classmethod
    def from_config(
        cls, name: str | None = None, *, store: config.ConfigStore | None = None, **overrides: Any
    ) -> Self:
        """Return a provider as the config describes it.

        Without a name it is `llm.embedding_provider`; without that, the account of
        `llm.default_provider`, if it is one for OpenAI's protocol, with the default model; without
        any of them, the default model alone.

        Args:
            name: Entry of `llm.providers`.
            store: The config to read; the project's and the user's by default.
            overrides: Fields of the provider to set or replace.

        Raises:
            KeyError: `name` is given, and there is no such entry.
            UntrustedConfig: The entry is a project's and acts, and the user has not trusted it.
        """
        found = entry_for(name, default="embedding_provider", store=store)
        kind = found[0].provider_kind if found else "openai"
        model = (found[0].model if found else None) or (
            LOCAL_EMBEDDING_MODEL if kind == "local" else DEFAULT_EMBEDDING_MODEL
        )
        if found is None:
            found = default_entry(store)
            # A key is bound to its vendor: that of another one is of no use here.
            if found is None or found[0].provider_kind != "openai":
                return replace(cls(model=model), **overrides)
        return cls._of_entry(
            found, overrides, model=model, provider_kind=None if kind == "openai" else kind
        )


Vector = tuple[float, ...]
"""One text as a point; its length is the model's, or what was asked for."""


@dataclass(frozen=True, slots=True)
class EmbeddingReply:
    """The answer to one request."""

    vectors: tuple[Vector, ...]
    """In the order of the texts."""

    model: str | None
    """The model that the endpoint names as having answered."""

    usage: RathLLMTokenUsage | None


def decode_embeddings(
    content: bytes, target: RequestTarget, *, n_texts: int, dimensions: int | None
) -> EmbeddingReply:
    """Return the vectors of an answer in the order of the texts.

    Args:
        content: The body; a vector is a list of numbers, or little-endian float32 as base64.
        target: Who was asked.
        n_texts: How many texts were sent.
        dimensions: How long each vector must be, if that was asked for.

    Raises:
        ProviderError: The answer reports an error, or does not hold one vector for each text.
    """
    try:
        payload: object = json.loads(content)
        if not isinstance(payload, dict):
            raise ValueError("it is no JSON object")  # noqa: TRY004  # the content is wrong
        reply = cast("dict[str, Any]", payload)
        if error := answer_error(reply, target):
            raise error
        vectors = tuple(_vector(entry) for entry in _in_order(reply.get("data"), n_texts))
        lengths = sorted({len(vector) for vector in vectors})
        shown = ", ".join(map(str, lengths))
        if dimensions is not None and lengths != [dimensions]:
            raise ValueError(f"they have {shown} dimensions, and {dimensions} were asked for")
        if len(lengths) > 1:
            raise ValueError(f"they differ in length: {shown}")
    except (ValueError, RecursionError) as exc:
        problem = f"not with an embedding for each of {n_texts} texts: {exc}"
        raise protocol_error(target, problem, content) from exc
    model: object = reply.get("model")
    served = target.redactor.text(valid_unicode(model)) if isinstance(model, str) else None
    return EmbeddingReply(vectors, served or None, _usage(reply.get("usage")))


def _in_order(data: object, n_texts: int) -> Sequence[Mapping[str, Any]]:
    """Return the entries in the order of the texts: by their index, where servers give one."""
    entries = cast("list[object]", data) if isinstance(data, list) else []
    if not all(isinstance(entry, Mapping) for entry in entries):
        raise ValueError("an entry of data is no JSON object")
    found = cast("list[Mapping[str, Any]]", entries)
    if len(found) != n_texts:
        raise ValueError(f"there are {len(found)}")
    by_index = {entry["index"]: entry for entry in found if type(entry.get("index")) is int}
    if not by_index:
        return found
    if sorted(by_index) != list(range(n_texts)):
        raise ValueError("their indices are not those of the texts")
    return [by_index[index] for index in range(n_texts)]


def _vector(entry: Mapping[str, Any]) -> Vector:
    written: object = entry.get("embedding")
    if isinstance(written, str):
        numbers = array("f")
        try:
            numbers.frombytes(base64.b64decode(written, validate=True))
        except (ValueError, binascii.Error) as exc:
            raise ValueError("an embedding is no base64 of float32 numbers") from exc
        if sys.byteorder == "big":  # pragma: no cover  # no machine here is
            numbers.byteswap()
        vector = tuple(numbers)
    elif isinstance(written, list) and set(map(type, cast("list[object]", written))) <= {
        int,
        float,
    }:
        vector = tuple(map(float, cast("list[float]", written)))
    else:
        raise ValueError("an embedding is neither a list of numbers nor base64")
    # What is not finite in one number is not finite in the sum either.
    if not vector or not math.isfinite(sum(vector)):
        raise ValueError("an embedding is empty or holds a number that is not finite")
    return vector


def _usage(value: object) -> RathLLMTokenUsage | None:
    """Return the counts; an embedding has no completion."""
    counts = fields_of(value)
    found = [count_of(counts.get(name)) for name in ("prompt_tokens", "total_tokens")]
    known = [count for count in found if count]
    if not known:
        return None
    return RathLLMTokenUsage(prompt_tokens=known[0], completion_tokens=0, total_tokens=known[-1])


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

    list_models: ModelLister | None = None
    """Asks the endpoint for its models, where it can be asked."""

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
                    reply = await self.complete_call(
                        call,
                        lambda: self.ask(batch, call),
                        self.route(),
                        list_models=self.list_models,
                    )
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

    def __init__(self, provider: EmbeddingProvider, *, sleep: Sleep = asyncio.sleep) -> None:
        super().__init__(provider, sleep=sleep)
        self._endpoint = PurposeEndpoint(provider, purpose="embedding", path="/embeddings")
        self.list_models: ModelLister | None = self._endpoint.models

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
        content = (await self._endpoint.post(batch.body, call)).content
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
