"""A store whose logs are rows of one SQLite database; written against the store plane alone."""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
import threading
import time
from collections.abc import Collection, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import UUID

from rath.errors import PersistenceError
from rath.session.persistence.store import Blob, SessionLog, SessionStore, StoredLog

_TABLES = """
CREATE TABLE IF NOT EXISTS logs (
    id INTEGER PRIMARY KEY, session TEXT NOT NULL, changes INTEGER NOT NULL, data BLOB NOT NULL,
    finished INTEGER NOT NULL, deleted INTEGER NOT NULL DEFAULT 0);
CREATE UNIQUE INDEX IF NOT EXISTS live ON logs (session) WHERE NOT deleted;
CREATE TABLE IF NOT EXISTS asides (data BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS blobs (digest TEXT PRIMARY KEY, data BLOB NOT NULL);
"""
_STAMPS = "SELECT session, id, changes FROM logs WHERE NOT deleted AND data <> x''"
_LIVE = "session = ? AND NOT deleted"
_SECONDS = 30.0
_FOLLOW_SECONDS = 0.02


def sqlite_store(url: str) -> SqliteStore:
    """Return the store in the database file of `sqlite:///path`."""
    return SqliteStore(Path(unquote(urlsplit(url).path)))


class SqliteStore(SessionStore):
    """Logs in one file; a writer holds an exclusive transaction in a small database of its own."""

    name = "sqlite"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.where = str(path)
        self.busy = threading.RLock()
        self.connection: sqlite3.Connection | None = None

    def create(self, session: UUID) -> SessionLog:
        lock = self.lock(session)
        with self.changing() as on:
            on.execute(f"DELETE FROM logs WHERE {_LIVE} AND data = x''", (str(session),))
            found = self.row(on, session)
        if found is not None:
            lock.close()
            raise PersistenceError(f"{self.where}: a log of {session} is there; reopen it")
        return SqliteLog(self, session, lock)

    def reopen(self, session: UUID, keep: int, *, size: int | None = None) -> SessionLog:
        lock = self.lock(session)
        try:
            with self.changing() as on:
                found = self.row(on, session)
                if found is None:
                    raise PersistenceError(f"{self.where}: there is no log of {session}")
                data = bytes(found[0])
                if len(data) < keep or size not in {None, len(data)}:
                    raise PersistenceError(
                        f"{self.where}: the log of {session} has {len(data)} bytes, not as many "
                        "as when it was read; load it again"
                    )
                on.execute("INSERT INTO asides VALUES (?)", (data[keep:],))
                on.execute(
                    f"UPDATE logs SET data = ?, finished = 0, changes = changes + 1 WHERE {_LIVE}",
                    (data[:keep], str(session)),
                )
        except BaseException:
            lock.close()
            raise
        return SqliteLog(self, session, lock)

    def append_to_finished(
        self, session: UUID, size: int, data: bytes, *, blobs: Collection[Blob] = ()
    ) -> bool:
        with self.changing() as on:
            found = self.row(on, session)
            if found is None or not found[1]:
                raise PersistenceError(f"{self.where}: there is no finished log of {session}")
            if len(found[0]) != size:
                return False
            self.add(on, session, data, blobs)
            return True

    def read(self, session: UUID) -> StoredLog | None:
        with self.changing() as on:
            found = self.row(on, session)
        if found is None or not found[0]:
            return None
        return StoredLog(session, bytes(found[0]), bool(found[1]), f"{self.where}#{session}")

    def stamps(self) -> Mapping[UUID, str]:
        with self.changing() as on:
            rows = on.execute(_STAMPS).fetchall()
        return {UUID(session): f"{key}-{changes}" for session, key, changes in rows}

    def is_being_written(self, session: UUID) -> bool:
        if not self.lock_file(session).exists():
            return False
        try:
            self.lock(session).close()
        except PersistenceError:
            return True
        return False

    def delete(self, session: UUID) -> bool:
        with contextlib.closing(self.lock(session)), self.changing() as on:
            last = "(SELECT max(deleted) + 1 FROM logs)"
            changed = on.execute(f"UPDATE logs SET deleted = {last} WHERE {_LIVE}", (str(session),))
            return changed.rowcount > 0

    def restore(self, session: UUID) -> bool:
        with contextlib.closing(self.lock(session)), self.changing() as on:
            last = "SELECT id FROM logs WHERE session = ? AND deleted ORDER BY deleted DESC LIMIT 1"
            found = on.execute(last, (str(session),)).fetchone()
            if found is None:
                return False
            if self.row(on, session) is not None:
                raise PersistenceError(f"{self.where}: a log of {session} is there; delete it")
            on.execute("UPDATE logs SET deleted = 0 WHERE id = ?", found)
            return True

    def empty_trash(self) -> int:
        with self.changing() as on:
            n_removed = on.execute("DELETE FROM logs WHERE deleted").rowcount
            texts = [bytes(row[0]) for row in on.execute("SELECT data FROM logs").fetchall()]
            for (digest,) in on.execute("SELECT digest FROM blobs").fetchall():
                if not any(digest.encode() in text for text in texts):
                    on.execute("DELETE FROM blobs WHERE digest = ?", (digest,))
            return n_removed

    def blob(self, digest: str) -> bytes | None:
        with self.changing() as on:
            row = on.execute("SELECT data FROM blobs WHERE digest = ?", (digest,)).fetchone()
        if row is None or hashlib.sha256(row[0]).hexdigest() != digest:
            return None
        return bytes(row[0])

    def follow(self, session: UUID, start: int) -> Iterator[bytes]:
        while True:
            is_open = self.is_being_written(session)
            log = self.read(session)
            data = b"" if log is None else log.data
            if len(data) < start:
                raise PersistenceError(f"{self.where}: the log of {session} was cut meanwhile")
            if len(data) > start:
                yield data[start:]
                start = len(data)
            elif not is_open:
                return
            else:
                time.sleep(_FOLLOW_SECONDS)

    def close(self) -> None:
        with self.busy:
            if self.connection is not None:
                self.connection.close()
                self.connection = None

    def row(self, on: sqlite3.Connection, session: UUID) -> Any:
        """Return content and state of a log, None where there is none."""
        found = on.execute(f"SELECT data, finished FROM logs WHERE {_LIVE}", (str(session),))
        return found.fetchone()

    def add(
        self, on: sqlite3.Connection, session: UUID, data: bytes, blobs: Collection[Blob]
    ) -> None:
        """Write lines and the content that they name."""
        for each in blobs:
            if each.data is not None:
                on.execute("REPLACE INTO blobs VALUES (?, ?)", (each.digest, each.data))
        on.execute(
            f"UPDATE logs SET data = CAST(data || ? AS BLOB), changes = changes + 1 WHERE {_LIVE}",
            (data, str(session)),
        )

    @contextlib.contextmanager
    def changing(self) -> Generator[sqlite3.Connection]:
        """Run a block as one transaction."""
        with self.busy:
            try:
                if self.connection is None:
                    self.path.parent.mkdir(parents=True, exist_ok=True)
                    self.connection = sqlite3.connect(
                        self.path, _SECONDS, isolation_level=None, check_same_thread=False
                    )
                    self.connection.executescript(_TABLES)
                self.connection.execute("BEGIN IMMEDIATE")
                with self.connection:
                    yield self.connection
            except sqlite3.Error as exc:
                raise PersistenceError(f"{self.where} cannot be used: {exc}") from exc

    def lock_file(self, session: UUID) -> Path:
        """Return the database that the writer of a session holds."""
        return self.path.parent / "locks" / f"{session}.db"

    def lock(self, session: UUID) -> sqlite3.Connection:
        """Return the lock on a session; it ends with its connection, and so with the process."""
        file = self.lock_file(session)
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = sqlite3.connect(file, 0, isolation_level=None, check_same_thread=False)
        try:
            lock.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as exc:
            lock.close()
            raise PersistenceError(f"{self.where}: the log of {session} is being written") from exc
        return lock


class SqliteLog(SessionLog):
    """A log that is appended to, one transaction for each append."""

    def __init__(self, store: SqliteStore, session: UUID, lock: sqlite3.Connection) -> None:
        self.store = store
        self.session = session
        self.where = f"{store.where}#{session}"
        self.writer: sqlite3.Connection | None = lock
        self.is_broken = False

    @property
    def closed(self) -> bool:
        return self.writer is None

    def append(self, data: bytes, *, blobs: Collection[Blob] = (), durable: bool = False) -> None:
        del durable  # SQLite forces each transaction to disk.
        if self.closed:
            raise RuntimeError(f"the log {self.where} is closed; reopen it")
        if self.is_broken:
            raise PersistenceError(f"{self.where}: an earlier write failed")
        self.is_broken = True
        with self.store.changing() as on:
            if self.store.row(on, self.session) is None:
                on.execute(
                    "INSERT INTO logs (session, changes, data, finished) VALUES (?, 0, ?, 0)",
                    (str(self.session), b""),
                )
            self.store.add(on, self.session, data, blobs)
        self.is_broken = False

    def finish(self) -> None:
        if self.closed:
            return
        try:
            if self.is_broken:
                raise PersistenceError(f"{self.where}: an earlier write failed")
            with self.store.changing() as on:
                on.execute(
                    f"UPDATE logs SET finished = 1, changes = changes + 1 WHERE {_LIVE}",
                    (str(self.session),),
                )
        finally:
            self.abandon()

    def abandon(self) -> None:
        writer, self.writer = self.writer, None
        if writer is not None:
            writer.close()
