"""The record of a job: a session whose entries tell its starts and each attempt at an item."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4, uuid5

from rath._async.deferred import Deferred
from rath._async.runtime import runtime
from rath._core.dataclasses import dataclass
from rath.errors import PersistenceError
from rath.jobs.engine import job_id
from rath.session.bindings import Placement
from rath.session.body import Body
from rath.session.chunk import ChunkTable
from rath.session.graph.kind import LineageKind
from rath.session.graph.recording import Provenance
from rath.session.loading import load, save
from rath.session.log.header import Identity
from rath.session.log.store import SessionStore
from rath.session.operation import Place
from rath.session.outcome import Completed
from rath.session.record import Entry, ItemRun, JobStart, Operation
from rath.session.run.recorder import Recorder, RecordingPlan, default_durability
from rath.session.run.run_log import RunLog
from rath.session.session import Session

OPERATOR = "flow.map"
"""The operator in the header of a job's session."""


def load_job(store: SessionStore, name: str | UUID) -> Session | None:
    """Return the record of a job by its name or id, None where it was never started; blocks.

    Raises:
        PersistenceError: It cannot be read, or is no record of a job.
        SessionDamaged: It is not what was written.
    """
    session = name if isinstance(name, UUID) else job_id(name)
    log = store.read(session)
    if log is None or b"\n" not in log.data:
        return None
    loaded = load(store, session).session
    if loaded.provenance.operator != OPERATOR:
        raise PersistenceError(f"session {session} in {store.where} is no record of a job")
    return loaded


def provenance_of(name: str) -> Provenance:
    """Return where the record of a job comes from."""
    return Provenance(OPERATOR, LineageKind.OP_CREATE, extras=(("job", name),))


def starts_of(record: Iterable[Entry]) -> list[JobStart]:
    """Return the starts of a job, in order."""
    return [entry for entry in record if isinstance(entry, JobStart)]


def attempts_of(record: Iterable[Entry]) -> dict[UUID, list[ItemRun]]:
    """Return the attempts at each item, in order, by the key of its run."""
    attempts: dict[UUID, list[ItemRun]] = {}
    for entry in record:
        if isinstance(entry, ItemRun):
            attempts.setdefault(entry.run, []).append(entry)
    return attempts


@dataclass(frozen=True, slots=True)
class JobReport:
    """Results of a job so far."""

    name: str
    engine: str
    started_at: datetime
    """When a driver last started it."""

    n_items: int
    counts: Mapping[str, int]
    """Items by how their last attempt ended; `pending` are those that no attempt of has ended."""

    n_attempts: int
    tokens: int
    """Tokens of all runs, as far as they are known."""

    usd: Decimal
    """US dollars of all runs whose cost is known."""

    errors: tuple[tuple[str, int], ...]
    """The last errors of items and how many have each, the most frequent first."""

    is_priced: bool = True
    """Whether the cost of every run that took tokens is known."""

    def __str__(self) -> str:
        states = ", ".join(f"{number} {state}" for state, number in self.counts.items())
        lines = [
            f"job {self.name}: {self.n_items} items: {states or 'none'}",
            f"{self.n_attempts} attempts, {self.tokens} tokens, {self.usd:f} US dollars"
            + ("" if self.is_priced else " and unpriced calls"),
        ]
        lines += [f"{number} x {error}" for error, number in self.errors[:_MAX_ERRORS]]
        return "\n".join(lines)


_MAX_ERRORS = 10


def report_of(record: Iterable[Entry]) -> JobReport | None:
    """Return the report of a job from its record; None where no driver has started it."""
    entries = list(record)
    starts, attempts = starts_of(entries), attempts_of(entries)
    if not starts:
        return None
    start, last = starts[-1], [each[-1] for each in attempts.values()]
    counts = Counter(each.status for each in last)
    n_pending = start.n_items - len(last)
    errors = Counter(each.error for each in last if each.error is not None)
    return JobReport(
        start.name,
        start.engine,
        start.at,
        start.n_items,
        dict(counts) | ({"pending": n_pending} if n_pending > 0 else {}),
        sum(len(each) for each in attempts.values()),
        sum(0 if each.usage is None else each.usage.total_tokens for each in last),
        sum((each.usd for each in last if each.usd is not None), Decimal(0)),
        tuple(errors.most_common()),
        all(each.usd is not None for each in last if each.usage is not None),
    )


class JobLog:
    """The log of a job while its driver runs; used in `async with`, on the runtime loop.

    Nobody else can write it meanwhile, so a job has one driver at a time. Leaving with an error
    leaves a log that the next driver goes on with.

    Args:
        name: The job.
        store: Where it is recorded.
        cell: Gets the content as it grows.
        earlier: What is recorded of it already.
    """

    def __init__(
        self, name: str, store: SessionStore, cell: Deferred[Body], earlier: Session | None
    ) -> None:
        session = job_id(name)
        identity = Identity.of(session, provenance_of(name), Placement())
        plan = RecordingPlan(store=store, durability=default_durability())
        self._session = session
        self._earlier = None if earlier is None else earlier.core.body.result()
        self._log = RunLog(session, cell, Recorder(plan, identity, cell))
        self._operation = uuid4()

    @property
    def body(self) -> Body:
        """The content as it is now."""
        return self._log.body

    async def __aenter__(self) -> JobLog:
        await self._log.__aenter__()
        earlier = self._earlier
        self._log.start(Body(ChunkTable()) if earlier is None else earlier)
        await self._log.open(goes_on=earlier is not None)
        made = None if earlier is None else _operation_of(earlier)
        if made is None:
            place = Place("", 0)
            made = Operation(
                operation=self._operation, kind="map", place=place, session=self._session
            )
            self._log.note(made)
        self._operation = made.operation
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._log.__aexit__(*error)

    async def note_start(self, **fields: Any) -> None:
        """Write that a driver starts; returns when it is on disk, as durability says."""
        self._log.note(JobStart(operation=self._operation, **fields))
        await self._log.flush()

    def note_attempt(self, **fields: Any) -> ItemRun:
        """Write how an attempt at an item ended, and return the entry."""
        entry = ItemRun(operation=self._operation, **fields)
        self._log.note(entry)
        self._log.commit()
        return entry

    def end(self) -> None:
        """Say that the job has come to its end."""
        self._log.end(Completed())


def _operation_of(body: Body) -> Operation | None:
    operations = (entry for entry in body.record if isinstance(entry, Operation))
    return next((entry for entry in operations if entry.kind == "map"), None)


def cancel_mark(job: UUID, n_starts: int) -> UUID:
    """Return the id of the session whose presence in the store asks a driver to stop.

    Args:
        job: The job.
        n_starts: Which start of it is meant.
    """
    return uuid5(job, f"cancel {n_starts}")


def ask_to_cancel(store: SessionStore, job: Session) -> None:
    """Ask the driver of a job to end it, through the store; blocks.

    Raises:
        PersistenceError: Nobody runs the job, or the store cannot be written.
    """
    if not store.is_being_written(job.id):
        raise PersistenceError(f"nobody runs job {job.id} now, so there is nothing to cancel")
    mark = cancel_mark(job.id, len(starts_of(job.record)))
    if store.read(mark) is None:
        provenance = Provenance("jobs.cancel", LineageKind.OP_CREATE)
        asked = Session.from_body(Deferred.of(Body(ChunkTable())), provenance, id=mark)
        save(asked, store=store)


async def is_marked(store: SessionStore, mark: UUID) -> bool:
    """Tell whether a mark is in the store."""
    return await runtime().call_in_worker(lambda: store.read(mark) is not None)
