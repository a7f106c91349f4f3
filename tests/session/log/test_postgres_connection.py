"""Connections to PostgreSQL: which break, which are used again, and what a fork has of them."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from rath.errors import PersistenceError
from rath.session.log.postgres_connection import (
    Address,
    OwnerLock,
    PostgresPool,
    SharedConnection,
)
from rath.session.persistence.store.postgres import postgres_store
from tests.support.postgres_server import PostgresServer

ID = UUID(int=7)


@pytest.fixture
def address(postgres: PostgresServer) -> Address:
    return Address.from_url(postgres.url())


def process_of(connection: psycopg.Connection) -> int:
    return connection.info.backend_pid


def test_an_interrupt_in_a_transaction_gives_the_connection_up(address: Address) -> None:
    link = SharedConnection(address)

    def interrupted(connection: psycopg.Connection) -> None:
        connection.execute("BEGIN")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        link.run("waiting", interrupted)
    assert link.life == 1
    status = link.run("asking", lambda connection: connection.info.transaction_status)
    assert (status, link.life) == (TransactionStatus.IDLE, 2)
    link.close()
    link.close()


def test_a_connection_that_was_cut_is_made_anew(address: Address, postgres: PostgresServer) -> None:
    link = SharedConnection(address)
    first = link.run("asking", process_of)
    assert link.run("asking", process_of) == first
    assert link.is_alive()
    postgres.cut_connections()
    assert not link.is_alive()
    assert link.run("asking", process_of) != first
    link.close()


def test_work_is_done_once_more_only_where_that_is_safe(
    address: Address, postgres: PostgresServer
) -> None:
    link = SharedConnection(address)
    lives: list[int] = []

    def cut(connection: psycopg.Connection) -> None:
        lives.append(link.life)
        if len(lives) % 2:
            postgres.cut_connections()
        connection.execute("SELECT 1")

    link.run("asking", cut, repeatable=True)
    assert lives == [1, 2]
    with pytest.raises(PersistenceError, match="asking: "):
        link.run("asking", cut)
    assert lives == [1, 2, 2]
    link.close()


def test_a_fork_waits_for_no_connection_of_its_parent(
    address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, parent = PostgresPool(address, 1), os.getpid()

    def fork(connection: psycopg.Connection) -> set[int]:
        with monkeypatch.context() as patched:
            # As after a fork, while a thread of the parent uses the only connection.
            patched.setattr(os, "getpid", lambda: parent + 1)
            processes = {process_of(connection), pool.run("asking", process_of)}
            pool.close()
        connection.close()
        return processes

    assert len(pool.run("asking", fork)) == 2


def test_a_pool_opens_as_many_as_are_in_use(address: Address) -> None:
    pool, together = PostgresPool(address, 2), threading.Barrier(2, timeout=30)

    def meet(connection: psycopg.Connection) -> int:
        together.wait()
        return process_of(connection)

    alone = {pool.run("asking", process_of) for _ in range(3)}
    assert len(alone) == 1
    with ThreadPoolExecutor(2) as threads:
        both = {
            each.result() for each in [threads.submit(pool.run, "asking", meet) for _ in range(2)]
        }
        assert len(both) == 2
        many = {
            each.result()
            for each in [threads.submit(pool.run, "asking", process_of) for _ in range(8)]
        }
    assert many <= both
    pool.close()


def test_the_lock_of_an_owner_ends_with_its_connection(
    address: Address, postgres: PostgresServer
) -> None:
    lock = OwnerLock(address)
    key = lock.take()
    assert lock.take() == key
    lock.require(key, "writing")
    free = "SELECT pg_try_advisory_xact_lock_shared(%s)"
    with postgres.connect() as connection:
        assert connection.execute(free, (key,)).fetchone() == (False,)
    postgres.cut_connections()
    with pytest.raises(PersistenceError, match="the connection that held the lock broke"):
        lock.require(key, "writing")
    with postgres.connect() as connection:
        assert connection.execute(free, (key,)).fetchone() == (True,)
    assert lock.take() != key
    with pytest.raises(PersistenceError, match="the connection that held the lock broke"):
        lock.require(key, "writing")
    lock.close()


@pytest.mark.parametrize("error", [PersistenceError("the answer is lost"), KeyboardInterrupt()])
def test_a_lost_answer_leaves_no_lock(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    store = postgres_store(postgres.url())
    log = store.create(ID)
    log.append(b"1\n")
    log.finish()
    run = PostgresPool.run

    def lose(pool: PostgresPool, what: str, work: Any, **options: Any) -> Any:
        answer = run(pool, what, work, **options)
        if what.startswith("locking"):
            raise error
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(PostgresPool, "run", lose)
        with pytest.raises(type(error)):
            store.reopen(ID, 2)
    assert not store.is_being_written(ID)
    again = store.reopen(ID, 2)
    with monkeypatch.context() as patched:
        patched.setattr(PostgresPool, "run", lose)
        with pytest.raises(type(error)):
            store.reopen(ID, 2)
    # One that is open here stays locked.
    assert store.is_being_written(ID)
    again.append(b"2\n")
    again.abandon()
    store.close()
