"""Limits of a job in a row of PostgreSQL, shared by processes that know nothing of each other."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from rath._async.runtime import runtime
from rath.errors import PersistenceError
from rath.flow import Agent
from rath.jobs.engine import JobSpec, Rate, job_id
from rath.jobs.limits import Lease, LeaseRequest
from rath.jobs.postgres_limits import PostgresLimits
from rath.session.persistence.store import FileStore
from rath.session.persistence.store.postgres import postgres_store
from rath.testing import ScriptedClient
from tests.support.postgres_server import PostgresServer, postgres

__all__ = ["postgres"]


@pytest.fixture
def spec(tmp_path: Path) -> JobSpec:
    workflow = Agent("You answer.", ScriptedClient([]).provider)
    return JobSpec(job=job_id("j"), name="j", workflow=workflow, store=FileStore(tmp_path))


def ask(
    limits: PostgresLimits, number: int, *, calls: int = 1, usd: int = 0, holder: str = "a"
) -> Lease:
    request = LeaseRequest(
        holder=holder, number=number, endpoint="e", calls=calls, used_usd=Decimal(usd)
    )
    return runtime().run(lambda: limits.exchange(request), label="a test")


PROGRAM = """
import sys
from decimal import Decimal
from pathlib import Path
from rath._async.runtime import runtime
from rath.flow import Agent
from rath.jobs.engine import JobSpec, Rate, job_id
from rath.jobs.limits import LeaseRequest
from rath.jobs.postgres_limits import PostgresLimits
from rath.session.persistence.store.postgres import postgres_store
from rath.session.persistence.store import FileStore
from rath.testing import ScriptedClient

url, holder, folder = sys.argv[1:]
workflow = Agent("You answer.", ScriptedClient([]).provider)
limits = PostgresLimits(postgres_store(url).address, JobSpec(
    job=job_id("j"), name="j", workflow=workflow, store=FileStore(Path(folder)),
    rate=Rate(requests_per_minute=60), budget_usd=Decimal(1000),
))

async def use_all_that_is_granted():
    used = last = 0
    for number in range(1, 21):
        lease = await limits.exchange(LeaseRequest(
            holder=holder, number=number, endpoint="e", calls=5,
            used_calls=last, used_usd=Decimal("0.1"),
        ))
        last = lease.calls
        used += last
    return used

print("ready", flush=True)
sys.stdin.readline()
print(runtime().run(use_all_that_is_granted, label="a test"))
"""


def limits_of(url: str, spec: JobSpec) -> PostgresLimits:
    return PostgresLimits(postgres_store(url).address, spec)


def test_processes_that_ask_at_the_same_time_share_rate_and_budget(
    postgres: PostgresServer, spec: JobSpec, tmp_path: Path
) -> None:
    url = postgres.url()
    pipe = subprocess.PIPE
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, url, f"p{number}", str(tmp_path)],
            stdin=pipe,
            stdout=pipe,
            text=True,
        )
        for number in range(3)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    used = [int(process.communicate()[0]) for process in processes]
    # They begin with an empty window and are done long before it ends.
    assert sum(used) == 60
    limits = limits_of(url, replace(spec, budget_usd=Decimal(1000)))
    assert ask(limits, 1, calls=0).used_usd == 3 * 20 * Decimal("0.1")
    limits.close()


def test_a_broken_connection_counts_nothing_twice(postgres: PostgresServer, spec: JobSpec) -> None:
    limits = limits_of(postgres.url(), replace(spec, budget_usd=Decimal(10)))
    assert ask(limits, 1, usd=1).usd == Decimal("4.5")
    postgres.cut_connections()
    # The same request once more, as by a worker that does not know whether it arrived.
    assert ask(limits, 1, usd=1).usd == Decimal("4.5")
    assert ask(limits, 2, usd=2).used_usd == 3
    limits.close()


def test_what_was_used_outlives_driver_and_workers(postgres: PostgresServer, spec: JobSpec) -> None:
    url = postgres.url()
    first = limits_of(url, replace(spec, budget_usd=Decimal(3)))
    assert ask(first, 1, usd=3).is_spent
    first.close()
    larger = limits_of(url, replace(spec, budget_usd=Decimal(5), used_usd=Decimal(2)))
    assert ask(larger, 1, holder="b").usd == 1
    # What the record of the job knows beside it counts too.
    more = limits_of(url, replace(spec, budget_usd=Decimal(5), used_usd=Decimal(5)))
    assert ask(more, 1, holder="c").is_spent
    larger.close()
    more.close()


def test_jobs_of_one_database_do_not_share(postgres: PostgresServer, spec: JobSpec) -> None:
    url = postgres.url()
    given = replace(spec, rate=Rate(requests_per_minute=5))
    jobs = [limits_of(url, replace(given, job=job_id(name))) for name in "ab"]
    assert [ask(each, 1, calls=5).calls for each in jobs] == [5, 5]
    for each in jobs:
        each.close()


def test_a_database_that_is_not_there_is_named_without_its_password(spec: JobSpec) -> None:
    url = "postgres://user:swordfish@127.0.0.1:1/nothing?connect_timeout=1"
    with pytest.raises(PersistenceError, match="sharing limits") as raised:
        ask(limits_of(url, spec), 1)
    assert "swordfish" not in str(raised.value)
