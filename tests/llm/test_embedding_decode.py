"""Vectors there and back: what was encoded is what is read."""

from __future__ import annotations

import json
from array import array
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rath.llm.embedding.client import decode_embeddings
from tests.support.embedding_replies import entry, in_base64
from tests.support.targets import request_target

ASKED = request_target("http://h/v1/embeddings")

numbers = st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-1e6, max_value=1e6)
matrices = st.integers(1, 5).flatmap(
    lambda width: st.lists(st.lists(numbers, min_size=width, max_size=width), min_size=1)
)


def decoded(entries: list[dict[str, Any]]) -> tuple[tuple[float, ...], ...]:
    content = json.dumps({"data": entries}).encode()
    return decode_embeddings(content, ASKED, n_texts=len(entries), dimensions=None).vectors


@given(matrices)
def test_base64_and_numbers_give_the_same_vectors(matrix: list[list[float]]) -> None:
    as_numbers = decoded([entry(index, row) for index, row in enumerate(matrix)])
    as_base64 = decoded([entry(index, in_base64(row)) for index, row in enumerate(matrix)])
    assert as_numbers == as_base64 == tuple(tuple(array("f", row)) for row in matrix)


@given(st.permutations(range(6)))
def test_any_order_of_entries_gives_the_order_of_the_texts(order: list[int]) -> None:
    assert decoded([entry(index, [float(index)]) for index in order]) == tuple(
        (float(index),) for index in range(6)
    )
