"""Runs in the background: each is a job of one item, and outlives the request that asked for it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from functools import partial
from typing import Literal
from uuid import UUID, uuid4, uuid5

from rath._async.runtime import runtime
from rath.flow.serving.calls import SessionOwner, load_stored, outcome_note
from rath.jobs.engine import Engine, find_engine, job_id, run_id
from rath.jobs.job import Job
from rath.jobs.job import map as start_job
from rath.jobs.record import load_job
from rath.serving.principals import Principal
from rath.serving.runs import (
    Conflict,
    RunRequest,
    Runs,
    SessionInUse,
    UnknownSession,
    in_worker,
)
from rath.session import Session
from rath.session.chunk import ChunkTable
from rath.session.outcome import Cancelled, Suspended

BackgroundState = Literal["in_progress", "completed", "failed", "cancelled"]

MAX_ENDED_JOBS = 1_000
"""Jobs that are kept in memory; a guess."""

END_SECONDS = 2.0
"""How long a cancelled job may take to end before the client is answered."""


class _RunsElsewhere(Exception):
    """Another process has the job of a run."""

    def __init__(self, workflow: str) -> None:
        super().__init__(workflow)
        self.workflow = workflow


class BackgroundRuns:
    """The runs in the background of a server.

    Args:
        runs: The runs of the server.
        engine: Where they are carried out, as in `flow.map`; this process by default. With a queue
            they go on when the server has ended; here, when somebody asks for one again.

    Raises:
        EngineError: There is no such engine.
    """

    def __init__(self, runs: Runs, engine: Engine | str | None = None) -> None:
        find_engine(engine)  # refused now, and not at the first request
        self._runs = runs
        self._engine = engine
        self._jobs: dict[UUID, Job] = {}
        self._lock = threading.Lock()
        """Held while a job is looked for, so that it is started again once."""

    async def start(self, request: RunRequest) -> UUID:
        """Begin a run and return its number, which is no id of a session.

        Raises:
            LimitReached: The principal has used up a limit.
            UnknownSession: It has no such session to go on from.
            Conflict: That session cannot go on.
        """
        self._runs.check_size(request)
        number = uuid4()
        await in_worker(partial(self._start, request, number))
        return number

    async def find(
        self, principal: Principal, number: UUID
    ) -> tuple[str, BackgroundState, Session | None]:
        """Return the workflow, the state and, once there is one, the session of a run.

        One that was cut off with its server goes on.

        Raises:
            UnknownSession: The principal has no such run.
        """
        try:
            name, job = await in_worker(partial(self._job, principal, number))
        except _RunsElsewhere as exc:
            return exc.workflow, "in_progress", None
        item = job.items[0]
        if job.session.is_pending:
            return name, "in_progress", None
        session = await in_worker(lambda: item.session)
        if item.state == "cancelled" or (session and isinstance(session.outcome, Cancelled)):
            return name, "cancelled", session
        if item.state in ("done", "waiting") and session is not None:
            return name, "completed", session
        return name, "failed", session

    async def cancel(self, principal: Principal, number: UUID) -> None:
        """End a run, and wait a moment for that.

        Raises:
            UnknownSession: The principal has no such run.
            SessionInUse: Another process carries it out.
        """
        try:
            _, job = await in_worker(partial(self._job, principal, number))
        except _RunsElsewhere:
            raise SessionInUse(
                f"response {number} is made by another process of this server; wait for its end"
            ) from None
        job.cancel()
        with contextlib.suppress(Exception):  # what came of it is read from the job
            await asyncio.wait_for(_ended(job), END_SECONDS)

    def _start(self, request: RunRequest, number: UUID) -> None:
        runs, principal = self._runs, request.principal
        session = SessionOwner(request.workflow, principal.name).own(
            Session(ChunkTable(request.rows))
        )
        if request.session_id is not None:
            stored = runs.stored(request, request.session_id)
            if request.results or isinstance(stored.outcome, Suspended):
                raise Conflict(
                    f"session {stored.id} cannot go on in the background: "
                    f"{outcome_note(stored) or 'it waits for no result of a tool'}"
                )
            if not request.rows:
                raise Conflict(f"session {stored.id} has ended; say something to go on")
            session = stored.merge(session)
        runs.limits.begin_run(principal)
        self._submit(request.workflow, principal, number, session)

    def _submit(self, workflow: str, principal: Principal, number: UUID, session: Session) -> Job:
        runs = self._runs
        try:
            job = start_job(
                runs.workflows[workflow],
                [session],
                job=_job_name(workflow, principal, number),
                store=runs.store,
                engine=self._engine,
                timeout=runs.run_seconds,
                budget_usd=principal.usd_per_day,
                progress=False,
            )
        except BaseException:
            runs.limits.end_run(principal.name)
            raise
        self._jobs[job.id] = job
        watch = partial(self._watch, principal, job)
        runtime().submit(watch, label=f"a job of {principal.name}", at_exit="leave")
        return job

    async def _watch(self, principal: Principal, job: Job) -> None:
        """Count a run that ends; on the runtime thread."""
        with contextlib.suppress(Exception):  # as above
            await job
        if len(self._jobs) > MAX_ENDED_JOBS:
            self._jobs.pop(job.id, None)  # read from its store from now on
        limits = self._runs.limits
        limits.end_run(principal.name)
        if principal.usd_per_day is not None:
            limits.note_usd(principal, job.report().usd)
            await runtime().call_in_worker(partial(limits.write_spending, principal))

    def _job(self, principal: Principal, number: UUID) -> tuple[str, Job]:
        """Return the job of a run, started again where its server has ended; blocks."""
        for workflow in self._runs.names(principal):
            with self._lock:
                job = self._find_job(workflow, principal, number)
            if job is not None:
                return workflow, job
        raise UnknownSession(f"there is no response {number} here")

    def _find_job(self, workflow: str, principal: Principal, number: UUID) -> Job | None:
        store, name = self._runs.store, _job_name(workflow, principal, number)
        job = self._jobs.get(job_id(name))
        if job is not None or load_job(store, name) is None:
            return job
        if store.is_being_written(job_id(name)):
            raise _RunsElsewhere(workflow)
        session = load_stored(uuid5(run_id(job_id(name), "0", 0), "input"), store)
        if session is None:
            return None
        self._runs.limits.begin_run(principal)
        return self._submit(workflow, principal, number, session)


def _job_name(workflow: str, principal: Principal, number: UUID) -> str:
    """Return the name of the job: that of another principal's run is another one."""
    return f"serve/{workflow}/{principal.name}/{number.hex}"


async def _ended(job: Job) -> None:
    await job
