"""Items that are carried out on a Ray cluster of three nodes, which runs on this machine."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Generator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from rath import flow
from rath.conformance import LocalProcessHarness, WorkerPlace, check_engine
from rath.errors import EngineError, JobBudgetExceeded, MissingExtra
from rath.flow import Agent, Workflow
from rath.jobs.engine import Engine, JobSpec, Rate, find_engine
from rath.jobs.job import Job
from rath.jobs.limits import SharedLimits
from rath.jobs.ray import RayEngine, RayOptions, read_options
from rath.llm.provider import Provider
from rath.session import Session
from rath.testing import FakeSessionStore
from tests.support.canaries import MARK
from tests.support.job_program import (
    CALL_USD,
    CountedItem,
    CountedTeam,
    count,
    counted_items,
    lines,
    mend,
    priced_team,
    release,
    repeated_calls,
    team,
)
from tests.support.killed_driver import driver_program, holding_pids, is_running
from tests.support.listening import LOOPBACK, listening, process_tree
from tests.support.ray_cluster import RayCluster, environment, ray_cluster, ray_home
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.timeout(300)]

FULL = os.environ.get("RATH_FULL") == "1"


@pytest.fixture(scope="module")
def cluster() -> Generator[RayCluster]:
    with ray_home() as home, pytest.MonkeyPatch.context() as patch:
        settings = environment(home)
        with ray_cluster(settings) as started:
            for name, value in {**settings, "RAY_ADDRESS": started.address}.items():
                patch.setenv(name, value)
            yield started


def job_of(
    tmp_path: Path, items: Any, engine: Engine | str = "ray://auto?workers=3", **options: Any
) -> Job:
    return flow.map(
        options.pop("workflow", None) or team(),
        items,
        key=lambda item: item.key,
        session=CountedItem.session,
        store=options.pop("store", None) or str(tmp_path / "store"),
        engine=engine,
        **options,
    )


# ---------------------------------------------------------------- options


def test_the_url_names_cluster_and_actors() -> None:
    assert read_options("//auto") == RayOptions() == read_options("")
    assert read_options("//head.example:10001").address == "ray://head.example:10001"
    assert read_options("10.0.0.1:6379").address == "10.0.0.1:6379"
    assert read_options(
        "//local?workers=4&num_cpus=0.5&num_gpus=1&memory=1000&resources=docker:1,local_model:0.5"
        "&restarts=0&start_timeout=2.5"
    ) == RayOptions(
        address="local",
        workers=4,
        num_cpus=0.5,
        num_gpus=1,
        memory=1000,
        resources={"docker": 1, "local_model": 0.5},
        restarts=0,
        start_timeout=2.5,
    )


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        ("//auto?worker=4", "has no option 'worker'; there are workers, num_cpus"),
        ("//auto?workers=many", "option 'workers' of engine 'ray' is 'many'"),
        ("//auto?workers=0", "workers must be at least 1"),
        ("//auto?num_cpus=-1", "must be at least 0"),
        ("//auto?resources=docker", "name:amount"),
    ],
)
def test_a_wrong_option_is_named(rest: str, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        find_engine(f"ray:{rest}")


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r'pip install .*"ray'):
        find_engine("ray://auto")


# ---------------------------------------------------------------- a cluster


def test_each_item_is_carried_out_once(cluster: RayCluster, tmp_path: Path) -> None:
    items = counted_items(8, tmp_path)
    done = list(job_of(tmp_path, items, job="all"))
    assert {item.state for item in done} == {"done"}, [item.error for item in done]
    assert count(tmp_path, "effects") == {item.key: 1 for item in items}
    again = list(job_of(tmp_path, items, job="all"))
    assert [item.session and item.session.text() for item in again] == [
        f"reviewer has seen {item.key}" for item in again
    ]
    assert repeated_calls(tmp_path) == {}


def test_one_actor_holds_many_items(cluster: RayCluster, tmp_path: Path) -> None:
    items = counted_items(10, tmp_path, "hold")
    job = job_of(tmp_path, items, "ray://auto?workers=1&num_cpus=0.5")
    wait_until(lambda: len(lines(tmp_path, "held")) == 10)
    assert len(holding_pids(tmp_path)) == 1
    release(tmp_path)
    assert {item.state for item in job} == {"done"}


def test_an_item_that_fails_loses_no_other(cluster: RayCluster, tmp_path: Path) -> None:
    good, bad = counted_items(2, tmp_path)[0], counted_items(2, tmp_path, "fail")[1]
    job = job_of(tmp_path, [good, bad], "ray://auto?workers=1", job="some", retries=1)
    assert {item.key: (item.state, item.attempts) for item in job} == {
        "i0": ("done", 1),
        "i1": ("failed", 2),
    }
    mend(tmp_path)
    assert {item.state for item in job.retry("failed")} == {"done"}
    assert count(tmp_path, "effects") == {"i0": 1, "i1": 1}


def test_a_job_is_cancelled_and_goes_on(cluster: RayCluster, tmp_path: Path) -> None:
    items = counted_items(3, tmp_path, "hold")
    job = job_of(tmp_path, items, "ray://auto?workers=1", job="stopped", concurrency=2)
    wait_until(lambda: len(lines(tmp_path, "held")) == 2)
    (worker,) = holding_pids(tmp_path)
    job.cancel().synchronize()
    wait_until(lambda: not is_running(worker), "the actor has ended")
    release(tmp_path)
    again = job_of(tmp_path, items, "ray://auto?workers=1", job="stopped")
    assert {item.state for item in again} == {"done"}
    assert count(tmp_path, "effects") == {item.key: 1 for item in items}


def test_a_job_outlives_its_driver(cluster: RayCluster, tmp_path: Path) -> None:
    text = """
        import sys
        from pathlib import Path
        from rath import flow
        from tests.support.job_program import CountedItem, counted_items, team
        folder = Path(sys.argv[1])
        flow.map(team(), counted_items(4, folder, "hold"), key=lambda item: item.key, job="driven",
                 session=CountedItem.session, store=str(folder / "store"),
                 engine="ray://auto?workers=2").synchronize()
    """
    with driver_program(tmp_path, text) as driver:
        wait_until(lambda: len(lines(tmp_path, "held")) == 4)
        driver.kill()
    release(tmp_path)
    done = list(job_of(tmp_path, counted_items(4, tmp_path, "hold"), job="driven"))
    assert {item.state for item in done} == {"done"}, [item.error for item in done]
    assert count(tmp_path, "effects") == {item.key: 1 for item in done}


def test_no_key_travels(
    cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class EnvironmentTeam(CountedTeam):
        """Writes down what its process has."""

        def forward(self, session: Session) -> Session:
            (tmp_path / "environment").write_text(json.dumps(dict(os.environ)))
            return super().forward(session)

    key = f"sk-{MARK}-0123456789"
    monkeypatch.setenv("OPENAI_API_KEY", key)
    (item,) = counted_items(1, tmp_path)
    workflow = EnvironmentTeam()
    (done,) = job_of(tmp_path, [item], "ray://auto?workers=1", workflow=workflow)
    assert done.error is None
    found = json.loads((tmp_path / "environment").read_text())
    assert "RAY_AUTH_MODE" in found
    assert not [name for name, value in found.items() if MARK in value]
    home = Path(os.environ["RAY_TMPDIR"])
    written = [path for path in home.rglob("*") if path.is_file() and not path.is_symlink()]
    assert written
    assert not [path for path in written if key.encode() in path.read_bytes()]

    workflow.writer = Agent("writer", Provider(model="m", api_key=key), system_tools=False)
    with pytest.raises(EngineError, match="cannot be sent to other processes") as raised:
        job_of(tmp_path, [item], "ray://auto?workers=1", workflow=workflow).synchronize()
    assert key not in str(raised.value)


def test_a_driver_lets_go_of_all_before_it_leaves(
    cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray: Any = import_module("ray")
    driver: Any = import_module("ray._private.worker").global_worker
    # Ray ends a process that lets go of anything on another thread while it leaves.
    left = list[object]()
    leave = ray.shutdown

    def look_and_leave() -> None:
        # The thread of Ray that told of the last answer may hold it for a moment.
        with suppress(AssertionError):
            wait_until(lambda: not driver.core_worker.get_all_reference_counts())
        left.append(driver.core_worker.get_all_reference_counts())
        leave()

    monkeypatch.setattr(ray, "shutdown", look_and_leave)
    job = job_of(tmp_path, counted_items(3, tmp_path, "hold"), "ray://auto?workers=2")
    wait_until(lambda: len(lines(tmp_path, "held")) == 3)
    job.cancel().synchronize()
    with pytest.raises(EngineError, match="no worker was placed") as raised:
        job_of(
            tmp_path,
            counted_items(1, tmp_path),
            "ray://auto?workers=2&resources=docker:1&start_timeout=0.5",
        ).synchronize()
    assert (left, raised.type) == ([{}, {}], EngineError)


def test_a_job_stops_when_its_budget_is_used_up(cluster: RayCluster, tmp_path: Path) -> None:
    items = counted_items(8, tmp_path)
    url = "ray://auto?workers=2"
    some: dict[str, Any] = {"workflow": priced_team(), "job": "priced", "concurrency": 2}
    with pytest.raises(JobBudgetExceeded):
        job_of(tmp_path, items, url, budget_usd=6 * CALL_USD, **some).synchronize()
    n_calls = sum(count(tmp_path, "calls").values())
    assert 6 <= n_calls <= 6 + 2
    done = job_of(tmp_path, items, url, budget_usd=100 * CALL_USD, **some).synchronize()
    assert {each.state for each in done.items} == {"done"}
    assert (count(tmp_path, "effects"), repeated_calls(tmp_path)) == (
        {item.key: 1 for item in items},
        {},
    )


class Unstored(Workflow):
    """Is never run."""


def test_what_no_worker_can_reach_is_refused(cluster: RayCluster, tmp_path: Path) -> None:
    items = counted_items(1, tmp_path)
    with pytest.raises(EngineError, match="cannot be opened by another process"):
        job_of(tmp_path, items, store=FakeSessionStore()).synchronize()
    with pytest.raises(EngineError, match=r"no worker was placed within 0\.5 s.*'docker'"):
        job_of(
            tmp_path, items, "ray://auto?workers=1&resources=docker:1&start_timeout=0.5"
        ).synchronize()


def test_a_worker_that_always_dies_is_given_up(cluster: RayCluster, tmp_path: Path) -> None:
    class Deadly(CountedTeam):
        def forward(self, session: Session) -> Session:
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError

    (item,) = job_of(
        tmp_path,
        counted_items(1, tmp_path),
        "ray://auto?workers=1&restarts=1",
        workflow=Deadly(),
    )
    assert item.state == "failed"
    assert "all workers died, each 2 times" in (item.error or "")


def test_a_job_outlives_a_worker_and_a_node(cluster: RayCluster, tmp_path: Path) -> None:
    n, at_once = (200, 64) if FULL else (24, 24)
    items = counted_items(n, tmp_path, "hold")
    url = "ray://auto?workers=3&num_cpus=0.5"
    job = job_of(tmp_path, items, url, job="campaign", concurrency=at_once)
    wait_until(lambda: len(lines(tmp_path, "held")) == at_once)
    first = holding_pids(tmp_path)
    assert len(first) == 3
    cluster.remove_node(max(first))
    try:
        wait_until(lambda: not is_running(max(first)), "the worker of the node has ended")
        os.kill(next(filter(is_running, first)), signal.SIGKILL)
        wait_until(
            lambda: len(set(filter(is_running, holding_pids(tmp_path)))) == 3, "three hold items"
        )
        release(tmp_path)
        done = list(job)
    finally:
        cluster.restore()
    assert {item.state for item in done} == {"done"}, [item.error for item in done]
    assert len(done) == n
    assert count(tmp_path, "effects") == {item.key: 1 for item in items}
    # Only what waited for its answer in the processes that died is asked for again.
    assert {role for _, role, _ in repeated_calls(tmp_path)} == {"reviewer"}


# ---------------------------------------------------------------- limits


class StoppedClock(RayEngine):
    """No call is forgotten by its limits, however long the test takes."""

    async def open(self, spec: JobSpec) -> None:
        await super().open(spec)
        self.limits = SharedLimits(
            spec.rate, spec.budget_usd, used_usd=spec.used_usd, clock=lambda: 0.0
        )

    def waiting(self) -> set[str]:
        """The workers that were told to wait."""
        uses = self.limits.state.endpoints.values()
        return {demand.holder for use in uses for demand in use.demands}


def test_workers_share_the_limits_of_their_job(cluster: RayCluster, tmp_path: Path) -> None:
    engine = StoppedClock(RayOptions(workers=4, num_cpus=0.25))
    items = counted_items(24, tmp_path, "hold")
    job = job_of(
        tmp_path, items, engine, job="limited", concurrency=24, rate=Rate(requests_per_minute=60)
    )

    def n_calls() -> int:
        return sum(count(tmp_path, "calls").values())

    wait_until(lambda: n_calls() >= 60 and bool(engine.waiting()), "the others wait")
    # What comes in the place of a worker has nothing of its own, and asks, too.
    before = set(engine.limits.state.holders)
    assert len(before) == 4
    os.kill(min(holding_pids(tmp_path)), signal.SIGKILL)
    wait_until(lambda: bool(engine.waiting() - before), "another worker waits")
    job.cancel().synchronize()
    assert n_calls() == 60
    release(tmp_path)
    again = job_of(tmp_path, items, job="limited")
    assert {item.state for item in again} == {"done"}, [item.error for item in again]
    assert count(tmp_path, "effects") == {item.key: 1 for item in items}


class RayHarness(LocalProcessHarness):
    """The cluster of these tests."""

    def __init__(self, cluster: RayCluster, store: str) -> None:
        super().__init__("ray://auto?workers=2&num_cpus=0.5", store)
        self._cluster = cluster

    def remove_node(self, worker: WorkerPlace) -> None:
        self._cluster.remove_node(worker.pid)


@pytest.mark.full
def test_the_contract_of_engines_holds(cluster: RayCluster, tmp_path: Path) -> None:
    try:
        report = check_engine(RayHarness(cluster, str(tmp_path / "store")), folder=tmp_path)
    finally:
        cluster.restore()
    assert report.subject == "RayEngine 'ray'"
    assert [each.check for each in report.findings if each.status == "skipped"] == []


# ---------------------------------------------------------------- a cluster of one's own


def test_a_cluster_that_is_started_here_is_reached_from_here_only(tmp_path: Path) -> None:
    text = """
        import sys
        from pathlib import Path
        from rath import flow
        from tests.support.job_program import CountedItem, CountedTeam, counted_items

        class OwnTeam(CountedTeam):
            '''Is declared in the program itself.'''

        folder = Path(sys.argv[1])
        job = flow.map(OwnTeam(), counted_items(2, folder, "hold"), key=lambda item: item.key,
                       session=CountedItem.session, store=str(folder / "store"),
                       engine="ray://local?workers=1&num_cpus=0.5")
        print([item.state for item in job])
    """
    with ray_home() as home, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", home)
        patch.setenv("HOME", home)
        for name in ("RAY_ADDRESS", "RAY_AUTH_TOKEN", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"):
            patch.delenv(name, raising=False)
        with driver_program(tmp_path, text) as driver:
            wait_until(lambda: len(lines(tmp_path, "held")) == 2 or driver.poll() is not None)
            processes = process_tree(driver.pid)
            where = listening(processes)
            release(tmp_path)
            out, errors = driver.communicate()
            assert (out, errors) == ("['done', 'done']\n", "")
        assert where
        assert where <= LOOPBACK
        wait_until(lambda: not any(map(is_running, processes)), "all have ended")
