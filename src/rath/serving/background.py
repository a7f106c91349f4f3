"""Runs in the background: each is a job of one item, and outlives the request that asked for it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from decimal import Decimal
from functools import partial
from typing import Literal
from uuid import UUID, uuid4, uuid5

from rath._async.runtime import runtime
from rath.errors import JobError, RathError, SessionBusy, SessionChanged
from rath.flow.serving.calls import SessionOwner, load_stored, outcome_note
from rath.jobs.engine import Engine, find_engine, job_id, run_id
from rath.jobs.job import Job
from rath.jobs.job import map as start_job
from rath.jobs.record import (
    ask_to_cancel,
    attempts_of,
    cancel_mark,
    load_job,
    report_of,
    starts_of,
)
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
from rath.session.loading import save_many
from rath.session.log.store import SessionStore
from rath.session.outcome import Cancelled, Suspended
from rath.session.run.stored_programs import input_of

BackgroundState = Literal["in_progress", "completed", "failed", "cancelled"]

MAX_ENDED_JOBS = 1_000
"""Jobs that are kept in memory; a guess."""

END_SECONDS = 2.0
"""How long a cancelled job may take to end before the client is answered."""


_TAKEN = (SessionBusy, SessionChanged)
"""Errors of a job that another process has started, or gone on with."""


class _NoJobHere(Exception):
    """The job of a run is not to be started here: another process has it, or it was cancelled."""

    def __init__(self, workflow: str, state: BackgroundState) -> None:
        super().__init__(workflow)
        self.workflow = workflow
        self.state: BackgroundState = state


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
        except _NoJobHere as exc:
            return exc.workflow, exc.state, None
        item, record = job.items[0], job.session.core.body
        if not record.done() or isinstance(record.error(), _TAKEN):
            return name, "in_progress", None
        session = await in_worker(lambda: item.session)
        made = record.latest if session is None else session
        is_cancelled = made is not None and isinstance(made.outcome, Cancelled)
        if item.state == "cancelled" or is_cancelled:
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
        except _NoJobHere as exc:
            if exc.state == "cancelled":
                return
            raise SessionInUse(
                f"response {number} is made by another process of this server; wait for its end"
            ) from None
        await in_worker(partial(_mark_cancelled, job))
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
        # Once the client knows the number each server of the store does, whatever becomes of this.
        self._submit(request.workflow, principal, number, session).wait_recorded()

    def _submit(
        self,
        workflow: str,
        principal: Principal,
        number: UUID,
        session: Session,
        *,
        counted_usd: Decimal | None = None,
    ) -> Job:
        """Start the job of a run.

        Args:
            workflow: That runs.
            principal: Whose it is.
            number: Of the run.
            session: With which it begins.
            counted_usd: What was counted of a job that had ended and is only read; it is no run.
        """
        runs, name = self._runs, _job_name(workflow, principal, number)
        try:
            save_many([input_of(_run_of(name), session)], store=runs.store)
            job = start_job(
                runs.workflows[workflow],
                [session],
                job=name,
                store=runs.store,
                engine=self._engine,
                timeout=runs.run_seconds,
                budget_usd=principal.usd_per_day,
                progress=False,
            )
        except BaseException:
            if counted_usd is None:
                runs.limits.end_run(principal.name)
            raise
        self._jobs[job.id] = job
        watch = partial(self._watch, principal, job, counted_usd)
        runtime().submit(watch, label=f"a job of {principal.name}", at_exit="leave")
        return job

    async def _watch(self, principal: Principal, job: Job, counted_usd: Decimal | None) -> None:
        """Count a run that ends; on the runtime thread."""
        with contextlib.suppress(Exception):  # as above
            await job
        if len(self._jobs) > MAX_ENDED_JOBS:
            self._jobs.pop(job.id, None)  # read from its store from now on
        limits = self._runs.limits
        if counted_usd is None:
            limits.end_run(principal.name)
        if principal.usd_per_day is not None:
            with contextlib.suppress(JobError):  # it has not started
                limits.note_usd(principal, job.report().usd - (counted_usd or 0))
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
        if job is not None and isinstance(job.session.core.body.error(), _TAKEN):
            del self._jobs[job.id]  # another server was faster
            job = None
        loaded = None if job is not None else load_job(store, name)
        if loaded is None:
            return job
        if store.is_being_written(loaded.id):
            raise _NoJobHere(workflow, "in_progress")
        if _was_cancelled(loaded, store):
            raise _NoJobHere(workflow, "cancelled")
        session = load_stored(uuid5(_run_of(name), "input"), store)
        if session is None:
            return None
        counted_usd: Decimal | None = None
        if isinstance(loaded.outcome, Suspended):
            self._runs.limits.begin_run(principal)
        else:
            report = report_of(loaded.record)
            counted_usd = Decimal(0) if report is None else report.usd
        return self._submit(workflow, principal, number, session, counted_usd=counted_usd)


def _run_of(job: str) -> UUID:
    """Return the key of the one run of a job."""
    return run_id(job_id(job), "0", 0)


def _mark_cancelled(job: Job) -> None:
    """Write that a job was cancelled, so that no server goes on with it; blocks."""
    with contextlib.suppress(RathError):  # it has ended
        stored = load_job(job.store, job.wait_recorded().id)
        if stored is not None:
            ask_to_cancel(job.store, stored)


def _was_cancelled(job: Session, store: SessionStore) -> bool:
    """Tell whether a client has cancelled a job before its run had ended; blocks."""
    if store.read(cancel_mark(job.id, len(starts_of(job.record)))) is None:
        return False
    last = [attempts[-1].status for attempts in attempts_of(job.record).values()]
    return last in ([], ["cancelled"])


def _job_name(workflow: str, principal: Principal, number: UUID) -> str:
    """Return the name of the job: that of another principal's run is another one."""
    return f"serve/{workflow}/{principal.name}/{number.hex}"


async def _ended(job: Job) -> None:
    await job
