"""Worker threads: every job at once, each result where it belongs, idle threads end."""

from __future__ import annotations

import contextvars
import queue
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath._async.workers import UserExit, WorkerThreads

Threads = list[threading.Thread]

variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=-1)


class Doors(queue.SimpleQueue[Any]):
    """A queue in which idle workers wait until the test lets them see what is there, or nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = threading.Semaphore(0)
        """Counts how often a worker has come to wait."""
        self._changed = threading.Condition()
        self._looks = self._ends = 0

    def let(self, *, look: int = 0, end: int = 0) -> None:
        """Let that many workers take a job, and that many go with nothing."""
        with self._changed:
            self._looks += look
            self._ends += end
            self._changed.notify_all()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if timeout is None:
            return super().get(block)
        self.waiting.release()
        with self._changed:
            while self._ends == 0:
                if self._looks and not self.empty():
                    self._looks -= 1
                    with suppress(queue.Empty):
                        return super().get(block=False)
                self._changed.wait(50)
            self._ends -= 1
            raise queue.Empty


@contextmanager
def workers_behind_doors(n_idle: int) -> Generator[tuple[WorkerThreads, Doors, Threads]]:
    """Give workers of whom that many wait for a job; in the end all of them end."""
    doors = Doors()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue, "SimpleQueue", lambda: doors)
        workers = WorkerThreads("test")
    barrier = threading.Barrier(n_idle)

    def meet() -> threading.Thread:
        barrier.wait(50)
        return threading.current_thread()

    futures = [workers.submit(meet) for _ in range(n_idle)]
    for _ in range(n_idle):
        assert doors.waiting.acquire(timeout=50)
    yield workers, doors, [future.result(timeout=50) for future in futures]
    doors.let(end=1000)
    for _ in range(20):
        doors.put(None)  # ... also those who wait without a limit


@given(plan=st.lists(st.tuples(st.integers(), st.booleans()), max_size=8))
def test_each_future_gets_what_its_own_job_came_to(plan: list[tuple[int, bool]]) -> None:
    workers = WorkerThreads("test")

    def job(value: int, fails: bool) -> Callable[[], int]:
        def run() -> int:
            if fails:
                raise ValueError(value)
            return value

        return run

    futures = [workers.submit(job(*entry)) for entry in plan]
    errors = [future.exception(timeout=50) for future in futures]
    assert [None if error is None else error.args for error in errors] == [
        (value,) if fails else None for value, fails in plan
    ]
    assert [future.result() for future, (_, fails) in zip(futures, plan, strict=True)
            if not fails] == [value for value, fails in plan if not fails]  # fmt: skip


@given(depth=st.integers(1, 12))
def test_jobs_that_wait_for_jobs_of_their_own_never_starve(depth: int) -> None:
    workers = WorkerThreads("test")

    def descend(left: int) -> int:
        return 0 if left == 0 else 1 + workers.submit(lambda: descend(left - 1)).result(timeout=50)

    assert descend(depth) == depth


@given(values=st.lists(st.integers(), max_size=6))
def test_a_job_sees_the_context_of_its_submit_and_changes_only_its_own(values: list[int]) -> None:
    workers = WorkerThreads("test")

    def look() -> int:
        seen = variable.get()
        variable.set(-99)
        return seen

    def submit(value: int) -> Any:
        variable.set(value)
        return workers.submit(look)

    futures = [contextvars.copy_context().run(submit, value) for value in values]
    assert [future.result(timeout=50) for future in futures] == values
    assert variable.get() == -1


def test_a_job_that_is_cancelled_before_it_begins_never_runs() -> None:
    ran: list[str] = []
    with workers_behind_doors(1) as (workers, doors, _):
        assert workers.submit(lambda: ran.append("cancelled")).cancel()
        doors.let(look=1)
        assert doors.waiting.acquire(timeout=50)
        later = workers.submit(lambda: ran.append("later"))
        doors.let(look=1)
        later.result(timeout=50)
    assert ran == ["later"]


def test_an_idle_worker_ends_after_a_while() -> None:
    with workers_behind_doors(1) as (workers, doors, (thread,)):
        doors.let(end=1)
        thread.join(50)
        assert not thread.is_alive()
        assert workers.submit(threading.current_thread).result(timeout=50) is not thread


def test_a_worker_that_is_about_to_end_takes_the_job_that_came_for_it() -> None:
    with workers_behind_doors(1) as (workers, doors, (thread,)):
        future = workers.submit(threading.current_thread)
        doors.let(end=1)
        assert future.result(timeout=50) is thread


@given(n_idle=st.integers(1, 4), n_jobs=st.integers(0, 6), n_ends=st.integers(0, 4))
def test_every_job_is_run_whichever_workers_end_meanwhile(
    n_idle: int, n_jobs: int, n_ends: int
) -> None:
    with workers_behind_doors(n_idle) as (workers, doors, _):
        futures = [workers.submit(partial(int, index)) for index in range(n_jobs)]
        doors.let(look=n_jobs, end=n_ends)
        assert [future.result(timeout=50) for future in futures] == list(range(n_jobs))


def test_a_worker_survives_a_job_that_exits() -> None:
    workers = WorkerThreads("test")

    def leave() -> None:
        raise SystemExit(3)

    error = workers.submit(leave).exception(timeout=50)
    assert isinstance(error, UserExit)
    assert isinstance(error.cause, SystemExit)
    assert workers.submit(lambda: "still there").result(timeout=50) == "still there"


def test_workers_never_hold_up_the_exit_of_the_interpreter() -> None:
    thread = WorkerThreads("test").submit(threading.current_thread).result(timeout=50)
    assert thread.daemon


@given(n_idle=st.integers(1, 3), n_more=st.integers(0, 3))
def test_a_job_never_waits_behind_one_that_an_idle_worker_took(n_idle: int, n_more: int) -> None:
    n_jobs = n_idle + n_more
    meeting = threading.Barrier(n_jobs)
    with workers_behind_doors(n_idle) as (workers, doors, _):
        futures = [workers.submit(partial(meeting.wait, 50)) for _ in range(n_jobs)]
        doors.let(look=n_jobs)
        assert sorted(future.result(timeout=50) for future in futures) == list(range(n_jobs))
