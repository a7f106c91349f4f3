"""The contract of engines: items that are delivered at least once, whatever dies meanwhile."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from uuid import UUID, uuid4

from rath._async.runtime import runtime
from rath._core.dataclasses import dataclass
from rath.conformance.contract import (
    Clauses,
    Report,
    Skipped,
    Unlike,
    excerpt,
    expect,
    expect_equal,
    run_clauses,
)
from rath.conformance.engine_program import (
    Behaviour,
    CountedItem,
    CountedTeam,
    FileName,
    counted_items,
    lines,
    mend,
    release,
)
from rath.jobs.engine import Engine, ItemEvent, JobSpec, WorkItem, find_engine, job_id, run_id
from rath.session.loading import save_many
from rath.session.log.store import SessionStore, open_store
from rath.session.outcome import Cancelled, Completed, NeedsApproval
from rath.session.run.stored_programs import input_of
from rath.session.session import Session

__all__ = [
    "EngineHarness",
    "LocalProcessHarness",
    "WorkerPlace",
    "check_engine",
    "drive_until_killed",
]

EngineOpener = Callable[[], Engine]
"""Makes an engine that leads to the same workers each time, where these outlive it."""

_TIMEOUT_SECONDS = 1.5
_MAX_LOST = 5
_LOOK_SECONDS = 0.02

_CHILD = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from rath.conformance.engine import drive_until_killed; drive_until_killed()"
)


@dataclass(frozen=True, slots=True, order=True)
class WorkerPlace:
    """Place where an item is carried out, as it says itself."""

    host: str
    pid: int


class EngineHarness:
    """An engine under its contract, and what can be done to its workers.

    A method that is not overridden skips the checks that need it.

    Args:
        engine: Its URL, or what makes it: called for each driver, and pickled for a driver in
            another process. What cannot be pickled skips the check that needs one.
        store: The URL of a store that its workers can open too.
        seconds: How long anything may take until it is taken for an event that never comes.
    """

    def __init__(self, engine: EngineOpener | str, store: str, *, seconds: float = 60.0) -> None:
        self.opener: EngineOpener = (
            partial(find_engine, engine) if isinstance(engine, str) else engine
        )
        self.store = store
        self.seconds = seconds

    def kill(self, worker: WorkerPlace) -> None:
        """End a worker without any notice."""
        raise Skipped("the harness kills no worker")

    def stop(self, worker: WorkerPlace) -> None:
        """Have a worker stand still until `wake`."""
        raise Skipped("the harness stops no worker")

    def wake(self, worker: WorkerPlace) -> None:
        """Let a worker that was stopped go on."""

    def fence(self, worker: WorkerPlace) -> bool:
        """Have the store take the logs of a worker that was stopped away from it.

        Returns:
            False where nobody can: then the worker wakes before anybody else goes on.
        """
        return False

    def remove_node(self, worker: WorkerPlace) -> None:
        """Take the machine of a worker away, with all workers there."""
        raise Skipped("the harness removes no node")


class LocalProcessHarness(EngineHarness):
    """An engine whose workers are processes of this machine, which get signals."""

    def kill(self, worker: WorkerPlace) -> None:
        """Send SIGKILL."""
        self._send(worker, signal.SIGKILL)

    def stop(self, worker: WorkerPlace) -> None:
        """Send SIGSTOP."""
        self._send(worker, signal.SIGSTOP)

    def wake(self, worker: WorkerPlace) -> None:
        """Send SIGCONT."""
        self._send(worker, signal.SIGCONT)

    def _send(self, worker: WorkerPlace, number: signal.Signals) -> None:
        if worker.host != socket.gethostname() or worker.pid == os.getpid():
            raise Skipped(f"{worker} is no other process of this machine")
        os.kill(worker.pid, number)


class EngineDriver:
    """Drives an engine as `flow.map` does: submits items, and lost ones again; used by one thread.

    Args:
        engine: What it drives.
        spec: The job.
        seconds: How long anything may take.
    """

    def __init__(self, engine: Engine, spec: JobSpec, seconds: float) -> None:
        self._engine = engine
        self._spec = spec
        self._seconds = seconds
        self._news = threading.Condition()
        self._items: dict[tuple[UUID, int], WorkItem] = {}
        self._keys: dict[UUID, str] = {}
        self._n_lost: Counter[UUID] = Counter()
        self._has_ended = False
        self.events: list[ItemEvent] = []
        """All that came but those of lost items, in the order in which they came."""

        self.problem: str | None = None
        """What is wrong with events that came."""

    def open(self) -> None:
        """Open the engine, and begin to read its events."""
        self._run(partial(self._engine.open, self._spec), "open")
        self._reading = runtime().submit(self._read, label="events", at_exit="leave")

    def submit(
        self, items: Iterable[CountedItem], *, attempt: int = 1, job: UUID | None = None
    ) -> None:
        """Store the inputs of items, and submit these.

        Args:
            items: What to submit.
            attempt: Which attempt at them it is.
            job: Whose runs they are; of this job by default.
        """
        work = list[WorkItem]()
        for item in items:
            run = run_id(job or self._spec.job, item.key, 0)
            self._keys[run] = item.key
            given = item.session()
            work.append(WorkItem(run, attempt, input_of(run, given)))
        save_many([item.session for item in work], store=self._spec.store)

        async def submit() -> None:
            for item in work:
                self._items[item.run, item.attempt] = item
                self._engine.submit(item)

        self._run(submit, "submit")

    def cancel(self, key: str) -> None:
        """Cancel an item, by its key, or what no item has."""

        async def cancel() -> None:
            self._engine.cancel(run_id(self._spec.job, key, 0))

        self._run(cancel, "cancel")

    def wait(self, n_events: int) -> list[ItemEvent]:
        """Wait for so many events, and return them."""
        with self._news:
            self._news.wait_for(
                lambda: len(self.events) >= n_events or self.problem or self._has_ended,
                self._seconds,
            )
            found = [self.key(event) for event in self.events]
            expect(self.problem is None, f"events of what was submitted; {self.problem}")
            expect(
                len(self.events) >= n_events,
                f"{n_events} events within {self._seconds:g} s, got {len(found)}: {excerpt(found)}",
            )
            return list(self.events)

    def key(self, event: ItemEvent) -> str:
        """Return the key of the item that an event is of."""
        return self._keys[event.run]

    def close(self) -> None:
        """Close the engine: the reading of its events must end."""
        self._run(self._engine.close, "close")
        with self._news:
            self._news.wait_for(lambda: self._has_ended, self._seconds)
        expect(self._has_ended, f"the end of events() within {self._seconds:g} s after close()")

    def _run(self, make: Callable[[], object], what: str) -> None:
        async def call() -> None:
            async with asyncio.timeout(self._seconds):
                made = make()
                if asyncio.iscoroutine(made):
                    await made

        try:
            runtime().run(call, label=what)
        except TimeoutError:
            raise Unlike(f"expected {what}() to return within {self._seconds:g} s") from None

    async def _read(self) -> None:
        events: AsyncGenerator[ItemEvent] = self._engine.events()
        try:
            async for event in events:
                self._take(event)
        except Exception as exc:  # noqa: BLE001  # whatever the subject raises is the finding
            self.problem = f"events() raised {exc!r}"
        with self._news:
            self._has_ended = True
            self._news.notify_all()

    def _take(self, event: ItemEvent) -> None:
        item = self._items.get((event.run, event.attempt))
        with self._news:
            if item is None:
                self.problem = f"none was {event!r}"
            elif event.status != "lost":
                self.events.append(event)
            else:
                self._n_lost[event.run] += 1
                if self._n_lost[event.run] > _MAX_LOST:
                    self.problem = f"an item was lost {_MAX_LOST + 1} times"
                else:
                    self._engine.submit(item)
            self._news.notify_all()


class EngineSubject:
    """An engine for one clause: with jobs of its own, and a folder for what is counted.

    Args:
        harness: The engine.
        folder: A folder that is there.
    """

    def __init__(self, harness: EngineHarness, folder: Path) -> None:
        self.harness = harness
        self.folder = folder
        self.store: SessionStore = open_store(harness.store)
        self._drivers: list[EngineDriver] = []
        self._stopped: list[WorkerPlace] = []
        self.name: str = f"conformance-{uuid4()}"

    @property
    def job(self) -> UUID:
        """The job whose runs all drivers carry out."""
        return job_id(self.name)

    def items(self, n: int, behaviour: Behaviour = "work") -> Sequence[CountedItem]:
        """Return items of that behaviour, whose keys begin with it."""
        items = counted_items(n, self.folder, behaviour)
        return [
            CountedItem(f"{behaviour}{at}", item.folder, behaviour) for at, item in enumerate(items)
        ]

    def drive(
        self, *, concurrency: int = 4, timeout: float | None = None, name: str | None = None
    ) -> EngineDriver:
        """Return a driver whose engine is open; it is closed when the clause has ended."""
        engine = self.harness.opener()
        spec = job_spec(name or self.name, self.store, concurrency, timeout)
        driver = EngineDriver(engine, spec, self.harness.seconds)
        driver.open()
        self._drivers.append(driver)
        return driver

    def close(self) -> None:
        """Let everything go on and end."""
        for worker in self._stopped:
            self.wake(worker)
        release(self.folder)
        for driver in self._drivers:
            driver.close()

    def let_go(self, driver: EngineDriver) -> None:
        """Close a driver now."""
        self._drivers.remove(driver)
        driver.close()

    def stop(self, worker: WorkerPlace) -> None:
        """Stop a worker, at the longest until the clause has ended."""
        self.harness.stop(worker)
        self._stopped.append(worker)

    def wake(self, worker: WorkerPlace) -> None:
        """Wake a worker that was stopped."""
        self._stopped.remove(worker)
        self.harness.wake(worker)

    # ------------------------------------------------------------ what is seen

    def held(self) -> dict[str, list[WorkerPlace]]:
        """Return where items are held, by their keys, the last place last."""
        found: dict[str, list[WorkerPlace]] = {}
        for key, host, pid in lines(self.folder, "held"):
            found.setdefault(key, []).append(WorkerPlace(host, int(pid)))
        return found

    def wait_until_held(self, keys: Iterable[str], *, times: int = 1) -> WorkerPlace:
        """Wait until items are held, each so many times by now; return where the first one is."""
        wanted = list(keys)
        deadline = time.monotonic() + self.harness.seconds
        while not all(len(self.held().get(key, ())) >= times for key in wanted):
            if time.monotonic() > deadline:
                raise Unlike(
                    f"expected {wanted} to be carried out at once{' again' * (times > 1)} within "
                    f"{self.harness.seconds:g} s, got {self.held()}"
                )
            time.sleep(_LOOK_SECONDS)
        return self.held()[wanted[0]][-1]

    def wait_until_free(self, sessions: Iterable[UUID]) -> None:
        """Wait until nobody writes the logs of these sessions."""
        deadline = time.monotonic() + self.harness.seconds
        while any(map(self.store.is_being_written, sessions)):
            if time.monotonic() > deadline:
                raise Unlike(f"expected the end of the run within {self.harness.seconds:g} s")
            time.sleep(_LOOK_SECONDS)

    def count(self, name: FileName) -> dict[tuple[str, ...], int]:
        """Return how often each line of a file stands there."""
        return dict(Counter(map(tuple, lines(self.folder, name))))

    def expect_done(self, driver: EngineDriver, events: Iterable[ItemEvent]) -> None:
        """Expect events of items that are done, whose sessions are stored and complete."""
        for event in events:
            key = driver.key(event)
            expect_equal((event.status, event.error), ("done", None), f"as the event of {key}")
            expect(bool(event.worker), f"a worker in the event of {key}")
            loaded = self.load(event)
            expect_equal(loaded.outcome, Completed(), f"as the outcome of {key}")
            expect_equal(loaded.text(), f"reviewer has seen {key}", f"as the answer of {key}")

    def load(self, event: ItemEvent) -> Session:
        """Load the session that an event names."""
        if event.session is None:
            raise Unlike(f"expected a session in {event!r}")
        return Session.load(event.session, store=self.store)

    def expect_effects_once(self, keys: Iterable[str], *, repeats: Sequence[str] = ()) -> None:
        """Expect one effect of each item, and no answered call of the model twice.

        Args:
            keys: The items that had an effect.
            repeats: Those whose last call was cut off, and made again.
        """
        expect_equal(self.count("effects"), {(key,): 1 for key in sorted(keys)}, "as effects")
        again = {call for call, n in self.count("calls").items() if n > 1}
        allowed = {(key, "reviewer", "0") for key in repeats}
        expect(again <= allowed, f"no answered call twice, got {sorted(again - allowed)}")


def job_spec(
    name: str, store: SessionStore, concurrency: int, timeout: float | None = None
) -> JobSpec:
    """Return the job of the counted program."""
    return JobSpec(
        job=job_id(name),
        name=name,
        workflow=CountedTeam(),
        store=store,
        concurrency=concurrency,
        timeout=timeout,
    )


def _keys(items: Iterable[CountedItem]) -> list[str]:
    return [item.key for item in items]


EVENTS = Clauses[EngineSubject]()
TWICE = Clauses[EngineSubject]()
FAULTS = Clauses[EngineSubject]()

_events = EVENTS.add("Items and their events")
_ends = EVENTS.add("Ending items")
_twice = TWICE.add("Items that are delivered twice")
_workers = FAULTS.add("Workers that die or stand still")
_drivers = FAULTS.add("Drivers that die")
_nodes = FAULTS.add("Nodes that are lost")


@_events
def every_item_comes_to_an_event(subject: EngineSubject) -> None:
    driver, items = subject.drive(concurrency=4), subject.items(12)
    driver.submit(items)
    events = driver.wait(len(items))
    subject.expect_done(driver, events)
    expect_equal(sorted(map(driver.key, events)), sorted(_keys(items)), "as items with an event")
    subject.expect_effects_once(_keys(items))


@_events
def an_engine_has_a_name(subject: EngineSubject) -> None:
    engine = subject.harness.opener()
    expect(isinstance(engine, Engine), "the methods of an engine")
    expect(bool(engine.name), "a name")


@_events
def as_many_items_as_the_job_allows_are_in_flight_at_once(subject: EngineSubject) -> None:
    driver, items = subject.drive(concurrency=6), subject.items(6, "hold")
    driver.submit(items)
    subject.wait_until_held(_keys(items))
    release(subject.folder)
    subject.expect_done(driver, driver.wait(6))


@_events
def an_item_that_takes_long_holds_up_no_other_one(subject: EngineSubject) -> None:
    driver, long, short = subject.drive(), subject.items(1, "hold"), subject.items(3)
    driver.submit(long)
    subject.wait_until_held(_keys(long))
    driver.submit(short)
    events = driver.wait(3)
    expect_equal(sorted(map(driver.key, events)), _keys(short), "as those with an event")
    release(subject.folder)
    subject.expect_done(driver, driver.wait(4))


@_events
def an_error_is_told_and_the_next_attempt_goes_on(subject: EngineSubject) -> None:
    driver, items = subject.drive(), [*subject.items(1, "fail"), *subject.items(1)]
    driver.submit(items)
    events = {driver.key(event): event for event in driver.wait(2)}
    failed = events["fail0"]
    expect_equal(failed.status, "failed", "as the event of an item that fails")
    expect("no answer for fail0" in (failed.error or ""), f"the error, got {failed.error!r}")
    expect(failed.retryable, "an error that another attempt may not meet")
    subject.expect_done(driver, [events["work0"]])
    mend(subject.folder)
    driver.submit(items[:1], attempt=2)
    again = driver.wait(3)[-1]
    expect_equal(again.attempt, 2, "as attempt")
    subject.expect_done(driver, [again])
    expect_equal(subject.count("effects"), {("fail0",): 1, ("work0",): 1}, "as effects")


@_events
def an_item_that_waits_for_somebody_is_told(subject: EngineSubject) -> None:
    driver, items = subject.drive(), subject.items(1, "ask")
    driver.submit(items)
    event = driver.wait(1)[0]
    expect_equal(event.status, "waiting", "as the event of an item that needs an approval")
    outcome = subject.load(event).outcome
    expect(isinstance(outcome, NeedsApproval), f"a session that needs approval, got {outcome!r}")
    expect_equal(subject.count("effects"), {}, "as effects before the approval")


@_ends
def an_item_that_is_cancelled_ends_alone(subject: EngineSubject) -> None:
    driver, items = subject.drive(), subject.items(2, "hold")
    driver.submit(items)
    subject.wait_until_held(_keys(items))
    driver.cancel("nobody")
    driver.cancel("hold0")
    event = driver.wait(1)[0]
    expect_equal((driver.key(event), event.status), ("hold0", "cancelled"), "as the first event")
    subject.wait_until_free([event.session] if event.session else [])
    outcome = subject.load(event).outcome
    expect(isinstance(outcome, Cancelled), f"a session that was cancelled, got {outcome!r}")
    release(subject.folder)
    subject.expect_done(driver, driver.wait(2)[1:])
    driver.submit(items[:1], attempt=2)
    subject.expect_done(driver, driver.wait(3)[2:])
    subject.expect_effects_once(_keys(items), repeats=["hold0"])


@_ends
def a_timeout_ends_the_run(subject: EngineSubject) -> None:
    before = set(subject.store.stamps())
    driver, items = subject.drive(timeout=_TIMEOUT_SECONDS), subject.items(1, "hold")
    driver.submit(items)
    event = driver.wait(1)[0]
    expect_equal(event.status, "failed", "as the event of an item that took too long")
    expect("Timeout" in (event.error or ""), f"an error of the timeout, got {event.error!r}")
    subject.wait_until_free(set(subject.store.stamps()) - before)
    if event.session is not None:
        outcome = subject.load(event).outcome
        expect(isinstance(outcome, Cancelled), f"a session that was cancelled, got {outcome!r}")


@_ends
def an_engine_can_be_closed_with_items_in_flight(subject: EngineSubject) -> None:
    driver, items = subject.drive(), subject.items(3, "hold")
    driver.submit(items)
    subject.wait_until_held(_keys(items))
    subject.let_go(driver)
    expect_equal([each for each in driver.events if each.status == "done"], [], "as done")
    release(subject.folder)
    again = subject.drive()
    again.submit(items, attempt=2)
    subject.expect_done(again, again.wait(3))
    subject.expect_effects_once(_keys(items), repeats=_keys(items))


@_twice
def what_is_done_is_served(subject: EngineSubject) -> None:
    driver, items = subject.drive(), subject.items(2)
    driver.submit(items)
    first = driver.wait(2)
    driver.submit(items, attempt=2)
    again = driver.wait(4)[2:]
    subject.expect_done(driver, again)
    expect_equal(_sessions(again), _sessions(first), "as sessions of the second attempts")
    subject.expect_effects_once(_keys(items))


@_twice
def an_item_that_is_submitted_twice_is_carried_out_once(subject: EngineSubject) -> None:
    driver, items = subject.drive(concurrency=6), subject.items(3, "hold")
    for attempt in (1, 2):
        driver.submit(items, attempt=attempt)
    subject.wait_until_held(_keys(items))
    release(subject.folder)
    events = driver.wait(6)
    subject.expect_done(driver, events)
    expect_equal(len(_sessions(events)), 3, "as the number of sessions")
    subject.expect_effects_once(_keys(items))


@_twice
def an_item_that_another_worker_carries_out_is_waited_for(subject: EngineSubject) -> None:
    items = subject.items(3, "hold")
    one, other = subject.drive(), subject.drive(name=f"{subject.name}-other")
    one.submit(items)
    subject.wait_until_held(_keys(items))
    other.submit(items, job=subject.job)
    short = subject.items(1)
    other.submit(short)
    subject.expect_done(other, other.wait(1))
    expect_equal([each.status for each in one.events], [], "as events of items that are held")
    release(subject.folder)
    events = [*one.wait(3), *other.wait(4)[1:]]
    for driver, found in ((one, events[:3]), (other, events[3:])):
        subject.expect_done(driver, found)
    expect_equal(len(_sessions(events)), 3, "as the number of sessions")
    subject.expect_effects_once([*_keys(items), *_keys(short)])


@_twice
def two_drivers_at_once_repeat_nothing(subject: EngineSubject) -> None:
    items = subject.items(8)
    drivers = [subject.drive(), subject.drive(name=f"{subject.name}-other")]
    for driver in drivers:
        driver.submit(items, job=subject.job)
    for driver in drivers:
        subject.expect_done(driver, driver.wait(8))
    subject.expect_effects_once(_keys(items))


def _sessions(events: Iterable[ItemEvent]) -> set[UUID | None]:
    return {event.session for event in events}


def _lose(subject: EngineSubject, lose: Callable[[WorkerPlace], None]) -> str:
    """Lose the worker of some items: they go on elsewhere, and nothing is repeated."""
    driver, items = subject.drive(concurrency=6), subject.items(6, "hold")
    driver.submit(items)
    worker = subject.wait_until_held(_keys(items))
    cut_off = [key for key, places in subject.held().items() if places[-1] == worker]
    lose(worker)
    subject.wait_until_held(cut_off, times=2)
    release(subject.folder)
    subject.expect_done(driver, driver.wait(len(items)))
    repeats = [key for key, places in subject.held().items() if len(places) > 1]
    subject.expect_effects_once(_keys(items), repeats=repeats)
    return f"{len(cut_off)} of {len(items)} items were cut off"


@_workers
def items_of_a_worker_that_was_killed_are_carried_out(subject: EngineSubject) -> str:
    return _lose(subject, subject.harness.kill)


@_workers
def a_worker_that_stood_still_changes_nothing_when_it_wakes(subject: EngineSubject) -> str | None:
    items = subject.items(2, "hold")
    one = subject.drive()
    one.submit(items)
    for worker in {subject.wait_until_held([key]) for key in _keys(items)}:
        subject.stop(worker)
    stopped = sorted({places[-1] for places in subject.held().values()})
    release(subject.folder)
    other = subject.drive(name=f"{subject.name}-other")
    other.submit(items, job=subject.job)
    is_fenced = {subject.harness.fence(worker) for worker in stopped} == {True}
    if is_fenced:
        subject.expect_done(other, other.wait(2))
    for worker in stopped:
        subject.wake(worker)
    subject.expect_done(other, other.wait(2))
    late = [event for event in one.wait(2) if event.status == "failed"]
    if is_fenced and late:
        # It finds that its log was taken away: that changes nothing, and another attempt is served.
        expect(all(event.retryable for event in late), "errors that another attempt mends")
        one.submit(
            [item for item in items if item.key in map(one.key, late)], attempt=2, job=subject.job
        )
        one.wait(2 + len(late))
    served = [event for event in one.events if event not in late]
    subject.expect_done(one, served)
    events = [*served, *other.events]
    expect_equal(len(_sessions(events)), 2, "as the number of sessions")
    subject.expect_effects_once(_keys(items), repeats=_keys(items))
    return None if is_fenced else "it woke before others went on: nothing takes its logs from it"


@_drivers
def another_driver_goes_on_where_one_was_killed(subject: EngineSubject) -> None:
    items = subject.items(4, "hold")
    with _other_driver(subject, items) as kill:
        subject.wait_until_held(_keys(items))
        kill()
    driver = subject.drive()
    driver.submit(items)
    release(subject.folder)
    subject.expect_done(driver, driver.wait(4))
    subject.expect_effects_once(_keys(items), repeats=_keys(items))


@_nodes
def items_of_a_node_that_was_lost_are_carried_out(subject: EngineSubject) -> str:
    return _lose(subject, subject.harness.remove_node)


@contextmanager
def _other_driver(
    subject: EngineSubject, items: Sequence[CountedItem]
) -> Generator[Callable[[], None]]:
    """Submit items from a process of its own; give what kills it."""
    given = subject.harness.opener, subject.harness.store, subject.name, list(items)
    try:
        text = base64.b64encode(pickle.dumps(given)).decode()
    except (pickle.PicklingError, AttributeError, TypeError) as exc:
        raise Skipped(f"what makes it cannot be pickled for another process: {exc}") from exc
    process = subprocess.Popen(
        [sys.executable, "-c", _CHILD, json.dumps(sys.path)], stdin=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    with process.stdin:
        process.stdin.write(f"{text}\n")
        process.stdin.flush()

        def kill() -> None:
            process.kill()
            process.wait()

        try:
            yield kill
        finally:
            kill()


def drive_until_killed() -> None:
    """Submit items as a driver that will not live to see what comes of them."""
    # From our parent, and nobody else.
    opener, store, name, items = pickle.loads(base64.b64decode(sys.stdin.readline()))
    driver = EngineDriver(opener(), job_spec(name, open_store(store), 4), 60.0)
    driver.open()
    driver.submit(items)
    sys.stdin.read()


CLAUSES = (*EVENTS, *TWICE, *FAULTS)


def check_engine(harness: EngineHarness, *, folder: Path | None = None) -> Report:
    """Run the contract of engines against one and return what was found.

    Workers must be able to import `rath.conformance`.

    Args:
        harness: The engine, and what can be done to its workers.
        folder: Where effects are counted, in folders of their own; workers on other machines must
            see it. A temporary one by default.

    Raises:
        AssertionError: Some checks failed; the text is the whole report.
    """
    engine = harness.opener()
    title = f"{type(engine).__name__} {engine.name!r}"
    return run_clauses(title, CLAUSES, partial(open_subject, harness, folder))


@contextmanager
def open_subject(harness: EngineHarness, folder: Path | None = None) -> Generator[EngineSubject]:
    """Give an engine to one clause, and let all of it go on and end afterwards."""
    place = Path(tempfile.mkdtemp(prefix="rath-engine-", dir=folder))
    subject = EngineSubject(harness, place)
    try:
        yield subject
    finally:
        try:
            subject.close()
        finally:
            shutil.rmtree(place, ignore_errors=True)
