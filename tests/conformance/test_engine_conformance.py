"""The contract of engines, run against ours."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from rath.conformance import (
    EngineHarness,
    LocalProcessHarness,
    Report,
    WorkerPlace,
    check_engine,
)
from rath.conformance.contract import run_clauses
from rath.conformance.engine import CLAUSES, open_subject
from tests.support.postgres_server import PostgresServer

pytestmark = pytest.mark.timeout(180)  # many processes are started


def skipped(report: Report) -> dict[str, str]:
    """Which checks were skipped, and why."""
    return {each.check: each.detail for each in report.findings if each.status == "skipped"}


def test_this_process_keeps_the_contract(tmp_path: Path) -> None:
    report = check_engine(EngineHarness("local", str(tmp_path / "store")), folder=tmp_path)
    assert report.subject == "LocalEngine 'local'"
    assert skipped(report) == {
        "items_of_a_worker_that_was_killed_are_carried_out": "the harness kills no worker",
        "a_worker_that_stood_still_changes_nothing_when_it_wakes": "the harness stops no worker",
        "items_of_a_node_that_was_lost_are_carried_out": "the harness removes no node",
    }


def test_processes_keep_the_contract(tmp_path: Path) -> None:
    report = check_engine(LocalProcessHarness("procs:2", str(tmp_path / "store")), folder=tmp_path)
    assert report.subject == "ProcessesEngine 'procs'"
    assert skipped(report) == {
        "items_of_a_node_that_was_lost_are_carried_out": "the harness removes no node",
    }


class PostgresHarness(LocalProcessHarness):
    """Has the server end the connections of a worker that was stopped, and its locks with them."""

    def __init__(self, engine: str, server: PostgresServer) -> None:
        super().__init__(engine, server.url())
        self._server = server

    def fence(self, worker: WorkerPlace) -> bool:
        with self._server.connect() as connection:
            ended = connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                "WHERE application_name = %s",
                [f"openrath on {worker.host}, process {worker.pid}"],
            ).fetchall()
        return bool(ended)


def test_a_worker_that_is_fenced_while_it_stands_still_changes_nothing(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    clauses = [each for each in CLAUSES if "stood_still" in each.name]
    subject = partial(open_subject, PostgresHarness("procs:2", postgres), tmp_path)
    (zombie,) = run_clauses("procs on PostgreSQL", clauses, subject).findings
    assert (zombie.status, zombie.detail) == ("passed", "")
