"""Who uses a sandbox that outlives a process: locks that end with their holder, and times.

Beside a sandbox `<id>` stands the file `<id>.use`. Each user of the sandbox holds a shared lock on
it, and its modification time is the last use. Whoever wants to remove the sandbox takes the
exclusive lock, which it gets only where nobody uses it, and removes the file before letting go.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import time
import weakref
from collections.abc import Generator
from datetime import timedelta
from pathlib import Path
from uuid import UUID

from rath._core.files import FileLock, LockKind, make_private_directory
from rath.backend.inherited import forget, keep_from_children
from rath.errors import BackendError

SANDBOXES_DIR_NAME = "sandboxes"
LOCAL_SUBDIR = "local"
USE_SUFFIX = ".use"

_TOUCH_SECONDS = 60.0
"""How exact the time of last use is while a sandbox is in use; a guess."""

_WAIT_SECONDS = 10.0
"""How long a user waits for one who removes the sandbox, which is the time of a rename."""

_OPENED = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0)
_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)

_logger = logging.getLogger(__name__)


class Use:
    """One user's hold on a sandbox: nobody removes it before `end`, or the end of the process.

    One that is forgotten ends when it is collected.
    """

    __slots__ = ("__weakref__", "_end", "_file", "_held", "_touched_at")

    def __init__(self, file: Path, fd: int, lock: FileLock) -> None:
        self._file = file
        self._held = file, fd, lock, os.getpid()
        keep_from_children(fd)
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


def begin_use(file: Path) -> Use:
    """Hold the sandbox whose file of uses is `file`; waits a moment for one who removes it.

    Raises:
        BackendError: It is still being removed after that, or the file cannot be locked.
    """
    try:
        return _begin(file)
    except OSError as exc:
        raise _lock_error(file, exc) from exc


def begin_use_of(directory: str) -> Use | None:
    """Hold the kept sandbox that `directory` is, or is in; None where it is in none.

    `~` at its begin is a home directory.

    Raises:
        BackendError: See `begin_use`.
    """
    sandbox = _sandbox_around(directory)
    if sandbox is None:
        return None
    file = use_file(sandbox)
    try:
        return _begin(file)
    except OSError as exc:
        if exc.errno not in _NOT_WRITABLE:
            raise _lock_error(file, exc) from exc
        # Who may not write beside a sandbox cannot keep its owner from removing it.
        _logger.warning("%s is used without a lock: %s", sandbox, exc)
        return None


def try_use_of(directory: str) -> Use | None:
    """Hold the kept sandbox that `directory`, a real path, is or is in, if that is possible now.

    None where it is in none, or where somebody removes it; never waits.
    """
    sandbox = _kept_above(Path(directory))
    if sandbox is None:
        return None
    with contextlib.suppress(OSError, BackendError):
        return _begin(use_file(sandbox), 0.0)
    return None


@contextlib.contextmanager
def claimed(file: Path, *, used_at: float) -> Generator[bool]:
    """Try to get a sandbox for oneself; gives False where somebody uses it.

    Args:
        file: Its file of uses; made where it is missing.
        used_at: Time of last use that a file made here tells.
    """
    found: tuple[int, FileLock] | None = None
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
    """Tell whether somebody uses the sandbox whose file of uses is `file`; changes nothing."""
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


def in_use_error(sandbox: Path) -> BackendError:
    """Return the error of removing a sandbox that somebody uses."""
    return BackendError(
        f"the sandbox {sandbox.stem!r} is in use, by this program or another one; close the "
        "sessions that are placed on it, then try again"
    )


def forget_unused(root: Path, suffix: str) -> None:
    """Remove the files of uses in `root` that stand beside no sandbox `<id><suffix>`."""
    for file in root.glob(f"*{USE_SUFFIX}"):
        sandbox = file.with_suffix(suffix)
        if not sandbox.exists():
            with contextlib.suppress(OSError), claimed(file, used_at=0.0) as is_free:
                if is_free and not sandbox.exists():
                    file.unlink()


def use_file(sandbox: Path) -> Path:
    """Return the file of uses of a sandbox's directory or index file."""
    return sandbox.with_name(f"{UUID(sandbox.stem)}{USE_SUFFIX}")


def last_use(file: Path) -> float | None:
    """Return the time of last use, None where none was kept."""
    try:
        return file.lstat().st_mtime
    except FileNotFoundError:
        return None


def _begin(file: Path, timeout: float = _WAIT_SECONDS) -> Use:
    make_private_directory(file.parent)
    found = _locked(file, os.O_CREAT, "shared", timeout=timeout)
    if found is None:
        raise BackendError(
            f"the sandbox {file.stem!r} is being removed by another program; try again, or take "
            "another one"
        )
    return Use(file, *found)


def _lock_error(file: Path, exc: OSError) -> BackendError:
    return BackendError(
        f"the sandbox {file.stem!r} cannot be marked as in use by {str(file)!r}: "
        f"{exc.strerror or exc}"
    )


def _sandbox_around(directory: str) -> Path | None:
    return _kept_above(Path(os.path.realpath(os.path.expanduser(directory))))


def _kept_above(real: Path) -> Path | None:
    for path in (real, *real.parents):
        above = path.parent
        if above.name == LOCAL_SUBDIR and above.parent.name == SANDBOXES_DIR_NAME:
            with contextlib.suppress(ValueError):
                UUID(path.name)
                return path
    return None


def _locked(
    file: Path, flags: int, kind: LockKind, *, timeout: float
) -> tuple[int, FileLock] | None:
    """Return the open file and the lock on it, None where others hold one that excludes it."""
    while True:
        fd = os.open(file, _OPENED | flags, 0o600)
        with contextlib.ExitStack() as undo:
            undo.callback(os.close, fd)
            lock = FileLock(fd, kind=kind)
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
        forget(fd)
    os.close(fd)
