"""Verdicts and columns of the benchmark table."""

import pytest

from benchmarks.table import AtLeast, AtMost, AtMostTimes, Line, Reference, Target, render


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


def test_table_shows_each_line_with_its_verdict() -> None:
    lines = [
        Line("loop", 0.05, "ms", Reference("httpx", 0.1), AtMostTimes(0.2)),
        Line("import", 0.1, "s", target=AtMost(0.15)),
    ]
    assert render(lines).splitlines() == [
        "row     ours   reference     ratio  target        verdict",
        "------  -----  ------------  -----  ------------  -------",
        "loop    50 ms  100 ms httpx  0.50   <= 0.2 times  MISSED",
        "import  0.1 s                       <= 0.15 s     met",
    ]
