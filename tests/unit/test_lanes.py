"""Order, results and errors of lanes, of what is gathered, and of worker threads."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath._async.lanes import LaneCall, Lanes, gather
from rath._async.workers import UserExit, WorkerThreads

plans = st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.integers(0, 3)), max_size=12)
"""Per call: its key, whether it is a barrier, how many turns of the loop it takes."""


def run_plan(plan: list[tuple[str, bool, int]]) -> tuple[list[int], list[tuple[str, int]]]:
    """Return the results and the log of starts and ends."""
    log: list[tuple[str, int]] = []

    def job(index: int, key: str, is_barrier: bool, turns: int) -> LaneCall[int]:
        async def call() -> int:
            log.append(("start", index))
            for _ in range(turns):
                await asyncio.sleep(0)
            log.append(("end", index))
            return index

        return LaneCall((key,), is_barrier, call)

    jobs = [job(index, *entry) for index, entry in enumerate(plan)]
    return asyncio.run(Lanes().run(jobs)), log


@given(plan=plans)
def test_results_stand_in_call_order(plan: list[tuple[str, bool, int]]) -> None:
    results, _ = run_plan(plan)
    assert results == list(range(len(plan)))


@given(plan=plans)
def test_equal_keys_never_overlap_and_keep_their_order(plan: list[tuple[str, bool, int]]) -> None:
    _, log = run_plan(plan)
    for key in "abc":
        lane = [event for event in log if plan[event[1]][0] == key]
        expected = [
            (edge, index)
            for index, entry in enumerate(plan)
            if entry[0] == key
            for edge in ("start", "end")
        ]
        assert lane == expected


@given(plan=plans)
def test_a_barrier_runs_alone(plan: list[tuple[str, bool, int]]) -> None:
    _, log = run_plan(plan)
    for index, (_, is_barrier, _) in enumerate(plan):
        if is_barrier:
            at = log.index(("start", index))
            assert log[at + 1] == ("end", index)
            assert {other for _, other in log[:at]} == set(range(index))


def test_different_keys_run_at_once() -> None:
    _, log = run_plan([("a", False, 2), ("b", False, 2)])
    assert [edge for edge, _ in log] == ["start", "start", "end", "end"]


def test_an_abandoned_call_holds_its_lane_until_it_ends() -> None:
    async def main() -> list[str]:
        lanes, held, log = Lanes(), Future[None](), list[str]()
        held.set_running_or_notify_cancel()
        lanes.hold(("a",), held)

        async def wait() -> None:
            await lanes.wait_free(("a",))
            log.append("free")

        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0)
        log.append("not yet")
        held.set_result(None)
        await waiting
        await lanes.wait_free(("a",))
        return log

    assert asyncio.run(main()) == ["not yet", "free"]


def test_a_lane_whose_abandoned_call_has_ended_is_free_at_once() -> None:
    async def main() -> bool:
        lanes, held = Lanes(), Future[None]()
        held.set_result(None)
        lanes.hold(("a",), held)
        waiting = asyncio.ensure_future(lanes.wait_free(("a",)))
        await asyncio.sleep(0)
        return waiting.done()

    assert asyncio.run(main())


def test_results_stand_in_the_order_given_whatever_ended_first() -> None:
    async def run() -> list[str]:
        gate = asyncio.Event()

        async def first() -> str:
            await gate.wait()
            return "first"

        async def second() -> str:
            gate.set()
            return "second"

        return await gather([first, second])

    assert asyncio.run(run()) == ["first", "second"]


def test_nothing_gives_nothing() -> None:
    none: list[Callable[[], Coroutine[Any, Any, int]]] = []
    assert asyncio.run(gather(none)) == []


def test_an_error_in_one_ends_the_others() -> None:
    ended: list[bool] = []

    async def fail() -> None:
        raise LookupError("gone")

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    with pytest.raises(ExceptionGroup) as raised:
        asyncio.run(gather([wait, fail]))
    assert ended == [True]
    assert isinstance(raised.value.exceptions[0], LookupError)


Threads = list[threading.Thread]

variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=-1)


class Doors:
    """Where idle workers wait until the test lets them see what is there for them, or nothing."""

    def __init__(self) -> None:
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

    def take(self, jobs: Door) -> Any:
        """Wait at the door for one of the jobs; called by the worker that they are for."""
        self.waiting.release()
        with self._changed:
            while self._ends == 0:
                if self._looks and not jobs.empty():
                    self._looks -= 1
                    return jobs.get()
                self._changed.wait(50)
            self._ends -= 1
            raise queue.Empty


class Door(queue.SimpleQueue[Any]):
    """The queue of one worker."""

    def __init__(self, doors: Doors) -> None:
        super().__init__()
        self._doors = doors

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        return super().get(block) if timeout is None else self._doors.take(self)


@contextmanager
def workers_behind_doors(n_idle: int) -> Generator[tuple[WorkerThreads, Doors, Threads]]:
    """Give workers of whom that many wait for a job; in the end all of them end."""
    doors, workers, barrier = Doors(), WorkerThreads("test"), threading.Barrier(n_idle)

    def meet() -> threading.Thread:
        barrier.wait(50)
        return threading.current_thread()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue, "SimpleQueue", partial(Door, doors))
        futures = [workers.submit(meet) for _ in range(n_idle)]
        for _ in range(n_idle):
            assert doors.waiting.acquire(timeout=50)
        yield workers, doors, [future.result(timeout=50) for future in futures]
        doors.let(end=1000)


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


def test_the_worker_that_was_busy_last_takes_the_next_job() -> None:
    with workers_behind_doors(3) as (workers, doors, _):
        threads: Threads = []
        for _ in range(5):
            future = workers.submit(threading.current_thread)
            doors.let(look=1)
            threads.append(future.result(timeout=50))
            assert doors.waiting.acquire(timeout=50)
        assert len({*threads}) == 1


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
