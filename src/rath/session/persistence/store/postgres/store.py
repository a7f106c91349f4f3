"""Logs as rows of a database, so that several machines have one store."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from hashlib import sha256
from typing import TypeVar
from uuid import UUID

import psycopg

from rath._core.blobs import Blob, is_digest
from rath.errors import PersistenceError
from rath.session.persistence.store.abc import SessionStore, StoredLog
from rath.session.persistence.store.postgres.address import Address
from rath.session.persistence.store.postgres.link import Link, Work
from rath.session.persistence.store.postgres.writing import (
    PostgresLog,
    Writer,
    begin_log,
    lock_key,
    save_blobs,
)

__all__ = ["PostgresStore"]

T = TypeVar("T")

_FOLLOW_SECONDS = 0.2
"""How often a log that is followed is looked at; a guess between a reader and a server."""

_IS_THERE = "SELECT 1 FROM logs WHERE session = %s AND deleted IS NULL AND size > 0"
# What was cut to nothing is no log any more, but what was cut off is kept.
_PUT_EMPTY_AWAY = """
UPDATE logs SET deleted = nextval('deletions')
WHERE session = %s AND deleted IS NULL AND size = 0 AND NOT finished
"""
_FOUND = """
SELECT id, size, finished, epoch FROM logs WHERE session = %s AND deleted IS NULL FOR UPDATE
"""
_READ = """
SELECT logs.finished, pieces.data FROM logs JOIN pieces ON pieces.log = logs.id
WHERE session = %s AND deleted IS NULL ORDER BY pieces.start
"""
_READ_FROM = """
SELECT logs.size, pieces.start, pieces.data FROM logs
LEFT JOIN pieces ON pieces.log = logs.id AND start + octet_length(data) > %s
WHERE session = %s AND deleted IS NULL ORDER BY pieces.start
"""
_STAMPS = """
SELECT session, id, epoch, size, finished FROM logs WHERE deleted IS NULL AND size > 0
"""
_IS_LOCKED = """
SELECT EXISTS (
    SELECT FROM pg_locks
    WHERE locktype = 'advisory' AND objsubid = 1 AND granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND classid = %s::bigint::oid AND objid = %s::bigint::oid
)
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
_GO_ON = """
UPDATE logs SET size = %(keep)s, finished = false, epoch = %(epoch)s WHERE id = %(log)s
"""
_REWRITTEN = "UPDATE logs SET size = %s, epoch = %s WHERE id = %s"
_CUT_ALL = "DELETE FROM pieces WHERE log = %s"
_GROW = "UPDATE logs SET size = size + %s WHERE id = %s"
_ADD_PIECE = "INSERT INTO pieces (log, start, data) VALUES (%s, %s, %s)"
_DELETE = """
UPDATE logs SET deleted = nextval('deletions') WHERE session = %s AND deleted IS NULL
"""
_RESTORE = """
UPDATE logs SET deleted = NULL
WHERE id = (SELECT id FROM logs WHERE session = %s AND deleted IS NOT NULL
            ORDER BY deleted DESC LIMIT 1)
"""
_EMPTY = "DELETE FROM logs WHERE deleted IS NOT NULL"
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
_BLOB = "SELECT data FROM blobs WHERE digest = %s"


class PostgresStore(SessionStore):
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

    def __init__(self, url: str) -> None:
        self._address = Address.from_url(url)
        self.where = self._address.where
        self._reading = Link(self._address)
        self._writer = Writer(Link(self._address))

    def create(self, session: UUID) -> PostgresLog:
        def begin(on: psycopg.Connection) -> PostgresLog:
            self._writer.lock(on, session)
            log = PostgresLog(self._writer, session, None, 1)
            on.execute(_PUT_EMPTY_AWAY, (session,))
            if on.execute(_IS_THERE, (session,)).fetchone() is not None:
                log.abandon()
                raise PersistenceError(
                    f"a log of session {session} is there already in {self.where}; go on with it, "
                    "delete it first, or take another id"
                )
            return log

        return self._writer.link.run(f"beginning session {session}", begin)

    def reopen(self, session: UUID, keep: int, *, size: int | None = None) -> PostgresLog:
        def go_on(on: psycopg.Connection) -> PostgresLog:
            self._writer.lock(on, session)
            life = self._writer.link.life
            try:
                self._writer.link.set_durable(on, durable=True)
                with on.transaction():
                    log, epoch = self._cut(on, session, keep, size)
            except BaseException:
                self._writer.unlock(session, life)
                raise
            return PostgresLog(self._writer, session, log, epoch)

        return self._writer.link.run(f"going on with session {session}", go_on)

    def append_to_finished(
        self, session: UUID, size: int, data: bytes, *, blobs: Collection[Blob] = ()
    ) -> bool:
        kept = {blob.digest: blob.data for blob in blobs if blob.data is not None}

        def add(on: psycopg.Connection) -> bool:
            self._writer.link.set_durable(on, durable=True)
            with on.transaction():
                save_blobs(on, self._address, kept)
                log, found, is_finished, _ = self._found(on, session)
                if not is_finished:
                    raise self._not_finished(session)
                if found != size:
                    return False
                if data:
                    on.execute(_ADD_PIECE, (log, size, data))
                    on.execute(_GROW, (len(data), log))
            return True

        return self._writer.link.run(f"adding to session {session}", add)

    def rewrite(self, session: UUID, data: bytes, *, size: int) -> None:
        def replace(on: psycopg.Connection) -> None:
            with on.transaction():
                log, found, _, epoch = self._found(on, session)
                self._check_size(session, found, 0, size)
                on.execute(_CUT_ALL, (log,))
                on.execute(_ADD_PIECE, (log, 0, data))
                on.execute(_REWRITTEN, (len(data), epoch + 1, log))

        self._locked(session, "rewriting", replace)

    def restart(
        self, session: UUID, data: bytes, *, size: int, blobs: Collection[Blob] = ()
    ) -> PostgresLog:
        kept = {blob.digest: blob.data for blob in blobs if blob.data is not None}

        def begin_again(on: psycopg.Connection) -> PostgresLog:
            self._writer.lock(on, session)
            life = self._writer.link.life
            try:
                self._writer.link.set_durable(on, durable=True)
                with on.transaction():
                    save_blobs(on, self._address, kept)
                    _, found, is_finished, _ = self._found(on, session)
                    if not is_finished:
                        raise self._not_finished(session)
                    self._check_size(session, found, 0, size)
                    on.execute(_DELETE, (session,))
                    log = begin_log(on, session)
                    on.execute(_ADD_PIECE, (log, 0, data))
                    on.execute(_GROW, (len(data), log))
            except BaseException:
                self._writer.unlock(session, life)
                raise
            return PostgresLog(self._writer, session, log, 1)

        return self._writer.link.run(f"replacing session {session}", begin_again)

    def read(self, session: UUID) -> StoredLog | None:
        rows = self._reading.run(
            f"reading session {session}",
            lambda on: on.execute(_READ, (session,), binary=True).fetchall(),
        )
        if not rows:
            return None
        data = b"".join(row[1] for row in rows)
        return StoredLog(session, data, bool(rows[0][0]), f"{self.where} session {session}")

    def holds(self, session: UUID) -> bool:
        found = self._reading.run(
            f"looking for session {session}",
            lambda on: on.execute(_IS_THERE, (session,)).fetchone(),
        )
        return found is not None

    def stamps(self) -> Mapping[UUID, str]:
        rows = self._reading.run("listing", lambda on: on.execute(_STAMPS, binary=True).fetchall())
        return {row[0]: f"{row[1]}-{row[2]}-{row[3]}-{row[4]}" for row in rows}

    def is_being_written(self, session: UUID) -> bool:
        key = lock_key(self._address, str(session)) % (1 << 64)
        halves = (key >> 32, key & 0xFFFF_FFFF)
        found = self._reading.run(
            f"looking who writes session {session}",
            lambda on: on.execute(_IS_LOCKED, halves).fetchone(),
        )
        return found is not None and bool(found[0])

    def delete(self, session: UUID) -> bool:
        return self._changed(session, "deleting", _DELETE)

    def restore(self, session: UUID) -> bool:
        try:
            return self._changed(session, "restoring", _RESTORE)
        except PersistenceError as exc:
            if isinstance(exc.__cause__, psycopg.errors.UniqueViolation):
                raise PersistenceError(
                    f"the session {session} was written anew in {self.where} since it was deleted; "
                    "delete that one first to bring back the other"
                ) from exc
            raise

    def empty_trash(self) -> int:
        def empty(on: psycopg.Connection) -> int:
            with on.transaction():
                n_removed = on.execute(_EMPTY).rowcount
                on.execute(_LOCK_BLOBS, (lock_key(self._address, "blobs"),))
                on.execute(_SWEEP)
            return n_removed

        return self._writer.link.run("emptying the trash", empty)

    def blob(self, digest: str) -> bytes | None:
        if not is_digest(digest):
            return None
        row = self._reading.run(
            f"reading the blob {digest}",
            lambda on: on.execute(_BLOB, (digest,), binary=True).fetchone(),
        )
        content = b"" if row is None else bytes(row[0])
        return content if sha256(content).hexdigest() == digest and row is not None else None

    def follow(self, session: UUID, start: int) -> Iterator[bytes]:
        """Yield the whole lines that are appended from byte `start` on, until it is closed.

        Sleeps on the thread of the caller, a fifth of a second at a time. Ends at once where
        nobody writes the log.

        Raises:
            PersistenceError: It cannot be read, or bytes that were yielded were cut off.
        """
        while True:
            # In this order, so that what is written before it is closed is not missed.
            is_open = self.is_being_written(session)
            data = self._read_from(session, start)
            data = data[: data.rfind(b"\n") + 1]
            if data:
                yield data
                start += len(data)
            elif not is_open:
                return
            else:
                time.sleep(_FOLLOW_SECONDS)

    def close(self) -> None:
        self._reading.close()
        self._writer.link.close()

    def _changed(self, session: UUID, what: str, statement: str) -> bool:
        def change(on: psycopg.Connection) -> bool:
            return on.execute(statement.encode(), (session,)).rowcount > 0

        return self._locked(session, what, change)

    def _locked(self, session: UUID, what: str, change: Work[T]) -> T:
        """Return what `change` returns, durably, while nobody else writes the log."""

        def alone(on: psycopg.Connection) -> T:
            self._writer.lock(on, session)
            life = self._writer.link.life
            try:
                self._writer.link.set_durable(on, durable=True)
                return change(on)
            finally:
                self._writer.unlock(session, life)

        return self._writer.link.run(f"{what} session {session}", alone)

    def _found(self, on: psycopg.Connection, session: UUID) -> tuple[int, int, bool, int]:
        """Return row, size, state and epoch of a log, which nobody changes in this transaction."""
        row = on.execute(_FOUND, (session,)).fetchone()
        if row is None:
            raise PersistenceError(
                f"session not found: {session} in {self.where}; there is no log to go on with"
            )
        return int(row[0]), int(row[1]), bool(row[2]), int(row[3])

    def _cut(
        self, on: psycopg.Connection, session: UUID, keep: int, size: int | None
    ) -> tuple[int, int]:
        log, found, _, epoch = self._found(on, session)
        self._check_size(session, found, keep, size)
        told = {"log": log, "keep": keep, "epoch": epoch + 1}
        for statement in (_SET_ASIDE, _CUT_PIECE, _CUT_REST, _GO_ON):
            on.execute(statement, told)
        return log, epoch + 1

    def _check_size(self, session: UUID, found: int, keep: int, size: int | None) -> None:
        if found < keep or size not in {None, found}:
            raise PersistenceError(
                f"the log of session {session} in {self.where} has {found} bytes, not the "
                f"{keep if size is None else size} that it had when it was read; somebody has "
                "changed it meanwhile: load it again"
            )

    def _not_finished(self, session: UUID) -> PersistenceError:
        return PersistenceError(f"the log of session {session} in {self.where} is not finished")

    def _read_from(self, session: UUID, start: int) -> bytes:
        rows = self._reading.run(
            f"following session {session}",
            lambda on: on.execute(_READ_FROM, (start, session), binary=True).fetchall(),
        )
        if not rows:
            return b""
        if rows[0][0] < start:
            raise PersistenceError(
                f"the log of session {session} in {self.where} became shorter than the {start} "
                "bytes that were read; read it again from its beginning"
            )
        if rows[0][2] is None:
            return b""
        data = b"".join(row[2] for row in rows)
        return data[start - rows[0][1] :]
