"""Files of SQLite that hold only what can be derived again: opened and taken away by processes."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar

from rath._core.files import FileLock

_LOCK_SUFFIX = ".lock"
_BESIDE = ("-wal", "-shm")


class IndexMismatch(Exception):
    """A file is of another version, or no index of ours."""


class DerivedDatabase:
    """One connection to an index; callers see to it that one thread uses it at a time.

    Args:
        path: The file, made when it is missing; None keeps all in memory.
        busy_seconds: How long to wait for a writer in another process.

    Raises:
        sqlite3.Error: The file cannot be opened, written or believed.
        IndexMismatch: The file holds something else.
    """

    schema: ClassVar[str]
    """Statements, each of which ends with its line."""

    application_id: ClassVar[int]
    version: ClassVar[int]
    """Counts changes of what stands in it; an index of another version is made again."""

    checkpoint_pages: ClassVar[int] = 1000
    """Pages after which SQLite writes to the file itself; this is its own default."""

    def __init__(self, path: Path | None, *, busy_seconds: float) -> None:
        self.path = path
        self._connection = sqlite3.connect(
            ":memory:" if path is None else path,
            timeout=busy_seconds,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            self._set_up()
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    @contextmanager
    def writing(self) -> Generator[None]:
        """Hold the index for one writer among all threads and processes; all or nothing."""
        self.begin()
        try:
            yield
        except BaseException:
            # What failed first is what is told.
            with suppress(sqlite3.Error):
                self.roll_back()
            raise
        self.commit()

    def begin(self) -> None:
        """Wait for other writers, at most `busy_seconds`, and keep them out until the end."""
        self._connection.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """End what `begin` began, with its changes."""
        self._connection.execute("COMMIT")

    def roll_back(self) -> None:
        """End what `begin` began, without its changes; SQLite itself may have ended it."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def _set_up(self) -> None:
        run = self._connection.execute
        # The busy timeout also covers the change to WAL and the schema, where processes meet that
        # open a new index at the same time.
        run("PRAGMA journal_mode = WAL")
        # Files are the truth; what a power cut takes from the index is read again from them.
        run("PRAGMA synchronous = NORMAL")
        run(f"PRAGMA wal_autocheckpoint = {self.checkpoint_pages}")
        if self._identity() == (0, 0):
            with self.writing():
                if self._identity() == (0, 0):
                    if run("SELECT 1 FROM sqlite_schema").fetchone():
                        raise IndexMismatch(f"{self.path} is no index")
                    # `executescript` would commit the open transaction first.
                    for statement in filter(str.strip, self.schema.split(";\n")):
                        run(statement)
                    run(f"PRAGMA application_id = {self.application_id}")
                    run(f"PRAGMA user_version = {self.version}")
        if self._identity() != (self.application_id, self.version):
            raise IndexMismatch(f"{self.path} is no index of version {self.version}")

    def _identity(self) -> tuple[int, int]:
        (application,) = self._connection.execute("PRAGMA application_id").fetchone()
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        return application, version


def files_of(path: Path) -> tuple[Path, ...]:
    """Return the names of all files that belong to a database, there or not."""
    return tuple(path.with_name(path.name + suffix) for suffix in ("", *_BESIDE, _LOCK_SUFFIX))


@contextmanager
def opening(path: Path, *, seconds: float) -> Generator[None]:
    """Keep other processes from opening or removing the file; goes on where no lock can be had.

    Args:
        path: Where it is, or will be made.
        seconds: How long to wait for another process that opens it.

    Raises:
        FileExistsError: Something stands there that is no regular file.
    """
    with _alone(path, seconds):
        try:
            mode = os.stat(path).st_mode
        except OSError:
            # Those of a file that somebody deleted may still be in use by its processes.
            _remove(path, _BESIDE)
        else:
            # SQLite would wait for ever at a pipe.
            if not stat.S_ISREG(mode):
                raise FileExistsError(f"{path} is no regular file")
        yield


def take_away(path: Path, identity: int | None, *, seconds: float) -> bool:
    """Delete the file if it still is the one of that `identity`.

    Returns:
        Whether another can be opened or made in its place.
    """
    with _alone(path, seconds):
        if identity is not None and identity_of(path) != identity:
            return True
        return _remove(path, ("", *_BESIDE))


def identity_of(path: Path) -> int | None:
    """Return the number by which a file is told from others of its name; None without one."""
    try:
        return os.stat(path).st_ino
    except OSError:
        return None


@contextmanager
def _alone(path: Path, seconds: float) -> Generator[None]:
    lock = FileLock(path.with_name(path.name + _LOCK_SUFFIX))
    with suppress(OSError):
        lock.acquire(timeout=seconds)
    try:
        yield
    finally:
        lock.release()


def _remove(path: Path, suffixes: tuple[str, ...]) -> bool:
    try:
        for suffix in suffixes:
            path.with_name(path.name + suffix).unlink(missing_ok=True)
    except OSError:
        return False
    return True
