"""A pooler before PostgreSQL: one by session is as good as none, others are refused at once."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

import pytest

from rath.conformance import check_store
from rath.errors import PersistenceError
from rath.session.persistence.store.postgres import postgres_store
from tests.support.pgbouncer import running_pgbouncer
from tests.support.postgres_server import PostgresServer

ID = UUID(int=7)


@pytest.mark.parametrize("mode", ["transaction", "statement"])
def test_a_pool_by_transaction_is_refused(
    postgres: PostgresServer, mode: Literal["transaction", "statement"]
) -> None:
    with running_pgbouncer(postgres, mode) as url:
        store = postgres_store(url)
        for ask in (store.stamps, lambda: store.create(ID), lambda: store.read(ID)):
            with pytest.raises(PersistenceError, match=r"by transaction .* pool_mode = session"):
                ask()
        store.close()


@pytest.mark.timeout(120)
def test_a_pool_by_session_keeps_the_contract(postgres: PostgresServer) -> None:
    with running_pgbouncer(postgres, "session") as url:
        report = check_store(url)
    assert [each.check for each in report.findings if each.status == "skipped"] == []
