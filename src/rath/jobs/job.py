"""`flow.map`: a workflow over many items, each a run by key, and the job that they make up."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    Callable,
    Collection,
    Generator,
    Iterable,
    Iterator,
)
from dataclasses import replace
from decimal import Decimal
from functools import reduce
from typing import Any, TypeGuard, get_args
from uuid import UUID, uuid4, uuid5

from rath._async.deferred import Deferred
from rath._core import html
from rath._core.text import valid_unicode
from rath.data import member_of, session_of
from rath.errors import JobError
from rath.flow.compile import CompiledWorkflow
from rath.flow.workflow import Workflow
from rath.jobs.driver import JobDriver, JobItem, JobPlan, OnError
from rath.jobs.engine import (
    DEFAULT_CONCURRENCY,
    Engine,
    JobSpec,
    Rate,
    find_workflow,
    job_id,
    run_id,
)
from rath.jobs.record import (
    JobReport,
    attempts_of,
    load_job,
    provenance_of,
    report_of,
    starts_of,
)
from rath.session.bindings import WorkspaceMode
from rath.session.body import Body
from rath.session.chunk import ChunkTable
from rath.session.loading import load
from rath.session.log.store import SessionStore, default_store, open_store
from rath.session.operation import is_inside_call
from rath.session.session import Session

_MAX_SHOWN = 50
"""Items that a notebook shows of a job."""


class Job:
    """A workflow over many items: iterate over it to get each item when it has ended.

    The job goes on whether somebody iterates or not. Iterating again begins with the first item;
    `async for` and `await job` work in any event loop.
    """

    def __init__(self, plan: JobPlan) -> None:
        self._plan = plan
        self._driver = JobDriver(plan)
        spec = plan.spec
        self._cell: Deferred[Body] = Deferred.start(
            self._driver.execute,
            owner=spec.job,
            label=f"job {spec.name!r}",
            on_cancel=lambda latest: (latest or Body(ChunkTable())).cancelled(spec.job),
        )
        if not self._cell.at_end(self._driver.tell_end):
            self._driver.tell_end()

    @property
    def name(self) -> str:
        """The name of the job in its store."""
        return self._plan.spec.name

    @property
    def id(self) -> UUID:
        """The id of the session that is its record: a function of the name."""
        return self._plan.spec.job

    @property
    def store(self) -> SessionStore:
        """Store of the job and its runs."""
        return self._plan.spec.store

    @property
    def session(self) -> Session:
        """The record of the job: its starts and each attempt; pending while it goes on."""
        return Session.from_body(self._cell, provenance_of(self.name), id=self.id)

    @property
    def items(self) -> tuple[JobItem, ...]:
        """All items, in the order in which they were given, as far as each is."""
        return self._plan.items

    def __len__(self) -> int:
        return len(self._plan.items)

    def __iter__(self) -> Iterator[JobItem]:
        """Yield each item when it has ended, or in order; waits.

        Raises:
            JobError: The job was given up.
            SessionBusy: Another driver has the job.
        """
        yielded = 0
        while True:
            with self._driver.news:
                # Not `done()` of the cell, which is true a moment after the last news.
                while yielded >= len(ready := self._driver.ready) and not self._driver.has_ended:
                    self._driver.news.wait()
            if yielded >= len(ready):
                break
            yield ready[yielded]
            yielded += 1
        self._cell.result()

    async def __aiter__(self) -> AsyncGenerator[JobItem]:
        """Yield each item when it has ended, or in order; see `__iter__`."""
        yielded = 0
        async for _ in self._cell.progress():
            while yielded < len(self._driver.ready):
                yield self._driver.ready[yielded]
                yielded += 1
        while yielded < len(self._driver.ready):
            yield self._driver.ready[yielded]
            yielded += 1

    def __await__(self) -> Generator[Any, Any, Job]:
        """Wait until the job has ended, in any event loop."""
        yield from self._cell.__await__()
        return self

    def synchronize(self) -> Job:
        """Wait until the job has ended, and return it.

        Raises:
            JobError: The job was given up.
        """
        self._cell.result()
        return self

    def wait_recorded(self) -> Job:
        """Wait until the store has the job, so that it goes on whatever becomes of this process.

        Raises:
            JobError: The job was given up before.
            SessionBusy: Another driver has the job.
        """
        with self._driver.news:
            while not (self._driver.is_recorded or self._driver.has_ended):
                self._driver.news.wait()
        if not self._driver.is_recorded:
            self._cell.result()
        return self

    def cancel(self) -> Job:
        """End the job and the runs of its items; returns at once. A later start goes on."""
        self._cell.cancel()
        return self

    def report(self) -> JobReport:
        """Return what came of the job so far; `print` it.

        Raises:
            JobError: It has not started yet.
        """
        body = self._cell.latest
        report = None if body is None else report_of(body.record)
        if report is None:
            raise JobError(
                f"job {self.name!r} has not started yet; iterate over it, or wait for it"
            )
        return report

    def waiting(self) -> list[JobItem]:
        """Return the items that wait for an approval, an answer or a decision.

        `load` the session that `item.outcome` names, `approve` or `answer` it, and start the job
        again or `retry("waiting")`.
        """
        return [each for each in self._plan.items if each.state == "waiting"]

    def retry(self, *states: str) -> Job:
        """Start again with the items that ended in one of these states, and return that job; waits.

        What was answered and done in their runs is served and not repeated.

        Args:
            states: `failed`, `waiting` or `cancelled`; `failed` by default.

        Raises:
            ValueError: There is no such state.
        """
        wanted = states or ("failed",)
        unknown = [each for each in wanted if each not in ("failed", "waiting", "cancelled")]
        if unknown:
            raise ValueError(f"retry takes 'failed', 'waiting' and 'cancelled', not {unknown[0]!r}")
        self._wait()
        again = frozenset(each.run for each in self._plan.items if each.state in wanted)
        items = tuple(
            JobItem(each.key, each.epoch, each.run, each.input, self.store)
            for each in self._plan.items
        )
        return Job(replace(self._plan, items=items, again=again))

    def reduce(self, merge: Callable[[Session, Session], Session]) -> Session:
        """Return one session of all that are done, merged in the order of the items; waits.

        Args:
            merge: Makes one session of two, such as `flow.Merge(files="three-way")`.

        Raises:
            JobError: No item is done.
        """
        self._wait()
        done = [each.session for each in self._plan.items if each.state == "done"]
        sessions = [each for each in done if each is not None]
        if not sessions:
            raise JobError(f"job {self.name!r} has no item that is done, so nothing can be merged")
        return reduce(merge, sessions)

    def _wait(self) -> None:
        """Wait until the job has ended in whatever way."""
        try:
            self._cell.result()
        except JobError:
            return

    def __repr__(self) -> str:
        return f"Job({self.name!r}, {len(self)} items)"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the items by state, and those that ended; never waits."""
        counts = Counter(each.state for each in self.items)
        ended = [each for each in self.items if each.has_ended]
        rows = [
            (
                each.key,
                each.state,
                "" if each.usage is None else f"{each.usage.total_tokens:,}",
                "" if each.cost is None else f"${each.cost:.4f}",
                each.error or "",
            )
            for each in ended[:_MAX_SHOWN]
        ]
        more = len(ended) - len(rows)
        states = [f"{number:,} {state}" for state, number in counts.items()]
        head = html.facts(f"Job {self.name}", [f"{len(self):,} items", *states])
        listed = html.table(("item", "state", "tokens", "cost", "error"), rows)
        return head + listed + (html.note(f"{more:,} more") if more else "")


def map(  # documented as flow.map
    workflow: Workflow | CompiledWorkflow | str,
    items: Iterable[object],
    *,
    key: str | Callable[[Any], object] | None = None,
    session: Callable[[Any], Session] | None = None,
    job: str | None = None,
    concurrency: int = DEFAULT_CONCURRENCY,
    epochs: int = 1,
    ordered: bool = False,
    retries: int = 2,
    timeout: float | None = None,
    on_error: OnError = "keep",
    max_failures: float | None = None,
    budget_usd: Decimal | float | None = None,
    rate: Rate | None = None,
    store: SessionStore | str | None = None,
    engine: Engine | str | None = None,
    workspace: WorkspaceMode = "require",
    progress: bool | None = None,
) -> Job:
    """Run a workflow on each of many items, each once, on one machine or many; returns at once.

    Each item is a run by key: `uuid5(job, key#epoch)`. Starting a job again, after a kill or from
    another machine, serves what is done, goes on with what was cut off, and repeats no answered
    call. Items that have failed stay so until `retry("failed")`. The job itself is recorded as a
    session, with an entry for each attempt at an item.

    Args:
        workflow: What runs; or `module:name` of it, or of a function that makes it.
        items: Sessions, texts of users, or whatever `session` makes a session of; a mapping or an
            object with `input`, a text or a session, needs no `session`.
        key: The member of an item that names it, or a function of the item; its position by
            default. A later start must give the same items under the same keys.
        session: Makes the input of an item.
        job: The name of the job in its store; one that nobody else has by default.
        concurrency: Items in flight at most, over all workers.
        epochs: How often each item is run, each time anew.
        ordered: Yield items in the order in which they were given, and not as they end.
        retries: Further attempts at an item that failed; one goes on with what the last one made.
        timeout: Seconds that an attempt may take; then its run is ended, and it has failed.
        on_error: `keep` failed items as items with an `error`, or `raise` at the first one.
        max_failures: Give up when more items failed than this: a number, or, below 1, this share
            of all items.
        budget_usd: US dollars for all runs of the job, those of earlier starts with them; overshot
            by the calls in flight at most. Once it is used up the job ends with
            `JobBudgetExceeded`, and a start with a larger one goes on.
        rate: The limits of model calls, over all workers.
        store: Where job and runs are recorded, or the URL of that; by default the store of the
            home.
        engine: Where items are carried out: None is this process; `procs:4`, `ray://auto`,
            `postgres://host/db`, or an engine.
        workspace: What becomes of workspaces that are not there, as in `Workflow.resume`.
        progress: Whether to show a progress bar; by default where stderr is a terminal.

    Returns:
        The job; iterate over it.

    Raises:
        TypeError: An argument is of a wrong type, or no session can be made of an item.
        ValueError: An argument is out of its range, or two items have one key.
        RuntimeError: It is called inside a call of a workflow or a tool.
        EngineNotFound: There is no such engine.
        StoreNotFound: There is no such store.
    """
    if is_inside_call():
        raise RuntimeError(
            "flow.map was called inside of a workflow or a tool, whose run has what is made here; "
            "call the workflow itself on each session there"
        )
    _check_options(
        on_error, timeout, budget_usd, max_failures,
        concurrency=concurrency, epochs=epochs, retries=retries,
    )  # fmt: skip
    for name, value, kind in (("job", job, str), ("rate", rate, Rate)):
        if value is not None and not isinstance(value, kind):
            raise TypeError(f"{name} must be a {kind.__name__}, not {value!r:.80}")
    reference = workflow if isinstance(workflow, str) else None
    program = find_workflow(workflow) if isinstance(workflow, str) else workflow
    if isinstance(program, CompiledWorkflow):
        program = program.workflow
    if not _is_workflow(program):
        raise TypeError(f"flow.map takes a Workflow or 'module:name', not {workflow!r:.80}")
    name = job if job is not None else f"job-{uuid4()}"
    opened = open_store(store) if isinstance(store, str) else store or default_store()
    spec = JobSpec(
        job=job_id(name),
        name=name,
        workflow=program,
        store=opened,
        reference=reference,
        concurrency=concurrency,
        timeout=timeout,
        workspace=workspace,
        rate=rate,
        budget_usd=None if budget_usd is None else Decimal(str(budget_usd)),
    )
    made, digest = _items(spec, items, key=key, session=session, epochs=epochs)
    return Job(
        JobPlan(
            spec=spec,
            items=made,
            digest=digest,
            engine=engine,
            retries=retries,
            on_error=on_error,
            max_failures=max_failures,
            ordered=ordered,
            progress=progress,
        )
    )


def retry_job(
    workflow: Workflow,
    name: str,
    store: SessionStore,
    *,
    states: Collection[str] = ("failed",),
    engine: Engine | str | None = None,
    reference: str | None = None,
    concurrency: int = DEFAULT_CONCURRENCY,
    progress: bool | None = None,
) -> Job:
    """Start the items of a stored job that ended in one of these states again; blocks a moment.

    Their inputs are those that the store has; items that no attempt of has ended are known to the
    program alone that started the job.

    Args:
        workflow: What runs.
        name: The job.
        store: Where it is.
        states: `failed`, `waiting` or `cancelled`.
        engine: Where the items are carried out, as in `map`.
        reference: `module:name` of the workflow, where it has one.
        concurrency: Items in flight at most.
        progress: Whether to show a progress bar; by default where stderr is a terminal.

    Raises:
        JobError: The job was never started.
    """
    recorded = load_job(store, name)
    starts = [] if recorded is None else starts_of(recorded.record)
    if recorded is None or not starts:
        raise JobError(f"there is no job {name!r} in {store.where}")
    last = [each[-1] for each in attempts_of(recorded.record).values()]
    items = tuple(
        JobItem(
            each.key, each.epoch, each.run, load(store, uuid5(each.run, "input")).session, store
        )
        for each in last
        if each.status in states
    )
    spec = JobSpec(
        job=job_id(name), name=name, workflow=workflow, store=store, reference=reference,
        concurrency=concurrency,
    )  # fmt: skip
    return Job(
        JobPlan(
            spec=spec,
            items=items,
            digest=starts[-1].items_digest,
            engine=engine,
            retries=2,
            on_error="keep",
            max_failures=None,
            ordered=False,
            progress=progress,
            again=frozenset(item.run for item in items),
            n_items=starts[-1].n_items,
        )
    )


def _check_options(
    on_error: object,
    timeout: float | None,
    budget_usd: Decimal | float | None,
    max_failures: float | None,
    **numbers: object,
) -> None:
    """Refuse what is out of range.

    Raises:
        ValueError: It is.
    """
    if on_error not in get_args(OnError):
        raise ValueError(f"on_error must be 'keep' or 'raise', not {on_error!r}")
    for name, number in numbers.items():
        least = 0 if name == "retries" else 1
        if not isinstance(number, int) or number < least:
            raise ValueError(f"{name} must be a whole number of at least {least}, not {number!r}")
    for name, amount in (("timeout", timeout), ("budget_usd", budget_usd)):
        if amount is not None and not (_is_finite(amount) and amount > 0):
            raise ValueError(f"{name} must be a number above 0, not {amount!r}")
    if max_failures is not None and (
        not _is_finite(max_failures)
        or max_failures < 0
        or (max_failures > 1 and max_failures != int(max_failures))
    ):
        raise ValueError(
            f"max_failures is a number of items or a share below 1, not {max_failures!r}"
        )


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float | Decimal) and math.isfinite(value)


def _items(
    spec: JobSpec,
    items: Iterable[object],
    *,
    key: str | Callable[[Any], object] | None,
    session: Callable[[Any], Session] | None,
    epochs: int,
) -> tuple[tuple[JobItem, ...], str]:
    """Return the items of a job, and the digest of their keys and rows.

    Raises:
        TypeError: No session can be made of one.
        ValueError: Two have one key.
    """
    if isinstance(items, Session):
        raise TypeError("items are many, and one session was given; write [session] for one item")
    digest = hashlib.sha256()
    made: dict[str, Session] = {}
    for index, item in enumerate(items):
        name = _key_of(item, index, key)
        if name in made:
            raise ValueError(
                f"two items have the key {name!r}, the second one at position {index}; each run "
                "needs a key of its own"
            )
        given = made[name] = _session_of(item, name, session)
        rows = given.chunk_table.digest()
        digest.update(f"{len(name)}:{name}{rows}".encode())
    return tuple(
        JobItem(name, epoch, run_id(spec.job, name, epoch), given, spec.store)
        for epoch in range(epochs)
        for name, given in made.items()
    ), digest.hexdigest()


def _is_workflow(value: object) -> TypeGuard[Workflow]:
    return isinstance(value, Workflow)


def _key_of(item: object, index: int, key: str | Callable[[Any], object] | None) -> str:
    if key is None:
        return str(index)
    found = key(item) if callable(key) else member_of(item, key)
    if found is None and not callable(key):
        raise ValueError(f"item {index} has no {key!r} to be its key: {item!r:.80}")
    name = str(found)
    if valid_unicode(name) != name:
        raise ValueError(
            f"the key {name!r:.80} of item {index} has half of a surrogate pair, which is no "
            "Unicode text; give another key"
        )
    return name


def _session_of(item: object, name: str, session: Callable[[Any], Session] | None) -> Session:
    made = item if session is None else session(item)
    try:
        return session_of(made)
    except TypeError as exc:
        raise TypeError(f"item {name!r}: {exc}") from None
