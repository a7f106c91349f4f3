"""Statistics of reports: pass@k against brute force, intervals, means by epoch and tag, changes."""

from __future__ import annotations

from itertools import combinations
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.eval.report import ScoredItem, bootstrap_interval, compare, pass_at_k, summarize

VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=12)


def item(
    key: str, value: float | None, *, epoch: int = 0, tags: tuple[str, ...] = (), scorer: str = "s"
) -> ScoredItem:
    error = "boom" if value is None else None
    passed = value is not None and value >= 0.5
    return ScoredItem(key, epoch, scorer, None, value, passed, error=error, tags=tags)


@given(runs=st.lists(st.booleans(), min_size=1, max_size=8), data=st.data())
def test_pass_at_k_is_the_share_of_choices_with_a_pass(
    runs: list[bool], data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, len(runs)))
    chosen = list(combinations(runs, k))
    expected = sum(map(any, chosen)) / len(chosen)
    assert pass_at_k(len(runs), sum(runs), k) == pytest.approx(expected)


@pytest.mark.parametrize(("n", "passed", "k"), [(3, 1, 0), (3, 1, 4), (3, 4, 1), (3, -1, 1)])
def test_pass_at_k_needs_runs(n: int, passed: int, k: int) -> None:
    with pytest.raises(ValueError, match="pass@"):
        pass_at_k(n, passed, k)


@given(values=VALUES)
def test_an_interval_holds_the_mean_and_is_the_same_each_time(values: list[float]) -> None:
    low, high = bootstrap_interval(values)
    assert (low, high) == bootstrap_interval(values)
    assert min(values) - 1e-9 <= low <= high <= max(values) + 1e-9


def test_an_interval_of_many_values_is_near_that_of_the_normal_distribution() -> None:
    values = [0.0, 1.0] * 200
    low, high = bootstrap_interval(values)
    assert (low, high) == pytest.approx((0.5 - 1.96 * 0.025, 0.5 + 1.96 * 0.025), abs=0.01)


@given(epochs=st.lists(VALUES, min_size=1, max_size=5))
def test_each_example_counts_once_however_often_it_ran(epochs: list[list[float]]) -> None:
    items = [
        item(str(key), value, epoch=epoch)
        for key, values in enumerate(epochs)
        for epoch, value in enumerate(values)
    ]
    (summary,) = summarize(items)
    assert summary.mean == pytest.approx(fmean(fmean(values) for values in epochs))
    assert list(summary.pass_at) == list(range(1, min(map(len, epochs)) + 1))


def test_an_error_is_no_zero() -> None:
    (summary,) = summarize([item("a", 1.0), item("b", None)])
    assert (summary.mean, summary.n_scores, summary.n_errors) == (1.0, 1, 1)
    (nothing,) = summarize([item("a", None)])
    assert (nothing.mean, nothing.low, nothing.pass_at) == (None, None, {})


def test_tags_have_means_of_their_own() -> None:
    items = [item("a", 1.0, tags=("x", "y")), item("b", 0.0, tags=("x",)), item("c", 0.5)]
    assert summarize(items)[0].by_tag == {"x": 0.5, "y": 1.0}


def test_only_examples_that_both_have_are_compared() -> None:
    before = [item("a", 1.0), item("b", 1.0), item("old", 0.0)]
    after = [item("a", 0.5), item("b", 0.0), item("new", 1.0), item("a", 1.0, scorer="other")]
    (found,) = compare(before, after)
    assert (found.before, found.after, found.n_examples) == (1.0, 0.25, 2)
    assert found.worse == ("b", "a")
    assert found.is_regression(0.7)
    assert not found.is_regression(0.75)
