"""CPU time that others take of the machine."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.machine import CpuClock

_ROOT = Path(__file__).parents[3]
_ORPHAN = """
import os, sys, time
from benchmarks.machine import CpuClock, adopt_orphans
adopt_orphans()
start = CpuClock.read()
reading, writing = os.pipe()
child = os.fork()
if child == 0:
    if os.fork() == 0:
        while time.process_time() < 0.5:
            pass
        os.write(writing, b"x")
    os._exit(0)
os.waitpid(child, 0)
os.read(reading, 1)
sys.exit(0 if CpuClock.read().own - start.own > 0.3 else 1)
"""


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


@pytest.mark.skipif(CpuClock.read() is None, reason="no /proc/stat")
def test_time_of_a_process_whose_parent_has_ended_is_ours() -> None:
    # A process of its own: it adopts for good.
    subprocess.run([sys.executable, "-c", _ORPHAN], check=True, timeout=60, cwd=_ROOT)
