"""The driver's side of the queue: defers a job of procrastinate for each attempt at an item."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from typing import Any
from uuid import UUID, uuid4

import msgspec
from procrastinate.exceptions import AlreadyEnqueued, ConnectorException
from procrastinate.jobs import Job

from rath.errors import EngineError
from rath.jobs.engine import EventQueue, ItemEvent, JobSpec, WorkItem
from rath.jobs.queue import QueuedItem
from rath.jobs.queue_database import TASK, QueueDatabase
from rath.session.log.postgres import PostgresStore
from rath.session.log.postgres_connection import Address
from rath.session.log.store import portable_url

log: logging.Logger = logging.getLogger("rath.queue")

_PATIENCE_SECONDS = 60.0
"""How long the server may be away until what was submitted counts as failed; a guess."""

_FIRST_WAIT, _LAST_WAIT = 0.2, 5.0
_LAST_SECONDS = 5.0
"""How long the last orders may take when the engine is closed; a guess."""

_MAX_BATCH = 200
_WORKERS = """
SELECT count(*) AS n FROM procrastinate_workers WHERE last_heartbeat > now() - interval '1 minute'
"""


class QueueEngine:
    """Has items carried out by the processes of `rath worker` that have its queue.

    An item is in the queue until its event is written: who takes one and dies has it taken by
    another. Its key is that of its run and attempt, so that it waits there once, however often it
    is submitted; and no two of a run are carried out at the same time. A driver takes what earlier
    ones of its job had put there out of it, and hears of what it has submitted itself.

    Args:
        address: The database and the schema of the queue.
        name: Of the queue.
    """

    name = "postgres"
    is_local = False

    def __init__(self, address: Address, name: str) -> None:
        self._address = address
        self._queue = name
        self._events = EventQueue()
        self._orders: asyncio.Queue[WorkItem | UUID] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self._in_flight: dict[UUID, set[int]] = {}
        """By run: the attempts that were submitted here, and have not ended."""

        self._database: QueueDatabase | None = None
        self._driver = uuid4()

    async def open(self, spec: JobSpec) -> None:
        """Connect to the queue, and make its tables where they are missing."""
        store = portable_url(spec.store)
        if spec.reference is None:
            raise EngineError(
                f"a queue carries no code, and {type(spec.workflow).__name__} has no name there: "
                'give flow.map the text "module:name" of the workflow, or of a function that '
                "makes it, and workers allow that: rath worker --allow module:name"
            )
        if store is None:
            raise EngineError(
                f"the store {spec.store.where} is one of this process only, so no worker can read "
                "it; give a directory or a URL"
            )
        self._spec, self._store = spec, store
        database = QueueDatabase(self._credentials(spec), self._queue)
        await database.open()
        self._database = database
        await database.forget(spec.job)
        row = await database.app.connector.execute_query_one_async(_WORKERS)
        if not row["n"]:
            log.warning(
                "no worker runs on %s; start one: rath worker --store %s --queue %s --allow %s",
                database.where,
                store,
                self._queue,
                spec.reference,
            )
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._read(database)),
            loop.create_task(self._send(database)),
        ]

    def submit(self, item: WorkItem) -> None:
        """Have an item carried out; returns at once."""
        self._in_flight.setdefault(item.run, set()).add(item.attempt)
        self._orders.put_nowait(item)

    def cancel(self, run: UUID) -> None:
        """Have the attempts at an item ended; an event of each comes still."""
        self._orders.put_nowait(run)

    def events(self) -> AsyncGenerator[ItemEvent]:
        """Yield events as they come, until `close`."""
        return self._events.read()

    async def close(self) -> None:
        """Take what waits out of the queue, and disconnect; what runs goes on by itself."""
        if self._database is not None:
            with suppress(TimeoutError, ConnectorException):
                async with asyncio.timeout(_LAST_SECONDS):
                    await self._orders.join()
                    await self._database.withdraw(driver=self._driver)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._database is not None:
            await self._database.close()
        self._events.close()

    def _credentials(self, spec: JobSpec) -> Address:
        """Return the address with those of the store, where that is the same place and has some."""
        own, store = self._address, spec.store
        if isinstance(store, PostgresStore) and store.address.where == own.where:
            return own if "user" in own.parameters else store.address
        return own

    async def _read(self, database: QueueDatabase) -> None:
        async for event in database.read(self._driver):
            self._put(event)

    def _put(self, event: ItemEvent) -> None:
        """Give an event on; one of what was not submitted here, or has ended, is no news."""
        attempts = self._in_flight.get(event.run, set())
        if event.attempt in attempts:
            attempts.remove(event.attempt)
            if not attempts:
                del self._in_flight[event.run]
            self._events.put(event)

    async def _send(self, database: QueueDatabase) -> None:
        while True:
            orders = [await self._orders.get()]
            while not self._orders.empty() and len(orders) < _MAX_BATCH:
                orders.append(self._orders.get_nowait())
            for _, group in groupby(orders, key=type):
                await self._carry_over(database, list(group))
            for _ in orders:
                self._orders.task_done()

    async def _carry_over(self, database: QueueDatabase, orders: list[WorkItem | UUID]) -> None:
        """Bring orders of one kind to the server, which may be away for a while."""
        items = [order for order in orders if isinstance(order, WorkItem)]
        runs = [order for order in orders if isinstance(order, UUID)]
        try:
            if items:
                await _patiently(partial(self._defer, database, items))
            for run in runs:
                await _patiently(partial(self._cancel, database, run))
        except ConnectorException as exc:
            problem = str(database.error("submitting items", exc))
            log.warning("%s", problem)
            for item in items:
                error = f"EngineError: {problem}"
                self._put(
                    ItemEvent(run=item.run, attempt=item.attempt, status="failed", error=error)
                )

    async def _defer(self, database: QueueDatabase, items: Sequence[WorkItem]) -> None:
        jobs = [self._job(database, item) for item in items]
        try:
            await database.jobs.batch_defer_jobs_async(jobs)
        except AlreadyEnqueued:
            for job in jobs:
                with suppress(AlreadyEnqueued):
                    await database.jobs.defer_job_async(job)

    def _job(self, database: QueueDatabase, item: WorkItem) -> Job:
        spec = self._spec
        assert spec.reference is not None, "open refuses a job without"
        queued = QueuedItem(
            job=spec.job,
            driver=self._driver,
            name=spec.name,
            reference=spec.reference,
            store=self._store,
            run=item.run,
            attempt=item.attempt,
            session=item.session.id,
            concurrency=spec.concurrency,
            timeout=spec.timeout,
            workspace=spec.workspace,
            rate=spec.rate,
            budget_usd=spec.budget_usd,
            used_usd=spec.used_usd,
        )
        fields: dict[str, Any] = msgspec.to_builtins(queued)
        return Job(
            queue=database.queue,
            task_name=TASK,
            task_kwargs=fields,
            lock=str(item.run),
            queueing_lock=f"{self._driver} {item.run} {item.attempt}",
        )

    async def _cancel(self, database: QueueDatabase, run: UUID) -> None:
        """Remove the attempts at an item that wait, and have workers end those that run."""
        for job in await database.jobs.list_jobs_async(queue=database.queue, lock=str(run)):
            if job.id is None or job.task_kwargs.get("job") != str(self._spec.job):
                continue
            if await database.jobs.cancel_job_by_id_async(job.id, delete_job=True):
                attempt = msgspec.convert(job.task_kwargs, QueuedItem).attempt
                self._put(ItemEvent(run=run, attempt=attempt, status="cancelled"))
            else:
                await database.jobs.cancel_job_by_id_async(job.id, abort=True)


async def _patiently(attempt: Callable[[], Awaitable[None]]) -> None:
    """Do what may be done twice until the server has answered.

    Raises:
        ConnectorException: It has not for too long.
    """
    end = time.monotonic() + _PATIENCE_SECONDS
    wait = _FIRST_WAIT
    while True:
        try:
            return await attempt()
        except ConnectorException:
            if time.monotonic() > end:
                raise
        await asyncio.sleep(wait)
        wait = min(wait * 2, _LAST_WAIT)
