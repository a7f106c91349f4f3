"""`flow.map`: a workflow over many items, and the job that they make up."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from decimal import Decimal
from functools import partial
from pathlib import Path

import pytest

from rath import flow
from rath.errors import JobError, SessionBusy
from rath.jobs.engine import job_id, run_id
from rath.jobs.job import Job, retry_job
from rath.jobs.record import attempts_of, load_job, starts_of
from rath.llm.chat_request import RathLLMChatRequest
from rath.session import Session
from rath.session.outcome import Completed, NeedsApproval
from rath.session.persistence.store import FileStore
from rath.testing import ScriptedClient, Turn, tool_call
from tests.support.crash_program import CrashProgram
from tests.support.sessions import FunctionTool
from tests.support.waiting import PATIENCE, wait_until


def agent(*script: Turn, tools: tuple[FunctionTool, ...] = ()) -> flow.Agent:
    provider = ScriptedClient(script).provider
    return flow.Agent("You answer.", provider, list(tools), system_tools=False)


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "store")


def test_each_item_is_run_once_and_a_second_start_serves_all(store: FileStore) -> None:
    job = flow.map(agent("1", "2", "3"), ["a", "b", "c"], job="j", store=store)
    assert {item.key: item.state for item in job} == {"0": "done", "1": "done", "2": "done"}
    again = flow.map(agent(), ["a", "b", "c"], job="j", store=store, ordered=True)
    first = [item.session.id for item in job.items if item.session]
    assert [item.session.id for item in again if item.session] == first
    assert [item.attempts for item in again] == [1, 1, 1]


def test_who_iterates_sees_the_end_of_a_job_that_takes_a_moment_to_end(store: FileStore) -> None:
    job = flow.map(agent("1"), ["a"], store=store)
    assert job.session.core.body.at_end(partial(time.sleep, 0.1))
    assert [item.state for item in job] == ["done"]


class SlowReader:
    """Reads along, and holds up for a moment what goes on after news."""

    def wake(self) -> None:
        threading.Event().wait(0.02)


def test_an_item_is_yielded_when_it_has_ended_and_not_with_the_next(store: FileStore) -> None:
    may_begin, may_end, slow = threading.Event(), threading.Event(), SlowReader()

    def begin(_: RathLLMChatRequest) -> str:
        assert may_begin.wait(PATIENCE)
        return "1"

    tool = FunctionTool("f", lambda *_: may_end.wait(PATIENCE))
    job = flow.map(agent(begin, tool_call("f"), "2", tools=(tool,)), ["a", "b"], store=store)

    async def read() -> list[str]:
        items = aiter(job)
        first = asyncio.ensure_future(anext(items))
        await asyncio.sleep(0)
        job.session.core.body.watch(slow)  # type: ignore[arg-type]  # it has all that is called
        may_begin.set()
        keys = [(await asyncio.wait_for(first, PATIENCE)).key]
        may_end.set()
        return [*keys, *[item.key async for item in items]]

    assert sorted(asyncio.run(read())) == ["0", "1"]


def test_items_are_told_by_a_member_or_a_function(store: FileStore) -> None:
    items = [{"id": "x", "input": "go"}, {"id": "y", "input": Session.from_user_message("go")}]
    job = flow.map(agent("1", "2"), items, key="id", job="j", store=store)
    assert sorted(item.key for item in job) == ["x", "y"]
    job = flow.map(agent("1"), [7], key=lambda n: n + 1, session=lambda _: hello(), store=store)
    assert [item.key for item in job] == ["8"]
    assert job.items[0].run == run_id(job_id(job.name), "8", 0)


def hello() -> Session:
    return Session.from_user_message("hello")


def test_epochs_are_runs_of_their_own(store: FileStore) -> None:
    job = flow.map(agent("1", "2"), ["a"], epochs=2, store=store).synchronize()
    assert [(item.key, item.epoch) for item in job.items] == [("0", 0), ("0", 1)]
    assert len({item.session.id for item in job.items if item.session}) == 2


def test_an_item_that_fails_loses_no_other_and_its_errors_stay(store: FileStore) -> None:
    script: list[Turn] = [ValueError("one"), "yes", ValueError("two"), ValueError("three")]
    job = flow.map(agent(*script), ["a", "b"], concurrency=1, store=store, job="j").synchronize()
    failed, done = job.items
    assert (failed.state, done.state, failed.attempts) == ("failed", "done", 3)
    assert [error.split(":")[1].strip() for error in failed.errors] == ["one", "two", "three"]
    assert job.report().counts == {"failed": 1, "done": 1}
    assert "three" in str(job.report())
    retried = flow.map(agent("good"), ["a", "b"], job="j", store=store).retry("failed")
    assert [item.state for item in retried.synchronize().items] == ["done", "done"]
    assert retried.items[0].attempts == 4
    assert len(retried.items[0].errors) == 3


def test_a_stored_session_is_an_input_that_the_store_has(store: FileStore) -> None:
    first = agent("one")(hello())
    first.save(store=store)
    given = Session.load(first.id, store=store)
    flow.map(agent(ValueError("no")), [given], retries=0, job="j", store=store).synchronize()
    retried = retry_job(agent("good"), "j", store).synchronize()
    assert [item.state for item in retried.items] == ["done"]
    assert retried.items[0].input.rows == given.rows


def test_a_second_start_leaves_what_failed(store: FileStore) -> None:
    flow.map(agent(ValueError("one")), ["a"], retries=0, job="j", store=store).synchronize()
    again = flow.map(agent(), ["a"], job="j", store=store).synchronize()
    assert (again.items[0].state, again.items[0].attempts) == ("failed", 1)


def test_the_first_failure_is_raised_on_demand(store: FileStore) -> None:
    job = flow.map(agent(ValueError("one")), ["a"], retries=0, on_error="raise", store=store)
    with pytest.raises(JobError, match=r"item '0'.*failed after 1 attempts: ValueError: one"):
        job.synchronize()
    with pytest.raises(JobError):
        list(job)


@pytest.mark.parametrize("most", [1, 0.25])
def test_a_job_is_given_up_when_too_much_fails(store: FileStore, most: float) -> None:
    script: list[Turn] = [ValueError(str(n)) for n in range(8)]
    job = flow.map(
        agent(*script), "abcdefgh", retries=0, max_failures=most, concurrency=1, store=store
    )
    with pytest.raises(JobError, match=r"items of job .* failed, and max_failures is"):
        job.synchronize()
    assert Counter(item.state for item in job.items)["failed"] == (2 if most == 1 else 3)


def test_a_waiting_item_goes_on_after_its_approval(store: FileStore) -> None:
    tool = FunctionTool("f", lambda *_: "done")
    tool.approval = "always"
    job = flow.map(
        agent(tool_call("f", {}, id="1"), tools=(tool,)), ["a"], job="j", store=store
    ).synchronize()
    (item,) = job.waiting()
    assert isinstance(item.outcome, NeedsApproval)
    Session.load(item.outcome.session, store=store).approve("1")
    again = flow.map(agent("yes", tools=(tool,)), ["a"], job="j", store=store).synchronize()
    assert (again.items[0].state, again.items[0].outcome) == ("done", Completed())


def test_the_job_is_a_session_with_a_record(store: FileStore) -> None:
    job = flow.map(agent("1", "2"), ["a", "b"], job="j", store=store).synchronize()
    stored = Session.load(job.id, store=store)
    assert stored.id == job.id
    (start,) = starts_of(stored.record)
    assert (start.name, start.n_items, start.engine) == ("j", 2, "local")
    assert start.workflow == "rath.flow.agent:Agent"
    runs = attempts_of(stored.record)
    assert {entry.status for each in runs.values() for entry in each} == {"done"}
    assert stored.outcome == Completed()


def test_a_second_driver_is_refused_while_the_first_one_runs(
    store: FileStore, tmp_path: Path
) -> None:
    release = tmp_path / "release"
    tool = FunctionTool("f", lambda *_: wait_until(release.exists, "nobody lets the tool end"))
    job = flow.map(
        agent(tool_call("f", {}, id="1"), "yes", tools=(tool,)), ["a"], job="j", store=store
    )
    try:
        wait_until(lambda: load_job(store, "j") is not None, "the job does not begin")
        with pytest.raises(SessionBusy):
            flow.map(agent(), ["a"], job="j", store=store).synchronize()
    finally:
        release.touch()
    assert job.synchronize().items[0].state == "done"


def test_a_cancelled_job_goes_on_later(store: FileStore, tmp_path: Path) -> None:
    release = tmp_path / "release"
    tool = FunctionTool("f", lambda *_: wait_until(release.exists, "nobody lets the tool end"))
    script: list[Turn] = [tool_call("f", {}, id="1")]
    job = flow.map(agent(*script, tools=(tool,)), ["a", "b"], job="j", store=store, concurrency=1)
    wait_until(lambda: job.items[0].state == "running", "the item does not begin")
    job.cancel().synchronize()
    release.touch()
    client_script: list[Turn] = [tool_call("f", {}, id="1"), "yes", "yes", "yes"]
    again = flow.map(agent(*client_script, tools=(tool,)), ["a", "b"], job="j", store=store)
    states = [item.state for item in again.synchronize().items]
    assert set(states) <= {"done", "waiting"}
    assert states[1] == "done"


def test_a_job_is_read_in_an_event_loop(store: FileStore) -> None:
    async def read() -> tuple[list[str], Job]:
        job = flow.map(agent("1", "2"), ["a", "b"], store=store)
        return sorted([item.key async for item in job]), await job

    keys, job = asyncio.run(read())
    assert (keys, len(job)) == (["0", "1"], 2)


def test_the_outputs_are_merged_in_order(store: FileStore) -> None:
    job = flow.map(agent("1", "2"), ["a", "b"], concurrency=1, store=store)
    merged = job.reduce(flow.Merge())
    assert [row.payload["content"] for row in merged.chunk_table] == ["a", "1", "b", "2"]


def test_other_items_under_the_keys_of_a_job_are_refused(store: FileStore) -> None:
    flow.map(agent("1"), ["a"], store=store, job="j").synchronize()
    with pytest.raises(JobError, match="item '0' has other rows than those that its run began"):
        flow.map(agent(), ["b"], store=store, job="j").synchronize()
    more = flow.map(agent("2"), ["a", "b"], store=store, job="j").synchronize()
    assert [each.session and each.session.text() for each in more.items] == ["1", "2"]


def test_a_batch_of_sessions_gives_a_batch_of_outputs(store: FileStore) -> None:
    parallel = flow.DataParallel(agent("1", "2"), concurrency=1, store=store)
    outputs = parallel([Session.from_user_message(text) for text in "ab"])
    assert [each.text() for each in outputs] == ["1", "2"]


def same_key(_: object) -> str:
    return "k"


def half_a_pair(_: object) -> str:
    return "\ud800"


BAD: list[tuple[Iterable[object], dict[str, object], str]] = [
    (["a", "a"], {"key": same_key}, "two items have the key 'k'"),
    (["a"], {"key": half_a_pair}, "half of a surrogate pair"),
    ([{"x": 1}], {"key": "id"}, "no 'id' to be its key"),
    (["a"], {"concurrency": 0}, "concurrency must be a whole number"),
    (["a"], {"retries": -1}, "retries must be a whole number"),
    (["a"], {"timeout": 0}, "timeout must be a number above 0"),
    (["a"], {"on_error": "never"}, "on_error must be"),
    (["a"], {"max_failures": 1.5}, "max_failures is a number"),
    (["a"], {"max_failures": float("nan")}, "max_failures is a number"),
    (["a"], {"budget_usd": Decimal("nan")}, "budget_usd must be a number above 0"),
    (["a"], {"budget_usd": "20"}, "budget_usd must be a number above 0"),
    (["a"], {"rate": 5}, "rate must be a Rate"),
    (["a"], {"job": 5}, "job must be a str"),
    (["a"], {"engine": "none:"}, "no engine named 'none'"),
    ([3], {}, "item '0': no session can be made of 3"),
    (Session.create("empty"), {}, r"items are many.*write \[session\]"),
]


@pytest.mark.parametrize(("items", "options", "message"), BAD)
def test_bad_arguments_are_refused(
    store: FileStore, items: Iterable[object], options: dict[str, object], message: str
) -> None:
    with pytest.raises((ValueError, TypeError, LookupError), match=message):
        flow.map(agent(), items, store=store, **options)  # type: ignore[arg-type]


def test_a_map_inside_a_workflow_is_refused(store: FileStore) -> None:
    class Outer(flow.Workflow):
        def forward(self, session: Session) -> Session:
            flow.map(agent(), ["a"], store=store)
            return session

    with pytest.raises(RuntimeError, match="inside of a workflow"):
        Outer()(hello())


def test_no_items_are_no_work(store: FileStore) -> None:
    job = flow.map(agent(), [], store=store)
    assert (list(job), len(job.synchronize())) == ([], 0)


DRIVER = """
import sys
from pathlib import Path
from rath import flow
from tests.support.crash_program import PAUSE, CrashProgram
log, store = map(Path, sys.argv[1:])
flow.map(
    CrashProgram(log, pause=PAUSE), ["go", "go", "go"], job="j", store=str(store), concurrency=2
).synchronize()
"""


@pytest.mark.parametrize("n_calls", [1, 9, 25])
def test_a_second_start_after_a_kill_goes_on(
    store: FileStore, tmp_path: Path, n_calls: int
) -> None:
    log = tmp_path / "calls"
    command = [sys.executable, "-c", DRIVER, str(log), str(store.directory)]
    child = subprocess.Popen(command, cwd=Path(__file__).parents[2])

    def made() -> list[str]:
        return log.read_text().split() if log.exists() else []

    try:
        wait_until(lambda: len(made()) >= n_calls, "the child makes no calls")
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    n_before = len(made())
    job = flow.map(CrashProgram(log), ["go", "go", "go"], job="j", store=store).synchronize()
    assert [item.state for item in job.items] == ["done"] * 3
    # Each of 3 runs makes 10 calls; one that was cut off in each of two items may be made again.
    assert 30 <= len(made()) <= 30 + 2 * 4
    assert len(made()) > n_before
    assert len(starts_of(Session.load(job.id, store=store).record)) in (1, 2)
