"""What a process writes to the database: the locks on its logs, and their bytes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection
from hashlib import sha256
from uuid import UUID

import psycopg

from rath._core.blobs import Blob
from rath.errors import PersistenceError
from rath.session.persistence.store.abc import SessionLog
from rath.session.persistence.store.postgres.address import Address
from rath.session.persistence.store.postgres.link import Link, Work

_LOCK = "SELECT pg_try_advisory_lock(%s)"
_UNLOCK = "SELECT pg_advisory_unlock(%s)"
_BEGIN = """
INSERT INTO logs (session, epoch, size, finished) VALUES (%s, 1, 0, false) RETURNING id
"""
_APPEND = """
WITH grown AS (
    UPDATE logs SET size = size + octet_length(%(data)s)
    WHERE id = %(log)s AND epoch = %(epoch)s AND deleted IS NULL
    RETURNING id, size - octet_length(%(data)s) AS start
)
INSERT INTO pieces (log, start, data) SELECT id, start, %(data)s FROM grown
"""
# What was cut to nothing is no log.
_FINISH = "UPDATE logs SET finished = size > 0 WHERE id = %s AND epoch = %s AND deleted IS NULL"
_KNOWN_BLOBS = "SELECT digest FROM blobs WHERE digest = ANY(%s)"
_ADD_BLOB = "INSERT INTO blobs (digest, data) VALUES (%s, %s) ON CONFLICT DO NOTHING"
_KEEP_BLOBS = "SELECT pg_advisory_xact_lock_shared(%s)"


def lock_key(address: Address, of: str) -> int:
    """Return the key of the lock on something in a schema, a signed number of 64 bits."""
    digest = sha256(f"openrath:{address.schema}:{of}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


class Writer:
    """The locks that this process has, all on one connection, so that they end with the process.

    Args:
        link: That connection; what is written goes over it too, so that nothing is written
            without the lock.
    """

    def __init__(self, link: Link) -> None:
        self.link = link
        self._held: dict[UUID, int] = {}
        self._busy = threading.Lock()

    def holds(self, session: UUID) -> bool:
        """Tell whether this process has the log of a session open."""
        with self._busy:
            return self._held.get(session) == self.link.life

    def lock(self, connection: psycopg.Connection, session: UUID) -> None:
        """Take the lock of a session on `connection`, which is that of the link.

        Raises:
            PersistenceError: Somebody has it.
        """
        if not self.holds(session):
            row = connection.execute(_LOCK, (self._key(session),)).fetchone()
            if row is not None and row[0]:
                with self._busy:
                    self._held[session] = self.link.life
                return
        raise PersistenceError(
            f"the log of session {session} in {self.link.address.where} is being written by "
            "another process or writer; wait for it to end"
        )

    def unlock(self, session: UUID, life: int) -> None:
        """Give the lock of a session back; one of a broken connection is gone already."""
        with contextlib.suppress(PersistenceError):
            key = self._key(session)
            self.link.run_on(life, "unlocking", lambda on: on.execute(_UNLOCK, (key,)))
        with self._busy:
            if self._held.get(session) == life:
                del self._held[session]

    def _key(self, session: UUID) -> int:
        return lock_key(self.link.address, str(session))


class PostgresLog(SessionLog):
    """A log of rows; each append is one transaction, so that no line is ever torn.

    Args:
        writer: Who has the lock of the session.
        session: Whose log.
        log: The row of the log, None where nothing was appended yet.
        epoch: Which writer of the log this is; one whose connection broke is not the last one.
    """

    def __init__(self, writer: Writer, session: UUID, log: int | None, epoch: int) -> None:
        self.session = session
        self.where = f"{writer.link.address.where} session {session}"
        self._writer = writer
        self._log = log
        self._epoch = epoch
        self._life = writer.link.life
        self._is_closed = False
        self._is_broken = False
        self._busy = threading.RLock()

    @property
    def closed(self) -> bool:
        return self._is_closed

    def append(self, data: bytes, *, blobs: Collection[Blob] = (), durable: bool = False) -> None:
        kept = {blob.digest: blob.data for blob in blobs if blob.data is not None}
        with self._busy:
            if self._is_closed:
                raise RuntimeError(f"the log of {self.where} is closed; reopen it to write more")
            if self._is_broken:
                raise self._broken()
            if not data:
                return
            try:
                self._run("writing", lambda on: self._append(on, data, kept, durable=durable))
            except BaseException:
                self._is_broken = True
                raise

    def finish(self) -> None:
        with self._busy:
            if self._is_closed:
                return
            try:
                if self._is_broken:
                    raise self._broken()
                if self._log is not None:
                    self._run("finishing", self._finish)
            finally:
                self._release()

    def abandon(self) -> None:
        with self._busy:
            if not self._is_closed:
                self._release()

    def _append(
        self, on: psycopg.Connection, data: bytes, blobs: dict[str, bytes], *, durable: bool
    ) -> None:
        self._writer.link.set_durable(on, durable=durable)
        if self._log is not None and not blobs:
            self._grow(on, self._log, data)
            return
        with on.transaction():
            save_blobs(on, self._writer.link.address, blobs)
            log = self._log
            if log is None:
                log = begin_log(on, self.session)
            self._grow(on, log, data)
        self._log = log

    def _grow(self, on: psycopg.Connection, log: int, data: bytes) -> None:
        grown = on.execute(_APPEND, {"log": log, "epoch": self._epoch, "data": data})
        if grown.rowcount != 1:
            raise self._overtaken()

    def _finish(self, on: psycopg.Connection) -> None:
        self._writer.link.set_durable(on, durable=True)
        if on.execute(_FINISH, (self._log, self._epoch)).rowcount != 1:
            raise self._overtaken()

    def _run(self, what: str, work: Work[None]) -> None:
        self._writer.link.run_on(self._life, f"{what} session {self.session}", work)

    def _release(self) -> None:
        self._writer.unlock(self.session, self._life)
        self._is_closed = True

    def _broken(self) -> PersistenceError:
        return PersistenceError(
            f"the log of {self.where} stays unfinished: an earlier write to it failed; what was "
            "written before that can still be read"
        )

    def _overtaken(self) -> PersistenceError:
        return PersistenceError(
            f"the log of {self.where} was deleted, or gone on with, by somebody else meanwhile; "
            "what was written before can still be read"
        )


def begin_log(on: psycopg.Connection, session: UUID) -> int:
    """Insert the row of a new log, and return its id."""
    begun = on.execute(_BEGIN, (session,)).fetchone()
    assert begun is not None, "RETURNING gives the row that was inserted"
    return int(begun[0])


def save_blobs(on: psycopg.Connection, address: Address, blobs: dict[str, bytes]) -> None:
    """Write content that is not there yet, in a transaction that names it afterwards."""
    if not blobs:
        return
    # So that who removes what no log names waits until these lines do.
    on.execute(_KEEP_BLOBS, (lock_key(address, "blobs"),))
    known = {row[0] for row in on.execute(_KNOWN_BLOBS, (list(blobs),))}
    for digest in sorted(blobs.keys() - known):
        on.execute(_ADD_BLOB, (digest, blobs[digest]))
