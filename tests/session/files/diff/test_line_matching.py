"""What two texts have in common."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.session.files.diff import Run, common_runs
from tests.support.api import merge_lines

lines = st.lists(st.sampled_from("abcd"), max_size=12)


def n_common(a: list[str], b: list[str]) -> int:
    """Return the length of the longest common subsequence."""
    row = [0] * (len(b) + 1)
    for one in a:
        above = row
        row = [0]
        for at, other in enumerate(b):
            row.append(above[at] + 1 if one == other else max(above[at + 1], row[at]))
    return row[-1]


def check(runs: list[Run], a: list[str], b: list[str]) -> int:
    """Check that runs are equal lines in order, and return how many."""
    end_a = end_b = 0
    for run in runs:
        assert run.a >= end_a
        assert run.b >= end_b
        end_a, end_b = run.a + run.size, run.b + run.size
        assert a[run.a : end_a] == b[run.b : end_b]
    assert runs[-1] == (len(a), len(b), 0)
    assert all(run.size for run in runs[:-1])
    return sum(run.size for run in runs)


@given(a=lines, b=lines)
def test_the_runs_are_the_longest_that_there_are(a: list[str], b: list[str]) -> None:
    assert check(common_runs(a, b), a, b) == n_common(a, b)


@given(a=lines)
def test_a_text_is_one_run_of_itself(a: list[str]) -> None:
    assert common_runs(a, a) == ([Run(0, 0, len(a))] if a else []) + [Run(len(a), len(a), 0)]


WORDS = [f"w{number}\n" for number in range(150)]
CHANCE = random.Random(1)
REPEATED = CHANCE.choices(WORDS, k=100_000)
UNIQUE = [f"u{number}\n" for number in range(20_000)]


def replaced(every: int, make: Callable[[int], str], start: int = 0) -> list[str]:
    made = list(REPEATED)
    for at in range(start, len(made), every):
        made[at] = make(at)
    return made


@pytest.mark.parametrize(
    ("a", "b", "at_least"),
    [
        pytest.param(REPEATED, replaced(50, "new {}\n".format), 85_000, id="many new lines"),
        pytest.param(REPEATED, replaced(500, lambda at: WORDS[at % 7]), 99_000, id="known lines"),
        pytest.param(UNIQUE, UNIQUE[10_000:] + UNIQUE[:10_000], 10_000, id="halves exchanged"),
        pytest.param(UNIQUE, CHANCE.sample(UNIQUE, 20_000), 200, id="shuffled"),
        pytest.param(REPEATED, CHANCE.choices(WORDS, k=100_000), 100, id="nothing but chance"),
        pytest.param(["\n"] * 500_000, ["\n"] * 400_000 + ["x"], 400_000, id="all alike"),
    ],
)
def test_large_texts_take_little_time(a: list[str], b: list[str], at_least: int) -> None:
    started = time.thread_time()
    runs = common_runs(a, b)
    assert time.thread_time() - started < 5  # 0.3 when nothing traces it; difflib takes minutes
    assert check(runs, a, b) >= at_least


def test_changes_far_apart_in_lines_that_repeat_are_merged_soon() -> None:
    ours, theirs = replaced(100_000, str, start=100), replaced(100_000, str, start=90_000)
    started = time.thread_time()
    merged = merge_lines(REPEATED, ours, theirs)
    assert time.thread_time() - started < 5
    assert merged is not None
    assert [at for at, line in enumerate(merged) if line != REPEATED[at]] == [100, 90_000]
