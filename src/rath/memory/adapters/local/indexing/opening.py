"""Opening the index file of a store, and taking a damaged one away, among several processes."""

from __future__ import annotations

import os
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from rath._core.files import FileLock
from rath.memory.adapters.local.indexing.index import BUSY_SECONDS, IndexMismatch, NoteIndex

_LOCK_SUFFIX = ".lock"
_BESIDE = ("-wal", "-shm")


def open_index(path: Path, *, busy_seconds: float = BUSY_SECONDS) -> NoteIndex:
    """Open the index file, or make one; as `NoteIndex` does.

    Raises:
        sqlite3.Error: The file cannot be opened, written or believed.
        IndexMismatch: Something else stands there.
    """
    with _alone(path, busy_seconds):
        try:
            mode = os.stat(path).st_mode
        except OSError:
            # Those of an index that somebody deleted may still be in use by its processes.
            _remove(path, _BESIDE)
        else:
            # SQLite would wait for ever at a pipe.
            if not stat.S_ISREG(mode):
                raise IndexMismatch(f"{path} is no regular file")
        return NoteIndex(path, busy_seconds=busy_seconds)


def take_away(path: Path, identity: int | None, *, busy_seconds: float = BUSY_SECONDS) -> bool:
    """Delete the index file if it still is the one of that `identity`.

    Returns:
        Whether another can be opened or made in its place.
    """
    with _alone(path, busy_seconds):
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
    """Keep other processes from opening the index; goes on where no lock can be had."""
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
