"""Normalising and comparing vectors, against plain arithmetic."""

from __future__ import annotations

import math
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.memory.adapters.local.matrix import cosines, iter_best, normalised

numbers = st.floats(width=32, allow_nan=True, allow_infinity=True)


@given(st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=1, max_size=6))
def test_a_vector_has_length_one_or_is_none(vectors: list[list[float]]) -> None:
    for given_one, unit in zip(vectors, normalised(vectors), strict=True):
        is_usable = all(map(math.isfinite, given_one)) and any(given_one)
        assert (unit is not None) == is_usable
        if unit is not None:
            found = np.frombuffer(unit, np.float32)
            assert math.isclose(float(np.linalg.norm(found)), 1.0, rel_tol=1e-5)


@pytest.mark.parametrize("size", [5e-324, 1e308], ids=["tiny", "huge"])
def test_no_size_is_too_small_or_too_large(size: float) -> None:
    [unit] = normalised([[size, 0.0]])
    assert unit is not None
    assert np.frombuffer(unit, np.float32).tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    "vectors",
    [[[1.0], [1.0, 2.0]], [["a"]], [1.0], [[]], [[object()]]],
    ids=["ragged", "text", "flat", "empty", "object"],
)
def test_what_is_no_list_of_vectors_is_refused(vectors: object) -> None:
    with pytest.raises(ValueError, match=r"not vectors|could not convert|inhomogeneous"):
        normalised(vectors)


@given(st.integers(1, 900), st.integers(0, 2**32), st.sampled_from([-1.0, 0.0, 0.1]))
def test_groups_give_what_sorting_gives(n_rows: int, seed: int, floor: float) -> None:
    scores = np.random.default_rng(seed).standard_normal(n_rows).astype(np.float32)
    found = list(chain.from_iterable(iter_best(scores, floor)))
    expected = sorted((float(score) for score in scores if score > floor), reverse=True)
    assert [score for _, score in found] == expected
    assert all(float(scores[place]) == score for place, score in found)


@given(st.integers(1, 50), st.integers(1, 20), st.integers(0, 2**32))
def test_a_cosine_is_the_dot_product_of_two_directions(n_rows: int, size: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    rows, query = generator.standard_normal((n_rows, size)), generator.standard_normal(size)
    units = [unit for unit in normalised(rows) if unit is not None]
    [vector] = [unit for unit in normalised([query]) if unit is not None]
    matrix = np.frombuffer(b"".join(units), np.float32).reshape(n_rows, size)
    expected = rows @ query / (np.linalg.norm(rows, axis=1) * np.linalg.norm(query))
    np.testing.assert_allclose(cosines(matrix, vector), expected, atol=1e-5)
    some = list(range(0, n_rows, 2))
    np.testing.assert_allclose(cosines(matrix, vector, some), expected[some], atol=1e-5)


def test_many_rows_are_shared_out_among_threads() -> None:
    rows = np.random.default_rng(1).standard_normal((70_001, 3)).astype(np.float32)
    query = rows[5]
    np.testing.assert_allclose(cosines(rows, query.tobytes()), rows @ query, atol=1e-4)
