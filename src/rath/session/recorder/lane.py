"""Jobs that block, made one after another on worker threads."""

from __future__ import annotations

import contextvars
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from rath._async.runtime import runtime
from rath._async.workers import tame

T = TypeVar("T")


class Lane:
    """A queue of jobs of which one at a time is made, in the order in which they came.

    The end of the program waits for what is in it.
    """

    __slots__ = ("__weakref__", "_is_running", "_jobs", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._is_running = False

    def put(self, job: Callable[[], T]) -> Future[T]:
        """Have `job` made after those before it; returns at once."""
        done: Future[T] = Future()
        # A running future refuses cancel(): whoever stops waiting for a write does not stop it.
        done.set_running_or_notify_cancel()
        with self._lock:
            self._jobs.append((job, done))
            if self._is_running:
                return done
            self._is_running = True
        # In no context: jobs may wait for the run in which they were put, and belong to none.
        start = contextvars.Context().run
        runtime().promise(start(runtime().start_in_worker, self._work))
        return done

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._is_running = False
                    return
                job, done = self._jobs.popleft()
            try:
                result = job()
            except BaseException as exc:  # noqa: BLE001  # it belongs to whoever reads the future
                done.set_exception(tame(exc))
            else:
                done.set_result(result)
            del job, done
