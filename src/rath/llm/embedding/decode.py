"""Answers with embeddings in OpenAI's form; pure functions."""

from __future__ import annotations

import base64
import binascii
import json
import math
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from rath._core.text import valid_unicode
from rath.llm.chat_response import RathLLMTokenUsage, count_of, fields_of
from rath.llm.credentials import RequestTarget
from rath.llm.errors import answer_error, protocol_error

__all__ = ["EmbeddingReply", "Vector", "decode_embeddings"]

Vector = tuple[float, ...]
"""One text as a point; its length is the model's, or what was asked for."""


@dataclass(frozen=True, slots=True)
class EmbeddingReply:
    """The answer to one request."""

    vectors: tuple[Vector, ...]
    """In the order of the texts."""

    model: str | None
    """Who says that it served them."""

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
