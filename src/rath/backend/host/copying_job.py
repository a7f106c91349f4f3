"""A blocking job of which many wait for one result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from rath._async.runtime import runtime
from rath.backend.host.copying import CopyFailed

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Failed:
    """How a job failed; no exception, whose frames would hold what they worked on."""

    path: str
    reason: str


class SharedJob(Generic[T]):
    """What a blocking job returned, while it runs or once it has; a failure is not kept.

    It refers to its job only while that runs, so that an object may hold a job of its own.
    """

    def __init__(self) -> None:
        self._running: Future[T | _Failed] | None = None

    @property
    def is_begun(self) -> bool:
        """Whether it runs or has returned something."""
        return self._running is not None and not _has_failed(self._running)

    async def aresult(self, job: Callable[[], T]) -> T:
        """Return what the job returns; the first who asks starts it on a worker thread.

        A waiter that is cancelled ends nothing.

        Raises:
            CopyFailed: The job did.
        """
        running = self._running
        if running is None or _has_failed(running):
            # No callback: a future keeps those that it has called, and this object with them.
            running = self._running = runtime().start_in_worker(partial(_outcome, [job]))
        outcome = await asyncio.shield(asyncio.wrap_future(running))
        if isinstance(outcome, _Failed):
            raise CopyFailed(outcome.path, outcome.reason)
        return outcome


def _has_failed(running: Future[T | _Failed]) -> bool:
    return running.done() and (
        running.exception() is not None or isinstance(running.result(), _Failed)
    )


def _outcome(jobs: list[Callable[[], T]]) -> T | _Failed:
    # Taken out, so that the worker no longer refers to the job when its result can be read.
    job = jobs.pop()
    try:
        return job()
    except CopyFailed as exc:
        return _Failed(exc.path, exc.reason)
