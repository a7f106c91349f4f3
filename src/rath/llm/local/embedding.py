"""Embeddings from a model that runs inside the process."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar

from rath._async.retry import Sleep
from rath._async.runtime import runtime
from rath.errors import MissingExtra
from rath.llm.chat_response import RathLLMTokenUsage
from rath.llm.credentials import RequestTarget
from rath.llm.embedding.client import Batch, EmbeddingClient, Vector
from rath.llm.embedding.decode import Embedded
from rath.llm.embedding.provider import LOCAL_EMBEDDING_MODEL, EmbeddingProvider
from rath.llm.evidence import CallRecorder, JsonValue
from rath.llm.local.embedding_files import MINILM, EmbeddingFiles
from rath.llm.transport import ConnectionPool

if TYPE_CHECKING:
    from rath.llm.local.minilm import MiniLM

__all__ = ["RathLocalEmbeddingClient"]

_DIMENSIONS = 384
_PACKAGES = ("numpy", "onnxruntime", "tokenizers", *(each.package for each in MINILM.all))


class RathLocalEmbeddingClient(EmbeddingClient):
    """Embeds in this process, with a model that the first use loads: no key, no network.

    Vectors have 384 dimensions and length 1, so their dot product is their cosine. What follows
    the 256th token of a text is not read. One text takes about 6 ms on one thread.

    Args:
        provider: `EmbeddingProvider.local()`, for example.
        sleep: Waits between tries; for tests.
        files: Where the model is; for tests.

    Raises:
        MissingExtra: The model or its runtime is not installed.
        ValueError: The provider asks for an endpoint, another model or another length.
    """

    kind: ClassVar[str] = "local"
    renderer: ClassVar[str] = "minilm/1"
    sdk: ClassVar[str | None] = "onnxruntime"
    at_once: ClassVar[int] = 1

    def __init__(
        self,
        provider: EmbeddingProvider,
        *,
        sleep: Sleep = asyncio.sleep,
        files: EmbeddingFiles = MINILM,
    ) -> None:
        super().__init__(provider, sleep=sleep)
        if provider.base_url:
            raise ValueError(
                'an embedding model inside the process has no base_url; use provider_kind="openai" '
                "for a server of your own"
            )
        if provider.model != LOCAL_EMBEDDING_MODEL:
            raise ValueError(
                f"the embedding model inside the process is {LOCAL_EMBEDDING_MODEL!r}, not "
                f"{provider.model!r}; EmbeddingProvider.local() names it"
            )
        if provider.dimensions not in {None, _DIMENSIONS}:
            raise ValueError(
                f"{LOCAL_EMBEDDING_MODEL!r} gives {_DIMENSIONS} dimensions, not "
                f"{provider.dimensions}; leave dimensions out"
            )
        if any(find_spec(package) is None for package in _PACKAGES):
            raise MissingExtra("local", f"the embedding model {LOCAL_EMBEDDING_MODEL!r}")
        self._files = files

    def parameters(self) -> Mapping[str, JsonValue]:
        return {"model": self.provider.model}

    def route(self) -> RequestTarget:
        return RequestTarget(
            kind=self.kind,
            endpoint=None,
            model=self.provider.model,
            origins=(("model", "call"), ("base_url", "default")),
        )

    async def ask(self, batch: Batch, call: CallRecorder) -> Embedded:
        loaded = await _models.get(self._files)
        call.reached(None, sdk_version=loaded.model.version, credential=None)
        call.was_sent = True
        vectors, n_tokens = await loaded.embed(batch.texts)
        usage = RathLLMTokenUsage(n_tokens, completion_tokens=0, total_tokens=n_tokens)
        return Embedded(vectors, self.provider.model, usage)


class _Loaded:
    """A model in memory, which serves one caller after the other."""

    def __init__(self, model: MiniLM) -> None:
        self.model = model
        self._turn = asyncio.Semaphore()

    async def embed(self, texts: tuple[str, ...]) -> tuple[tuple[Vector, ...], int]:
        """Return the vectors of the texts, and the number of tokens that were read."""
        plan = await runtime().call_in_worker(partial(self.model.plan, texts))
        vectors: dict[int, Vector] = {}
        for part in plan.parts:
            # Others come in between, and a cancelled call ends here.
            async with self._turn:
                vectors |= await runtime().call_in_worker(partial(self.model.embed, part))
        return tuple(vectors[index] for index in range(len(texts))), plan.n_tokens

    async def aclose(self) -> None:
        """Do nothing: a model holds memory only."""


def _load(files: EmbeddingFiles) -> _Loaded:
    from rath.llm.local.minilm import MiniLM

    return _Loaded(MiniLM(files))


_models: ConnectionPool[EmbeddingFiles, _Loaded] = ConnectionPool(_load)
