"""Answers with embeddings, as servers that speak OpenAI's protocol give them."""

from __future__ import annotations

import base64
from array import array
from collections.abc import Sequence
from typing import Any

from tests.support.chat_replies import Reply, json_body
from tests.support.chat_server import CapturedRequest

MODEL = "served-embedding"


def in_base64(vector: Sequence[float]) -> str:
    """A vector as float32 numbers in base64."""
    return base64.b64encode(array("f", vector).tobytes()).decode()


def entry(index: int, embedding: object) -> dict[str, Any]:
    """One embedding of an answer."""
    return {"object": "embedding", "index": index, "embedding": embedding}


def embeddings(*vectors: object, tokens: int = 0) -> Reply:
    """An answer with these vectors, for texts in this order."""
    return listed(*(entry(index, vector) for index, vector in enumerate(vectors)), tokens=tokens)


def listed(*entries: Any, tokens: int = 0) -> Reply:
    """An answer with these entries, whatever they are."""
    counts = {"prompt_tokens": tokens, "total_tokens": tokens}
    return json_body({"object": "list", "data": entries, "model": MODEL, "usage": counts})


def lengths_of(request: CapturedRequest) -> Reply:
    """For each text of a request its length as a vector, in base64."""
    return embeddings(*(in_base64([len(text)]) for text in request.json()["input"]), tokens=1)
