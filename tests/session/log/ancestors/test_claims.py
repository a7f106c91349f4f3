"""What waits goes on once, however often and from wherever it is given to its agent."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from rath import autosave
from rath._async.deferred import Deferred
from rath.errors import PersistenceError
from rath.flow import Agent
from rath.session import Session
from rath.session.chunk import ChunkTable
from rath.session.log.ancestors import (
    alias,
    begin,
    claim,
    is_superseded,
    latest_run,
    started_sessions,
)
from rath.session.outcome import NeedsApproval, NeedsDecision
from rath.testing import ScriptedClient
from tests.flow.test_workflow_resume import GONE, go
from tests.session.programs.test_going_on import AGENT, Counting, f_calls, rows_of
from tests.support.api import Body
from tests.support.cut_off import cut_off
from tests.support.sessions import run
from tests.support.waiting import PATIENCE, wait_until

N_THREADS = 8


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPENRATH_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


class Waiting:
    """An agent whose run waits until somebody allows its call, and what it does then."""

    def __init__(self, *later: Any, approve: bool = True, tool: Counting | None = None) -> None:
        self.tool = tool or Counting()
        self.client = ScriptedClient([f_calls(1), *later])
        self.agent = Agent(
            "first", self.client.provider, [self.tool], system_tools=False, approval="always"
        )
        self.session = self.agent(go()).synchronize()
        assert isinstance(self.session.outcome, NeedsApproval)
        if approve:
            self.session.approve("call_1")

    @property
    def n_asked(self) -> int:
        return len(self.client.requests)


def at_once(make: Callable[[], Session]) -> list[Session]:
    """What several threads get that make a session in the same moment."""
    barrier = threading.Barrier(N_THREADS)

    def together() -> Session:
        barrier.wait(PATIENCE)
        return make()

    with ThreadPoolExecutor(N_THREADS) as pool:
        going = [pool.submit(together) for _ in range(N_THREADS)]
        return [each.result() for each in going]


def test_threads_that_give_it_at_once_get_the_same_run() -> None:
    waiting = Waiting("done", "never")
    made = at_once(lambda: waiting.agent(waiting.session))
    assert {each.text() for each in made} == {"done"}
    assert len({id(each.core.body) for each in made}) == 1
    assert (waiting.tool.calls, waiting.n_asked) == ([1], 2)


def deny(session: Session) -> Session:
    return session.deny("call_1")


def approve(session: Session) -> Session:
    return session.approve("call_1")


def decide(session: Session) -> Session:
    return session.decide("call_1", "skip")


def answer(session: Session) -> Session:
    return session.answer(1)


@pytest.mark.parametrize("say", [approve, deny, decide, answer])
def test_a_decision_after_the_run_went_on_is_refused(say: Callable[[Session], Session]) -> None:
    waiting = Waiting("done")
    waiting.agent(waiting.session).synchronize()
    with pytest.raises(ValueError, match="has gone on since, so what is said now comes too late"):
        say(waiting.session)


def test_what_nobody_holds_any_more_is_forgotten() -> None:
    waiting = Waiting("done")
    cell = weakref.ref(waiting.session.core.body)
    made = weakref.ref(waiting.agent.resume(waiting.session).synchronize().core.body)
    assert made() is not None
    del waiting
    # The threads that did the work let go of it a moment later.
    wait_until(lambda: is_gone(cell) and is_gone(made))


def is_gone(what: weakref.ref[Deferred[Body]]) -> bool:
    gc.collect()
    return what() is None


# ---- a session in a store


def loads(session: Session, n: int) -> list[Session]:
    return [Session.load(session.id) for _ in range(n)]


def error_of(session: Session) -> BaseException | None:
    try:
        session.synchronize()
    except PersistenceError as exc:
        return exc
    return None


def test_of_many_that_were_loaded_and_are_given_at_once_one_goes_on() -> None:
    with autosave():
        waiting = Waiting("done", "never")
        loaded = iter(loads(waiting.session, N_THREADS))
        made = at_once(lambda: waiting.agent(next(loaded)))
        errors = [error_of(each) for each in made]
    assert errors.count(None) == 1
    assert (waiting.tool.calls, waiting.n_asked) == ([1], 2)


def test_what_failed_goes_on_in_the_log_that_it_has() -> None:
    with autosave():
        waiting = Waiting(GONE, "done")
        with pytest.raises(RuntimeError):
            waiting.agent(waiting.session).synchronize()
        again = waiting.agent(waiting.session).synchronize()
    loaded = Session.load(again.id)
    assert (loaded.text(), rows_of(loaded), waiting.tool.calls) == ("done", rows_of(again), [1])
    assert list(loaded.record) == list(again.record)


def test_a_call_that_the_run_which_failed_had_started_waits_for_a_decision() -> None:
    tool = Counting()
    complete = run([f_calls(1), "done"], tool, agent=AGENT).synchronize()
    waits, left = cut_off(complete, 0), cut_off(complete, 0, begun=[0])
    failed = failed_cell(complete.id, left.core.body.result())
    assert claim(waits.core.body, lambda: failed) == (failed, True)
    again, once_more = (run([], tool, user=waits, agent=AGENT) for _ in range(2))
    assert again.outcome == once_more.outcome == NeedsDecision(complete.id, ("call_1",))
    for each in (again, once_more):
        each.decide("call_1", "retry")
    tool.calls.clear()
    made = [run(["done"], tool, user=each, agent=AGENT).text() for each in (again, once_more)]
    assert (made, tool.calls) == (["done", "done"], [1])


def failed_cell(session: UUID, written: Body) -> Deferred[Body]:
    """What a run makes that failed after it had written something."""

    async def fail(cell: Deferred[Body]) -> Body:
        cell.report(written)
        raise RuntimeError("the disk is full")

    cell = Deferred.start(fail, owner=session, label="a test", on_cancel=lambda _: written)
    with pytest.raises(RuntimeError, match="the disk is full"):
        cell.result()
    return cell


def test_a_run_that_failed_before_it_had_anything_counts_for_nothing() -> None:
    async def fail(_: Deferred[Body]) -> Body:
        raise RuntimeError("the disk is full")

    waiting = Waiting("done")
    start = partial(
        Deferred.start, fail, owner=uuid4(), label="a test", on_cancel=lambda _: Body(ChunkTable())
    )
    cell, _ = claim(waiting.session.core.body, start)
    with pytest.raises(RuntimeError, match="the disk is full"):
        cell.result()
    assert not is_superseded(waiting.session.core.body)
    assert waiting.agent(waiting.session).text() == "done"


def test_of_two_that_begin_the_same_the_second_gets_what_the_first_has_started() -> None:
    cell, reports, made = (Deferred.of(Body(ChunkTable())) for _ in range(3))
    alias(cell, cell)
    alias(reports, cell)
    assert claim(reports, lambda: made) == (made, True)
    assert claim(cell, pytest.fail) == (made, False)
    assert latest_run(cell) is latest_run(reports) is made
    session = uuid4()
    assert begin(started_sessions(cell), session, lambda: made) == (made, True)
    assert begin(started_sessions(cell), session, pytest.fail) == (made, False)


def test_threads_that_resume_its_workflow_at_once_get_the_same_run() -> None:
    waiting = Waiting("done", "never")
    made = at_once(lambda: waiting.agent.resume(waiting.session))
    assert {each.text() for each in made} == {"done"}
    assert (waiting.tool.calls, waiting.n_asked) == ([1], 2)
