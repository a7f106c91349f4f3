"""Worker threads: every job at once, each result where it belongs, idle threads end."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath._async.workers import UserExit, WorkerThreads

T = TypeVar("T")

variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=-1)


class Impatient(threading.Condition):
    """A condition whose timeouts are over at once."""

    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
        return super().wait_for(predicate, None if timeout is None else 0.0)


class Gated(threading.Condition):
    """A condition that lets other threads than the one that made it in once the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self._maker = threading.current_thread()

    def __enter__(self) -> bool:
        if threading.current_thread() is not self._maker:
            self.gate.wait(15)
        return super().__enter__()


def workers_with(condition: threading.Condition, monkeypatch: pytest.MonkeyPatch) -> WorkerThreads:
    with monkeypatch.context() as patch:
        patch.setattr(threading, "Condition", lambda: condition)
        return WorkerThreads("test")


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
    errors = [future.exception(timeout=10) for future in futures]
    assert [None if error is None else error.args for error in errors] == [
        (value,) if fails else None for value, fails in plan
    ]
    assert [future.result() for future, (_, fails) in zip(futures, plan, strict=True)
            if not fails] == [value for value, fails in plan if not fails]  # fmt: skip


@given(depth=st.integers(1, 12))
def test_jobs_that_wait_for_jobs_of_their_own_never_starve(depth: int) -> None:
    workers = WorkerThreads("test")

    def descend(left: int) -> int:
        return 0 if left == 0 else 1 + workers.submit(lambda: descend(left - 1)).result(timeout=10)

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
    assert [future.result(timeout=10) for future in futures] == values
    assert variable.get() == -1


def test_a_job_that_is_cancelled_before_it_begins_never_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    condition = Gated()
    workers = workers_with(condition, monkeypatch)
    ran: list[str] = []
    cancelled = workers.submit(lambda: ran.append("cancelled"))
    assert cancelled.cancel()
    later = workers.submit(lambda: ran.append("later"))
    condition.gate.set()
    later.result(timeout=10)
    assert ran == ["later"]


def test_an_idle_worker_ends_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = workers_with(Impatient(), monkeypatch)
    thread = workers.submit(threading.current_thread).result(timeout=10)
    thread.join(10)
    assert not thread.is_alive()
    assert workers.submit(threading.current_thread).result(timeout=10) is not thread


def test_a_worker_survives_a_job_that_exits() -> None:
    workers = WorkerThreads("test")

    def leave() -> None:
        raise SystemExit(3)

    error = workers.submit(leave).exception(timeout=10)
    assert isinstance(error, UserExit)
    assert isinstance(error.cause, SystemExit)
    assert workers.submit(lambda: "still there").result(timeout=10) == "still there"


def test_workers_never_hold_up_the_exit_of_the_interpreter() -> None:
    thread = WorkerThreads("test").submit(threading.current_thread).result(timeout=10)
    assert thread.daemon
