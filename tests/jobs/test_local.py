"""Items that are carried out in this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import rath
from rath._async.runtime import runtime
from rath.flow import Agent, Workflow
from rath.jobs.engine import ItemEvent, JobSpec, WorkItem, find_engine, job_id, run_id
from rath.session import Session
from rath.session.outcome import Cancelled
from rath.session.persistence.store import FileStore, SessionStore
from rath.testing import ScriptedClient, Turn, tool_call
from tests.support.waiting import PATIENCE, at_a_deadline, wait_until


def spec(
    tmp_path: Path, *script: Turn, tools: Sequence[Any] = (), timeout: float | None = None
) -> JobSpec:
    provider = ScriptedClient(script).provider
    agent = Agent("You answer.", provider, list(tools), system_tools=False)
    store = FileStore(tmp_path / "store")
    return JobSpec(job=job_id("j"), name="j", workflow=agent, store=store, timeout=timeout)


async def _carry_out(given: JobSpec, *keys: str) -> list[ItemEvent]:
    engine = find_engine(None)
    await engine.open(given)
    for key in keys:
        session = Session.from_user_message(key)
        engine.submit(WorkItem(run_id(given.job, key, 0), 1, session))
    events: list[ItemEvent] = []
    reading = engine.events()
    while len(events) < len(keys):
        events.append(await anext(reading))
    await engine.close()
    return events


def carry_out(given: JobSpec, *keys: str) -> list[ItemEvent]:
    return runtime().run(partial(_carry_out, given, *keys), label="a test")


def test_an_item_is_run_by_its_key(tmp_path: Path) -> None:
    given = spec(tmp_path, "one")
    (event,) = carry_out(given, "a")
    assert (event.status, event.error) == ("done", None)
    assert event.session is not None
    assert Session.load(event.session, store=given.store).text() == "one"
    (again,) = carry_out(spec(tmp_path), "a")
    assert again.session == event.session


def test_an_error_is_told_and_the_next_attempt_goes_on(tmp_path: Path) -> None:
    (event,) = carry_out(spec(tmp_path, ValueError("no answer")), "a")
    assert (event.status, event.retryable) == ("failed", True)
    assert "no answer" in (event.error or "")
    (again,) = carry_out(spec(tmp_path, "one"), "a")
    assert again.status == "done"


def test_many_items_are_carried_out_side_by_side(tmp_path: Path) -> None:
    keys = [str(uuid4()) for _ in range(20)]
    events = carry_out(spec(tmp_path, *["yes"] * 20), *keys)
    assert [event.status for event in events] == ["done"] * 20
    assert len({event.session for event in events}) == 20


@rath.tool
async def hold() -> str:
    """Wait for something that never comes."""
    await asyncio.Event().wait()
    return ""


def test_a_timeout_ends_the_run_of_an_attempt(tmp_path: Path) -> None:
    def run_for(timeout: float) -> tuple[float, SessionStore, ItemEvent]:
        folder = tmp_path / str(timeout)
        given = spec(folder, tool_call("hold", {}, id="1"), tools=[hold], timeout=timeout)
        return timeout, given.store, carry_out(given, "a")[0]

    timeout, store, event = at_a_deadline(run_for, lambda made: made[2].session is not None)
    assert (event.status, event.error) == (
        "failed",
        f"TimeoutError: the attempt took longer than {timeout} s",
    )
    assert event.session is not None
    assert Session.load(event.session, store=store).outcome == Cancelled(event.session)


class Late(Workflow):
    """Begins its run when it is let go."""

    def __init__(self, agent: Workflow) -> None:
        super().__init__()
        self.agent = agent
        self.may_begin = threading.Event()
        self.begun: list[Session] = []

    def forward(self, session: Session) -> Session:
        assert self.may_begin.wait(PATIENCE)
        self.begun.append(self.agent(session))
        return self.begun[0]


def test_a_run_that_begins_after_the_timeout_of_its_attempt_ends(tmp_path: Path) -> None:
    given = spec(tmp_path, tool_call("hold", {}, id="1"), tools=[hold], timeout=0.01)
    late = Late(given.workflow)
    (event,) = carry_out(replace(given, workflow=late), "a")
    assert event.status == "failed"
    late.may_begin.set()
    wait_until(lambda: bool(late.begun) and not late.begun[0].is_pending)
    assert isinstance(late.begun[0].outcome, Cancelled)
