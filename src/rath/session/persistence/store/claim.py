"""The lock on the unfinished file of a log: who has it alone writes, moves or deletes the log."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Generator
from pathlib import Path

from rath._core.files import FileLock
from rath.errors import PersistenceError
from rath.session.persistence.paths import partial_beside

_APPEND = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)
_EXISTING = _APPEND & ~os.O_CREAT

_WAIT_SECONDS = 0.2
"""Long enough for who only looks whether somebody writes, or adds a late line; a guess."""


class Claim:
    """A file that is open for appending, and locked.

    Args:
        path: Where the file stands.
        fd: The open file; the claim closes it.
        lock: Held on it.
    """

    __slots__ = ("_lock", "fd", "path")

    def __init__(self, path: Path, fd: int, lock: FileLock) -> None:
        self.path = path
        self.fd = fd
        self._lock = lock

    @property
    def size(self) -> int:
        """How many bytes the file has."""
        return os.fstat(self.fd).st_size

    @property
    def is_released(self) -> bool:
        """Whether somebody else may have the file now."""
        return self.fd < 0

    def is_still_there(self) -> bool:
        """Tell whether the open file still has its name; it may have been renamed or removed."""
        return _is_still_at(self.fd, self.path)

    def release(self) -> None:
        """Let go of the file; one that holds nothing is removed."""
        if self.is_released:
            return
        with contextlib.suppress(OSError):
            if sys.platform != "win32" and self.size == 0 and self.is_still_there():
                self.path.unlink()
        self._lock.release()
        os.close(self.fd)
        self.fd = -1
        if sys.platform == "win32":  # What is open cannot be removed there.
            with contextlib.suppress(OSError):
                if self.path.stat().st_size == 0:
                    self.path.unlink()

    def rename(self, target: Path) -> None:
        """Give the file another name, that of a file there included, and let go of it.

        Raises:
            OSError: It cannot be renamed.
        """
        if sys.platform == "win32":  # What is open cannot be renamed there.
            self.release()
        # Elsewhere the lock is kept until the file has its name, so that no second writer finds
        # the file free and is renamed along with it.
        self.path.replace(target)
        self.release()


@contextlib.contextmanager
def claimed(path: Path) -> Generator[Claim]:
    """Hold the unfinished file of the log whose finished file is `path` while the block runs.

    Raises:
        PersistenceError: Somebody else has it, or it cannot be opened.
    """
    claim = claim_partial(path)
    try:
        yield claim
    finally:
        claim.release()


def claim_partial(path: Path) -> Claim:
    """Return the unfinished file of the log whose finished file is `path`; made where missing.

    Raises:
        PersistenceError: Somebody else has it, or it cannot be opened.
    """
    partial = partial_beside(path)
    try:
        while True:
            claim = _locked(partial, _APPEND)
            if claim.is_still_there():
                return claim
            claim.release()
    except OSError as exc:
        raise PersistenceError(f"{partial} cannot be written: {exc.strerror or exc}") from exc


def claim_finished(path: Path) -> Claim | None:
    """Return the finished file of a log, None where there is none any more.

    Raises:
        PersistenceError: Somebody else has it, or it cannot be opened.
    """
    try:
        while True:
            claim = _locked(path, _EXISTING)
            if claim.is_still_there():
                return claim
            claim.release()
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise PersistenceError(f"{path} cannot be written: {exc.strerror or exc}") from exc


def is_claimed(path: Path) -> bool:
    """Tell whether somebody has the unfinished file of the log whose finished file is `path`."""
    partial = partial_beside(path)
    try:
        fd = os.open(partial, os.O_RDONLY)
    except FileNotFoundError:
        return False
    except OSError as exc:
        raise PersistenceError(f"{partial} cannot be read: {exc.strerror or exc}") from exc
    try:
        lock = FileLock(fd, kind="shared")
        is_free = lock.acquire()
        lock.release()
        return not is_free
    finally:
        os.close(fd)


def _locked(path: Path, flags: int) -> Claim:
    fd = os.open(path, flags, 0o600)
    try:
        lock = FileLock(fd)
        if not lock.acquire(timeout=_WAIT_SECONDS):
            raise PersistenceError(
                f"{path} is being written by another process or writer; wait for it to end"
            )
    except BaseException:
        os.close(fd)
        raise
    return Claim(path, fd, lock)


def _is_still_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False
