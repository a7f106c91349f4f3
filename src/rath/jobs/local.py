"""The engine of this process: items are carried out side by side on the runtime of `rath`."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncGenerator
from uuid import UUID

from rath.errors import EngineError
from rath.jobs.engine import EventQueue, ItemEvent, JobSpec, WorkItem
from rath.jobs.worker import ItemRunner


class LocalEngine:
    """Carries out items in this process, with the sessions that were given."""

    name = "local"
    is_local = True

    def __init__(self) -> None:
        # Items run with what the caller has set, and not inside the run of the job.
        self._context = contextvars.copy_context()
        self._events = EventQueue()
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, spec: JobSpec) -> None:
        """Begin a job."""
        self._runner = ItemRunner(spec)

    def submit(self, item: WorkItem) -> None:
        """Have an item carried out; returns at once."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._run(item), context=self._context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self, run: UUID) -> None:
        """Have the attempts at an item ended; an event of each comes still."""
        self._runner.cancel(run)

    def events(self) -> AsyncGenerator[ItemEvent]:
        """Yield events as they come, until `close`."""
        return self._events.read()

    async def close(self) -> None:
        """End what is in flight: nobody is there any more to hear of it."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._runner.aclose()
        self._events.close()

    async def _run(self, item: WorkItem) -> None:
        self._events.put(await self._runner.run(item))


def local_engine(rest: str) -> LocalEngine:
    """Return the engine of this process.

    Raises:
        EngineError: Something stands behind its scheme.
    """
    if rest:
        raise EngineError(f"engine 'local' takes nothing behind its name, not {rest!r}")
    return LocalEngine()
