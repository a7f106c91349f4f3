"""Which embedding client serves which kind of provider."""

from __future__ import annotations

from importlib import import_module

from rath.llm.embedding.client import EmbeddingClient
from rath.llm.embedding.openai import RathOpenAIEmbeddingClient
from rath.llm.embedding.provider import EmbeddingProvider

__all__ = ["embedding_client_for"]

_KINDS = ("local", "openai")


def embedding_client_for(provider: EmbeddingProvider) -> EmbeddingClient:
    """Return a client for `provider`; its kind is "openai" when it names none.

    Raises:
        MissingExtra: The kind needs packages that are not installed.
        ValueError: No such kind; or the client finds no key.
    """
    kind = provider.provider_kind or "openai"
    if kind == "openai":
        return RathOpenAIEmbeddingClient(provider)
    if kind == "local":
        # Not above: it is built on this package.
        local = import_module("rath.llm.local.embedding")
        client: EmbeddingClient = local.RathLocalEmbeddingClient(provider)
        return client
    raise ValueError(
        f"no embeddings from provider_kind {kind!r}; known: {', '.join(_KINDS)}. A server that "
        'speaks the OpenAI protocol is of the kind "openai"'
    )
