"""Budgets."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from rath.llm.budget import crosses_budget, is_at_budget


@given(st.integers(0, 50), st.lists(st.integers(0, 20), max_size=20))
def test_a_budget_is_crossed_at_most_once(cap: int, steps: list[int]) -> None:
    totals = [sum(steps[:n]) for n in range(len(steps) + 1)]
    crossings = [
        crosses_budget(cap, before=before, after=after)
        for before, after in itertools.pairwise(totals)
    ]
    assert sum(crossings) == (totals[-1] > cap)


def test_reaching_the_cap_exactly_does_not_cross_it() -> None:
    assert not crosses_budget(10, before=5, after=10)
    assert crosses_budget(10, before=10, after=11)


def test_what_is_at_its_cap_is_known_before_the_call() -> None:
    assert is_at_budget(10, total=10)
    assert not is_at_budget(10, total=9)


def test_without_a_cap_there_is_no_budget() -> None:
    assert not crosses_budget(None, before=0, after=10)
    assert not is_at_budget(None, total=10)
