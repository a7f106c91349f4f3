"""Reciprocal rank fusion."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rath.memory.adapters.local.search import fused

orders = st.lists(st.lists(st.integers(0, 20), unique=True, max_size=12), max_size=4)


@given(orders)
def test_a_score_is_the_sum_of_reciprocal_ranks(lists: list[list[int]]) -> None:
    expected = {
        each: sum(1 / (60 + order.index(each) + 1) for order in lists if each in order)
        for each in {each for order in lists for each in order}
    }
    assert fused(lists) == expected


@given(st.lists(st.integers(), unique=True))
def test_one_list_keeps_its_order(order: list[int]) -> None:
    scores = fused([order])
    assert sorted(scores, key=lambda each: -scores[each]) == order
