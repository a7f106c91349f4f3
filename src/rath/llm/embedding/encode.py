"""Requests for embeddings in OpenAI's form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rath.llm.body import to_json

__all__ = ["embedding_body", "embedding_parameters"]


def embedding_parameters(model: str, *, dimensions: int | None) -> dict[str, Any]:
    """Return what a request says beside its texts.

    Vectors are asked for as base64, as the official SDKs do: for 2,048 texts of 1,536 dimensions
    that is 17 MB to read instead of 44, in a quarter of the time.
    """
    size = {} if dimensions is None else {"dimensions": dimensions}
    return {"model": model, **size, "encoding_format": "base64"}


def embedding_body(texts: Sequence[str], parameters: Mapping[str, Any]) -> bytes:
    """Return the body of a request."""
    return to_json({"input": list(texts), **parameters})
