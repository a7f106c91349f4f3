"""Files of SQLite that hold only what can be derived again: opened and taken away by processes."""

from __future__ import annotations

import os
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from rath._core.files import FileLock

_LOCK_SUFFIX = ".lock"
_BESIDE = ("-wal", "-shm")


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
