"""The embedding model of a store: whatever the options name, asked in one way."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from rath._async.bridge import call_either
from rath.errors import InvalidRequestError, MemoryBackendError, RathError, UntrustedConfig
from rath.llm.embedding import EmbeddingClient, EmbeddingProvider, embedding_client_for
from rath.memory.adapters.local.layout import logger

_LOCAL = "local"
"""Names the model inside the process where no configured provider has that name."""

_KINDS_OF_OBJECTS = (
    "an EmbeddingProvider, an EmbeddingClient, or an object with embed(texts) or embed_one(text)"
)


class EmbeddingFailed(Exception):
    """No vectors came; the cause is what the model raised.

    Args:
        message: What happened.
        is_refusal: The model refused these texts; others may work.
    """

    def __init__(self, message: str, *, is_refusal: bool = False) -> None:
        self.is_refusal = is_refusal
        super().__init__(message)


Ask = Callable[[Sequence[str]], Coroutine[Any, Any, Any]]


@dataclass(frozen=True, slots=True)
class Embedding:
    """A model that gives a vector for each text."""

    name: str
    """As OpenRath 1.3 wrote it beside the vectors that it made."""
    identity: str
    """16 hex digits; vectors of different identities are never compared."""
    ask: Ask

    async def avectors(self, texts: Sequence[str]) -> Any:
        """Return a vector for each text, in their order: sequences of numbers, or an array.

        Raises:
            EmbeddingFailed: There are none, for whatever reason.
        """
        try:
            found = await self.ask(texts)
            n_found = len(found)
        except Exception as exc:  # code of a user: any failure leaves words alone
            is_refusal = isinstance(exc, ValueError | InvalidRequestError)
            raise EmbeddingFailed(f"{type(exc).__name__}: {exc}", is_refusal=is_refusal) from exc
        if n_found != len(texts):
            raise EmbeddingFailed(f"{n_found} vectors came for {len(texts)} texts")
        return found


def names_embedding(options: Mapping[str, Any]) -> bool:
    """Return whether the options of a store name an embedding model."""
    return not (options.get("embedding") is None and options.get("embedding_provider") is None)


def embedding_of(options: Mapping[str, Any]) -> Embedding | None:
    """Return the model that the options of a store name; None when they name none.

    Without numpy there is none either, and a warning says so: words alone find most.

    Raises:
        MemoryBackendError: It cannot be used: there is no such provider, a package of the model
            is missing, or the object has no method to embed.
    """
    if not names_embedding(options):
        return None
    try:
        import_module("numpy")  # a broken installation counts as none
    except ImportError as exc:
        logger.warning(
            "this memory store finds by words alone: comparing vectors needs numpy, which cannot "
            "be imported (%s). Install the extra 'vectors' (uv sync --extra vectors, or "
            "pip install '.[vectors]'), or leave out the options embedding and embedding_provider",
            exc,
        )
        return None
    given, name = options.get("embedding"), options.get("embedding_provider")
    if given is None:
        given = _configured(name)
    if isinstance(given, EmbeddingProvider):
        given = _client_for(given)
    named = options.get("embedding_model")
    if isinstance(given, EmbeddingClient):
        return _of_client(given, named)
    return _of_object(given, named)


def _configured(name: object) -> EmbeddingProvider:
    if not isinstance(name, str):
        raise MemoryBackendError(
            f"embedding_provider must be the name of an entry of llm.providers, got "
            f"{type(name).__name__}; {_KINDS_OF_OBJECTS} goes into the option embedding"
        )
    try:
        return EmbeddingProvider.from_config(name)
    except KeyError as exc:
        if name == _LOCAL:
            return EmbeddingProvider.local()
        raise MemoryBackendError(
            f"the embedding_provider {name!r} of a memory store is no entry of llm.providers in "
            "the config; add it there, or use 'local' for the model inside the process"
        ) from exc


def _client_for(provider: EmbeddingProvider) -> EmbeddingClient:
    try:
        return embedding_client_for(provider)
    except UntrustedConfig:
        raise
    except (RathError, ValueError) as exc:
        raise MemoryBackendError(
            f"the embedding model {provider.model!r} of a memory store cannot be used: {exc}"
        ) from exc


def _of_client(client: EmbeddingClient, named: object) -> Embedding:
    provider = client.provider
    kind = provider.provider_kind or client.kind
    name = str(named or provider.model)
    return Embedding(name, _identity(kind, name, provider.dimensions), client.aembed)


def _of_object(given: Any, named: object) -> Embedding:
    many, one = getattr(given, "embed", None), getattr(given, "embed_one", None)
    if not callable(many) and not callable(one):
        raise MemoryBackendError(
            f"embedding must be {_KINDS_OF_OBJECTS}, got {type(given).__name__}"
        )
    own = getattr(given, "embedding_model", None) or getattr(given, "model", None)
    name = str(named or (own if isinstance(own, str) else type(given).__name__))
    ask: Ask = partial(_ask_many, many) if callable(many) else partial(_ask_one_by_one, one)
    return Embedding(name, _identity("object", name, None), ask)


async def _ask_many(embed: Callable[[list[str]], Any], texts: Sequence[str]) -> Any:
    return await call_either(embed, list(texts))


async def _ask_one_by_one(embed_one: Any, texts: Sequence[str]) -> list[Any]:
    return [await call_either(embed_one, text) for text in texts]


def _identity(kind: str, name: str, dimensions: int | None) -> str:
    told = json.dumps([kind, name, dimensions])
    return hashlib.sha256(told.encode()).hexdigest()[:16]
