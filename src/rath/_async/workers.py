"""Daemon worker threads for user code that blocks: shared ones, and one of its own for a handle."""

from __future__ import annotations

import contextvars
import os
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from rath._core.lazy_imports import lazy_modules

if TYPE_CHECKING:
    import queue
    from concurrent import futures
else:
    futures, queue = lazy_modules(__name__, "concurrent.futures", "queue")


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
    if isinstance(exc, Exception) and not isinstance(exc, StopIteration | futures.CancelledError):
        return exc
    return UserExit(exc)


_serial_above: contextvars.ContextVar[frozenset[object]] = contextvars.ContextVar(
    "rath_serial_above", default=frozenset()
)
"""Keys of the jobs of serial workers inside which the current code runs, on whichever thread."""

_on_thread = threading.local()
"""Its `serial`: a weak reference to the serial worker whose thread this is."""


class _QueuedCall:
    __slots__ = ("context", "fn", "future")

    def __init__(self, fn: Callable[[], Any], future: futures.Future[Any]) -> None:
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
        # Of each idle worker; the one that was busy last is the next one, so that workers which a
        # burst has started end after it.
        self._idle: list[queue.SimpleQueue[_QueuedCall]] = []
        self._started = 0

    def submit(self, fn: Callable[[], T]) -> futures.Future[T]:
        """Run `fn` on a worker in a copy of the caller's context variables."""
        future: futures.Future[T] = futures.Future()
        job = _QueuedCall(fn, future)
        with self._lock:
            if self._idle:
                self._idle.pop().put(job)
                return future
            self._started += 1
            name = f"{self._name}-{self._started}"
        # The job is not an argument of the thread: it would be held as long as the thread lives.
        jobs: queue.SimpleQueue[_QueuedCall] = queue.SimpleQueue()
        jobs.put(job)
        threading.Thread(target=self._work, args=(jobs,), name=name, daemon=True).start()
        return future

    def _work(self, jobs: queue.SimpleQueue[_QueuedCall]) -> None:
        job: _QueuedCall | None = jobs.get()
        while job is not None:
            job.run()
            del job
            job = self._next(jobs)

    def _next(self, jobs: queue.SimpleQueue[_QueuedCall]) -> _QueuedCall | None:
        """Wait for another job; None when there was none for long."""
        with self._lock:
            self._idle.append(jobs)
        try:
            return jobs.get(timeout=_IDLE_SECONDS)
        except queue.Empty:
            with self._lock:
                if jobs in self._idle:
                    self._idle.remove(jobs)
                    return None
            return jobs.get()  # one came just now


class SerialWorker:
    """Runs its jobs one after another on one daemon thread, which the first job starts.

    For what belongs to the thread that made it, as a connection of sqlite3 does. A job that was
    abandoned holds the thread until it returns, and one that waits for another thread's job on the
    same worker waits for ever. The thread ends after `end`, or when nothing refers to the worker
    any more; what is open is referred to by the runtime, until it is closed.

    Args:
        owner: For whom the jobs run; compared by identity.
    """

    _jobs: queue.SimpleQueue[tuple[object, _QueuedCall] | None] | None
    _stop: weakref.finalize[Any, SerialWorker]

    def __init__(self, owner: object) -> None:
        self.owner = owner
        self._reset()

    @staticmethod
    def current() -> SerialWorker | None:
        """Return the serial worker on whose thread the caller runs, None on any other thread."""
        worker: weakref.ref[SerialWorker] | None = getattr(_on_thread, "serial", None)
        return None if worker is None else worker()

    def is_waiting(self) -> bool:
        """Tell whether the caller runs inside the job at work, before which no other one runs."""
        return not self._running.isdisjoint(_serial_above.get())

    def submit(self, fn: Callable[[], T]) -> futures.Future[T]:
        """Run `fn` after the jobs before it, in a copy of the caller's context variables."""
        if self._pid != os.getpid():
            self._reset()  # the thread did not come along into this process
        future: futures.Future[T] = futures.Future()
        job = _QueuedCall(fn, future)
        key = object()
        job.context.run(_serial_above.set, _serial_above.get() | {key})
        with self._lock:
            if self._jobs is None:
                self._jobs = queue.SimpleQueue()
                self._stop = weakref.finalize(self, self._jobs.put, None)
                self._stop.atexit = False
                work = partial(_work_in_turn, weakref.ref(self), self._jobs, self._running)
                threading.Thread(target=work, name="rath-worker-serial", daemon=True).start()
            self._jobs.put((key, job))
        return future

    def end(self) -> None:
        """End the thread after the jobs so far; a later one would start another."""
        with self._lock:
            if self._jobs is not None and self._pid == os.getpid():
                self._stop()
            self._jobs = None

    def _reset(self) -> None:
        self._pid = os.getpid()
        # A finalizer that closes the handle may run inside `submit`, on the same thread.
        self._lock = threading.RLock()
        self._jobs = None
        self._running: set[object] = set()


def _work_in_turn(
    worker: weakref.ref[SerialWorker],
    jobs: queue.SimpleQueue[tuple[object, _QueuedCall] | None],
    running: set[object],
) -> None:
    _on_thread.serial = worker
    while (entry := jobs.get()) is not None:
        key, job = entry
        running.add(key)
        job.run()
        running.discard(key)
        # Else the thread would hold them until the next job comes.
        del entry, key, job
