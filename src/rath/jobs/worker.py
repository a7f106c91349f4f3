"""The worker of a job: carries out items in this process, many at once, each as a run by key."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from uuid import UUID

from rath._async.deferred import Nested, nesting
from rath._async.runtime import runtime
from rath._core.vector import Vector
from rath.errors import (
    ConfigError,
    JobBudgetExceeded,
    ResumeMismatch,
    SessionBusy,
    SessionChanged,
    SessionDamaged,
    WorkspaceLost,
)
from rath.jobs.engine import ItemEvent, ItemStatus, JobSpec, WorkItem
from rath.jobs.gate import CallGate
from rath.jobs.limits import LimitSource
from rath.llm.calls import call_limits
from rath.llm.chat_response import RathLLMTokenUsage
from rath.session.body import Body
from rath.session.graph.recording import Edge
from rath.session.outcome import Cancelled, NeedsApproval, NeedsDecision, NeedsInput
from rath.session.session import Session

_HOPELESS = (ConfigError, ResumeMismatch, SessionDamaged, WorkspaceLost)
"""Errors that another attempt meets again."""

_FIRST_LOOK_SECONDS, _LAST_LOOK_SECONDS = 0.1, 2.0
"""How often a log that another writer holds is looked at; guesses."""

MAX_CHANGES = 20
"""How often a log may have another writer between a look and an attempt; a guess."""

MAX_ERROR_CHARS = 2000
"""Longest text of an error in an event; a guess."""


def worker_name() -> str:
    """Return host and process, by which a record names a worker."""
    return f"{socket.gethostname()} process {os.getpid()}"


class ItemRunner:
    """Carries out the items of one job; used on the runtime loop only.

    Args:
        spec: The job.
        limits: Grants what rate and budget of the job allow, to all of its workers; without one
            this worker takes all of it.
    """

    def __init__(self, spec: JobSpec, limits: LimitSource | None = None) -> None:
        self._spec = spec
        self._worker = worker_name()
        self._gate = CallGate(spec, limits, worker=self._worker)
        self._attempts: dict[UUID, set[_Attempt]] = {}

    async def run(self, item: WorkItem) -> ItemEvent:
        """Carry out an item; every end of it is an event, and nothing is raised but CancelledError.

        A log that another worker writes is waited for: what it has made is served then.
        """
        return await self._execute(_Attempt(self._spec, item.run, item.attempt, item.session))

    async def run_stored(self, run: UUID, attempt: int, session: UUID) -> ItemEvent:
        """Load the input of an item by its id, and carry the item out like `run`."""
        return await self._execute(_Attempt(self._spec, run, attempt, session))

    def cancel(self, run: UUID) -> None:
        """End the attempts at an item; `run` returns an event of each when it has ended."""
        for attempt in tuple(self._attempts.get(run, ())):
            attempt.cancel()

    def cancel_all(self) -> None:
        """End the attempts at all items."""
        for run in tuple(self._attempts):
            self.cancel(run)

    async def aclose(self) -> None:
        """Tell the source of the limits what was used; model calls that still wait fail."""
        await self._gate.aclose()

    async def _execute(self, attempt: _Attempt) -> ItemEvent:
        running = self._attempts.setdefault(attempt.run, set())
        running.add(attempt)
        try:
            return await attempt.execute(self._gate, self._worker)
        finally:
            running.discard(attempt)
            if not running:
                self._attempts.pop(attempt.run, None)


class _Attempt:
    """One attempt at an item, from its delivery to its event."""

    def __init__(self, spec: JobSpec, run: UUID, number: int, session: Session | UUID) -> None:
        self._spec = spec
        self.run = run
        self._number = number
        self._session = session
        self._inside: Nested | None = None
        self._cancelled = asyncio.Event()
        self._out: Session | None = None

    async def execute(self, gate: CallGate, worker: str) -> ItemEvent:
        """Carry the item out, and return its event."""
        started = time.monotonic()
        problem: BaseException | None = None
        try:
            async with asyncio.timeout(self._spec.timeout):
                given = await self._load()
                await self._serve_or_run(partial(self._start, given, gate))
        except asyncio.CancelledError:
            self.cancel()
            raise
        except TimeoutError as exc:
            # The run is ended first: an attempt goes on beside no other one.
            self.cancel()
            await self._end()
            problem = exc
            if self._spec.timeout is not None and not str(exc):
                problem = TimeoutError(f"the attempt took longer than {self._spec.timeout} s")
        except Exception as exc:  # noqa: BLE001  # whatever it is, it belongs to the item
            problem = exc
        return self._event(problem, worker, time.monotonic() - started)

    def cancel(self) -> None:
        """End what runs for the item."""
        self._cancelled.set()
        if self._inside is not None:
            self._inside.end()

    async def _load(self) -> Session:
        if isinstance(self._session, UUID):
            load = partial(Session.load, self._session, store=self._spec.store)
            self._session = await runtime().call_in_worker(load)
        return self._session

    async def _serve_or_run(self, start: Callable[[], Session]) -> None:
        wait, n_changed = _FIRST_LOOK_SECONDS, 0
        while not self._cancelled.is_set():
            try:
                self._out = await runtime().call_in_worker(start)
                await self._out.core.body
            except (SessionBusy, SessionChanged) as other:
                # It was free, and another worker has written it since: go on with that.
                n_changed += isinstance(other, SessionChanged)
                if n_changed > MAX_CHANGES:
                    raise
                await self._wait_for_writer(other.session, wait)
                wait = min(wait * 2, _LAST_LOOK_SECONDS)
            else:
                return

    def _start(self, given: Session, gate: CallGate) -> Session:
        """Begin the run, on a worker thread: `forward` may wait for what it makes."""
        spec = self._spec
        limits = call_limits.set(gate)
        try:
            with nesting() as inside:
                self._inside = inside
                if self._cancelled.is_set():
                    inside.end()
                return spec.workflow.run(
                    given,
                    run=self.run,
                    store=spec.store,
                    cancelled="go_on",
                    workspace=spec.workspace,
                )
        finally:
            call_limits.reset(limits)

    async def _wait_for_writer(self, session: UUID, wait: float) -> None:
        """Wait until a log is free, or the attempt is cancelled."""
        is_written = partial(self._spec.store.is_being_written, session)
        while not self._cancelled.is_set() and await runtime().call_in_worker(is_written):
            try:
                await asyncio.wait_for(self._cancelled.wait(), wait)
            except TimeoutError:
                wait = min(wait * 2, _LAST_LOOK_SECONDS)

    async def _end(self) -> None:
        """Wait until the run that was cancelled has ended."""
        if self._out is not None:
            try:
                await self._out.core.body
            except Exception:  # noqa: BLE001  # the timeout is what is told of it
                return

    def _event(self, problem: BaseException | None, worker: str, seconds: float) -> ItemEvent:
        out, given = self._out, self._session
        body = None if out is None else _made_so_far(out)
        usage: RathLLMTokenUsage | None = None
        usd: Decimal | None = None
        if body is not None and isinstance(given, Session):
            usage, usd = _spent(body, given.core.body.latest)
        over_budget = isinstance(problem, JobBudgetExceeded)
        status: ItemStatus = "done"
        error: str | None = None
        if problem is not None:
            # What the budget stops has not failed: no attempt mends it, and a later start goes on.
            status = "cancelled" if over_budget else "failed"
            error = f"{type(problem).__name__}: {problem}"[:MAX_ERROR_CHARS]
        elif out is None or (body is not None and isinstance(body.outcome, Cancelled)):
            status = "cancelled"
        elif body is not None and isinstance(
            body.outcome, NeedsApproval | NeedsInput | NeedsDecision
        ):
            status = "waiting"
        return ItemEvent(
            run=self.run,
            attempt=self._number,
            status=status,
            session=None if out is None else out.id,
            error=error,
            retryable=not isinstance(problem, _HOPELESS),
            over_budget=over_budget,
            worker=worker,
            seconds=seconds,
            usage=usage,
            usd=usd,
        )


def _made_so_far(out: Session) -> Body | None:
    """Return the content of a run: of its output or, where that never began, of what came before.

    Of several that it would have been made of, that with the longest record.
    """
    steps = [Edge(out.id, out.core.body, out.provenance)]
    found: list[Body] = []
    for step in steps:
        latest = None if step.body is None else step.body.latest
        if latest is not None:
            found.append(latest)
        elif step.provenance is not None:
            steps += step.provenance.parents
    return max(found, key=lambda each: len(each.record), default=None)


def _spent(body: Body, given: Body | None) -> tuple[RathLLMTokenUsage | None, Decimal | None]:
    """Return tokens and dollars of the calls of a run, without those of the session it was given.

    Where no call has a known price, the dollars are not known.
    """
    n_given = 0 if given is None else body.record.common_prefix(given.record)
    own = Body(body.table, Vector(body.record.since(n_given)))
    cost = own.cost()
    return own.usage(), cost.usd if cost.n_priced else None
