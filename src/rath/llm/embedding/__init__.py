"""Texts as vectors: where they are asked for, and the clients that do so."""

from __future__ import annotations

from rath.llm.embedding.client import (
    DEFAULT_EMBEDDING_MODEL,
    LOCAL_EMBEDDING_MODEL,
    EmbeddingClient,
    EmbeddingProvider,
    RathOpenAIEmbeddingClient,
    Vector,
    embedding_client_for,
)

__all__ = [
    "DEFAULT_EMBEDDING_MODEL",
    "LOCAL_EMBEDDING_MODEL",
    "EmbeddingClient",
    "EmbeddingProvider",
    "RathOpenAIEmbeddingClient",
    "Vector",
    "embedding_client_for",
]
