"""Connections to the PostgreSQL database of a store: address, tables, pool, and the owner lock."""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import selectors
import socket
import threading
from collections.abc import Callable
from dataclasses import field
from hashlib import sha256
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urlsplit

import psycopg
from psycopg import pq, sql
from psycopg.conninfo import conninfo_to_dict

from rath._core.dataclasses import dataclass
from rath.errors import PersistenceError

T = TypeVar("T")
Work = Callable[[psycopg.Connection], T]

DEFAULT_SCHEMA = "openrath"
TABLES_VERSION = 2

_DEFAULTS = {
    "connect_timeout": "10",
    # Milliseconds until a server that says nothing counts as gone; a guess.
    "tcp_user_timeout": "30000",
    # Seconds: a firewall forgets a connection that is silent, as that of the owner lock is.
    "keepalives_idle": "60",
}
_USUAL_PORT = "5432"
_SECRETS = ("password", "sslpassword")
_MIN_SECRET = 4
_MAKING = 0x7261_7468_7374_6F72
"""Key of the lock under which tables are made, any number that nobody else takes."""

_LOCK_WAIT = "30s"
"""How long a statement waits for a row that another transaction changes; a guess."""

# The last three have the server notice after 90 s that a machine is gone, which has locks: Linux
# takes over two hours.
_ENTER = """
SELECT to_regclass(%(version)s) IS NOT NULL,
    set_config('search_path', %(path)s, false), set_config('synchronous_commit', 'on', false),
    set_config('lock_timeout', %(wait)s, false),
    set_config('tcp_keepalives_idle', '60', false),
    set_config('tcp_keepalives_interval', '10', false),
    set_config('tcp_keepalives_count', '3', false)
"""
_UPGRADE = """
ALTER TABLE logs ADD COLUMN IF NOT EXISTS owner bigint;
UPDATE version SET version = 2 WHERE version = 1;
"""
_MAKE = """
CREATE TABLE IF NOT EXISTS version (version integer NOT NULL);
CREATE SEQUENCE IF NOT EXISTS deletions;
CREATE TABLE IF NOT EXISTS logs (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    session uuid NOT NULL,
    epoch bigint NOT NULL,
    size bigint NOT NULL,
    finished boolean NOT NULL,
    deleted bigint,
    owner bigint
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
CREATE TABLE IF NOT EXISTS facts (
    log bigint NOT NULL REFERENCES logs ON DELETE CASCADE,
    kind text NOT NULL,
    stamp text NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (log, kind)
);
CREATE TABLE IF NOT EXISTS blobs (digest text PRIMARY KEY, data bytea NOT NULL);
INSERT INTO version SELECT 2 WHERE NOT EXISTS (SELECT FROM version);
"""
_PROBES = 5


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
            if _process_of(connection) != connection.info.backend_pid:
                self._require_session(connection, parameters)
            _enter_schema(connection, self.schema)
        except BaseException:
            connection.close()
            raise
        return connection

    def _require_session(self, connection: psycopg.Connection, parameters: dict[str, Any]) -> None:
        """Refuse a pooler that gives each transaction another connection.

        It says another process of the server than the one that answers; so does one that keeps a
        connection for a client, which is fine.
        """
        with psycopg.connect("", autocommit=True, **parameters) as other:
            if _is_shared(connection, other):
                raise PersistenceError(
                    f"{self.where}: a pooler hands out its connections by transaction (as "
                    "PgBouncer does with pool_mode = transaction), and would lose the lock that "
                    "tells others that this process writes; connect to the server itself, or to "
                    "a pool with pool_mode = session"
                )

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
        self.life: int = 0
        """Which connection it is on by now: what was held on an earlier one is lost."""

        self._busy = threading.RLock()
        self._connection: psycopg.Connection | None = None
        self._process = 0

    def run(self, what: str, work: Work[T], *, repeatable: bool = False) -> T:
        """Run `work` on a connection that answers.

        Args:
            what: What does not work when it fails, for the message.
            work: What is done.
            repeatable: Do it once more where the connection breaks meanwhile.

        Raises:
            PersistenceError: The server cannot be reached or refuses, or the connection broke.
        """
        with self._busy:
            try:
                try:
                    return self._run(work)
                except psycopg.OperationalError:
                    if not repeatable or self.is_alive():
                        raise
                    return self._run(work)
            except psycopg.Error as exc:
                raise self.address.error(what, exc) from exc

    def is_alive(self) -> bool:
        """Tell whether the connection of this process is not known to be broken; asks no server."""
        with self._busy:
            connection = self._connection
            if connection is None or self._process != os.getpid():
                return False
            try:
                # The server says why it ends a connection before it closes it.
                while not connection.closed and _is_readable(connection):
                    connection.pgconn.consume_input()
            except psycopg.Error:
                return False
            return not connection.closed

    def close(self) -> None:
        """Give the connection back; the next use makes a new one."""
        with self._busy:
            if self._connection is not None and self._process == os.getpid():
                with contextlib.suppress(psycopg.Error):
                    self._connection.close()
            # A fork must not talk on the connection of its parent, nor close it.
            self._connection = None

    def _run(self, work: Work[T]) -> T:
        if not self.is_alive():
            self.close()
            self._connection, self._process = self.address.connect(), os.getpid()
            self.life += 1
        connection = self._connection
        assert connection is not None
        try:
            return work(connection)
        finally:
            # Also after an interrupt: nobody knows what the server makes of what it got.
            if connection.info.transaction_status != pq.TransactionStatus.IDLE:
                self.close()


class PostgresPool:
    """A few connections, each opened when all others are in use.

    Args:
        address: The database.
        size: How many there are at most; who comes when all are in use waits.
    """

    def __init__(self, address: Address, size: int) -> None:
        self._address = address
        self._size = size
        self._making = threading.Lock()
        self._process = 0
        self._all: list[SharedConnection] = []
        self._idle: queue.LifoQueue[SharedConnection] = queue.LifoQueue()

    def run(self, what: str, work: Work[T], *, repeatable: bool = False) -> T:
        """Run `work` on one of them; see `SharedConnection.run`."""
        idle = self._open()
        connection = idle.get()
        try:
            return connection.run(what, work, repeatable=repeatable)
        finally:
            idle.put(connection)

    def close(self) -> None:
        """Close all of them, each when it is idle; they can be used again."""
        for connection in tuple(self._all):
            connection.close()

    def _open(self) -> queue.LifoQueue[SharedConnection]:
        if self._process != os.getpid():
            # Those that are in use when a process forks never come back in the child.
            self._making = threading.Lock() if self._process else self._making
            with self._making:
                if self._process != os.getpid():
                    self._all = [SharedConnection(self._address) for _ in range(self._size)]
                    self._idle = queue.LifoQueue()
                    for connection in self._all:
                        self._idle.put(connection)
                    self._process = os.getpid()
        return self._idle


class OwnerLock:
    """The sign that a process is alive: an advisory lock on a connection that nothing else uses.

    Rows name its key as their owner. The server gives the lock back at once when the process ends
    or the connection breaks; a later connection takes another key.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._connection = SharedConnection(address)
        self._key = self._life = 0
        self._process = 0

    def take(self) -> int:
        """Return the key, which is locked.

        Raises:
            PersistenceError: The server cannot be reached, or refuses.
        """

        def lock(on: psycopg.Connection) -> int:
            if (self._life, self._process) != (self._connection.life, os.getpid()):
                key = secrets.randbits(62) + 1
                on.execute("SELECT pg_advisory_lock(%s)", (key,))
                self._key, self._life = key, self._connection.life
                self._process = os.getpid()
            return self._key

        return self._connection.run("taking a lock", lock)

    def require(self, key: int, what: str) -> None:
        """Refuse to go on when the lock of that key is lost; asks no server.

        Raises:
            PersistenceError: It is.
        """
        if self._key != key or not self._connection.is_alive():
            raise PersistenceError(
                f"{self._address.where}: {what}: the connection that held the lock broke; what "
                "was written before can still be read"
            )

    def close(self) -> None:
        """Give the lock back."""
        self._connection.close()


def _is_readable(connection: psycopg.Connection) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(connection.fileno(), selectors.EVENT_READ)
        return bool(selector.select(0))


def _enter_schema(connection: psycopg.Connection, schema: str) -> None:
    """Use the tables, and make them where they are missing or of an earlier version."""
    name = sql.Identifier(schema).as_string(connection)
    values = {"path": name, "version": f"{name}.version", "wait": _LOCK_WAIT}
    row = connection.execute(_ENTER, values).fetchone()
    assert row is not None
    version = _version(connection) if row[0] else 0
    if version < TABLES_VERSION:
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_MAKING,))
            connection.execute(
                sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema))
            )
            connection.execute(_MAKE)
            connection.execute(_UPGRADE)
        version = _version(connection)
    if version != TABLES_VERSION:
        raise PersistenceError(
            f"the tables in schema {schema!r} have version {version}, and this version of rath "
            f"knows {TABLES_VERSION}; upgrade rath, or name another schema in the URL"
        )


def _version(connection: psycopg.Connection) -> int:
    row = connection.execute("SELECT version FROM version").fetchone()
    return 0 if row is None else int(row[0])


def _is_shared(connection: psycopg.Connection, other: psycopg.Connection) -> bool:
    """Tell whether a pooler gives two connections the same process of the server in turn."""
    for _ in range(_PROBES):
        before = _process_of(connection)
        try:
            with other.transaction():
                if _process_of(other) == before or _process_of(connection) != before:
                    return True
        except psycopg.Error:
            return True  # a pool by statement takes no transaction
    return False


def _process_of(connection: psycopg.Connection) -> int:
    row = connection.execute("SELECT pg_backend_pid()", prepare=False).fetchone()
    assert row is not None
    return int(row[0])


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
