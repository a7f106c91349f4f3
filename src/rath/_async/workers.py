"""Daemon worker threads for user code that blocks: grown on demand, reused when idle."""

from __future__ import annotations

import contextvars
import queue
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
        # Not its text: the cause may be of a class whose own `__str__` fails.
        super().__init__(f"user code left by {type(cause).__name__}")


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
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        # Idle workers that no job in the queue is meant for.
        self._idle = 0
        self._started = 0

    def submit(self, fn: Callable[[], T]) -> Future[T]:
        """Run `fn` on a worker in a copy of the caller's context variables."""
        future: Future[T] = Future()
        job = _Job(fn, future)
        with self._lock:
            self._jobs.put(job)
            if self._idle:
                self._idle -= 1
                return future
            self._started += 1
            name = f"{self._name}-{self._started}"
        # The job is not an argument of the thread: it would be held as long as the thread lives.
        threading.Thread(target=self._work, name=name, daemon=True).start()
        return future

    def _work(self) -> None:
        job: _Job | None = self._jobs.get()
        while job is not None:
            job.run()
            del job
            job = self._next()

    def _next(self) -> _Job | None:
        """Wait for another job; None when there was none for long."""
        with self._lock:
            self._idle += 1
        try:
            return self._jobs.get(timeout=_IDLE_SECONDS)
        except queue.Empty:
            # A job that came just now was put for this worker: it may not go without it. Another
            # worker may take it first, without the lock, so only the attempt itself can tell.
            with self._lock:
                try:
                    return self._jobs.get_nowait()
                except queue.Empty:
                    self._idle -= 1
                    return None
