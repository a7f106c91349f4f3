"""Logs as rows of a PostgreSQL database, so that several machines have one store.

    logs      one for each log; deleted ones stay until the trash is emptied
    pieces    what was appended, in one piece for each append
    asides    what was cut off a log when it was reopened
    blobs     content by its sha256

`logs.epoch` is the fencing token: it grows whenever a log is reopened or rewritten, and a writer
with another one changes nothing. So one whose connection was lost cannot write any more.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import field
from hashlib import sha256
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urlsplit
from uuid import UUID

import psycopg
from psycopg import pq, sql
from psycopg.conninfo import conninfo_to_dict

from rath._core.blobs import Blob, is_digest
from rath._core.dataclasses import dataclass
from rath.errors import PersistenceError, SessionBusy
from rath.session.log.store import LogDriver, LogStore, StoredLog

__all__ = ["PostgresStore"]

T = TypeVar("T")
Work = Callable[[psycopg.Connection], T]

DEFAULT_SCHEMA = "openrath"
TABLES_VERSION = 1

_DEFAULTS = {
    "connect_timeout": "10",
    # Milliseconds until a server that says nothing counts as gone; a guess.
    "tcp_user_timeout": "30000",
}
_USUAL_PORT = "5432"
_SECRETS = ("password", "sslpassword")
_MIN_SECRET = 4
_MAKING = 0x7261_7468_7374_6F72
"""Key of the lock under which tables are made, any number that nobody else takes."""

_MAKE = """
CREATE TABLE IF NOT EXISTS version (version integer NOT NULL);
CREATE SEQUENCE IF NOT EXISTS deletions;
CREATE TABLE IF NOT EXISTS logs (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    session uuid NOT NULL,
    epoch bigint NOT NULL,
    size bigint NOT NULL,
    finished boolean NOT NULL,
    deleted bigint
);
CREATE UNIQUE INDEX IF NOT EXISTS logs_session ON logs (session) WHERE deleted IS NULL;
CREATE TABLE IF NOT EXISTS pieces (
    log bigint NOT NULL REFERENCES logs ON DELETE CASCADE,
    start bigint NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (log, start)
);
CREATE TABLE IF NOT EXISTS asides (
    log bigint NOT NULL REFERENCES logs ON DELETE CASCADE,
    epoch bigint NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (log, epoch)
);
CREATE TABLE IF NOT EXISTS blobs (digest text PRIMARY KEY, data bytea NOT NULL);
INSERT INTO version SELECT 1 WHERE NOT EXISTS (SELECT FROM version);
"""
_LOCK = "SELECT pg_try_advisory_lock(%s)"
_UNLOCK = "SELECT pg_advisory_unlock(%s)"
_HOLDER = """
SELECT coalesce(nullif(application_name, ''), 'database process ' || pid)
FROM pg_locks LEFT JOIN pg_stat_activity USING (pid)
WHERE locktype = 'advisory' AND objsubid = 1 AND granted
AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
AND classid = %s::bigint::oid AND objid = %s::bigint::oid
"""
# What was cut to nothing is no log any more, but what was cut off is kept.
_PUT_EMPTY_AWAY = """
UPDATE logs SET deleted = nextval('deletions')
WHERE session = %s AND deleted IS NULL AND size = 0 AND NOT finished
"""
_FIND = "SELECT id, epoch, size, finished FROM logs WHERE session = %s AND deleted IS NULL"
_HOLD = f"{_FIND} FOR UPDATE"
_LIST = "SELECT session, id, epoch, size, finished FROM logs WHERE deleted IS NULL AND size > 0"
_READ = """
SELECT logs.size, logs.finished, pieces.start, pieces.data FROM logs
LEFT JOIN pieces ON pieces.log = logs.id AND start + octet_length(data) > %s
WHERE session = %s AND deleted IS NULL ORDER BY pieces.start
"""
_BEGIN = "INSERT INTO logs (session, epoch, size, finished) VALUES (%s, 1, 0, false) RETURNING id"
_APPEND = """
WITH grown AS (
    UPDATE logs SET size = size + octet_length(%(data)s)
    WHERE id = %(log)s AND epoch = %(epoch)s AND deleted IS NULL
    RETURNING id, size - octet_length(%(data)s) AS start
)
INSERT INTO pieces (log, start, data) SELECT id, start, %(data)s FROM grown
"""
_CUT = """
UPDATE logs SET size = %(keep)s, finished = %(finished)s, epoch = epoch + 1
WHERE id = %(log)s AND epoch = %(epoch)s AND size = %(size)s AND deleted IS NULL
"""
_SET_ASIDE = """
INSERT INTO asides (log, epoch, data)
SELECT log, %(epoch)s, string_agg(
    substring(data FROM (greatest(%(keep)s - start, 0) + 1)::integer), ''::bytea ORDER BY start)
FROM pieces WHERE log = %(log)s AND start + octet_length(data) > %(keep)s GROUP BY log
"""
_CUT_PIECE = """
UPDATE pieces SET data = substring(data FROM 1 FOR (%(keep)s - start)::integer)
WHERE log = %(log)s AND start < %(keep)s AND start + octet_length(data) > %(keep)s
"""
_CUT_REST = "DELETE FROM pieces WHERE log = %(log)s AND start >= %(keep)s"
# What was cut to nothing is no log.
_FINISH = """
UPDATE logs SET finished = size > 0
WHERE id = %(log)s AND epoch = %(epoch)s AND deleted IS NULL
"""
_DELETE = """
UPDATE logs SET deleted = nextval('deletions')
WHERE id = %(log)s AND epoch = %(epoch)s AND deleted IS NULL
"""
_DELETE_IF_SAME = f"{_DELETE} AND size = %(size)s"
_REMOVED = """
SELECT id FROM logs WHERE session = %s AND deleted IS NOT NULL ORDER BY deleted DESC LIMIT 1
"""
_RESTORE = f"UPDATE logs SET deleted = NULL WHERE id = ({_REMOVED})"
_EMPTY = "DELETE FROM logs WHERE deleted IS NOT NULL"
_BLOB = "SELECT data FROM blobs WHERE digest = %s"
_KNOWN_BLOBS = "SELECT digest FROM blobs WHERE digest = ANY(%s)"
_ADD_BLOB = "INSERT INTO blobs (digest, data) VALUES (%s, %s) ON CONFLICT DO NOTHING"
_KEEP_BLOBS = "SELECT pg_advisory_xact_lock_shared(%s)"
_LOCK_BLOBS = "SELECT pg_advisory_xact_lock(%s)"
# Lines are JSON, so that a digest in them stands between characters of ASCII: what `encode` makes
# of the others never touches it.
_SWEEP = """
WITH named AS (
    SELECT DISTINCT found[1] AS digest
    FROM (SELECT data FROM pieces UNION ALL SELECT data FROM asides) AS kept,
         regexp_matches(encode(kept.data, 'escape'), '[0-9a-f]{64}', 'g') AS found
)
DELETE FROM blobs WHERE NOT EXISTS (SELECT FROM named WHERE named.digest = blobs.digest)
"""


@dataclass(frozen=True, slots=True)
class Address:
    """A database and a schema in it."""

    parameters: dict[str, str] = field(repr=False)
    """What libpq connects with; may hold a password."""

    schema: str
    where: str
    """The URL without user, password and options, for messages."""

    @classmethod
    def from_url(cls, url: str) -> Address:
        """Return the address that a URL tells.

        Raises:
            ValueError: libpq takes no such URL; the text does not repeat it.
        """
        try:
            parts = urlsplit(url)
            options = [each for each in parts.query.split("&") if each]
            schemas = [unquote(each[7:]) for each in options if each.startswith("schema=")]
            query = "&".join(each for each in options if not each.startswith("schema="))
            from_parts = conninfo_to_dict(f"postgresql://{parts.netloc}{parts.path}?{query}")
        except (psycopg.ProgrammingError, ValueError):
            # Without its cause: libpq repeats the part that it did not understand.
            raise ValueError(
                "the URL of the Postgres store cannot be understood; write it as in "
                "postgres://user@host:5432/database, with special characters as %XX"
            ) from None
        parameters = {**_DEFAULTS, **{name: str(value) for name, value in from_parts.items()}}
        schema = next(filter(None, schemas), DEFAULT_SCHEMA)
        return cls(parameters, schema, _where(parameters, schema))

    def connect(self) -> psycopg.Connection:
        """Return a new connection that uses the tables, and makes them where they are missing.

        Each statement is a transaction of its own.

        Raises:
            psycopg.Error: The server cannot be reached, or refuses.
            PersistenceError: A newer version of rath has made the tables.
        """
        name = f"openrath on {socket.gethostname()}, process {os.getpid()}"
        parameters: dict[str, Any] = {"application_name": name, **self.parameters}
        connection = psycopg.connect("", autocommit=True, **parameters)
        try:
            _enter_schema(connection, self.schema)
        except BaseException:
            connection.close()
            raise
        return connection

    def lock_key(self, name: str) -> int:
        """Return the key of the lock on something in the schema, a signed number of 64 bits."""
        digest = sha256(f"openrath:{self.schema}:{name}".encode()).digest()
        return int.from_bytes(digest[:8], "big", signed=True)

    def error(self, what: str, exc: psycopg.Error) -> PersistenceError:
        """Return the error of something that did not work, without the secrets of the address."""
        text = next(iter(str(exc).strip().splitlines()), type(exc).__name__)
        for name in _SECRETS:
            secret = self.parameters.get(name, "")
            if len(secret) >= _MIN_SECRET:
                text = text.replace(secret, "***")
        return PersistenceError(f"{self.where}: {what}: {text}")


class SharedConnection:
    """One connection to a database, used by one thread at a time, and made anew after it broke."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.life = 0
        """Which connection it is on by now: what was held on an earlier one is lost."""

        self._busy = threading.RLock()
        self._connection: psycopg.Connection | None = None
        self._process = 0
        self._is_durable: bool | None = None

    def run(self, what: str, work: Work[T], *, life: int | None = None) -> T:
        """Run `work` on a connection that answers.

        Args:
            what: What does not work when it fails, for the message.
            work: Called once.
            life: Use the connection of that life and no other.

        Raises:
            PersistenceError: The server cannot be reached or refuses, or the connection broke.
        """
        with self._busy:
            is_own = self._process == os.getpid() and life == self.life
            if life is not None and not (is_own and self._connection is not None):
                raise PersistenceError(
                    f"{self.address.where}: {what}: the connection that held the lock broke; what "
                    "was written before can still be read"
                )
            try:
                connection = (life is not None and self._connection) or self._answering()
                try:
                    return work(connection)
                finally:
                    # Also after an interrupt: nobody knows what the server makes of what it got.
                    if connection.info.transaction_status != pq.TransactionStatus.IDLE:
                        self.close()
            except psycopg.Error as exc:
                raise self.address.error(what, exc) from exc

    def set_durable(self, connection: psycopg.Connection, *, durable: bool) -> None:
        """Let what is committed next survive a loss of power, or not wait for that.

        Who makes a line durable makes those before it so: commits keep their order.
        """
        if self._is_durable != durable:
            self._is_durable = None
            connection.execute(f"SET synchronous_commit TO {'on' if durable else 'off'}")
            self._is_durable = durable

    def close(self) -> None:
        """Give the connection back; the next use makes a new one."""
        with self._busy:
            if self._connection is not None:
                with contextlib.suppress(psycopg.Error):
                    self._connection.close()
                self._connection = None

    def _answering(self) -> psycopg.Connection:
        if self._process != os.getpid():
            # A fork must not talk on the connection of its parent, nor close it.
            self._connection = None
        if self._connection is not None:
            try:
                self._connection.execute("SELECT 1")
            except psycopg.Error:
                self.close()
            else:
                return self._connection
        self._connection, self._process = self.address.connect(), os.getpid()
        self.life += 1
        self._is_durable = None
        return self._connection


class RowDriver(LogDriver):
    """A log of rows; each change is one transaction, so that no line is ever torn.

    Args:
        store: Which has the lock of the session.
        session: Whose log.
        row: Its id, epoch, size and state, None where there is no log.
    """

    def __init__(
        self, store: PostgresStore, session: UUID, row: tuple[int, int, int, bool] | None
    ) -> None:
        self.session = session
        self.where = f"{store.where} session {session}"
        self._log: int | None
        self._log, self._epoch, self.size, self.is_finished = row or (None, 1, 0, False)
        self._store = store
        self._life = store.writing.life

    def append(self, data: bytes, blobs: Collection[Blob], *, durable: bool) -> None:
        if not data:
            return
        if self._log is not None and not blobs:
            self._change("writing", lambda on: self._fenced(on, _APPEND, data=data), durable)
        else:
            self._log = self._change("writing", lambda on: self._add(on, data, blobs), durable)

    def truncate(self, keep: int) -> None:
        def cut(on: psycopg.Connection) -> None:
            with on.transaction():
                self._cut(on, keep, (_SET_ASIDE, _CUT_PIECE, _CUT_REST), is_finished=False)

        self._change("going on with", cut)

    def rewrite(self, data: bytes) -> None:
        def replace(on: psycopg.Connection) -> None:
            with on.transaction():
                self._cut(on, 0, (_CUT_REST,), is_finished=self.is_finished)
                self._fenced(on, _APPEND, data=data)

        self._change("rewriting", replace)

    def restart(self, data: bytes, blobs: Collection[Blob]) -> None:
        def begin_again(on: psycopg.Connection) -> int:
            with on.transaction():
                self._fenced(on, _DELETE_IF_SAME)
                self._log, self._epoch = None, 1
                return self._add(on, data, blobs)

        self._log = self._change("replacing", begin_again)

    def publish(self) -> None:
        if self._log is not None:
            self._change("finishing", lambda on: self._fenced(on, _FINISH))

    def remove(self) -> None:
        self._change("deleting", lambda on: self._fenced(on, _DELETE))

    def has_removed(self) -> bool:
        cursor = self._change("restoring", lambda on: on.execute(_REMOVED, (self.session,)))
        return cursor.fetchone() is not None

    def recover(self) -> None:
        self._change("restoring", lambda on: on.execute(_RESTORE, (self.session,)))

    def release(self) -> None:
        if not self.is_released:
            self._store.unlock(self.session, self._life)
            self.is_released = True

    def _change(self, what: str, work: Work[T], durable: bool = True) -> T:
        writing = self._store.writing

        def change(on: psycopg.Connection) -> T:
            writing.set_durable(on, durable=durable)
            return work(on)

        return writing.run(f"{what} session {self.session}", change, life=self._life)

    def _add(self, on: psycopg.Connection, data: bytes, blobs: Collection[Blob]) -> int:
        """Write blobs and lines, to a new log where there is none yet; return its id."""
        with on.transaction():
            self._store.save_blobs(on, blobs)
            log = self._log
            if log is None:
                row = on.execute(_BEGIN, (self.session,)).fetchone()
                assert row is not None, "RETURNING gives the row that was inserted"
                log = int(row[0])
            self._fenced(on, _APPEND, log=log, data=data)
        return log

    def _cut(
        self, on: psycopg.Connection, keep: int, statements: Iterable[str], *, is_finished: bool
    ) -> None:
        self._fenced(on, _CUT, keep=keep, finished=is_finished)
        self._epoch += 1
        for statement in statements:
            values = {"log": self._log, "epoch": self._epoch, "keep": keep}
            on.execute(statement.encode(), values)

    def _fenced(self, on: psycopg.Connection, statement: str, **values: Any) -> None:
        """Change the log, which must be as this writer left it."""
        parameters = {"log": self._log, "epoch": self._epoch, "size": self.size, **values}
        if on.execute(statement.encode(), parameters).rowcount != 1:
            raise PersistenceError(
                f"the log of {self.where} was deleted, or gone on with, by somebody else "
                "meanwhile; what was written before can still be read"
            )


class PostgresStore(LogStore):
    """Logs in a PostgreSQL database, each append one transaction.

    Two connections serve a process: one for what it writes, which has the locks of its open logs,
    and one for what it reads. When the first breaks, the logs that were open are lost to it and
    can be gone on with; the store itself connects again. A pooler that hands out connections by
    transaction (PgBouncer's `transaction` mode) cannot be used: it would lose the locks.

    Args:
        url: As `postgres_store` takes it.

    Raises:
        ValueError: It is no such URL.
    """

    name = "postgres"
    _follow_seconds = 0.2
    """A guess between a reader and a server."""

    def __init__(self, url: str) -> None:
        self._address = Address.from_url(url)
        self.where = self._address.where
        self._reading = SharedConnection(self._address)
        self.writing = SharedConnection(self._address)
        """What is written goes over the connection that has the locks."""

        self._held: dict[UUID, int] = {}
        self._busy = threading.Lock()

    def _place(self, session: UUID) -> str:
        return f"{self.where} session {session}"

    def _lock(self, session: UUID, *, make: bool = False) -> RowDriver:
        key = self._address.lock_key(str(session))

        def take(on: psycopg.Connection) -> RowDriver:
            life = self.writing.life
            with self._busy:
                has_lock = self._held.get(session) == life
            row = None if has_lock else on.execute(_LOCK, (key,)).fetchone()
            if row is None or not row[0]:
                raise SessionBusy(session, where=self.where, holder=self.writer_of(session) or "")
            with self._busy:
                self._held[session] = life
            try:
                on.execute(_PUT_EMPTY_AWAY, (session,))
                return RowDriver(self, session, on.execute(_FIND, (session,)).fetchone())
            except BaseException:
                self.unlock(session, life)
                raise

        return self.writing.run(f"locking session {session}", take)

    def unlock(self, session: UUID, life: int) -> None:
        """Give the lock of a session back; one of a broken connection is gone already."""
        key = self._address.lock_key(str(session))
        with contextlib.suppress(PersistenceError):
            self.writing.run("unlocking", lambda on: on.execute(_UNLOCK, (key,)), life=life)
        with self._busy:
            if self._held.get(session) == life:
                del self._held[session]

    def append_to_finished(
        self, session: UUID, size: int, data: bytes, *, blobs: Collection[Blob] = ()
    ) -> bool:
        def add(on: psycopg.Connection) -> bool:
            self.writing.set_durable(on, durable=True)
            with on.transaction():
                self.save_blobs(on, blobs)
                row = on.execute(_HOLD, (session,)).fetchone()
                if row is None:
                    raise self._missing(session)
                log, epoch, stored_size, is_finished = row
                if not is_finished:
                    raise self._unfinished(session)
                if stored_size == size and data:
                    on.execute(_APPEND, {"log": log, "epoch": epoch, "data": data})
            return bool(stored_size == size)

        return self.writing.run(f"adding to session {session}", add)

    def save_blobs(self, on: psycopg.Connection, blobs: Collection[Blob]) -> None:
        """Write content that is not there yet, in a transaction that names it afterwards."""
        contents = {blob.digest: blob.data for blob in blobs if blob.data is not None}
        if not contents:
            return
        # So that who removes what no log names waits until these lines do.
        on.execute(_KEEP_BLOBS, (self._address.lock_key("blobs"),))
        stored = {row[0] for row in on.execute(_KNOWN_BLOBS, (list(contents),))}
        for digest in sorted(contents.keys() - stored):
            on.execute(_ADD_BLOB, (digest, contents[digest]))

    def read(self, session: UUID) -> StoredLog | None:
        _, is_finished, data = self._bytes_from(f"reading session {session}", session, 0)
        return StoredLog(session, data, is_finished, self._place(session)) if data else None

    def _read_from(self, session: UUID, start: int) -> tuple[int, bytes]:
        size, _, data = self._bytes_from(f"following session {session}", session, start)
        return size, data

    def holds(self, session: UUID) -> bool:
        rows = self._rows(f"looking for session {session}", _FIND, session)
        return bool(rows and rows[0][2])

    def stamps(self) -> Mapping[UUID, str]:
        rows = self._rows("listing", _LIST)
        return {row[0]: f"{row[1]}-{row[2]}-{row[3]}-{row[4]}" for row in rows}

    def is_being_written(self, session: UUID) -> bool:
        return self.writer_of(session) is not None

    def writer_of(self, session: UUID) -> str | None:
        key = self._address.lock_key(str(session)) % (1 << 64)
        halves = (key >> 32, key & 0xFFFF_FFFF)
        rows = self._rows(f"looking who writes session {session}", _HOLDER, *halves)
        return str(rows[0][0]) if rows else None

    def blob(self, digest: str) -> bytes | None:
        if not is_digest(digest):
            return None
        rows = self._rows(f"reading the blob {digest}", _BLOB, digest)
        content = bytes(rows[0][0]) if rows else b""
        return content if rows and sha256(content).hexdigest() == digest else None

    def empty_trash(self) -> int:
        def empty(on: psycopg.Connection) -> int:
            with on.transaction():
                n_removed = on.execute(_EMPTY).rowcount
                on.execute(_LOCK_BLOBS, (self._address.lock_key("blobs"),))
                on.execute(_SWEEP)
            return n_removed

        return self.writing.run("emptying the trash", empty)

    def close(self) -> None:
        self._reading.close()
        self.writing.close()

    def _bytes_from(self, what: str, session: UUID, start: int) -> tuple[int, bool, bytes]:
        """Return how many bytes a log has, whether it is finished, and its bytes from `start`."""
        rows = self._rows(what, _READ, start, session)
        if not rows or rows[0][3] is None:
            return (rows[0][0] if rows else 0), False, b""
        data = b"".join(row[3] for row in rows)
        return rows[0][0], rows[0][1], data[start - rows[0][2] :]

    def _rows(self, what: str, query: str, *values: object) -> list[Any]:
        def ask(on: psycopg.Connection) -> list[Any]:
            return on.execute(query.encode(), values, binary=True).fetchall()

        return self._reading.run(what, ask)


def _enter_schema(connection: psycopg.Connection, schema: str) -> None:
    connection.execute(sql.SQL("SET search_path TO {}").format(sql.Identifier(schema)))
    version = _version(connection)
    if version is None:
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_MAKING,))
            connection.execute(
                sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema))
            )
            connection.execute(_MAKE)
        version = _version(connection)
    if version is None or version > TABLES_VERSION:
        raise PersistenceError(
            f"the tables in schema {schema!r} have version {version}, and this version of rath "
            f"knows {TABLES_VERSION}; upgrade rath, or name another schema in the URL"
        )


def _version(connection: psycopg.Connection) -> int | None:
    table = connection.execute("SELECT to_regclass('version') IS NOT NULL").fetchone()
    if table is None or not table[0]:
        return None
    row = connection.execute("SELECT version FROM version").fetchone()
    return None if row is None else int(row[0])


def _where(parameters: dict[str, str], schema: str) -> str:
    # What libpq takes from the environment and from a service.
    defaults = {
        option.keyword.decode(): option.val.decode()
        for option in pq.Conninfo.get_defaults()
        if option.val is not None
    }

    def value(name: str) -> str:
        return parameters.get(name) or defaults.get(name, "")

    host = value("host") or value("hostaddr") or "localhost"
    # Nothing else: whoever mistypes a URL may have a secret in the place of the port.
    port = "".join(each for each in value("port") if each in "0123456789,")
    port = "" if port == _USUAL_PORT else f":{port}" if port else ""
    # A directory is that of a socket.
    host = quote(host, safe="") if host.startswith("/") else host
    service = value("service")
    database = value("dbname") or (f"service={service}" if service else "")
    place = f"postgres://{host}{port}/{quote(database, safe='=')}"
    return place if schema == DEFAULT_SCHEMA else f"{place}?schema={quote(schema, safe='')}"
