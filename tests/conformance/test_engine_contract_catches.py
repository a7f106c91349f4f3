"""The contract of engines, run against faulty ones: each fails the check that it must."""

# Faulty engines are made of the parts of good ones.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from uuid import UUID, uuid4

import pytest
from msgspec.structs import replace

from rath.conformance.contract import run_clauses
from rath.conformance.engine import (
    CLAUSES,
    EngineHarness,
    LocalProcessHarness,
    WorkerPlace,
    open_subject,
)
from rath.jobs.engine import ItemEvent, JobSpec, WorkItem
from rath.jobs.local import LocalEngine
from rath.jobs.processes import ProcessesEngine

pytestmark = pytest.mark.timeout(90)

FAULTY: dict[str, tuple[Callable[[], Any], str]] = {}
"""A faulty engine for each check, by the name of the check, and what the check says of it."""

NEVER_SECONDS = 6.0
"""How long what a faulty engine never does is waited for."""


def breaks(check: str, detail: str) -> Callable[[Callable[[], Any]], Any]:
    """Register what makes the engine in which that check must find a fault."""

    def add(make: Callable[[], Any]) -> Any:
        FAULTY[check] = make, detail
        return make

    return add


class Harness(LocalProcessHarness):
    """Loses a node by the kill of one worker."""

    def remove_node(self, worker: WorkerPlace) -> None:
        self.kill(worker)


@pytest.mark.parametrize("check", [clause.name for clause in CLAUSES])
def test_a_fault_is_found_by_its_check(check: str, tmp_path: Path) -> None:
    make, detail = FAULTY[check]
    harness = Harness(make, str(tmp_path / "store"), seconds=NEVER_SECONDS)
    chosen = [clause for clause in CLAUSES if clause.name == check]
    with pytest.raises(AssertionError, match=rf"failed +{check}: .*{detail}"):
        run_clauses("", chosen, partial(open_subject, harness, tmp_path))


def test_what_cannot_be_pickled_skips_the_check_of_another_process(tmp_path: Path) -> None:
    harness = EngineHarness(lambda: LocalEngine(), str(tmp_path / "store"))
    chosen = [clause for clause in CLAUSES if clause.feature == "Drivers that die"]
    report = run_clauses("", chosen, partial(open_subject, harness, tmp_path))
    (finding,) = report.findings
    assert finding.status == "skipped"
    assert "cannot be pickled for another process" in finding.detail


# ---------------------------------------------------------------- items and their events


@breaks("every_item_comes_to_an_event", "12 events within 6 s, got 11")
class DropsAnEvent(LocalEngine):
    n_items = 0

    async def _run(self, item: WorkItem) -> None:
        self.n_items += 1
        if self.n_items == 7:
            await self._runner.run(item)
        else:
            await super()._run(item)


@breaks("an_engine_has_a_name", "a name")
class Nameless(LocalEngine):
    name = ""


@breaks("as_many_items_as_the_job_allows_are_in_flight_at_once", "to be carried out at once")
class OneAfterTheOther(LocalEngine):
    async def open(self, spec: JobSpec) -> None:
        self._turn = asyncio.Lock()
        await super().open(spec)

    async def _run(self, item: WorkItem) -> None:
        async with self._turn:
            await super()._run(item)


@breaks("an_item_that_takes_long_holds_up_no_other_one", "3 events within 6 s, got 0")
class InOrder(LocalEngine):
    def __init__(self) -> None:
        super().__init__()
        self._before: asyncio.Task[None] | None = None

    async def _run(self, item: WorkItem) -> None:
        before, self._before = self._before, asyncio.current_task()
        event = await self._runner.run(item)
        if before is not None:
            await asyncio.wait({before})
        self._events.put(event)


class Changing(LocalEngine):
    """Changes each event."""

    changes: ClassVar[dict[str, Any]]
    status: ClassVar[str]

    async def _run(self, item: WorkItem) -> None:
        event = await self._runner.run(item)
        is_meant = event.status == self.status
        self._events.put(replace(event, **self.changes) if is_meant else event)


@breaks("an_error_is_told_and_the_next_attempt_goes_on", "the error, got None")
class HidesErrors(Changing):
    status, changes = "failed", {"error": None}


@breaks("an_item_that_waits_for_somebody_is_told", "'waiting' as the event.*got 'done'")
class TakesWaitingForDone(Changing):
    status, changes = "waiting", {"status": "done"}


# ---------------------------------------------------------------- ending items


@breaks("an_item_that_is_cancelled_ends_alone", "hold1")
class CancelsAll(LocalEngine):
    def __init__(self) -> None:
        super().__init__()
        self._runs: list[UUID] = []

    def submit(self, item: WorkItem) -> None:
        self._runs.append(item.run)
        super().submit(item)

    def cancel(self, run: UUID) -> None:
        if run in self._runs:
            for each in self._runs:
                super().cancel(each)


@breaks("a_timeout_ends_the_run", "the end of the run within 6 s")
class LetsTheRunGoOn(LocalEngine):
    async def open(self, spec: JobSpec) -> None:
        self._timeout = spec.timeout
        await super().open(_without_timeout(spec))

    async def _run(self, item: WorkItem) -> None:
        running = asyncio.ensure_future(self._runner.run(item))
        await asyncio.wait({running}, timeout=self._timeout)
        self._events.put(ItemEvent(run=item.run, attempt=1, status="failed", error="TimeoutError"))
        await running


def _without_timeout(spec: JobSpec) -> JobSpec:
    return JobSpec(
        job=spec.job,
        name=spec.name,
        workflow=spec.workflow,
        store=spec.store,
        concurrency=spec.concurrency,
    )


@breaks("an_engine_can_be_closed_with_items_in_flight", r"the end of events\(\) within 6 s")
class NeverEndsItsEvents(LocalEngine):
    async def events(self) -> AsyncGenerator[ItemEvent]:
        async for event in super().events():
            yield event
        await asyncio.Event().wait()


# ---------------------------------------------------------------- deliveries and deaths


@breaks("what_is_done_is_served", "as sessions of the second attempts")
@breaks("an_item_that_is_submitted_twice_is_carried_out_once", "3 as the number of sessions, got 6")
@breaks("an_item_that_another_worker_carries_out_is_waited_for", "3 as the number of sessions")
@breaks("two_drivers_at_once_repeat_nothing", "as effects, got")
@breaks("another_driver_goes_on_where_one_was_killed", "as effects, got")
class RunsByDelivery(LocalEngine):
    """Makes a run of its own of each delivery."""

    async def _run(self, item: WorkItem) -> None:
        anew = WorkItem(uuid4(), item.attempt, item.session)
        self._events.put(replace(await self._runner.run(anew), run=item.run))


class ForgetsTheDead(ProcessesEngine):
    async def events(self) -> AsyncGenerator[ItemEvent]:
        async for event in super().events():
            if event.status != "lost":
                yield event


@breaks("items_of_a_worker_that_was_killed_are_carried_out", "to be carried out at once again")
@breaks("items_of_a_node_that_was_lost_are_carried_out", "to be carried out at once again")
def forgets_the_dead() -> ForgetsTheDead:
    return ForgetsTheDead(2)


class RunsByDeliveryElsewhere(ProcessesEngine):
    """Makes a run of its own of each delivery, in other processes."""

    def __init__(self, n_workers: int) -> None:
        super().__init__(n_workers)
        self._given: dict[UUID, UUID] = {}

    def submit(self, item: WorkItem) -> None:
        anew = WorkItem(uuid4(), item.attempt, item.session)
        self._given[anew.run] = item.run
        super().submit(anew)

    async def events(self) -> AsyncGenerator[ItemEvent]:
        async for event in super().events():
            yield replace(event, run=self._given[event.run])


@breaks("a_worker_that_stood_still_changes_nothing_when_it_wakes", "2 as the number of sessions")
def runs_by_delivery() -> RunsByDeliveryElsewhere:
    return RunsByDeliveryElsewhere(1)
