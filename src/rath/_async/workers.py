"""Daemon worker threads for user code that blocks: grown on demand, reused when idle."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

T = TypeVar("T")

_IDLE_SECONDS = 30.0
"""How long an idle worker waits for another job before it ends; a guess that keeps few threads."""


class UserExit(Exception):
    """User code left by an exception that an event loop must not see; `cause` is that exception.

    SystemExit and KeyboardInterrupt end the loop that they reach, CancelledError looks like a
    cancellation of the caller, and StopIteration cannot be set on an asyncio future at all.
    """

    def __init__(self, cause: BaseException) -> None:
        self.cause = cause
        super().__init__(f"{type(cause).__name__}: {cause}")


def tame(exc: BaseException) -> Exception:
    """Return `exc`, wrapped if an event loop must not see it as it is."""
    if isinstance(exc, Exception) and not isinstance(exc, StopIteration | CancelledError):
        return exc
    return UserExit(exc)


class _Job:
    __slots__ = ("context", "fn", "future")

    def __init__(self, fn: Callable[[], Any], future: Future[Any]) -> None:
        self.fn = fn
        self.future = future
        self.context = contextvars.copy_context()

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self.context.run(self.fn)
        except BaseException as exc:  # noqa: BLE001  # whatever it is, it belongs to the caller
            self.future.set_exception(tame(exc))
        else:
            self.future.set_result(result)


class WorkerThreads:
    """Runs each job on a thread of its own at once: no job ever waits for another to finish.

    A bounded pool would let tools that wait for each other starve; here an idle worker takes the
    job, and when none is idle a new daemon thread is started.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._wake = threading.Condition()
        self._jobs: list[_Job] = []
        self._idle = 0
        self._started = 0

    def submit(self, fn: Callable[[], T]) -> Future[T]:
        """Run `fn` on a worker in a copy of the caller's context variables."""
        future: Future[T] = Future()
        job = _Job(fn, future)
        with self._wake:
            self._jobs.append(job)
            if self._idle >= len(self._jobs):
                self._wake.notify()
                return future
            self._started += 1
            name = f"{self._name}-{self._started}"
        threading.Thread(target=self._work, name=name, daemon=True).start()
        return future

    def _work(self) -> None:
        while True:
            with self._wake:
                if not self._jobs:
                    self._idle += 1
                    woken = self._wake.wait_for(lambda: bool(self._jobs), timeout=_IDLE_SECONDS)
                    self._idle -= 1
                    if not woken:
                        return
                job = self._jobs.pop(0)
            job.run()
            del job
