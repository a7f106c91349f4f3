"""Verdicts, ratios and columns of the benchmark table."""

import pytest

from benchmarks.measure import Runs
from benchmarks.table import AtLeast, AtMost, AtMostTimes, Line, Reference, Row, Target, render


@pytest.mark.parametrize(
    ("ours", "target", "met"),
    [
        pytest.param(0.001, AtMost(1.0), True, id="at the limit, in ms"),
        pytest.param(0.0011, AtMost(1.0), False, id="over the limit"),
        pytest.param(0.001, AtMostTimes(0.5), True, id="at the ratio"),
        pytest.param(0.0011, AtMostTimes(0.5), False, id="over the ratio"),
        pytest.param(0.001, AtLeast(1.0), True, id="at the least"),
        pytest.param(0.0009, AtLeast(1.0), False, id="under the least"),
        pytest.param(0.001, None, None, id="no target"),
    ],
)
def test_verdict_compares_in_the_unit_of_the_line(
    ours: float, target: Target | None, met: bool | None
) -> None:
    assert Line("row", ours, "ms", Reference("by hand", 0.002), target).met is met


def test_ratio_compares_the_runs_of_the_same_repeat() -> None:
    ours, theirs = Runs((1.0, 4.0, 9.0)), Runs((1.0, 2.0, 3.0))
    ratio = Line("row", ours, "s", Reference("by hand", theirs)).ratio
    assert ratio == Runs((1.0, 2.0, 3.0))


def test_runs_of_different_numbers_compare_by_their_medians() -> None:
    assert Runs((1.0, 2.0, 9.0)) / Runs((4.0, 4.0)) == Runs((0.5,))
    assert Runs((1.0, 2.0)) - 1.0 == Runs((0.0, 1.0))


@pytest.mark.parametrize("theirs", [0.0, Runs((-1.0, 0.0, 1.0))])
def test_nothing_has_no_ratio(theirs: float | Runs) -> None:
    line = Line("row", 1.0, "s", Reference("by hand", theirs), AtMostTimes(2))
    assert line.ratio is None
    assert line.met is False


@pytest.mark.parametrize(
    ("others", "verdict"),
    [pytest.param(0.05, "MISSED", id="quiet"), pytest.param(0.5, "busy", id="others at work")],
)
def test_times_get_no_verdict_on_a_busy_machine(others: float, verdict: str) -> None:
    assert Row("loop", Line("row", 2.0, "s", target=AtMost(1)), others).verdict == verdict


def test_counts_get_a_verdict_on_a_busy_machine() -> None:
    assert Row("import", Line("modules", 2, "count", target=AtMost(1)), 0.5).verdict == "MISSED"


def test_table_shows_each_line_with_its_spread_and_verdict() -> None:
    loop = Line("loop", Runs((0.04, 0.05, 0.07)), "ms", Reference("httpx", 0.1), AtMostTimes(0.2))
    rows = [Row("loop", loop), Row("import", Line("import", 0.1, "s", target=AtMost(0.15)))]
    assert render(rows).splitlines() == [
        "row     ours   reference     ratio  spread      target        verdict",
        "------  -----  ------------  -----  ----------  ------------  -------",
        "loop    50 ms  100 ms httpx  0.50   0.4 to 0.7  <= 0.2 times  MISSED",
        "import  0.1 s                                   <= 0.15 s     met",
    ]
