"""The tables of the store, made on first use under a version.

logs      one for each log; deleted ones stay until the trash is emptied
pieces    what was appended, in one piece for each append
asides    what was cut off a log when it was gone on with
blobs     content by its sha256
"""

from __future__ import annotations

import psycopg
from psycopg import sql

from rath.errors import PersistenceError

TABLES_VERSION = 1

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


def enter_schema(connection: psycopg.Connection, schema: str) -> None:
    """Let a connection use the tables in `schema`, and make them where they are missing.

    Raises:
        psycopg.Error: The server refuses.
        PersistenceError: A newer version of rath has made them.
    """
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
    found = connection.execute("SELECT to_regclass('version') IS NOT NULL").fetchone()
    if found is None or not found[0]:
        return None
    row = connection.execute("SELECT version FROM version").fetchone()
    return None if row is None else int(row[0])
