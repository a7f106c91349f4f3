"""The engine of Ray clusters: actors that carry out many items each, side by side.

    driver                                     cluster
    RayEngine --the job, once, by reference--> RayWorker (an asyncio actor) x `workers`
              --run, attempt and id----------> ItemRunner on the runtime of its process
              <------------------------ItemEvent
    SharedLimits --leases--------------------> WorkerLimits
                 <------------what is asked--

Ray starts an actor that died anew, on whatever node has room, and never repeats a call by itself:
the items that were in flight there are `lost`, and delivered again by who submitted them.

The process of the driver is part of the cluster: Ray ends it, too, when the node that it is
attached to dies, or the head cannot be reached for a minute. The next start of the job goes on.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import field
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, urlsplit
from uuid import UUID

from rath._async.runtime import runtime
from rath._core.dataclasses import dataclass
from rath.errors import EngineError, MissingExtra
from rath.jobs.engine import (
    EventQueue,
    ItemEvent,
    JobSpec,
    WorkItem,
    decode_job,
    encode_job,
)
from rath.jobs.limits import Lease, LeaseRequest, SharedLimits
from rath.jobs.worker import MAX_ERROR_CHARS, ItemRunner, worker_name

SESSIONS_PER_WORKER = 16
"""Of how many items in flight there is one worker by default, as far as there are processors; a
guess. What an item mostly does is wait for models."""

_PLACEMENT_SECONDS = 30.0
"""How long the share of a worker that is not placed yet is kept from the others; a guess."""

_STOP_SECONDS = 5.0
"""How long the workers may take to end what they do when the engine is closed; a guess."""

_KILL_SECONDS = 30.0
"""How long it may take until the calls of workers that were killed have failed; a guess."""

_SPARE_CALLS = 32
"""Calls of an actor beside the items, such as those that cancel."""

_OBJECT_STORE_BYTES = 75 * 1024 * 1024
"""The least that Ray takes: only ids and events are in it."""


# ---------------------------------------------------------------- options


@dataclass(frozen=True, slots=True, kw_only=True)
class RayOptions:
    """What stands behind `ray:`; by default one worker for each `SESSIONS_PER_WORKER` items.

    Args:
        address: `auto`, `local`, `ray://host:10001`, or `host:6379` from a node of the cluster.
        workers: How many actors.
        num_cpus: Processors that the scheduler counts for each.
        num_gpus: Likewise, for models inside the process.
        memory: Likewise, bytes.
        resources: Custom resources of nodes, such as those that have a sandbox or a model:
            `docker:1,local_model:0.5` in the URL.
        restarts: How often each worker is started anew after it died.
        start_timeout: Seconds until the first worker must be there; a cluster may grow meanwhile.
    """

    address: str = "auto"
    workers: int | None = None
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    memory: int | None = None
    resources: Mapping[str, float] = field(default_factory=dict[str, float])
    restarts: int = 20
    start_timeout: float = 300.0

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ValueError("workers must be at least 1")
        if not all(each >= 0 for each in (self.num_cpus, self.num_gpus, self.restarts)):
            raise ValueError("num_cpus, num_gpus and restarts must be at least 0")


def _amounts(text: str) -> dict[str, float]:
    """Return the resources of `docker:1,local_model:0.5`."""
    pairs = [each.rpartition(":") for each in text.split(",")]
    if not all(name for name, _, _ in pairs):
        raise ValueError("resources are name:amount, with commas between them")
    return {name: float(amount) for name, _, amount in pairs}


_READ_OPTION: Mapping[str, Callable[[str], Any]] = {
    "workers": int,
    "num_cpus": float,
    "num_gpus": float,
    "memory": int,
    "resources": _amounts,
    "restarts": int,
    "start_timeout": float,
}


def read_options(rest: str) -> RayOptions:
    """Return the options of what stands behind `ray:` in the URL of an engine.

    Raises:
        EngineError: There is no such option, or its value is of another kind.
    """
    parts = urlsplit(f"ray:{rest}")
    # `ray://host:port` is the same address for Ray: its client, from outside of the cluster.
    address = parts.path
    if parts.netloc:
        address = parts.netloc if ":" not in parts.netloc else f"ray://{parts.netloc}"
    given: dict[str, Any] = {}
    for name, text in parse_qsl(parts.query, keep_blank_values=True):
        if name not in _READ_OPTION:
            known = ", ".join(_READ_OPTION)
            raise EngineError(f"engine 'ray' has no option {name!r}; there are {known}")
        try:
            given[name] = _READ_OPTION[name](text)
        except ValueError as exc:
            raise EngineError(f"option {name!r} of engine 'ray' is {text!r}: {exc}") from exc
    try:
        return RayOptions(address=address or "auto", **given)
    except ValueError as exc:
        raise EngineError(f"engine 'ray': {exc}") from exc


# ---------------------------------------------------------------- connection


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as exc:
        raise MissingExtra("ray", "the engine 'ray'") from exc
    return ray


@contextmanager
def _ray_environment(address: str) -> Generator[None]:
    """Set how Ray is imported and started; what the program's environment says counts more.

    A cluster that is started here listens on loopback only and reports nothing to its vendor. And
    `uv run` sends no working directory, with the `.env` that may be in it, to other machines.
    """
    wanted = {"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
    if address in ("auto", "local") and not os.environ.get("RAY_ADDRESS"):
        wanted |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    added = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


class _RayConnection:
    """The one connection of this process to a cluster, while an engine uses it.

    A thread of its own makes and ends it: Linux ends the processes that Ray starts together with
    the thread that started them. Whoever lets go of an object or an actor on another thread while
    it is ended has the whole process ended by Ray, at once and without a word to Python: so an
    engine has let go of all of them before it releases the connection.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n_users = 0
        self._address = ""
        self._unused = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self, address: str) -> Any:
        """Return the module of Ray, connected; waits.

        Raises:
            EngineError: There is no such cluster, or this process is connected to another one.
        """
        with self._lock, _ray_environment(address):
            ray = _import_ray()
            if self._n_users == 0 and not ray.is_initialized():
                self._start(ray, address)
            elif self._n_users and self._address != address:
                raise EngineError(
                    f"this process uses the Ray cluster {self._address!r}, so it cannot use "
                    f"{address!r} at the same time"
                )
            self._address = address
            self._n_users += 1
        return ray

    def release(self) -> None:
        """End the connection unless another engine, or the program itself, uses it; waits."""
        with self._lock:
            self._n_users -= 1
            if self._n_users or self._thread is None:
                return
            self._unused.set()
            self._thread.join()
            self._thread = None

    def _start(self, ray: Any, address: str) -> None:
        started: Future[None] = Future()
        self._unused.clear()
        self._thread = threading.Thread(
            target=self._hold, args=(ray, address, started), name="rath-ray", daemon=True
        )
        self._thread.start()
        try:
            started.result()
        except Exception as exc:
            self._thread.join()
            self._thread = None
            raise EngineError(f"no Ray cluster at {address!r}: {exc}") from exc

    def _hold(self, ray: Any, address: str, started: Future[None]) -> None:
        try:
            _connect(ray, address)
        except Exception as exc:  # noqa: BLE001  # it belongs to who waits for the connection
            started.set_exception(exc)
            return
        started.set_result(None)
        self._unused.wait()
        ray.shutdown()


_connection = _RayConnection()


def _connect(ray: Any, address: str) -> None:
    """Connect to a cluster, or start one on this machine."""
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    here = {"include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES}
    if address == "local":
        ray.init(address, **here, **settings)
        return
    try:
        ray.init(address, **settings)
    except ConnectionError:
        if address != "auto" or os.environ.get("RAY_ADDRESS"):
            raise
        ray.init("local", **here, **settings)


# ---------------------------------------------------------------- worker


class WorkerLimits:
    """The limits of the job, which the driver has, in a worker; used on the runtime loop.

    Only the driver can call: it comes for what is asked, and with the leases for it.
    """

    def __init__(self) -> None:
        self._asked: dict[int, tuple[LeaseRequest, asyncio.Future[Lease]]] = {}
        self._n_asked = 0
        self._news = asyncio.Event()

    async def exchange(self, request: LeaseRequest) -> Lease:
        """Wait for the driver's answer; see `LimitSource`."""
        self._n_asked += 1
        number = self._n_asked
        answer: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        self._asked[number] = request, answer
        self._news.set()
        try:
            return await answer
        finally:
            del self._asked[number]

    async def fetch(self, leases: Mapping[int, Lease]) -> dict[int, LeaseRequest]:
        """Give leases to who waits for them, and return what is asked once there is anything.

        What had no answer is among it again: it, or its answer, may have been lost on its way.
        """
        for number, lease in leases.items():
            _, answer = self._asked.get(number, (None, None))
            if answer is not None and not answer.done():
                answer.set_result(lease)
        while not (asked := {n: each for n, (each, to) in self._asked.items() if not to.done()}):
            self._news.clear()
            await self._news.wait()
        return asked


class RayWorker:
    """An actor: carries out items on the runtime of its process, with its own credentials."""

    def __init__(self) -> None:
        self._limits = WorkerLimits()
        self._runner: ItemRunner | None = None
        self._tasks: set[asyncio.Task[ItemEvent]] = set()

    async def start(self, job: bytes) -> str:
        """Load the job, and return the name of this worker.

        Not in the constructor: Ray promises to start an actor anew only without arguments there.
        """
        if self._runner is None:
            load = partial(runtime().call_in_worker, partial(decode_job, job))
            spec = await runtime().await_run(load, label="a job")
            self._runner = ItemRunner(spec, self._limits)
        return worker_name()

    async def run(self, run: UUID, attempt: int, session: UUID) -> ItemEvent:
        """Carry an item out."""
        if self._runner is None:
            # Started anew, which the driver does not know yet.
            return ItemEvent(run=run, attempt=attempt, status="lost", worker=worker_name())
        carry_out = partial(self._carry_out, self._runner, run, attempt, session)
        return await runtime().await_run(carry_out, label=f"item {run}")

    async def cancel(self, run: UUID) -> None:
        """End the attempts at an item; an event of each comes still."""
        await runtime().await_run(partial(self._cancel, run), label=f"the end of item {run}")

    async def limits(self, leases: Mapping[int, Lease]) -> dict[int, LeaseRequest]:
        """Take leases, and return what is asked of the limits of the job once there is anything."""
        fetch = partial(self._limits.fetch, leases)
        return await runtime().await_run(fetch, label="the limits of a job")

    async def stop(self) -> None:
        """Give up what is in flight: nobody is there any more to hear of it."""
        await runtime().await_run(self._stop, label="the end of a worker")

    async def _carry_out(
        self, runner: ItemRunner, run: UUID, attempt: int, session: UUID
    ) -> ItemEvent:
        task = asyncio.create_task(runner.run_stored(run, attempt, session))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await task

    async def _cancel(self, run: UUID) -> None:
        if self._runner is not None:
            self._runner.cancel(run)

    async def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


# ---------------------------------------------------------------- driver


class _WorkerHandle:
    """What the driver knows of a worker."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self.name = ""
        self.in_flight: Counter[UUID] = Counter()
        self.is_ready = False
        self.is_gone = False
        self.expected_until = 0.0
        """The end of the time in which its share is kept for it."""

        self.has_limits = False
        """Whether somebody answers what it asks of the limits of the job."""

    @property
    def has_share(self) -> bool:
        """Whether items are kept for it."""
        return self.is_ready or (not self.is_gone and time.monotonic() < self.expected_until)


class RayEngine:
    """Has items carried out by actors on a Ray cluster.

    Args:
        options: Which cluster, and which actors.
    """

    name = "ray"
    is_local = False

    def __init__(self, options: RayOptions) -> None:
        self._options = options
        self._events = EventQueue()
        self._waiting: deque[WorkItem] = deque()
        self._workers: list[_WorkerHandle] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._ray: Any = None
        self._job: Any = None

    async def open(self, spec: JobSpec) -> None:
        """Connect to the cluster, or start one here, and wait for the first worker."""
        self._concurrency = spec.concurrency
        self._has_limits = spec.rate is not None or spec.budget_usd is not None
        self.limits: SharedLimits = SharedLimits.of(spec)
        self._news = asyncio.Event()
        acquire = partial(_connection.acquire, self._options.address)
        self._ray = await runtime().call_in_worker(acquire)
        try:
            await runtime().call_in_worker(partial(self._start_actors, spec))
            for worker in self._workers:
                self._expect(worker)
            await self._wait_for_worker()
        except BaseException:
            await self.close()
            raise

    def submit(self, item: WorkItem) -> None:
        """Have an item carried out; returns at once."""
        self._waiting.append(item)
        self._dispatch()

    def cancel(self, run: UUID) -> None:
        """Have the attempts at an item ended; an event of each comes still."""
        for item in [each for each in self._waiting if each.run == run]:
            self._waiting.remove(item)
            self._events.put(ItemEvent(run=run, attempt=item.attempt, status="cancelled"))
        for worker in self._workers:
            # After `run` in the one queue of the actor; what comes of it is told by the event.
            if worker.in_flight[run]:
                worker.actor.cancel.remote(run)

    def events(self) -> AsyncGenerator[ItemEvent]:
        """Yield events as they come, until `close`."""
        return self._events.read()

    async def close(self) -> None:
        """Stop the workers, and the cluster if it was started here; what is in flight is left."""
        self._events.close()
        self._waiting.clear()
        if self._ray is None:
            return
        await runtime().call_in_worker(partial(_stop_workers, self._ray, self._workers))
        # The calls of a killed worker fail; until then Ray holds on to them for who waits.
        try:
            async with asyncio.timeout(_KILL_SECONDS):
                while self._tasks:
                    await asyncio.wait(self._tasks)
        except TimeoutError:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        for worker in self._workers:
            worker.actor = None
        self._ray = self._job = None
        await runtime().call_in_worker(_connection.release)

    def _start_actors(self, spec: JobSpec) -> None:
        """Ask the cluster for the workers; on a worker thread."""
        ray, options = self._ray, self._options
        n_workers = options.workers
        if n_workers is None:
            processors = int(ray.cluster_resources().get("CPU", 1) / max(options.num_cpus, 0.01))
            by_items = max(2, math.ceil(spec.concurrency / SESSIONS_PER_WORKER))
            n_workers = max(1, min(processors, by_items, spec.concurrency))
        actor_class = ray.remote(RayWorker).options(
            num_cpus=options.num_cpus,
            num_gpus=options.num_gpus,
            memory=options.memory,
            resources=dict(options.resources),
            max_concurrency=spec.concurrency + _SPARE_CALLS,
            max_restarts=options.restarts,
            max_task_retries=0,
            scheduling_strategy="SPREAD",
        )
        self._job = ray.put(encode_job(spec, ray.cloudpickle.dumps))
        self._workers = [_WorkerHandle(actor_class.remote()) for _ in range(n_workers)]

    def _expect(self, worker: _WorkerHandle) -> None:
        """Wait in the background until a worker is placed, for the first time or anew."""
        worker.is_ready = False
        worker.expected_until = time.monotonic() + _PLACEMENT_SECONDS
        loop = asyncio.get_running_loop()
        loop.call_later(_PLACEMENT_SECONDS, self._dispatch)
        self._spawn(self._wait_until_ready(worker))

    async def _wait_until_ready(self, worker: _WorkerHandle) -> None:
        try:
            worker.name = await worker.actor.start.options(max_task_retries=-1).remote(self._job)
            worker.is_ready = True
        except self._ray.exceptions.RayError as exc:
            worker.is_gone = True
            self._last_error = str(exc)
        if worker.is_ready and self._has_limits and not worker.has_limits:
            self._spawn(self._share_limits(worker))
        self._news.set()
        self._dispatch()

    async def _share_limits(self, worker: _WorkerHandle) -> None:
        """Answer what a worker asks of the limits of the job, as long as it lives.

        What it was granted before it died counts as used.
        """
        worker.has_limits = True
        leases: dict[int, Lease] = {}
        try:
            while True:
                asked: dict[int, LeaseRequest] = await worker.actor.limits.remote(leases)
                leases = {number: self.limits.lease(each) for number, each in asked.items()}
        except self._ray.exceptions.RayError:
            worker.has_limits = False
        if worker.is_ready:
            self._expect(worker)

    async def _wait_for_worker(self) -> None:
        """Wait until one worker is there.

        Raises:
            EngineError: There is none in time.
        """
        try:
            async with asyncio.timeout(self._options.start_timeout):
                while not any(worker.is_ready for worker in self._workers):
                    if all(worker.is_gone for worker in self._workers):
                        raise EngineError(f"no worker could be started: {self._last_error}")
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            offer = await runtime().call_in_worker(self._ray.cluster_resources)
            raise EngineError(
                f"no worker was placed within {self._options.start_timeout:g} s; each asks for "
                f"{self._options.num_cpus:g} CPU, {self._options.num_gpus:g} GPU and "
                f"{dict(self._options.resources)}, and the cluster has {offer}"
            ) from None

    def _dispatch(self) -> None:
        """Hand out what waits, to the workers with the fewest items."""
        shares = sum(worker.has_share for worker in self._workers)
        most = math.ceil(self._concurrency / max(1, shares))
        while self._waiting:
            free = [
                worker
                for worker in self._workers
                if worker.is_ready and worker.in_flight.total() < most
            ]
            if not free:
                break
            worker = min(free, key=lambda each: each.in_flight.total())
            item = self._waiting.popleft()
            worker.in_flight[item.run] += 1
            self._spawn(self._deliver(worker, item))
        if self._waiting and all(worker.is_gone for worker in self._workers):
            self._fail_waiting()

    async def _deliver(self, worker: _WorkerHandle, item: WorkItem) -> None:
        end = partial(ItemEvent, run=item.run, attempt=item.attempt, worker=worker.name)
        exceptions = self._ray.exceptions
        try:
            event = await worker.actor.run.remote(item.run, item.attempt, item.session.id)
        except exceptions.RayTaskError as exc:
            event = end(status="failed", error=f"{type(exc).__name__}: {exc}"[-MAX_ERROR_CHARS:])
        except exceptions.RayError:
            event = end(status="lost")
        finally:
            worker.in_flight -= Counter([item.run])
        if event.status == "lost" and worker.is_ready:
            self._expect(worker)
        self._events.put(event)
        self._dispatch()

    def _fail_waiting(self) -> None:
        """Say of what waits that nobody is there to carry it out."""
        error = f"EngineError: all workers died, each {self._options.restarts + 1} times"
        for item in self._waiting:
            self._events.put(
                ItemEvent(
                    run=item.run,
                    attempt=item.attempt,
                    status="failed",
                    error=f"{error}; the last one: {self._last_error}"[:MAX_ERROR_CHARS],
                    retryable=False,
                )
            )
        self._waiting.clear()

    def _spawn(self, coroutine: Any) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _stop_workers(ray: Any, workers: list[_WorkerHandle]) -> None:
    """Stop workers, by force where they take long; on a worker thread."""
    refs = [worker.actor.stop.remote() for worker in workers if worker.is_ready]
    if refs:
        ray.wait(refs, num_returns=len(refs), timeout=_STOP_SECONDS)
    for worker in workers:
        ray.kill(worker.actor)


def ray_engine(rest: str) -> RayEngine:
    """Return the engine of a Ray cluster.

    Args:
        rest: `//auto` for the cluster of `RAY_ADDRESS` or of this machine, which is started where
            there is none; `//local` for one of its own; `//host:10001` for Ray's client; or
            `host:6379`, the address of a cluster that this machine is a node of. Behind it options
            of `RayOptions`, such as `?workers=4&num_cpus=0.5&resources=docker:1`.

    Raises:
        EngineError: There is no such option, or its value is of another kind.
        MissingExtra: Ray is not installed.
    """
    options = read_options(rest)
    with _ray_environment(options.address):
        _import_ray()
    return RayEngine(options)
