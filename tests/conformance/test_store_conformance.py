"""The contract of session stores, run against ours, that of somebody else, and a broken one."""

from __future__ import annotations

from collections.abc import Collection
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from rath._core.blobs import Blob
from rath.conformance import Report, capability_table, check_store
from rath.errors import StoreNotFound
from rath.session.persistence.store import open_store, stores
from rath.testing import FakeSessionStore
from rath.testing.store import MemoryLog
from tests.support.postgres_server import PostgresServer

pytestmark = pytest.mark.timeout(120)  # thousands of lines are forced to disk


def skipped(report: Report) -> dict[str, str]:
    """Which checks were skipped, and why."""
    return {each.check: each.detail for each in report.findings if each.status == "skipped"}


def test_files_keep_the_contract(tmp_path: Path) -> None:
    report = check_store(f"files://{tmp_path}/sessions")
    assert report.subject == "FileStore 'files'"
    assert skipped(report) == {}


def test_postgres_keeps_the_contract(postgres: PostgresServer) -> None:
    report = check_store(postgres.url())
    assert report.subject == "PostgresStore 'postgres'"
    assert skipped(report) == {}


def test_the_fake_store_keeps_the_contract_within_a_process() -> None:
    store = FakeSessionStore()
    reasons = skipped(check_store(lambda: store))
    assert list(reasons) == [
        "a_writer_in_another_process_locks_the_log",
        "a_killed_writer_leaves_complete_lines_and_no_lock",
    ]
    assert store.writers == {}


def test_a_store_of_an_installed_package_keeps_the_contract(tmp_path: Path) -> None:
    found = entry_points(group="rath.stores", name="sqlite")
    if not found:
        pytest.skip("the package in tests/third_party/sqlite_store is not installed")
    (point,) = found
    assert point.dist is not None
    assert point.dist.name == "rath-sqlite-store"
    assert stores.get("sqlite") is point.load()
    url = f"sqlite://{tmp_path}/sessions.db"
    assert type(open_store(url)).__name__ == "SqliteStore"
    report = check_store(url)
    assert report.subject == "SqliteStore 'sqlite'"
    assert skipped(report) == {}
    open_store(url).close()


def test_an_unknown_scheme_is_an_error() -> None:
    with pytest.raises(StoreNotFound, match="Did you mean 'postgres'"):
        check_store("postgre://host/database")


def test_a_table_has_a_row_for_each_feature() -> None:
    store = FakeSessionStore()
    head, _, *rows = capability_table({"fake": check_store(lambda: store)}).splitlines()
    assert head == "| Feature | `fake` |"
    assert "| One writer for each log | partly |" in rows
    assert "| Deleting and bringing back | yes |" in rows


class Forgetful(FakeSessionStore):
    """Loses every third byte, and all content."""

    def write(
        self, session: object, entry: MemoryLog, data: bytes, blobs: Collection[Blob], **how: bool
    ) -> None:
        raise OSError("disk full")


def test_a_broken_store_is_reported_what_is_wrong() -> None:
    store = Forgetful()
    with pytest.raises(AssertionError) as caught:
        check_store(lambda: store)
    text = str(caught.value)
    assert "failed  every_byte_comes_back: OSError('disk full')" in text
    assert "passed  a_session_without_a_log_has_none" in text
    assert store.writers == {}
