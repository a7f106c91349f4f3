"""`rath jobs`: jobs that are listed, shown, retried and cancelled through their store."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rath import flow
from rath.jobs.job import Job
from rath.jobs.record import load_job
from rath.session import Session
from rath.session.persistence.store import FileStore
from rath.testing import ScriptedClient, Turn, tool_call
from tests.cli.conftest import Rath
from tests.support.sessions import FunctionTool
from tests.support.waiting import wait_until

PROGRAM = """
from rath import flow
from rath.testing import ScriptedClient

def team():
    return flow.Agent("You answer.", ScriptedClient(["yes"]).provider, system_tools=False)
"""


def agent(*script: Turn, tools: tuple[FunctionTool, ...] = ()) -> flow.Agent:
    provider = ScriptedClient(script).provider
    return flow.Agent("You answer.", provider, list(tools), system_tools=False)


@pytest.fixture
def store(project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileStore]:
    monkeypatch.setenv("OPENRATH_STORE", str(project / "store"))
    (project / "agents.py").write_text(PROGRAM)
    yield FileStore(project / "store")
    sys.modules.pop("agents", None)  # other programs have that name, too


@pytest.fixture
def nightly(store: FileStore) -> Job:
    """A job of three items, one of which has failed."""
    script: list[Turn] = ["one", ValueError("no answer"), "two"]
    job = flow.map(agent(*script), "abc", job="nightly", store=store, retries=0, concurrency=1)
    return job.synchronize()


@pytest.mark.usefixtures("nightly")
def test_jobs_are_listed_with_their_counts(rath: Rath) -> None:
    for verb in ("jobs", "jobs ls"):
        rath(verb, ends=0, out=("nightly", "completed", "2 done, 1 failed of 3", "local"))
    for verb in ("jobs --json", "jobs ls --json"):
        told = json.loads(rath(verb, ends=0).stdout)["jobs"]
        assert [(each["name"], each["n_items"], each["counts"]) for each in told] == [
            ("nightly", 3, {"done": 2, "failed": 1})
        ]
    rath("jobs --json show nightly", ends=2, err="rath jobs show ... --json")


@pytest.mark.usefixtures("store")
def test_no_jobs_are_said_to_be_none(rath: Rath) -> None:
    rath("jobs", ends=0, err="there are no jobs")


def test_what_failed_is_shown(rath: Rath, nightly: Job) -> None:
    shown = ("1 failed", "3 attempts", "failed", "ValueError: no answer")
    done = rath("jobs show nightly", ends=0, out=shown)
    assert done.stderr == "note: its runs in the explorer: rath view nightly\n"
    rath("jobs show", str(nightly.id)[:8], ends=0, out=shown)
    rath("explain", str(nightly.id)[:8], ends=0, out="3 items, each with sessions of its own")
    (item,) = json.loads(rath("jobs show nightly --json", ends=0).stdout)["items"]
    assert (item["key"], item["status"], item["attempt"]) == ("1", "failed", 1)


@pytest.mark.usefixtures("nightly")
def test_sessions_and_costs_of_a_job_alone(rath: Rath, store: FileStore) -> None:
    agent("other")(Session.from_user_message("x")).save(store=store)
    rath("ls --job nightly --json", ends=0)
    told = json.loads(rath("ls --job nightly --json", ends=0).stdout)["sessions"]
    assert len(told) == 3
    cost = json.loads(rath("cost --job nightly --json", ends=0).stdout)
    assert cost["total"]["n_calls"] == 3
    rath("cost --job nightly --run abcd", ends=2, err="at most one of")


@pytest.mark.usefixtures("nightly")
def test_what_failed_is_started_again(rath: Rath) -> None:
    rath("jobs retry nightly agents:team", ends=0, out=("1 item started again", "3 done"))
    rath("jobs show nightly", ends=0, out="3 items: 3 done")
    rath("jobs retry nightly agents:team", ends=0, out="0 items started again")


@pytest.mark.usefixtures("nightly")
def test_the_ends_of_items_are_told_in_order(rath: Rath) -> None:
    told = rath("jobs tail nightly", ends=0).stdout.splitlines()
    assert [line.split("  ")[1] for line in told] == [
        "job nightly: 3 items with rath.flow.agent:Agent on local",
        "item 0 done",
        "item 1 failed: ValueError: no answer",
        "item 2 done",
    ]


@pytest.mark.usefixtures("nightly")
def test_what_cannot_be_is_said(rath: Rath) -> None:
    rath("jobs cancel nightly", ends=1, err="nobody runs job")
    rath("jobs show nothing", ends=1, err=("no job 'nothing'", "rath jobs"))
    rath("jobs retry nightly agents:nobody", ends=2, err="no attribute 'nobody'")


def test_a_job_is_cancelled_from_elsewhere(rath: Rath, store: FileStore, tmp_path: Path) -> None:
    release = tmp_path / "release"
    tool = FunctionTool("f", lambda *_: wait_until(release.exists, "nobody lets the tool end"))
    job = flow.map(
        agent(tool_call("f", {}, id="1"), tools=(tool,)), "ab", job="j", store=store, concurrency=1
    )
    try:
        wait_until(lambda: job.items[0].state == "running", "the item does not begin")
        wait_until(lambda: load_job(store, "j") is not None, "the job is not written")
        rath("jobs cancel j", ends=0, out="asked to end")
        job.synchronize()
    finally:
        release.touch()
    assert [item.state for item in job.items] == ["cancelled", "pending"]
