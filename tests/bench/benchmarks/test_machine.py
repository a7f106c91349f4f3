"""CPU time that others take of the machine."""

import pytest

from benchmarks.machine import CpuClock


@pytest.mark.parametrize(
    ("busy", "own", "is_others"),
    [
        pytest.param(4.0, 4.0, False, id="all of it ours"),
        pytest.param(4.0, 0.0, True, id="all of it of others"),
        pytest.param(4.0, 4.1, False, id="clocks that differ by a tick"),
    ],
)
def test_only_the_time_of_others_counts(busy: float, own: float, is_others: bool) -> None:
    start, end = CpuClock(10.0, 100.0, 50.0), CpuClock(12.0, 100.0 + busy, 50.0 + own)
    assert (end.others_since(start) > 0) is is_others
