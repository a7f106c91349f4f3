"""Jobs of a lane: one at a time, in order, and none lost at exit."""

from __future__ import annotations

import contextvars
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath.session.log.writer import SerialQueue
from tests.support.waiting import PATIENCE


@given(n_jobs=st.integers(0, 40))
def test_jobs_are_made_one_at_a_time_and_in_order(n_jobs: int) -> None:
    lane, made, running = SerialQueue(), list[int](), list[int]()

    def job(number: int) -> int:
        running.append(number)
        assert len(running) == 1
        made.append(number)
        running.clear()
        return number

    done = [lane.put(partial(job, number)) for number in range(n_jobs)]
    assert [each.result(timeout=PATIENCE) for each in done] == list(range(n_jobs))
    assert made == list(range(n_jobs))


def test_a_job_that_fails_does_not_hold_up_the_next() -> None:
    lane = SerialQueue()
    first = lane.put(lambda: 1 // 0)
    second = lane.put(lambda: 2)
    assert second.result(timeout=PATIENCE) == 2
    with pytest.raises(ZeroDivisionError):
        first.result(timeout=PATIENCE)


def test_who_puts_a_job_does_not_wait_for_it() -> None:
    lane, go = SerialQueue(), threading.Event()
    slow = lane.put(lambda: go.wait(PATIENCE))
    assert not slow.done()
    assert not slow.cancel()
    go.set()
    assert slow.result(timeout=PATIENCE)


def test_exit_waits_for_what_is_in_it(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; "
        "from rath.session.log.writer import SerialQueue; "
        "lane = SerialQueue(); lane.put(lambda: time.sleep(0.2)); "
        "lane.put(lambda: Path(sys.argv[1]).touch())"
    )
    written = tmp_path / "written"
    subprocess.run([sys.executable, "-c", code, str(written)], check=True, timeout=60)
    assert written.exists()


def test_a_job_sees_nothing_of_the_run_that_put_it() -> None:
    """Else whoever puts the first job is above all others, and a job may wait for its own run."""
    run = contextvars.ContextVar("run", default="none")
    token = run.set("the run that is above")
    try:
        assert SerialQueue().put(run.get).result(timeout=PATIENCE) == "none"
    finally:
        run.reset(token)
