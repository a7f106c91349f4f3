"""The worker's side of the queue: takes items from it, and carries them out in this process."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import msgspec
from procrastinate import BaseRetryStrategy, JobContext, RetryDecision
from procrastinate.exceptions import (
    ConnectorException,
    JobAborted,
    ProcrastinateException,
    UniqueViolation,
)
from procrastinate.job_context import AbortReason
from procrastinate.jobs import Job, Status

from rath._async.runtime import runtime
from rath._core.dataclasses import dataclass
from rath.flow.workflow import Workflow
from rath.jobs.engine import ItemEvent, JobSpec
from rath.jobs.postgres_limits import PostgresLimits
from rath.jobs.queue import QueuedItem
from rath.jobs.queue_database import TASK, QueueDatabase
from rath.jobs.worker import MAX_ERROR_CHARS, ItemRunner, worker_name
from rath.session.log.store import SessionStore

log: logging.Logger = logging.getLogger("rath.queue")

_BUSY = """
SELECT count(*) AS n FROM procrastinate_jobs
WHERE queue_name = %(queue)s AND status IN ('todo', 'doing')
"""
_END_SECONDS = 5.0
"""How long a run that is left may take to end; a guess."""

_WRITE_SECONDS = 60.0
_KEPT_JOBS = 16
"""Of how many jobs without items the limits are kept, for those that come soon; a guess."""

_FIRST_WAIT, _LAST_WAIT = 0.2, 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Options of a worker: taking items, and finding that others have died."""

    concurrency: int = 64
    """Items that it carries out at once."""

    grace: float = 10.0
    """Seconds that items may go on when it is asked to end; what runs then is left to others."""

    beat: float = 1.0
    """Seconds between its signs of life, and between its looks at those of others."""

    stalled_after: float = 3.0
    """Seconds without a sign of life after which the items of a worker are given to others: three
    beats, as a busy machine is late. Who is only late loses nothing, as its store fences it."""

    poll: float = 1.0
    """Seconds after which it looks for items without a notice, as of those that come back."""


class _Requeue(BaseRetryStrategy):
    """Has an item that this worker could not end delivered again."""

    def get_retry_decision(self, *, exception: BaseException, job: Job) -> RetryDecision | None:
        again = isinstance(exception, JobAborted | ConnectorException | asyncio.CancelledError)
        return RetryDecision() if again else None


class _JobRunner(NamedTuple):
    """What carries out the items of a job here, and the share of its limits."""

    runner: ItemRunner
    limits: PostgresLimits


@dataclass(slots=True, eq=False)
class _Delivery:
    """An item that is carried out here."""

    queued: QueuedItem
    worker: int | None
    """Procrastinate's id of this worker when the item was taken."""

    runner: ItemRunner | None = None
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True
        if self.runner is not None:
            self.runner.cancel(self.queued.run)

    def event(self, exc: BaseException, *, retryable: bool) -> ItemEvent:
        return ItemEvent(
            run=self.queued.run,
            attempt=self.queued.attempt,
            status="failed",
            error=f"{type(exc).__name__}: {exc}"[:MAX_ERROR_CHARS],
            retryable=retryable,
            worker=worker_name(),
        )


class QueueWorker:
    """Carries out the items of a queue, many at once; used on the runtime loop.

    Nothing of an item is believed: which workflows there are `load` decides, and sessions are those
    of `store`.

    Args:
        database: The queue.
        store: Where the sessions are.
        load: Returns the workflow of a reference, or raises; called on a worker thread.
        options: How items are taken.
    """

    def __init__(
        self,
        database: QueueDatabase,
        store: SessionStore,
        load: Callable[[str], Workflow],
        options: WorkerOptions | None = None,
    ) -> None:
        self._database = database
        self._store = store
        self._load = load
        self._options = options or WorkerOptions()
        self._stopping = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._deliveries: dict[int, _Delivery] = {}
        self._workers: set[int] = set()
        self._orphans: dict[int, float] = {}
        """Jobs that stand here as running and do not run, and since when."""

        self._jobs: dict[QueuedItem, _JobRunner] = {}
        """By what all items of a job have; the one that was used last is the last."""

        self.ended: Counter[str] = Counter()
        """How many items have ended here, by status; `left` are those that others go on with."""

        task = database.app.task(name=TASK, pass_context=True, retry=_Requeue())
        task(self._carry_out)

    def stop(self) -> None:
        """Take nothing new, and end; from any thread."""
        if self._loop is None:
            self._stopping.set()
        else:
            self._loop.call_soon_threadsafe(self._stopping.set)

    async def serve(self, *, until_empty: bool = False) -> None:
        """Carry out items until `stop`.

        A server that goes away is waited for.

        Args:
            until_empty: End, too, when nothing of the queue waits or runs, here or elsewhere.

        Raises:
            EngineError: The queue cannot be used.
        """
        self._loop = asyncio.get_running_loop()
        await self._database.open()
        upkeep = asyncio.create_task(self._keep_up(until_empty=until_empty))
        try:
            wait = _FIRST_WAIT
            while not self._stopping.is_set():
                started = time.monotonic()
                problem = await self._work()
                if problem is None:
                    continue
                log.warning("%s; it is tried again", self._database.error("working", problem))
                wait = _FIRST_WAIT if time.monotonic() - started > _LAST_WAIT else wait * 2
                await _wait_for(self._stopping, min(wait, _LAST_WAIT))
        finally:
            upkeep.cancel()
            await asyncio.wait([upkeep])
            await self._close_jobs(tuple(self._jobs))
            await self._database.close()

    async def _work(self) -> BaseException | None:
        """Run procrastinate's worker until `stop`, or until it fails: return with what."""
        options = self._options
        working = asyncio.ensure_future(
            self._database.app.run_worker_async(
                queues=[self._database.queue],
                name=worker_name(),
                concurrency=options.concurrency,
                fetch_job_polling_interval=options.poll,
                abort_job_polling_interval=options.poll,
                shutdown_graceful_timeout=options.grace,
                update_heartbeat_interval=options.beat,
                stalled_worker_timeout=options.stalled_after,
                # What is told of an end is an event.
                delete_jobs="always",
                install_signal_handlers=False,
            )
        )
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            working.cancel()
            await asyncio.wait([working, stopping])
        return None if working.cancelled() else working.exception()

    async def _carry_out(self, context: JobContext, /, **fields: Any) -> None:
        """Carry out one item, and write its event; this is procrastinate's task."""
        assert context.job.id is not None
        queued = msgspec.convert(fields, QueuedItem)
        delivery = _Delivery(queued, context.job.worker_id)
        if delivery.worker is not None:
            self._workers.add(delivery.worker)
        self._deliveries[context.job.id] = delivery
        try:
            event = await self._await_end(delivery, context)
            if event is None:
                self.ended["left"] += 1
                raise JobAborted
            await self._write(queued, event)
            self.ended[event.status] += 1
        finally:
            del self._deliveries[context.job.id]

    async def _await_end(self, delivery: _Delivery, context: JobContext) -> ItemEvent | None:
        """Return the event of an item, None where it is left to another worker."""
        running = asyncio.create_task(self._attempt(delivery))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            delivery.cancel()
        is_left = context.abort_reason() is not AbortReason.USER_REQUEST
        await asyncio.wait([running], timeout=_END_SECONDS if is_left else None)
        if running.done():
            event = running.result()
            return None if is_left and event.status == "cancelled" else event
        running.cancel()
        return None

    async def _attempt(self, delivery: _Delivery) -> ItemEvent:
        """Carry out an item; every end of it is an event."""
        queued = delivery.queued
        try:
            workflow = await runtime().call_in_worker(partial(self._load, queued.reference))
        except Exception as exc:  # noqa: BLE001  # programs raise anything; it belongs to the item
            return delivery.event(exc, retryable=False)
        if delivery.is_cancelled:
            return ItemEvent(run=queued.run, attempt=queued.attempt, status="cancelled")
        delivery.runner = self._runner(queued, workflow)
        event = await delivery.runner.run_stored(queued.run, queued.attempt, queued.session)
        if event.status == "failed" and event.session is None:
            log.warning("%s; the store of its job is %s", event.error, queued.store)
        return event

    def _runner(self, queued: QueuedItem, workflow: Workflow) -> ItemRunner:
        """Return the one of the job."""
        ids = dict.fromkeys(("driver", "run", "session"), queued.job)
        of_job = msgspec.structs.replace(queued, **ids, attempt=0)
        job = self._jobs.pop(of_job, None)
        if job is None:
            spec = JobSpec(
                job=queued.job,
                name=queued.name,
                workflow=workflow,
                store=self._store,
                reference=queued.reference,
                concurrency=queued.concurrency,
                timeout=queued.timeout,
                workspace=queued.workspace,
                rate=queued.rate,
                budget_usd=queued.budget_usd,
                used_usd=queued.used_usd,
            )
            limits = PostgresLimits(self._database.address, spec)
            job = _JobRunner(ItemRunner(spec, limits), limits)
        self._jobs[of_job] = job
        return job.runner

    def _idle_jobs(self) -> list[QueuedItem]:
        """Return the jobs that have no item here, the one that was used last at the end."""
        used = {id(each.runner) for each in self._deliveries.values()}
        return [of_job for of_job, job in self._jobs.items() if id(job.runner) not in used]

    async def _close_jobs(self, jobs: Iterable[QueuedItem]) -> None:
        """Tell what was used of the limits of jobs, and give their connections back."""
        # All at once, so that an item that comes meanwhile takes none that is closed.
        for job in [self._jobs.pop(of_job) for of_job in jobs]:
            with suppress(TimeoutError):
                async with asyncio.timeout(_END_SECONDS):
                    await job.runner.aclose()
            await runtime().call_in_worker(job.limits.close)

    async def _write(self, queued: QueuedItem, event: ItemEvent) -> None:
        """Write an event, once the server answers.

        Raises:
            ConnectorException: It has not for too long, so that the item comes again.
        """
        end = time.monotonic() + _WRITE_SECONDS
        wait = _FIRST_WAIT
        while True:
            try:
                return await self._database.write(queued, event)
            except ConnectorException:
                if time.monotonic() > end:
                    raise
            await asyncio.sleep(wait)
            wait = min(wait * 2, _LAST_WAIT)

    async def _keep_up(self, *, until_empty: bool) -> None:
        """Give signs of life while items run, and have those of dead workers delivered again.

        Procrastinate's own signs end when it is asked to stop or has met an error, see
        https://github.com/procrastinate-org/procrastinate/issues/1597.
        """
        while True:
            try:
                await self._beat()
                for job in await self._stalled_jobs():
                    await self._rescue(job)
                if until_empty and not self._deliveries:
                    row = await self._database.app.connector.execute_query_one_async(
                        _BUSY, queue=self._database.queue
                    )
                    if not row["n"]:
                        self.stop()
                await self._close_jobs(self._idle_jobs()[:-_KEPT_JOBS])
            except ProcrastinateException as exc:
                log.info("%s", self._database.error("looking after items", exc))
            await asyncio.sleep(self._options.beat)

    async def _beat(self) -> None:
        for worker in {each.worker for each in self._deliveries.values()} - {None}:
            assert worker is not None
            await self._database.jobs.update_heartbeat(worker)

    async def _stalled_jobs(self) -> Iterable[Job]:
        """Return the items that nobody carries out any more, though they were taken."""
        jobs, options = self._database.jobs, self._options
        found = await jobs.get_stalled_jobs(
            queue=self._database.queue,
            task_name=TASK,
            seconds_since_heartbeat=options.stalled_after,
        )
        stalled = {job.id: job for job in found if job.id not in self._deliveries}
        # Those of this process whose end could not be written.
        orphans: dict[int, float] = {}
        for worker in self._workers:
            taken = await jobs.list_jobs_async(
                queue=self._database.queue, status="doing", worker_id=worker
            )
            for job in taken:
                if job.id is None or job.id in self._deliveries:
                    continue
                since = orphans[job.id] = self._orphans.get(job.id, time.monotonic())
                if time.monotonic() - since > options.stalled_after:
                    stalled[job.id] = job
        self._orphans = orphans
        return stalled.values()

    async def _rescue(self, stalled: Job) -> None:
        """Have an item delivered again, or end it where that was asked for."""
        jobs = self._database.jobs
        for job in await jobs.list_jobs_async(id=stalled.id, status="doing"):
            if job.abort_requested:
                with suppress(msgspec.ValidationError):
                    queued = msgspec.convert(job.task_kwargs, QueuedItem)
                    event = ItemEvent(run=queued.run, attempt=queued.attempt, status="cancelled")
                    await self._database.write(queued, event)
                await jobs.finish_job(job, Status.ABORTED, delete_job=True)
                continue
            try:
                await jobs.retry_job(job)
            except UniqueViolation:
                # The same attempt was submitted again and waits for this one.
                await jobs.finish_job(job, Status.ABORTED, delete_job=True)
            log.info("%s: an item of a worker that is gone is delivered again", self._database.name)


async def _wait_for(event: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return
