"""The driver of a job is killed at many points of its life, and started again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from signal import SIGKILL
from uuid import UUID

import pytest

from rath.jobs.record import attempts_of, load_job
from rath.session.persistence.store import SessionStore, open_store
from tests.support.job_program import (
    count,
    decide_by_what_was_seen,
    lines,
    release,
    repeated_calls,
)
from tests.support.killed_driver import TEAM, JobSetup, answered_calls, unsound_sessions
from tests.support.lanes import quick_sample
from tests.support.postgres_server import PostgresServer, postgres
from tests.support.waiting import PATIENCE, wait_until

__all__ = ["postgres"]

IS_FULL = os.environ.get("RATH_FULL") == "1"
N_ITEMS, CALLS_OF_ITEM = 8, 3
N_POINTS = 30 if IS_FULL else 3
N_REMOTE_POINTS = 30 if IS_FULL else 2
N_CANCELS = 10 if IS_FULL else 1


class Killed:
    """A job whose driver is ended, and that is started again.

    Args:
        folder: Where its items have their effects.
        engine: What carries it out.
        store: Where it is recorded.
    """

    def __init__(self, folder: Path, engine: str, store: str) -> None:
        seconds = 0.0 if engine == "local" else 0.02
        self.folder = folder
        self.setup = JobSetup(str(folder), store, engine, N_ITEMS, N_ITEMS // 2, seconds)
        self._store: SessionStore = open_store(store)
        self._others = self._store.stamps().keys()

    def count_events(self) -> int:
        """Carry it out in a process that nobody ends, and return how many events that has."""
        release(self.folder)
        process = self.setup.start_process()
        out, _ = process.communicate(timeout=PATIENCE)
        assert (process.returncode, repeated_calls(self.folder)) == (0, {})
        return int(out)

    def kill_at_event(self, number: int) -> None:
        """Have the driver kill itself at one of its events."""
        release(self.folder)
        process = self.setup.start_process(number)
        process.communicate(timeout=PATIENCE)
        assert process.returncode == -SIGKILL

    def kill_at_call(self, number: int) -> None:
        """Kill the driver when so many calls of the model have begun, wherever."""
        process = self.setup.start_process()
        try:
            wait_until(lambda: len(lines(self.folder, "calls")) >= number)
        finally:
            process.kill()
            process.communicate(timeout=PATIENCE)
        assert process.returncode == -SIGKILL
        release(self.folder)

    def sessions(self) -> list[UUID]:
        """Return what is stored of the job."""
        return list(self._store.stamps().keys() - self._others)

    def assert_goes_on(self) -> None:
        """Check what the driver left, start the job again until all is done, and check that."""
        folder, store, setup = self.folder, self._store, self.setup
        assert unsound_sessions(store, self.sessions()) == []
        recorded = load_job(store, setup.folder)
        before = [] if recorded is None else list(recorded.record)
        known = answered_calls(store, self.sessions())
        made = Counter(map(tuple, lines(folder, "calls")))
        job = setup.start().synchronize()
        if job.waiting():
            decide_by_what_was_seen(job, folder)
            job = setup.start().synchronize()
        assert job.report().counts == {"done": N_ITEMS}
        assert count(folder, "effects") == {item.key: 1 for item in job.items}
        again = Counter(map(tuple, lines(folder, "calls")))
        assert {call: again[call] for call in known} == {call: made[call] for call in known}
        # Of an item only the call that was cut off is made again.
        repeated = repeated_calls(folder)
        assert set(repeated.values()) <= {2}
        assert set(Counter(key for key, *_ in repeated).values()) <= {1}
        assert len(repeated) <= setup.concurrency
        record = list(job.session.record)
        assert record[: len(before)] == before
        numbers = [[each.attempt for each in runs] for runs in attempts_of(record).values()]
        assert numbers == [list(range(1, len(each) + 1)) for each in numbers]
        assert len(answered_calls(store, self.sessions())) == CALLS_OF_ITEM * N_ITEMS
        assert unsound_sessions(store, self.sessions()) == []


def share(at: int, of: int, n_points: int) -> int:
    """Return one of the numbers from 1 to `of`, spread evenly over the points."""
    return 1 + at * (of - 1) // max(1, n_points - 1)


# ---------------------------------------------------------------- in process


def local(folder: Path) -> Killed:
    return Killed(folder, "local", str(folder / "store"))


@pytest.fixture(scope="module")
def n_local_events(tmp_path_factory: pytest.TempPathFactory) -> int:
    return local(tmp_path_factory.mktemp("whole")).count_events()


@pytest.mark.parametrize("point", quick_sample(range(N_POINTS)))
def test_a_job_in_process_goes_on(tmp_path: Path, n_local_events: int, point: int) -> None:
    job = local(tmp_path)
    # All before the last: whoever is killed there has done its work.
    job.kill_at_event(share(point, n_local_events - 20, N_POINTS))
    job.assert_goes_on()


@pytest.mark.parametrize("point", quick_sample(range(N_CANCELS)))
def test_a_job_that_is_cancelled_anywhere_goes_on(
    tmp_path: Path, n_local_events: int, point: int
) -> None:
    job = local(tmp_path)
    release(tmp_path)
    number = (1 + point) * n_local_events // (N_CANCELS + 1)
    process = job.setup.start_process(number, "cancel")
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    job.assert_goes_on()


# ---------------------------------------------------------------- processes


def kill_and_go_on(job: Killed, n_events: int, point: int) -> None:
    """Kill a driver whose items are carried out elsewhere: at its own events, and at theirs."""
    if point % 2:
        # What comes together is one event, so that a run on a busy machine has fewer of them.
        job.kill_at_event(share(point, n_events // 2, N_REMOTE_POINTS))
    else:
        job.kill_at_call(share(point, CALLS_OF_ITEM * N_ITEMS, N_REMOTE_POINTS))
    job.assert_goes_on()


def processes(folder: Path) -> Killed:
    return Killed(folder, "procs:4", str(folder / "store"))


@pytest.fixture(scope="module")
def n_driver_events(tmp_path_factory: pytest.TempPathFactory) -> int:
    return processes(tmp_path_factory.mktemp("whole")).count_events()


@pytest.mark.timeout(180)
@pytest.mark.parametrize("point", quick_sample(range(N_REMOTE_POINTS)))
def test_a_job_on_processes_goes_on(tmp_path: Path, n_driver_events: int, point: int) -> None:
    kill_and_go_on(processes(tmp_path), n_driver_events, point)


# ---------------------------------------------------------------- a queue


@pytest.fixture(scope="module")
def queue(postgres: PostgresServer) -> Iterator[str]:
    """A store and queue with two workers."""
    pytest.importorskip("procrastinate", reason="the extra queue is not installed")
    url = postgres.url()
    command = [sys.executable, "-m", "rath", "worker", "--store", url, "--allow", TEAM]
    root = Path(__file__).parents[2]
    workers = [subprocess.Popen(command, cwd=root, stderr=subprocess.DEVNULL) for _ in range(2)]
    try:
        yield url
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


@pytest.fixture(scope="module")
def n_queue_events(queue: str, tmp_path_factory: pytest.TempPathFactory) -> int:
    folder = tmp_path_factory.mktemp("whole")
    return Killed(folder, queue, queue).count_events()


@pytest.mark.timeout(180)
@pytest.mark.parametrize("point", quick_sample(range(N_REMOTE_POINTS)))
def test_a_job_on_a_queue_goes_on(
    queue: str, n_queue_events: int, tmp_path: Path, point: int
) -> None:
    kill_and_go_on(Killed(tmp_path, queue, queue), n_queue_events, point)
