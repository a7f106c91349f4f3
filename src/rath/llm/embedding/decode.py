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
from rath.llm.chat_response import RathLLMTokenUsage
from rath.llm.credentials import RequestTarget
from rath.llm.errors import answer_error, protocol_error

__all__ = ["Embedded", "Vector", "decode_embeddings"]

_COUNTS = ("prompt_tokens", "total_tokens")

Vector = tuple[float, ...]
"""One text as a point; its length is the model's, or what was asked for."""


@dataclass(frozen=True, slots=True)
class Embedded:
    """What one request gave."""

    vectors: tuple[Vector, ...]
    """In the order of the texts."""

    model: str | None
    """Who says that it served them."""

    usage: RathLLMTokenUsage | None


def decode_embeddings(
    content: bytes, asked: RequestTarget, *, n_texts: int, dimensions: int | None
) -> Embedded:
    """Return the vectors of an answer in the order of the texts.

    Args:
        content: The body; a vector is a list of numbers, or little-endian float32 as base64.
        asked: Who was asked.
        n_texts: How many texts were sent.
        dimensions: How long each vector must be, if that was asked for.

    Raises:
        ProviderError: The answer reports an error, or does not hold one vector for each text.
    """
    try:
        payload: object = json.loads(content)
        if not isinstance(payload, dict):
            raise ValueError("it is no JSON object")  # noqa: TRY004  # the content is wrong
        fields = cast("dict[str, Any]", payload)
        if error := answer_error(fields, asked):
            raise error
        vectors = tuple(_vector(entry) for entry in _in_order(fields.get("data"), n_texts))
        _check_lengths(vectors, dimensions)
    except (ValueError, RecursionError) as exc:
        problem = f"not with an embedding for each of {n_texts} texts: {exc}"
        raise protocol_error(asked, problem, content) from exc
    model: object = fields.get("model")
    served = asked.redactor.text(valid_unicode(model)) if isinstance(model, str) else None
    return Embedded(vectors, served or None, _usage(fields.get("usage")))


def _in_order(data: object, n_texts: int) -> Sequence[Mapping[str, Any]]:
    """Return the entries in the order of the texts, which some servers tell and all should keep."""
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
        vector = _from_base64(written)
    elif isinstance(written, list) and _are_numbers(cast("list[object]", written)):
        vector = tuple(map(float, cast("list[float]", written)))
    else:
        raise ValueError("an embedding is neither a list of numbers nor base64")
    # What is not finite in one number is not finite in the sum either.
    if not vector or not math.isfinite(sum(vector)):
        raise ValueError("an embedding is empty or holds a number that is not finite")
    return vector


def _are_numbers(values: list[object]) -> bool:
    return set(map(type, values)) <= {int, float}


def _from_base64(text: str) -> Vector:
    numbers = array("f")
    try:
        numbers.frombytes(base64.b64decode(text, validate=True))
    except (ValueError, binascii.Error) as exc:
        raise ValueError("an embedding is no base64 of float32 numbers") from exc
    if sys.byteorder == "big":  # pragma: no cover  # no machine here is
        numbers.byteswap()
    return tuple(numbers)


def _check_lengths(vectors: Sequence[Vector], dimensions: int | None) -> None:
    lengths = {len(vector) for vector in vectors}
    if dimensions is not None and lengths != {dimensions}:
        raise ValueError(
            f"they have {_listed(lengths)} dimensions, and {dimensions} were asked for"
        )
    if len(lengths) > 1:
        raise ValueError(f"they differ in length: {_listed(lengths)}")


def _listed(lengths: set[int]) -> str:
    return ", ".join(map(str, sorted(lengths)))


def _usage(value: object) -> RathLLMTokenUsage | None:
    """Return the counts; an embedding has no completion."""
    if not isinstance(value, Mapping):
        return None
    counts = cast("Mapping[str, object]", value)
    known = [each for name in _COUNTS if type(each := counts.get(name)) is int and each > 0]
    if not known:
        return None
    return RathLLMTokenUsage(prompt_tokens=known[0], completion_tokens=0, total_tokens=known[-1])
