"""Locks on persistent files and directories that end with their holder, and times of last use.

Beside the path `<id>` stands the file `<id>.use`. Each user holds a shared lock on it, and its
modification time is the last use. Whoever wants to remove the path takes the exclusive
lock, which it gets only where nobody uses it, and removes the file before letting go.
"""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from collections.abc import Generator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from rath._core.lazy_imports import lazy_modules

if TYPE_CHECKING:
    from rath._core import files
    from rath._core.files import FileLock, LockKind
else:
    (files,) = lazy_modules(__name__, "rath._core.files")


USE_SUFFIX = ".use"

WAIT_SECONDS = 10.0
"""How long a user waits for one who removes it, which is the time of a rename."""

_TOUCH_SECONDS = 60.0
"""How exact the time of last use is while something is in use; a guess."""

_OPENED = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0)


class Use:
    """One hold on a persistent path: nobody removes it before `end`, or the end of the process.

    One that is forgotten ends when it is collected.
    """

    __slots__ = ("__weakref__", "_end", "_file", "_held", "_touched_at")

    def __init__(self, file: Path, fd: int, lock: FileLock) -> None:
        self._file = file
        self._held = file, fd, lock, os.getpid()
        files.keep_from_children(fd)
        self._end = weakref.finalize(self, _let_go, *self._held)
        # At exit the runtime closes what is open; whatever is left then ends with the process.
        self._end.atexit = False
        _set_last_use(file)
        self._touched_at = time.monotonic()

    def touch(self) -> None:
        """Keep the time of this use, at most once a minute; cheap, never fails."""
        now = time.monotonic()
        if now - self._touched_at >= _TOUCH_SECONDS:
            self._touched_at = now
            _set_last_use(self._file)

    def end(self) -> None:
        """Let go, and keep the time; again it does nothing."""
        # Called, a finalizer does nothing any more once Python has begun to exit.
        if self._end.detach() is not None:
            _let_go(*self._held)


def begin(file: Path, *, timeout: float = WAIT_SECONDS) -> Use | None:
    """Hold that whose file of uses is `file`; None where somebody is removing it still.

    Args:
        file: Made where it is missing, with its directory.
        timeout: Seconds to wait for one who removes it.

    Raises:
        OSError: The file cannot be locked.
    """
    files.make_private_directory(file.parent)
    found = _locked(file, os.O_CREAT, "shared", timeout=timeout)
    return None if found is None else Use(file, *found)


@contextlib.contextmanager
def claimed(file: Path, *, used_at: float) -> Generator[bool]:
    """Try to get something for oneself; gives False where somebody uses it.

    Args:
        file: Its file of uses; made where it is missing.
        used_at: Time of last use that a file made here tells.
    """
    found: tuple[int, files.FileLock] | None = None
    with contextlib.suppress(FileExistsError):
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        os.utime(file, (used_at, used_at))
    with contextlib.suppress(FileNotFoundError):
        found = _locked(file, 0, "exclusive", timeout=0.0)
    try:
        yield found is not None
    finally:
        if found is not None:
            fd, lock = found
            lock.release()
            os.close(fd)


def is_used(file: Path) -> bool:
    """Tell whether somebody uses that whose file of uses is `file`; changes nothing."""
    try:
        found = _locked(file, 0, "exclusive", timeout=0.0)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    if found is None:
        return True
    fd, lock = found
    lock.release()
    os.close(fd)
    return False


def is_old(used_at: float | None, older_than: timedelta) -> bool:
    """Tell whether a time of last use, in seconds since 1970, is that long ago or longer."""
    return used_at is not None and used_at <= time.time() - older_than.total_seconds()


def forget_unused(root: Path, suffix: str) -> None:
    """Remove the files of uses in `root` that stand beside nothing called `<id><suffix>`."""
    for file in root.glob(f"*{USE_SUFFIX}"):
        path = file.with_suffix(suffix)
        if not path.exists():
            with contextlib.suppress(OSError), claimed(file, used_at=0.0) as is_free:
                if is_free and not path.exists():
                    file.unlink()


def use_file(path: Path) -> Path:
    """Return the file of uses of a directory or file that is named by a UUID.

    Raises:
        ValueError: It is not.
    """
    return path.with_name(f"{UUID(path.stem)}{USE_SUFFIX}")


def last_use(file: Path) -> float | None:
    """Return the time of last use, None where none was kept."""
    try:
        return file.lstat().st_mtime
    except FileNotFoundError:
        return None


def _locked(
    file: Path, flags: int, kind: LockKind, *, timeout: float
) -> tuple[int, files.FileLock] | None:
    """Return the open file and the lock on it, None where others hold one that excludes it."""
    while True:
        fd = os.open(file, _OPENED | flags, 0o600)
        with contextlib.ExitStack() as undo:
            undo.callback(os.close, fd)
            lock = files.FileLock(fd, kind=kind)
            if not lock.acquire(timeout=timeout):
                return None
            # Its holder may have removed the file meanwhile: then this is a lock on nothing.
            if _is_still(file, fd):
                undo.pop_all()
                return fd, lock
            lock.release()


def _is_still(file: Path, fd: int) -> bool:
    try:
        return os.path.samestat(file.lstat(), os.fstat(fd))
    except FileNotFoundError:
        return False


def _set_last_use(file: Path) -> None:
    now = time.time_ns()
    with contextlib.suppress(OSError):
        os.utime(file, ns=(now, now))


def _let_go(file: Path, fd: int, lock: FileLock, pid: int) -> None:
    # A forked child has a copy of the descriptor; the lock is its parent's.
    if pid == os.getpid():
        _set_last_use(file)
        lock.release()
        files.forget(fd)
    os.close(fd)
