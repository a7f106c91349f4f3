"""Engines: where the items of a job are carried out, each delivered at least once."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import pickle
from collections.abc import AsyncGenerator, Callable
from decimal import Decimal
from importlib import import_module
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable
from uuid import UUID, uuid5

from msgspec import Struct

from rath._core.dataclasses import dataclass
from rath._core.references import find_code
from rath._core.registry import Registry
from rath.errors import EngineError, EngineNotFound
from rath.flow.workflow import Workflow
from rath.llm.chat_response import RathLLMTokenUsage
from rath.session.bindings import WorkspaceMode
from rath.session.log.store import SessionStore, find_store, portable_url
from rath.session.session import Session

JOBS = UUID("4d1d6a0f-0a0c-5f0e-8e63-3f5d6b1c9a77")
"""The namespace of the names of jobs; another one would start all jobs anew."""

DEFAULT_CONCURRENCY = 64

ItemStatus: TypeAlias = Literal["done", "failed", "waiting", "cancelled"]
"""End of an attempt at an item. `done`: the run has ended, with whatever outcome. `waiting`:
somebody must approve, answer or decide first."""


def job_id(name: str) -> UUID:
    """Return the id of the session that is the record of a job."""
    return uuid5(JOBS, name)


def run_id(job: UUID, key: str, epoch: int) -> UUID:
    """Return the key of the run that is one epoch of an item: a function of all three."""
    return uuid5(job, f"{key}#{epoch}")


@dataclass(frozen=True, slots=True)
class Rate:
    """The limits of model calls, over all workers of a job, for each endpoint.

    Args:
        requests_per_minute: Calls that begin within any 60 s, at most.
        tokens_per_minute: Tokens of prompts and answers within any 60 s; what a call takes is
            known when it has ended, so this is overshot by the calls in flight.
    """

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None

    def __post_init__(self) -> None:
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            if value is not None and not (isinstance(value, int | float) and 0 < value < math.inf):
                raise ValueError(f"Rate: {each.name} must be a number above 0, not {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """Specification of a job that each worker gets, once.

    An engine that leaves the process sends `store` as its `portable_url`, and `workflow` pickled,
    as references, or as `reference`.
    """

    job: UUID
    name: str
    workflow: Workflow
    store: SessionStore
    reference: str | None = None
    """`module:name` of the workflow, or of a function that makes it; None where it has none."""

    concurrency: int = DEFAULT_CONCURRENCY
    """Items in flight at most, over all workers."""

    timeout: float | None = None
    """Seconds that an attempt at an item may take."""

    workspace: WorkspaceMode = "require"
    rate: Rate | None = None
    budget_usd: Decimal | None = None
    used_usd: Decimal = Decimal(0)
    """US dollars that earlier starts of the job used; they count against the budget."""


def encode_job(spec: JobSpec, dumps: Callable[[object], Any]) -> bytes:
    """Return a job for the workers in other processes: its store by URL, and code as references.

    Args:
        spec: The job.
        dumps: Pickles it.

    Raises:
        EngineError: The store or the workflow cannot be found from another process.
    """
    url = portable_url(spec.store)
    if url is None:
        raise EngineError(
            f"the store at {spec.store.where} cannot be opened by another process; give a store by "
            "its URL or its folder"
        )
    given = {each.name: getattr(spec, each.name) for each in dataclasses.fields(spec)}
    given["store"] = url
    if spec.reference is not None:
        given["workflow"] = None
    try:
        return bytes(dumps(given))
    except (TypeError, AttributeError, pickle.PicklingError) as exc:
        raise EngineError(f"the workflow cannot be sent to other processes: {exc}") from exc


def decode_job(job: bytes) -> JobSpec:
    """Return the job that `encode_job` was given, in a worker, whose driver alone can send it."""
    given: dict[str, Any] = pickle.loads(job)
    given["store"] = find_store(given["store"])
    if given["reference"] is not None:
        given["workflow"] = find_workflow(given["reference"])
    return JobSpec(**given)


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One attempt at an item: the run of `run` on `session`.

    Pickled, the session is its id and its store: the engine is given stored ones, unless its
    `is_local` says that it never leaves the process.
    """

    run: UUID
    attempt: int
    session: Session


class ItemEvent(Struct, frozen=True, kw_only=True):
    """End of an attempt at an item; may come more than once, and of an earlier attempt."""

    run: UUID
    attempt: int
    status: Literal["done", "failed", "waiting", "cancelled", "lost"]
    """`lost`: its worker has died, so the item is to be submitted again. An engine that delivers it
    to another worker by itself does not say so."""

    session: UUID | None = None
    """The output, None where the run has made none."""

    error: str | None = None
    retryable: bool = True
    """Of a failed attempt: whether another one may do better."""

    over_budget: bool = False
    """Of a cancelled attempt: whether the budget of the job is what ended it."""

    worker: str = ""
    """Host and process that carried it out."""

    seconds: float = 0.0
    usage: RathLLMTokenUsage | None = None
    usd: Decimal | None = None
    """Tokens and US dollars of the whole run so far; None where they are not known."""


@runtime_checkable
class Engine(Protocol):
    """Carries out items on workers; its methods are called on the runtime loop of the driver.

    An engine promises one thing: an item that was submitted is delivered to a worker at least once,
    and an event comes of it, whatever worker or node dies meanwhile. It may deliver an item twice,
    also to two workers at once: the store lets one of them write, and what is recorded is served.
    """

    name: str
    is_local: bool
    """Whether items are carried out in this process, with the very sessions that were given."""

    async def open(self, spec: JobSpec) -> None:
        """Start, or attach to, the workers; nothing is submitted before.

        Raises:
            EngineError: There are none, or the job cannot be sent to them.
        """
        ...

    def submit(self, item: WorkItem) -> None:
        """Have an item carried out; returns at once."""
        ...

    def cancel(self, run: UUID) -> None:
        """Have the attempts at an item ended; returns at once, and an event of each comes still."""
        ...

    def events(self) -> AsyncGenerator[ItemEvent]:
        """Yield events as they come, until `close`."""
        ...

    async def close(self) -> None:
        """Let go of the workers; items that are in flight are given up, and are not ended."""
        ...


class EventQueue:
    """The events of an engine, for its one reader; used on the runtime loop only."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[ItemEvent | None] = asyncio.Queue()

    def put(self, event: ItemEvent) -> None:
        """Add an event."""
        self._queue.put_nowait(event)

    def close(self) -> None:
        """End the reading after the events so far."""
        self._queue.put_nowait(None)

    async def read(self) -> AsyncGenerator[ItemEvent]:
        """Yield the events as they come, until the queue is closed."""
        while (event := await self._queue.get()) is not None:
            yield event


EngineFactory: TypeAlias = Callable[[str], Engine]
"""Makes an engine of what stands behind the scheme: `4` of `procs:4`, `//auto` of `ray://auto`."""


def check_engine(name: str, factory: object) -> None:
    """Refuse an entry point that makes no engines."""
    if not callable(factory):
        raise TypeError(f"engine {name!r} is no function that makes one: {factory!r}")


engines: Registry[EngineFactory] = Registry(
    "engine",
    group="rath.engines",
    builtins={
        "local": "rath.jobs.local:local_engine",
        "procs": "rath.jobs.processes:processes_engine",
        "ray": "rath.jobs.ray:ray_engine",
        "postgres": "rath.jobs.queue:queue_engine",
        "postgresql": "rath.jobs.queue:queue_engine",
    },
    not_found=EngineNotFound,
    prepare=check_engine,
)
"""By scheme: what stands before the first `:` of `engine=`."""


def find_engine(engine: Engine | str | None) -> Engine:
    """Return an engine by what a program names it.

    Args:
        engine: None for this process; `procs:4`, `ray://auto`, `postgres://host/db`, or the scheme
            of an entry point of the group `rath.engines`; or an engine.

    Raises:
        EngineNotFound: There is none of that scheme.
        MissingExtra: What it needs is not installed.
    """
    if engine is None:
        return engines.get("local")("")
    if isinstance(engine, str):
        scheme, _, rest = engine.partition(":")
        return engines.get(scheme.lower())(rest)
    if not isinstance(engine, Engine):
        raise TypeError(
            "engine must be None, a URL such as 'procs:4', or an object with submit, cancel and "
            f"events, not {engine!r:.80}"
        )
    return engine


def find_workflow(reference: str) -> Workflow:
    """Return the workflow of `module:name`: itself, or what a class or function of it makes.

    Raises:
        ValueError: It is no such text, or there is no such module or name.
        TypeError: What is there, or what it makes, is no workflow.
    """
    module, _, name = reference.rpartition(":")
    if not module or not name:
        raise ValueError(f"{reference!r} names no workflow; expected 'module:name'")
    try:
        import_module(module)
    except ImportError as exc:
        raise ValueError(f"module {module!r} of {reference!r} cannot be imported: {exc}") from exc
    found = find_code(module, name)
    if found is None:
        raise ValueError(f"there is no {name!r} in module {module!r}")
    if callable(found) and not isinstance(found, Workflow):
        found = found()
    if not isinstance(found, Workflow):
        raise TypeError(f"{reference!r} is of type {type(found).__name__}; expected a workflow")
    return found
