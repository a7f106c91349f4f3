"""The models of an OpenViking server in tests: embeddings, and a scripted language model."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from rath.llm.embedding import EmbeddingProvider, embedding_client_for
from tests.support.chat_replies import Reply, completion, text_stream, usage
from tests.support.chat_server import CapturedRequest, ChatServer
from tests.support.embedding_replies import embeddings

DIMENSIONS = 384
LEARNED = "The user likes green tea."
SUMMARY = "A short summary of the content."

_SCRIPT = f'sdk.create_preferences(user="reader", topic="tea", content="{LEARNED}")\nsdk.commit()'
_WORD = re.compile(r"\w+")

Embed = Callable[[Sequence[str]], Sequence[Sequence[float]]]


def hashed_words(texts: Sequence[str]) -> list[list[float]]:
    """For each text a vector of length 1 that counts its words, each at a place of its hash."""
    return [_hashed(text) for text in texts]


def _hashed(text: str) -> list[float]:
    vector = [0.0] * DIMENSIONS
    for word in _WORD.findall(text.lower()):
        digest = hashlib.sha256(word.encode()).digest()
        vector[int.from_bytes(digest[:4], "big") % DIMENSIONS] += 1.0
    length = math.sqrt(sum(value * value for value in vector)) or 1.0
    return [value / length for value in vector]


def embedded_model() -> Embed:
    """The model of the extra `local`, or hashed words where it is not installed."""
    try:
        client = embedding_client_for(EmbeddingProvider.local())
    except ImportError:
        return hashed_words

    def embed(texts: Sequence[str]) -> Sequence[Sequence[float]]:
        return [list(vector) for vector in client.embed([text.strip() or "-" for text in texts])]

    return embed


class Models:
    """A loopback server with both models; a context manager."""

    def __init__(self, embed: Embed = hashed_words) -> None:
        self._embed = embed
        self._server = ChatServer(self._answer)

    @property
    def base_url(self) -> str:
        return self._server.base_url

    def close(self) -> None:
        self._server.close()

    def _answer(self, request: CapturedRequest) -> Reply:
        body: Any = request.json()
        if request.path.endswith("/embeddings"):
            texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
            return embeddings(*self._embed(texts), tokens=1)
        wanted = _SCRIPT if "sdk." in str(body["messages"]) else SUMMARY
        if body.get("stream"):
            return text_stream(wanted, counts=(1, 1))
        return completion(wanted, usage=usage(1, 1))


__all__ = ["DIMENSIONS", "LEARNED", "SUMMARY", "Models", "embedded_model", "hashed_words"]
