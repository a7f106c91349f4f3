"""The database of a queue: its connections, its tables, and the events of items.

procrastinate has tables of its own in the schema. Beside them:

    queue_version   the version of the tables below, and procrastinate's last migration
    item_events     how attempts ended; a row goes when the driver has read it
    job_limits      rate and budget of each job, see `rath.jobs.postgres_limits`
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncGenerator
from contextlib import aclosing
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import psycopg
from procrastinate import App, PsycopgConnector
from procrastinate.exceptions import ConnectorException
from procrastinate.manager import JobManager
from procrastinate.schema import SchemaManager
from psycopg import errors, sql

from rath._async.runtime import runtime
from rath.errors import EngineError
from rath.jobs.engine import ItemEvent
from rath.jobs.postgres_limits import MAKE_TABLE as MAKE_LIMITS
from rath.jobs.queue import QueuedItem
from rath.session.log.postgres_connection import DEFAULT_SCHEMA, Address

log: logging.Logger = logging.getLogger("rath.queue")

TASK = "rath.item"
"""The name of procrastinate's task for an item."""

TABLES_VERSION = 1
TABLES_LOCK = 0x7261_7468_7175_6575
"""Key of the lock under which tables are made, any number that nobody else takes."""

_MAKE = """
CREATE TABLE IF NOT EXISTS item_events (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job uuid NOT NULL,
    driver uuid NOT NULL,
    event text NOT NULL,
    written timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX IF NOT EXISTS item_events_driver ON item_events (driver);
CREATE TABLE IF NOT EXISTS queue_version (version integer NOT NULL, migration text NOT NULL);
"""
# Not `to_regclass`: that may answer from before the wait for the lock under which tables are made.
_HAS_TABLES = """
SELECT EXISTS (SELECT FROM pg_tables WHERE schemaname = %s AND tablename = 'queue_version')
"""
_WRITE = """
WITH written AS (
    INSERT INTO item_events (job, driver, event) VALUES (%(job)s, %(driver)s, %(event)s)
)
SELECT pg_notify(%(channel)s, '')
"""
# By its ids: a row may be seen after one that was written later.
_READ = """
WITH gone AS (DELETE FROM item_events WHERE id = ANY(%(known)s))
SELECT id, event FROM item_events WHERE driver = %(driver)s AND NOT id = ANY(%(known)s) ORDER BY id
"""
_FORGET = "DELETE FROM item_events WHERE job = %s OR written < now() - interval '30 days'"
_IN_SCHEMA = "SELECT set_config('search_path', %s, false)"

_LOOK_SECONDS = 5.0
"""How long a reader waits at most for a notice until it looks by itself; a guess."""

_POOL_SECONDS = 5.0
"""How long a statement waits for a connection; then whoever needs it tries again, or ends."""

_FIRST_WAIT, _LAST_WAIT = 0.2, 5.0
_decode_event = msgspec.json.Decoder(ItemEvent).decode
"""Seconds until a broken connection is made anew; guesses."""


class QueueDatabase:
    """A queue in a schema of a database; used on the runtime loop only.

    Args:
        address: The database, and the schema.
        name: Of the queue.
    """

    def __init__(self, address: Address, name: str) -> None:
        self.address = address
        self.name = name
        self.where: str = f"queue {name!r} in {address.where}"
        # Channels are those of the whole database, and ids of jobs those of a schema.
        suffix = f"@{sha256(address.schema.encode()).hexdigest()[:8]}"
        self.queue: str = name if address.schema == DEFAULT_SCHEMA else f"{name}{suffix}"
        worker = f"openrath queue on {socket.gethostname()}, process {os.getpid()}"
        self._parameters: dict[str, Any] = {"application_name": worker, **address.parameters}
        self._schema = sql.Identifier(address.schema).as_string()
        self.app: App = App(
            connector=PsycopgConnector(
                kwargs=self._parameters,
                configure=self._enter_schema,
                min_size=1,
                max_size=4,
                timeout=_POOL_SECONDS,
            )
        )
        self.jobs: JobManager = self.app.job_manager

    async def open(self) -> None:
        """Connect, and make the tables where they are missing.

        Raises:
            EngineError: The server cannot be reached or refuses, or the tables cannot be used.
        """
        await runtime().call_in_worker(self._prepare)
        try:
            await self.app.open_async()
        except (ConnectorException, psycopg.Error) as exc:
            raise self.error("connecting", exc) from exc

    async def close(self) -> None:
        """Close the connections."""
        await self.app.close_async()

    def error(self, what: str, exc: BaseException) -> EngineError:
        """Return the error of something that did not work, without the secrets of the address."""
        cause = exc if isinstance(exc, psycopg.Error) else exc.__cause__
        if isinstance(cause, psycopg.Error):
            return EngineError(f"{self.name!r}: {self.address.error(what, cause)}")
        return EngineError(f"{self.where}: {what}: {type(exc).__name__}")

    async def write(self, queued: QueuedItem, event: ItemEvent) -> None:
        """Have the driver that submitted an item hear of its event, now or when it connects."""
        await self.app.connector.execute_query_async(
            _WRITE,
            job=queued.job,
            driver=queued.driver,
            event=msgspec.json.encode(event).decode(),
            channel=_channel(queued.driver),
        )

    async def forget(self, job: UUID) -> None:
        """Remove what earlier drivers of a job have in the queue, and the events meant for them.

        What they have not read comes again: each item that is submitted has an event.
        """
        try:
            async with await self._connect() as connection:
                await connection.execute(_FORGET, (job,))
            await self.withdraw(job=job)
        except (ConnectorException, psycopg.Error) as exc:
            raise self.error("looking for earlier drivers", exc) from exc

    async def withdraw(self, **ids: UUID) -> None:
        """Remove the items that nobody has taken yet.

        Args:
            ids: Of which `job`, or `driver`.
        """
        wanted = {name: str(ident) for name, ident in ids.items()}
        for job in await self.jobs.list_jobs_async(queue=self.queue, status="todo"):
            if job.id is not None and wanted.items() <= job.task_kwargs.items():
                await self.jobs.cancel_job_by_id_async(job.id, delete_job=True)

    async def read(self, driver: UUID) -> AsyncGenerator[ItemEvent]:
        """Yield the events of a driver as they are written, whatever breaks meanwhile."""
        known: list[int] = []
        wait = _FIRST_WAIT
        while True:
            try:
                async with await self._connect() as connection:
                    channel = sql.Identifier(_channel(driver))
                    await connection.execute(sql.SQL("LISTEN {}").format(channel))
                    while True:
                        values = {"driver": driver, "known": known}
                        rows = await (await connection.execute(_READ, values)).fetchall()
                        known = [ident for ident, _ in rows]
                        wait = _FIRST_WAIT
                        for ident, text in rows:
                            try:
                                event = _decode_event(text)
                            except msgspec.DecodeError as exc:
                                log.warning("%s: event %s: %s", self.where, ident, exc)
                            else:
                                yield event
                        notices = connection.notifies(timeout=_LOOK_SECONDS, stop_after=1)
                        async with aclosing(notices):
                            async for _ in notices:
                                pass
            except psycopg.Error as exc:
                log.info("%s", self.error("reading events", exc))
            await asyncio.sleep(wait)
            wait = min(wait * 2, _LAST_WAIT)

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        connection = await psycopg.AsyncConnection.connect("", autocommit=True, **self._parameters)
        await connection.execute(_IN_SCHEMA, (self._schema,))
        return connection

    async def _enter_schema(self, connection: psycopg.AsyncConnection[Any]) -> None:
        await connection.execute(_IN_SCHEMA, (self._schema,))
        await connection.commit()

    def _prepare(self) -> None:
        """Make the tables where they are missing or of an earlier version; blocks."""
        try:
            with self.address.connect() as connection:
                if _is_older(self._version(connection)):
                    with connection.transaction():
                        connection.execute("SELECT pg_advisory_xact_lock(%s)", (TABLES_LOCK,))
                        _make_tables(connection, self._version(connection))
        except errors.InsufficientPrivilege as exc:
            raise EngineError(
                f"{self.where}: {str(exc).strip().splitlines()[0]}. This role may not make or use "
                f"the tables in schema {self.address.schema!r}. As a role that may, run once: "
                f"rath worker --store URL --queue {self.name} --allow any --until-empty; then "
                "grant this role USAGE on the schema, and SELECT, INSERT, UPDATE and DELETE on "
                "its tables, and USAGE on its sequences"
            ) from exc
        except (errors.DuplicateObject, errors.DuplicateTable) as exc:
            raise EngineError(
                f"{self.where}: schema {self.address.schema!r} has tables of procrastinate that "
                "rath has not made; name another one: ?schema=NAME"
            ) from exc
        except psycopg.Error as exc:
            raise self.error("making the tables", exc) from exc

    def _version(self, connection: psycopg.Connection[Any]) -> tuple[int, str]:
        """Return the version of our tables and the last migration of procrastinate.

        Raises:
            EngineError: A later version of rath or procrastinate has made them.
        """
        row = connection.execute(_HAS_TABLES, (self.address.schema,)).fetchone()
        if row is None or not row[0]:
            return 0, ""
        found = connection.execute("SELECT version, migration FROM queue_version").fetchone()
        version, migration = found or (0, "")
        if version > TABLES_VERSION or migration > _migrations()[-1].name:
            raise EngineError(
                f"{self.where}: a later version of rath or procrastinate has made the tables "
                f"(version {version}, {migration}); upgrade both, or name another schema"
            )
        return version, migration


def _migrations() -> list[Path]:
    folder = Path(SchemaManager.get_migrations_path())
    return sorted(folder.glob("*.sql"), key=lambda path: path.name)


def _is_older(version: tuple[int, str]) -> bool:
    return version < (TABLES_VERSION, _migrations()[-1].name)


def _make_tables(connection: psycopg.Connection[Any], version: tuple[int, str]) -> None:
    """Bring the tables of a schema to this version, in a transaction."""
    _, migration = version
    if migration:
        for each in _migrations():
            if each.name > migration:
                connection.execute(each.read_bytes())
    else:
        connection.execute(SchemaManager.get_schema())
    connection.execute(_MAKE)
    connection.execute(MAKE_LIMITS)
    connection.execute("DELETE FROM queue_version")
    newest = TABLES_VERSION, _migrations()[-1].name
    connection.execute("INSERT INTO queue_version VALUES (%s, %s)", newest)


def _channel(driver: UUID) -> str:
    return f"rath_driver_{driver.hex}"
