"""The driver of a job: hands out its items, and notes what comes of them."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections import deque
from dataclasses import field, replace
from decimal import Decimal
from functools import partial
from typing import Literal, TypeAlias, cast
from uuid import UUID

from msgspec.structs import replace as replace_struct

from rath._async.deferred import Deferred
from rath._async.runtime import runtime
from rath._core.dataclasses import dataclass
from rath.errors import JobBudgetExceeded, JobError
from rath.flow.parameters import recorded_digest
from rath.jobs.engine import (
    Engine,
    ItemEvent,
    ItemStatus,
    JobSpec,
    WorkItem,
    find_engine,
)
from rath.jobs.progress import JobProgress
from rath.jobs.record import (
    JobLog,
    attempts_of,
    cancel_mark,
    is_marked,
    load_job,
    report_of,
    starts_of,
)
from rath.llm.chat_response import RathLLMTokenUsage
from rath.session.body import Body
from rath.session.loading import load, save_many
from rath.session.log.store import SessionStore
from rath.session.outcome import Outcome
from rath.session.record import ItemRun
from rath.session.session import Session

OnError: TypeAlias = Literal["keep", "raise"]
State: TypeAlias = Literal["pending", "running"] | ItemStatus
"""Where an item is; each state but the first two is an end, at least of this start."""


MAX_LOST = 5
"""How often an item is submitted again because its worker died; then it is taken for the cause."""

_STORED_AT_ONCE = 64
_LOOK_SECONDS = 2.0
"""How often a driver looks whether it was asked to stop; a guess."""


class JobItem:
    """One epoch of one item of a job, as far as it is known.

    Attributes:
        key: The key of the item in its job.
        epoch: Which of the runs of the item it is, from 0.
        run: The key of its run: a function of job, key and epoch.
        state: Where it is.
        attempts: How many attempts have ended, those of earlier starts with them.
        error: The error of the last attempt, None where it was none.
        errors: Those of all attempts.
        usage: Tokens of the run so far, None where they are not known.
        cost: US dollars of the run so far, None where they are not known.
    """

    def __init__(
        self, key: str, epoch: int, run: UUID, given: Session, store: SessionStore
    ) -> None:
        self.key = key
        self.input_digest: str = given.chunk_table.digest()
        self.epoch = epoch
        self.run = run
        self.state: State = "pending"
        self.attempts: int = 0
        self.error: str | None = None
        self.errors: list[str] = []
        self.usage: RathLLMTokenUsage | None = None
        self.cost: Decimal | None = None
        self.input = given
        """The session that the run begins with."""

        self._store = store
        self._output: UUID | None = None
        self._session: Session | None = None
        self.n_lost = 0
        self.n_tries = 0

    @property
    def session(self) -> Session | None:
        """The output of the run, loaded on first use; None where there is none."""
        if self._session is None and self._output is not None:
            self._session = load(self._store, self._output).session
        return self._session

    @property
    def outcome(self) -> Outcome | None:
        """Outcome of the run; None for one that failed or goes on."""
        if self.state not in ("done", "waiting", "cancelled") or self.session is None:
            return None
        return self.session.outcome

    @property
    def has_ended(self) -> bool:
        """Whether nothing more comes of it in this start."""
        return self.state not in ("pending", "running")

    def take(self, attempt: ItemRun) -> None:
        """Take what is recorded of an attempt.

        Raises:
            JobError: The run began with other rows than this item has.
        """
        if attempt.input_digest not in (None, self.input_digest):
            raise JobError(
                f"item {self.key!r} has other rows than those that its run began with: "
                f"{self.input_digest[:12]}, and then {attempt.input_digest:.12}; give what is new "
                "a key of its own, or the job another name"
            )
        self.attempts = attempt.attempt
        self.state = attempt.status
        self.error = attempt.error
        self.usage, self.cost = attempt.usage, attempt.usd
        if attempt.error is not None:
            self.errors.append(attempt.error)
        if attempt.session != self._output:
            self._output, self._session = attempt.session, None

    def __repr__(self) -> str:
        epoch = f", epoch {self.epoch}" if self.epoch else ""
        return f"JobItem({self.key!r}{epoch}, {self.state})"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """All that a job was given, checked."""

    spec: JobSpec
    items: tuple[JobItem, ...]
    digest: str
    engine: Engine | str | None
    retries: int
    on_error: OnError
    max_failures: float | None
    ordered: bool
    progress: bool | None
    again: frozenset[UUID] = field(default_factory=frozenset[UUID])
    """The items that are done anew though they had ended."""

    n_items: int = 0
    """How many the job has, where these are a part of them; else 0."""


class JobDriver:
    """Hands out the items of a job, notes what comes of them, and tells who iterates."""

    def __init__(self, plan: JobPlan) -> None:
        self._plan = plan
        self._spec = plan.spec
        # Here and not on the runtime: items run with what the caller has set around them.
        self._engine = find_engine(plan.engine)
        self._by_run = {item.run: item for item in plan.items}
        self._todo: deque[JobItem] = deque()
        self._stored: deque[WorkItem] = deque()
        self._in_flight: dict[UUID, int] = {}
        """The attempt that each item in flight is at."""

        self._n_failed = 0
        self._is_stopping = False
        """Whether nothing more is handed out."""

        self._over_budget = False
        self._progress = JobProgress(plan.spec.name, len(plan.items), shown=plan.progress)
        self.ready: list[JobItem] = []
        """The items to yield, in order; it grows."""

        self.news: threading.Condition = threading.Condition()
        """Wakes who waits for more to be ready, for the record of the start, and for the end."""

        self.is_recorded: bool = False
        """Whether the store has the start of the job."""

        self.has_ended: bool = False
        self._cell: Deferred[Body] | None = None

    def tell_end(self) -> None:
        """Wake everybody who iterates: nothing more gets ready."""
        with self.news:
            self.has_ended = True
            self.news.notify_all()

    async def execute(self, cell: Deferred[Body]) -> Body:
        """Run the job to its end, and return its record."""
        self._cell = cell
        spec = self._spec
        earlier = await runtime().call_in_worker(partial(load_job, spec.store, spec.name))
        self._take_earlier(earlier)
        if earlier is not None and (report := report_of(earlier.core.body.result().record)):
            self._spec = replace(spec, used_usd=report.usd)
        with self._progress:
            if (
                not self._todo
                and earlier is not None
                and earlier.core.body.result().unfinished is None
            ):
                self._tell_ready()
                return earlier.core.body.result()
            async with JobLog(spec.name, spec.store, cell, earlier) as log:
                await self._note_start(log)
                self.is_recorded = True
                self._tell_ready()
                await self._carry_out(log, len(starts_of(log.body.record)))
                log.end()
        return log.body

    def _take_earlier(self, earlier: Session | None) -> None:
        attempts = {} if earlier is None else attempts_of(earlier.core.body.result().record)
        for item in self._plan.items:
            for attempt in attempts.get(item.run, ()):
                item.take(attempt)
            if item.state in ("done", "failed") and item.run not in self._plan.again:
                self._progress.add(item)
                continue
            item.state = "pending"
            self._todo.append(item)

    async def _note_start(self, log: JobLog) -> None:
        spec, plan = self._spec, self._plan
        settings = {
            "concurrency": spec.concurrency,
            "retries": plan.retries,
            "timeout": spec.timeout,
            "budget_usd": None if spec.budget_usd is None else str(spec.budget_usd),
        }
        workflow = spec.workflow
        await log.note_start(
            name=spec.name,
            workflow=f"{type(workflow).__module__}:{type(workflow).__qualname__}",
            workflow_digest=hashlib.sha256(
                f"{workflow!r}\n{recorded_digest(workflow)}".encode()
            ).hexdigest(),
            items_digest=plan.digest,
            n_items=plan.n_items or len(plan.items),
            engine=self._engine.name,
            settings={name: value for name, value in settings.items() if value is not None},
        )

    async def _carry_out(self, log: JobLog, n_starts: int) -> None:
        engine = self._engine
        await engine.open(self._spec)
        watching = runtime().submit(
            partial(self._watch_for_cancel, n_starts), label="a job's cancel mark", at_exit="leave"
        )
        try:
            events = engine.events()
            await self._submit()
            while self._in_flight:
                self._take(await anext(events), log)
                await self._submit()
        finally:
            watching.cancel()
            await engine.close()
        if self._over_budget:
            raise self._budget_error(log)

    async def _watch_for_cancel(self, n_starts: int) -> None:
        """Stop handing out items when somebody asks for it through the store."""
        mark = cancel_mark(self._spec.job, n_starts)
        while True:
            if await is_marked(self._spec.store, mark):
                break
            await asyncio.sleep(_LOOK_SECONDS)
        self._is_stopping = True
        for run in self._in_flight:
            self._engine.cancel(run)

    async def _submit(self) -> None:
        """Hand out as many items as may be in flight."""
        while len(self._in_flight) < self._spec.concurrency and (self._stored or self._todo):
            if self._is_stopping:
                break
            if not self._stored:
                self._stored.extend(await self._next_items())
                continue
            item = self._stored.popleft()
            self._by_run[item.run].state = "running"
            self._in_flight[item.run] = item.attempt
            self._engine.submit(item)
        self._progress.in_flight = len(self._in_flight)

    async def _next_items(self) -> list[WorkItem]:
        """Return the next items, stored where they leave this process."""
        n_next = 1 if self._engine.is_local else min(_STORED_AT_ONCE, len(self._todo))
        items = [self._todo.popleft() for _ in range(n_next)]
        given = [item.input for item in items]
        for session in given:
            await session.core.body
        if not self._engine.is_local:
            # Loaded here, since most jobs stay in this process.
            from rath.session.run.stored_programs import input_of  # noqa: PLC0415

            given = [input_of(item.run, each) for item, each in zip(items, given, strict=True)]
            await runtime().call_in_worker(partial(save_many, given, store=self._spec.store))
        return [
            WorkItem(item.run, item.attempts + 1, session)
            for item, session in zip(items, given, strict=True)
        ]

    def _take(self, event: ItemEvent, log: JobLog) -> None:
        """Take what an engine tells; an event of an attempt that is known is no news."""
        item = self._by_run.get(event.run)
        if item is None or self._in_flight.get(event.run) != event.attempt:
            return
        del self._in_flight[event.run]
        if event.status == "lost":
            item.n_lost += 1
            if item.n_lost <= MAX_LOST:
                item.state = "pending"
                self._todo.append(item)
                return
            text = f"its workers died {item.n_lost} times"
            event = replace_struct(event, status="failed", error=text, retryable=False)
        status = cast("ItemStatus", event.status)
        item.take(
            log.note_attempt(
                key=item.key,
                epoch=item.epoch,
                run=item.run,
                attempt=event.attempt,
                status=status,
                input_digest=item.input_digest,
                session=event.session,
                error=event.error,
                worker=event.worker,
                seconds=round(event.seconds, 3),
                usage=event.usage,
                usd=event.usd,
            )
        )
        item.n_tries += 1
        if event.over_budget:
            self._is_stopping = self._over_budget = True
        if status == "failed" and event.retryable and item.n_tries <= self._plan.retries:
            item.state = "pending"
            self._todo.append(item)
            return
        self._progress.add(item)
        self._tell_ready(item)
        if status == "failed":
            self._count_failure(item)

    def _count_failure(self, item: JobItem) -> None:
        """Give the job up where too much has failed.

        Raises:
            JobError: It is given up.
        """
        self._n_failed += 1
        plan = self._plan
        if plan.on_error == "raise":
            raise JobError(
                f"item {item.key!r} of job {self._spec.name!r} failed after {item.attempts} "
                f"attempts: {item.error}; a later start goes on"
            )
        most = plan.max_failures
        if most is None:
            return
        allowed = most * len(plan.items) if most < 1 else most
        if self._n_failed > allowed:
            raise JobError(
                f"{self._n_failed} of {len(plan.items)} items of job {self._spec.name!r} failed, "
                f"and max_failures is {most}; the last error: {item.error}"
            )

    def _budget_error(self, log: JobLog) -> JobBudgetExceeded:
        """Return the error of a job whose budget is used up."""
        report, budget = report_of(log.body.record), self._spec.budget_usd
        assert report is not None
        assert budget is not None
        n_left = report.n_items - sum(report.counts.get(each, 0) for each in ("done", "failed"))
        return JobBudgetExceeded(
            f"job {self._spec.name!r} stopped before {n_left} of {report.n_items} items were done: "
            f"it has used {report.usd:f} of its {budget:f} US dollars; start it again with a "
            "larger budget_usd to go on",
            budget_usd=budget,
            used_usd=report.usd,
        )

    def _tell_ready(self, item: JobItem | None = None) -> None:
        """Have those who iterate see what has ended."""
        with self.news:
            if self._plan.ordered:
                items = self._plan.items
                while len(self.ready) < len(items) and items[len(self.ready)].has_ended:
                    self.ready.append(items[len(self.ready)])
            elif item is not None:
                self.ready.append(item)
            else:
                self.ready += [each for each in self._plan.items if each.has_ended]
            self.news.notify_all()
        if self._cell is not None and (latest := self._cell.latest) is not None:
            # Whoever awaits looks when the record has grown, which may have been before this.
            self._cell.report(latest)
