"""Logs in PostgreSQL: broken connections, secrets, and what other versions and programs do."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID, uuid4

import pytest

from rath._core.blobs import Blob
from rath.errors import PersistenceError
from rath.session.log.postgres import PostgresStore
from rath.session.persistence.store.postgres import postgres_store
from tests.support.postgres_proxy import running_proxy
from tests.support.postgres_server import PASSWORD, PostgresServer

ID = UUID(int=7)


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.url()


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    opened = postgres_store(url)
    yield opened
    opened.close()


def data_of(store: PostgresStore, session: UUID = ID) -> bytes | None:
    found = store.read(session)
    return None if found is None else found.data


def all_text(error: BaseException) -> str:
    """Return what an error and all its causes say."""
    texts: list[str] = []
    each: BaseException | None = error
    while each is not None:
        texts.append(f"{each!r} {each}")
        each = each.__cause__ or each.__context__
    return "\n".join(texts)


def test_a_broken_connection_ends_all_logs(store: PostgresStore, postgres: PostgresServer) -> None:
    first, second = store.create(ID), store.create(uuid4())
    first.append(b"1\n")
    second.append(b"1\n")
    postgres.cut_connections()
    store.create(uuid4()).abandon()
    with pytest.raises(PersistenceError, match="the connection that held the lock broke"):
        first.append(b"2\n")
    with pytest.raises(PersistenceError, match="the connection that held the lock broke"):
        second.finish()
    first.abandon()
    assert first.closed
    assert second.closed


def test_a_lost_lock_ends_a_writer(
    store: PostgresStore, postgres: PostgresServer, url: str
) -> None:
    # As if the server had noticed a lost connection that this side still believes in.
    log, other = store.create(ID), postgres_store(url)
    log.append(b"1\n")
    with postgres.connect() as connection:
        schema = url.partition("schema=")[2]
        connection.execute(f"UPDATE {schema}.logs SET epoch = epoch + 1, owner = NULL")
    with pytest.raises(PersistenceError, match="was deleted, or gone on with, by somebody else"):
        log.append(b"2\n")
    log.abandon()
    again = other.reopen(ID, 2)
    again.append(b"3\n")
    with postgres.connect() as connection:
        connection.execute(f"UPDATE {schema}.logs SET epoch = epoch + 1, owner = NULL")
    with pytest.raises(PersistenceError, match="by somebody else meanwhile"):
        again.finish()
    assert data_of(other) == b"1\n3\n"
    other.close()


@pytest.mark.parametrize("change", ["reopen", "rewrite", "restart"])
def test_a_log_is_free_where_the_answer_to_its_change_was_lost(
    postgres: PostgresServer, change: str
) -> None:
    with running_proxy(postgres) as proxy:
        store = postgres_store(proxy.url())
        log = store.create(ID)
        log.append(b"1\n2\n")
        log.finish()
        changes: dict[str, Callable[[], object]] = {
            "reopen": lambda: store.reopen(ID, 2),
            "rewrite": lambda: store.rewrite(ID, b"1\n", size=4),
            "restart": lambda: store.restart(ID, b"1\n", size=4),
        }
        proxy.lose_answer_to(b"COMMIT")
        with pytest.raises(PersistenceError):
            changes[change]()
        assert data_of(store) == b"1\n"
        assert not store.is_being_written(ID)
        again = store.reopen(ID, 2, size=2)
        again.append(b"3\n")
        again.finish()
        assert data_of(store) == b"1\n3\n"
        store.close()


def test_a_server_that_is_not_there_is_named(tmp_path: object) -> None:
    store = postgres_store(f"postgres:///database?host={tmp_path}&user=me")
    for ask in (store.stamps, lambda: store.create(ID), lambda: store.read(ID)):
        with pytest.raises(PersistenceError, match=r"postgres://.*/database: .*connection"):
            ask()
    store.close()


def test_no_password_is_in_texts_logs_or_errors(
    postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    right = postgres_store(postgres.url(user="guarded", password=PASSWORD))
    log = right.create(ID)
    log.append(b"1\n")
    found = right.read(ID)
    assert found is not None
    reports = [right.where, log.where, found.where, repr(right), repr(log), repr(vars(right))]
    with pytest.raises(PersistenceError) as taken:
        right.create(ID)
    postgres.cut_connections()
    with pytest.raises(PersistenceError) as broken:
        log.append(b"2\n")
    wrong = postgres_store(postgres.url(user="guarded", password=f"not-{PASSWORD}"))
    with pytest.raises(PersistenceError, match="password authentication failed") as refused:
        wrong.stamps()
    reports += [all_text(each.value) for each in (taken, broken, refused)]
    assert PASSWORD not in "\n".join([*reports, caplog.text])
    right.close()


@pytest.mark.parametrize(
    "url",
    [
        "postgres://me:sword fish@[host/database",
        "postgres://host/database?password=swordfish&no-such-option=1",
        "postgres://host/%zz?password=swordfish",
    ],
)
def test_a_url_that_cannot_be_understood_is_not_repeated(url: str) -> None:
    with pytest.raises(ValueError, match="cannot be understood") as caught:
        postgres_store(url)
    assert "fish" not in all_text(caught.value).replace("/psycopg", "")


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("postgres://me:secret@host:5433/base", "postgres://host:5433/base"),
        ("postgresql://host:5432/base?sslmode=require", "postgres://host/base"),
        ("postgres://host:swordfish1/base", "postgres://host:1/base"),
        ("postgres://host/base?schema=a%20b", "postgres://host/base?schema=a%20b"),
        ("postgres:///base?host=/run/pg&password=x", "postgres://%2Frun%2Fpg/base"),
        ("postgres://?service=mine", "postgres://localhost/service=mine"),
        ("postgres://", "postgres://localhost/"),
    ],
)
def test_where_names_the_place_alone(url: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in os.environ if each.startswith("PG")]:
        monkeypatch.delenv(name)
    assert postgres_store(url).where == where


def test_a_schema_of_any_name_is_a_name(postgres: PostgresServer) -> None:
    name = '"; DROP TABLE logs; --'
    store = postgres_store(postgres.url(schema=name))
    log = store.create(ID)
    log.append(b"1\n")
    log.finish()
    assert data_of(store) == b"1\n"
    with postgres.connect() as connection:
        names = connection.execute("SELECT nspname FROM pg_namespace").fetchall()
    assert (name,) in names
    store.close()


def test_newer_tables_are_left_alone(
    store: PostgresStore, postgres: PostgresServer, url: str
) -> None:
    store.stamps()
    with postgres.connect() as connection:
        connection.execute(f"UPDATE {url.partition('schema=')[2]}.version SET version = 3")
    newer = postgres_store(url)
    with pytest.raises(PersistenceError, match=r"have version 3, and this version .* knows 2"):
        newer.stamps()


def test_tables_of_the_first_version_go_on(
    store: PostgresStore, postgres: PostgresServer, url: str
) -> None:
    log = store.create(ID)
    log.append(b"1\n")
    log.finish()
    schema = url.partition("schema=")[2]
    with postgres.connect() as connection:
        # As it was before a log named its owner.
        connection.execute(f"ALTER TABLE {schema}.logs DROP COLUMN owner")
        connection.execute(f"DROP TABLE {schema}.facts")
        connection.execute(f"UPDATE {schema}.version SET version = 1")
    newer = postgres_store(url)
    again = newer.reopen(ID, 2)
    again.append(b"2\n")
    assert newer.is_being_written(ID)
    again.finish()
    assert data_of(newer) == b"1\n2\n"
    newer.close()


def test_many_that_come_first_make_the_tables_once(postgres: PostgresServer) -> None:
    url = postgres.url()

    def look(_number: int) -> int:
        opened = postgres_store(url)
        n_logs = len(opened.stamps())
        opened.close()
        return n_logs

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(look, range(6))) == [0] * 6


def test_damaged_content_is_none(store: PostgresStore, postgres: PostgresServer, url: str) -> None:
    blob = Blob.from_bytes(b"content")
    log = store.create(ID)
    for _ in range(2):
        log.append(b'"%s"\n' % blob.digest.encode(), blobs=[blob])
    log.finish()
    with postgres.connect() as connection:
        table = f"{url.partition('schema=')[2]}.blobs"
        assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (1,)
        connection.execute(f"UPDATE {table} SET data = 'changed'")
    assert store.blob(blob.digest) is None


def test_an_append_is_all_or_nothing(
    store: PostgresStore, postgres: PostgresServer, url: str
) -> None:
    log = store.create(ID)
    log.append(b"1\n")
    with postgres.connect() as connection:
        connection.execute(f"DROP TABLE {url.partition('schema=')[2]}.blobs")
    blob = Blob.from_bytes(b"content")
    with pytest.raises(PersistenceError, match='relation "blobs" does not exist'):
        log.append(b"2\n", blobs=[blob])
    log.abandon()
    assert data_of(store) == b"1\n"


def test_what_is_cut_off_is_preserved(
    store: PostgresStore, postgres: PostgresServer, url: str
) -> None:
    log = store.create(ID)
    for line in (b"1\n", b"22\n", b"333\n"):
        log.append(line)
    log.abandon()
    store.reopen(ID, 3).abandon()
    store.reopen(ID, 3).abandon()
    with postgres.connect() as connection:
        schema = url.partition("schema=")[2]
        remaining = connection.execute(f"SELECT data FROM {schema}.asides").fetchall()
    assert [bytes(row[0]) for row in remaining] == [b"2\n333\n"]
    assert data_of(store) == b"1\n2"


def test_following_waits_and_sees_a_cut(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = store.create(ID)
    log.append(b"1\n2")
    waited: list[float] = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        log.append(b"2\n")
        log.finish()

    monkeypatch.setattr("time.sleep", wait)
    assert list(store.follow(ID, 0)) == [b"1\n", b"22\n"]
    assert waited == [0.2]
    lines = store.follow(ID, 5)
    store.reopen(ID, 2).abandon()
    with pytest.raises(PersistenceError, match="became shorter than the 5 bytes"):
        next(lines)


def test_a_fork_has_no_connection(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    log = store.create(ID)
    log.append(b"1\n")
    parent = os.getpid()
    with monkeypatch.context() as patched:
        # As after a fork.
        patched.setattr(os, "getpid", lambda: parent + 1)
        with pytest.raises(PersistenceError, match="the connection that held the lock broke"):
            log.append(b"2\n")
    log.abandon()


def test_a_rewrite_is_all_or_nothing(
    store: PostgresStore, postgres: PostgresServer, url: str
) -> None:
    log = store.create(ID)
    log.append(b"1\n")
    log.finish()
    with postgres.connect() as connection:
        schema = url.partition("schema=")[2]
        connection.execute(f"ALTER TABLE {schema}.pieces ADD CHECK (data <> 'no')")
    with pytest.raises(PersistenceError, match="violates check constraint"):
        store.rewrite(ID, b"no", size=2)
    assert data_of(store) == b"1\n"
    assert not store.is_being_written(ID)


def test_a_lost_log_keeps_the_next_locked(store: PostgresStore, postgres: PostgresServer) -> None:
    lost = store.create(ID)
    lost.append(b"1\n")
    postgres.cut_connections()
    again = store.reopen(ID, 2)
    lost.abandon()
    assert store.is_being_written(ID)
    with pytest.raises(PersistenceError, match="is being written by"):
        store.restore(ID)
    again.append(b"2\n")
    again.finish()
    assert not store.is_being_written(ID)


def test_an_empty_append_writes_nothing(store: PostgresStore) -> None:
    log = store.create(ID)
    log.append(b"")
    assert data_of(store) is None
    log.append(b"1\n")
    log.append(b"")
    log.finish()
    assert store.append_to_finished(ID, 2, b"")
    assert data_of(store) == b"1\n"
