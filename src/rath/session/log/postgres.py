"""Logs as rows of a PostgreSQL database, so that several machines have one store.

    logs      one for each log; deleted ones stay until the trash is emptied
    pieces    what was appended, in one piece for each append
    asides    what was cut off a log when it was reopened
    blobs     content by its sha256
    facts     what an index has read from a log; derived

`logs.owner` is the lock: the key of an advisory lock that the process of the writer has. Who finds
that key unlocked takes the log over, so that of a killed writer is free at once.
`logs.epoch` is the fencing token: it grows whenever a log is locked or rewritten, and a writer with
another one changes nothing. So one whose lock was lost cannot write any more, and it is the same
over which connection a line comes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, TypeVar
from uuid import UUID

import psycopg
from psycopg import errors

from rath._core.blobs import Blob, is_digest
from rath.errors import PersistenceError, SessionBusy
from rath.session.log.postgres_connection import (
    Address,
    OwnerLock,
    PostgresPool,
    SharedConnection,
    Work,
)
from rath.session.log.store import CompleteLog, LogDriver, LogStore, StoredLog

__all__ = ["PostgresStore"]

T = TypeVar("T")

_WRITERS = 4
"""Connections over which a process writes; a guess: a commit waits for the disk, others go on."""

_BYTES_AT_ONCE = 16 << 20
"""Of lines in one statement, but for a log that has more; a guess."""

_NOBODY = "(logs.owner IS NULL OR pg_try_advisory_xact_lock_shared(logs.owner))"
_TAKE = f"""
INSERT INTO logs (session, epoch, size, finished, owner)
VALUES (%(session)s, 1, 0, false, %(owner)s)
ON CONFLICT (session) WHERE deleted IS NULL
DO UPDATE SET owner = excluded.owner, epoch = logs.epoch + 1 WHERE {_NOBODY}
RETURNING id, epoch, size, finished
"""
_TAKE_EXISTING = f"""
UPDATE logs SET owner = %(owner)s, epoch = epoch + 1
WHERE session = %(session)s AND deleted IS NULL AND {_NOBODY}
RETURNING id, epoch, size, finished
"""
_RELEASE = "UPDATE logs SET owner = NULL WHERE id = %s AND owner = %s AND epoch = %s"
_RELEASE_UNSEEN = """
UPDATE logs SET owner = NULL WHERE session = %s AND owner = %s AND deleted IS NULL
"""
# What was cut to nothing is no log any more, but what was cut off is kept.
_RELEASE_EMPTY = """
DELETE FROM logs WHERE id = %s AND owner = %s AND epoch = %s
AND size = 0 AND NOT finished AND deleted IS NULL
AND NOT EXISTS (SELECT FROM asides WHERE log = logs.id)
"""
_HOLDER = """
SELECT coalesce(nullif(application_name, ''), 'database process ' || pid)
FROM logs JOIN pg_locks ON locktype = 'advisory' AND objsubid = 1 AND granted
    AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND mode = 'ExclusiveLock'
    AND classid = (owner >> 32)::oid AND objid = (owner & 4294967295)::oid
LEFT JOIN pg_stat_activity USING (pid)
WHERE session = %s AND logs.deleted IS NULL
"""
_FIND = "SELECT id, epoch, size, finished FROM logs WHERE session = %s AND deleted IS NULL"
_LIST = "SELECT session, id, epoch, size, finished FROM logs WHERE deleted IS NULL AND size > 0"
_READ = """
SELECT logs.size, logs.finished, pieces.start, pieces.data FROM logs
LEFT JOIN pieces ON pieces.log = logs.id AND start + octet_length(data) > %s
WHERE session = %s AND deleted IS NULL ORDER BY pieces.start
"""
_BEGIN = """
INSERT INTO logs (session, epoch, size, finished, owner) VALUES (%s, 1, 0, false, %s) RETURNING id
"""
_APPEND = """
WITH grown AS (
    UPDATE logs SET size = size + octet_length(%(data)s)
    WHERE id = %(log)s AND epoch = %(epoch)s AND deleted IS NULL
    AND set_config('synchronous_commit', %(commit)s, true) IS NOT NULL
    RETURNING id, size - octet_length(%(data)s) AS start
)
INSERT INTO pieces (log, start, data) SELECT id, start, %(data)s FROM grown
"""
_CREATE_MANY = """
WITH given AS (
    SELECT session, data FROM unnest(%s::uuid[], %s::bytea[]) AS each (session, data)
), made AS (
    INSERT INTO logs (session, epoch, size, finished)
    SELECT session, 1, octet_length(data), true FROM given
    ON CONFLICT (session) WHERE deleted IS NULL DO NOTHING RETURNING id, session
), written AS (
    INSERT INTO pieces (log, start, data) SELECT id, 0, data FROM made JOIN given USING (session)
)
SELECT session FROM made
"""
_APPEND_TO_FINISHED = """
WITH grown AS (
    UPDATE logs SET size = size + octet_length(%(data)s)
    WHERE session = %(session)s AND deleted IS NULL AND finished AND size = %(size)s
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
UPDATE logs SET finished = size > 0, owner = NULL
WHERE id = %(log)s AND epoch = %(epoch)s AND deleted IS NULL
"""
_DELETE = """
UPDATE logs SET deleted = nextval('deletions'), owner = NULL
WHERE id = %(log)s AND epoch = %(epoch)s AND deleted IS NULL
"""
_DELETE_IF_SAME = f"{_DELETE} AND size = %(size)s"
_REMOVED = """
SELECT id FROM logs WHERE session = %s AND deleted IS NOT NULL AND (size > 0 OR finished)
ORDER BY deleted DESC LIMIT 1
"""
_RESTORE = f"UPDATE logs SET deleted = NULL WHERE id = ({_REMOVED})"
_EMPTY = "DELETE FROM logs WHERE deleted IS NOT NULL"
_EMPTY_ABANDONED = f"DELETE FROM logs WHERE size = 0 AND NOT finished AND {_NOBODY}"
_SHARED_FACTS = """
SELECT session, facts.data FROM unnest(%s::uuid[], %s::text[]) AS asked (session, stamp)
JOIN logs USING (session) JOIN facts ON facts.log = logs.id AND facts.stamp = asked.stamp
WHERE deleted IS NULL AND kind = %s
"""
_SHARE_FACTS = """
INSERT INTO facts (log, kind, stamp, data)
SELECT id, %s, stamp, data
FROM unnest(%s::uuid[], %s::text[], %s::bytea[]) AS read (session, stamp, data)
JOIN logs USING (session) WHERE deleted IS NULL ORDER BY id
ON CONFLICT (log, kind) DO UPDATE SET stamp = excluded.stamp, data = excluded.data
"""
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


class RowDriver(LogDriver):
    """A log of rows; each change is one transaction, so that no line is ever torn.

    Args:
        store: Which has the lock of the session.
        session: Whose log.
        owner: The key under which it is locked.
        row: Its id, epoch, size and state, None where there is no log.
    """

    def __init__(
        self,
        store: PostgresStore,
        session: UUID,
        owner: int,
        row: tuple[int, int, int, bool] | None,
    ) -> None:
        self.session = session
        self.where: str = f"{store.where} session {session}"
        self._log: int | None
        self.is_finished: bool
        self.size: int
        self._log, self._epoch, self.size, self.is_finished = row or (None, 1, 0, False)
        self._store = store
        self._owner = owner
        self._is_locked = row is not None
        """Whether the row names the owner, as far as is known here."""

        self._is_empty = self.size == 0
        self._is_row_known = True
        """Whether id and epoch are those of the row: the answer to a change of them may be lost."""

    def append(self, data: bytes, blobs: Collection[Blob], *, durable: bool) -> None:
        if data:
            self._change("writing", lambda on: self._add(on, data, blobs, durable=durable))
            self._is_empty = False

    def truncate(self, keep: int) -> None:
        def cut(on: psycopg.Connection) -> None:
            with on.transaction():
                self._cut(on, keep, (_SET_ASIDE, _CUT_PIECE, _CUT_REST), is_finished=False)

        self._change_row("going on with", cut)
        self._epoch += 1
        self._is_empty = keep == 0

    def rewrite(self, data: bytes) -> None:
        def replace(on: psycopg.Connection) -> None:
            with on.transaction():
                self._cut(on, 0, (_CUT_REST,), is_finished=self.is_finished)
                self._fenced(on, _APPEND, epoch=self._epoch + 1, data=data)

        self._change_row("rewriting", replace)
        self._epoch += 1

    def restart(self, data: bytes, blobs: Collection[Blob]) -> None:
        def begin_again(on: psycopg.Connection) -> int:
            with on.transaction():
                self._fenced(on, _DELETE_IF_SAME)
                row = on.execute(_BEGIN, (self.session, self._owner)).fetchone()
                assert row is not None, "RETURNING gives the row that was inserted"
                self._store.save_blobs(on, blobs)
                self._fenced(on, _APPEND, log=row[0], epoch=1, data=data)
            return int(row[0])

        self._log, self._epoch = self._change_row("replacing", begin_again), 1

    def publish(self) -> None:
        if not self._is_empty:
            self._change("finishing", lambda on: self._fenced(on, _FINISH))
            self._is_locked = False

    def remove(self) -> None:
        self._change("deleting", lambda on: self._fenced(on, _DELETE))
        self._is_locked = False

    def has_removed(self) -> bool:
        cursor = self._change("restoring", lambda on: on.execute(_REMOVED, (self.session,)))
        return cursor.fetchone() is not None

    def recover(self) -> None:
        def restore(on: psycopg.Connection) -> None:
            with on.transaction():
                if self._is_locked:
                    self._fenced(on, _DELETE)  # it is empty
                on.execute(_RESTORE, (self.session,))

        self._change("restoring", restore)
        self._is_locked = False

    def release(self) -> None:
        if not self.is_released:
            if not self._is_row_known:
                self._store.unlock_any(self.session, self._owner)
            elif self._is_locked and self._log is not None:
                row = (self._log, self._owner, self._epoch)
                self._store.unlock(row, is_empty=self._is_empty)
            self._store.held.discard(self.session)
            self.is_released = True

    def _change_row(self, what: str, work: Work[T]) -> T:
        """Change the log and its epoch, or its row."""
        self._is_row_known = False
        result = self._change(what, work)
        self._is_row_known = True
        return result

    def _change(self, what: str, work: Work[T]) -> T:
        return self._store.change(f"{what} session {self.session}", work, owner=self._owner)

    def _add(
        self, on: psycopg.Connection, data: bytes, blobs: Collection[Blob], *, durable: bool
    ) -> None:
        commit = "on" if durable else "off"
        if not any(blob.data is not None for blob in blobs):
            self._fenced(on, _APPEND, data=data, commit=commit)
            return
        with on.transaction():
            self._store.save_blobs(on, blobs)
            self._fenced(on, _APPEND, data=data, commit=commit)

    def _cut(
        self, on: psycopg.Connection, keep: int, statements: Iterable[str], *, is_finished: bool
    ) -> None:
        self._fenced(on, _CUT, keep=keep, finished=is_finished)
        for statement in statements:
            values = {"log": self._log, "epoch": self._epoch + 1, "keep": keep}
            on.execute(statement.encode(), values)

    def _fenced(self, on: psycopg.Connection, statement: str, **values: Any) -> None:
        """Change the log, which must be as this writer left it."""
        known = {"log": self._log, "epoch": self._epoch, "size": self.size, "commit": "on"}
        if on.execute(statement.encode(), {**known, **values}).rowcount != 1:
            raise PersistenceError(
                f"the log of {self.where} was deleted, or gone on with, by somebody else "
                "meanwhile; what was written before can still be read"
            )


class PostgresStore(LogStore):
    """Logs in a PostgreSQL database, each append one transaction.

    A process has one connection for the lock by which others see that it is alive, one for what it
    reads, and up to four for what it writes, opened when they are needed. When the first breaks,
    the logs that were open are lost to it and can be gone on with; the store itself connects
    again. A pooler that hands out connections by transaction (PgBouncer's `transaction` mode)
    would lose that lock, and is refused by the first call.

    Args:
        url: As `postgres_store` takes it.

    Raises:
        ValueError: It is no such URL.
    """

    name = "postgres"
    writes_many = shares_facts = True
    _follow_seconds = 0.2
    """A guess between a reader and a server."""

    def __init__(self, url: str) -> None:
        self.address: Address = Address.from_url(url)
        self.where: str = self.address.where
        self._reading = SharedConnection(self.address)
        self._writing = PostgresPool(self.address, _WRITERS)
        self._owner = OwnerLock(self.address)
        self.held: set[UUID] = set()
        """Sessions whose logs are open here."""

    def _place(self, session: UUID) -> str:
        return f"{self.where} session {session}"

    def _lock(self, session: UUID, *, make: bool = False) -> RowDriver:
        owner = self._owner.take()
        statement = _TAKE if make else _TAKE_EXISTING

        def take(on: psycopg.Connection) -> tuple[Any, ...] | None:
            try:
                return on.execute(statement, {"session": session, "owner": owner}).fetchone()
            except errors.LockNotAvailable:
                return None  # somebody is in the middle of changing it

        try:
            row = self._writing.run(f"locking session {session}", take)
        except BaseException:
            # It may have been locked, and only the answer was lost.
            if session not in self.held:
                self.unlock_any(session, owner)
            raise
        if row is None and (make or self._rows("locking", _FIND, session)):
            raise SessionBusy(session, where=self.where, holder=self.writer_of(session) or "")
        self.held.add(session)
        return RowDriver(self, session, owner, row and (row[0], row[1], row[2], row[3]))

    def change(self, what: str, work: Work[T], *, owner: int) -> T:
        """Change a log that is locked.

        Args:
            what: What does not work when it fails, for the message.
            work: What is done.
            owner: The key of the lock.

        Raises:
            PersistenceError: The lock is lost, or it cannot be changed.
        """
        self._owner.require(owner, what)
        return self._writing.run(what, work)

    def unlock(self, row: tuple[int, int, int], *, is_empty: bool) -> None:
        """Give the lock of a log back, and remove one that never had anything.

        One of a broken connection is gone already.

        Args:
            row: Id, owner and epoch of the log.
            is_empty: Whether nothing stands in it.
        """
        statements = (_RELEASE_EMPTY, _RELEASE) if is_empty else (_RELEASE,)
        self._release(row[1], [(each, row) for each in statements])

    def unlock_any(self, session: UUID, owner: int) -> None:
        """Give the lock of the log of a session back, whatever its row is by now."""
        self._release(owner, ((_RELEASE_UNSEEN, (session, owner)),))

    def _release(self, owner: int, statements: Iterable[tuple[str, tuple[object, ...]]]) -> None:
        def release(on: psycopg.Connection) -> None:
            for statement, values in statements:
                if on.execute(statement.encode(), values).rowcount:
                    return

        with contextlib.suppress(PersistenceError):
            self._owner.require(owner, "unlocking")
            # Once more where the connection broke: else it would be locked as long as we are alive.
            self._writing.run("unlocking", release, repeatable=True)

    def create_many(self, logs: Sequence[CompleteLog]) -> set[UUID]:
        stored: set[UUID] = set()
        waiting: list[CompleteLog] = []
        size = 0
        for each in logs:
            waiting.append(each)
            size += len(each.data)
            if size > _BYTES_AT_ONCE:
                stored |= self._create_at_once(waiting)
                waiting, size = [], 0
        return stored | self._create_at_once(waiting) if waiting else stored

    def _create_at_once(self, logs: Sequence[CompleteLog]) -> set[UUID]:
        values = [each.session for each in logs], [each.data for each in logs]
        blobs = {blob.digest: blob for each in logs for blob in each.blobs}

        def create(on: psycopg.Connection) -> set[UUID]:
            with on.transaction() if blobs else contextlib.nullcontext():
                self.save_blobs(on, blobs.values())
                return {row[0] for row in on.execute(_CREATE_MANY, values)}

        return self._writing.run(f"storing {len(logs)} sessions", create)

    def append_to_finished(
        self, session: UUID, size: int, data: bytes, *, blobs: Collection[Blob] = ()
    ) -> bool:
        values = {"session": session, "size": size, "data": data}

        def add(on: psycopg.Connection) -> bool:
            with on.transaction() if blobs else contextlib.nullcontext():
                self.save_blobs(on, blobs)
                return on.execute(_APPEND_TO_FINISHED, values).rowcount == 1

        what = f"adding to session {session}"
        if data and self._writing.run(what, add):
            return True
        rows = self._rows(what, _FIND, session)
        if not rows:
            raise self._missing(session)
        _, _, stored_size, is_finished = rows[0]
        if not is_finished:
            raise self._unfinished(session)
        return bool(stored_size == size and not data)

    def save_blobs(self, on: psycopg.Connection, blobs: Collection[Blob]) -> None:
        """Write content that is not there yet, in a transaction that names it afterwards."""
        contents = {blob.digest: blob.data for blob in blobs if blob.data is not None}
        if not contents:
            return
        # So that who removes what no log names waits until these lines do.
        on.execute(_KEEP_BLOBS, (self.address.lock_key("blobs"),))
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

    def shared_facts(self, kind: str, stamps: Mapping[UUID, str]) -> Mapping[UUID, bytes]:
        values = list(stamps), list(stamps.values()), kind
        return dict(self._rows("reading the index", _SHARED_FACTS, *values))

    def share_facts(self, kind: str, facts: Mapping[UUID, tuple[str, bytes]]) -> None:
        stamps, data = [each[0] for each in facts.values()], [each[1] for each in facts.values()]
        values = kind, list(facts), stamps, data
        self._writing.run("writing the index", lambda on: on.execute(_SHARE_FACTS, values))

    def is_being_written(self, session: UUID) -> bool:
        return self.writer_of(session) is not None

    def writer_of(self, session: UUID) -> str | None:
        rows = self._rows(f"looking who writes session {session}", _HOLDER, session)
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
                on.execute(_EMPTY_ABANDONED)
                on.execute(_LOCK_BLOBS, (self.address.lock_key("blobs"),))
                on.execute(_SWEEP)
            return n_removed

        return self._writing.run("emptying the trash", empty)

    def close(self) -> None:
        self._reading.close()
        self._writing.close()
        self._owner.close()

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

        return self._reading.run(what, ask, repeatable=True)
