"""Atomic writes of files, locks between processes, and descriptors that no forked child keeps."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import sys
import time
from pathlib import Path
from typing import Literal, Self

StrPath = str | os.PathLike[str]
LockKind = Literal["exclusive", "shared"]

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
_LOCK_POLL_SECONDS = 0.01
_BUSY = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)
_NO_DIRECTORY_SYNC = (errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.EACCES)
_NOT_IN_A_NAME = frozenset('/\\<>:"|?*') | frozenset(map(chr, range(32)))
_descriptors: set[int] = set()
"""Those whose end means something to others: a forked child must not keep them open."""


def atomic_write_bytes(path: StrPath, data: bytes, *, mode: int | None = None) -> None:
    """Write `data` to `path` so that a reader sees the old content or the new, never a part.

    The bytes go to a temporary file `.atomic_*.tmp` in the same directory, are forced to disk and
    then take the place of `path`; the temporary file is removed when anything fails. A symbolic
    link stays one: the file that it points to is replaced.

    Args:
        path: Target; its directory must exist.
        data: The whole new content.
        mode: Permission bits of the result. By default those of the file that is replaced, or
            what the umask allows for a new one.
    """
    target = Path(os.path.realpath(path))
    if mode is None:
        with contextlib.suppress(FileNotFoundError):
            mode = stat.S_IMODE(target.stat().st_mode)
    temporary = target.parent / f".atomic_{os.urandom(8).hex()}.tmp"
    # Opened without rights for others: what is meant to be private is never readable for a moment.
    fd = os.open(temporary, _NEW_FILE, 0o666 if mode is None else 0o600)
    try:
        with os.fdopen(fd, "wb") as handle:
            if mode is not None:
                temporary.chmod(mode)
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        _replace(temporary, target)
    except BaseException as exc:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(exc, OSError) and exc.filename is None:
            exc.filename = str(target)  # a full disk names none
        raise
    sync_directory(target.parent)


def atomic_write_text(
    path: StrPath,
    text: str,
    *,
    newline: bool = False,
    encoding: str = "utf-8",
    mode: int | None = None,
) -> None:
    """Write `text` to `path` like `atomic_write_bytes`; line ends are written as they are.

    Args:
        path: Target; its directory must exist.
        text: The whole new content.
        newline: Add a line feed at the end unless `text` already ends with one.
        encoding: Encoding of the file.
        mode: Permission bits of the result, as for `atomic_write_bytes`.
    """
    ended = f"{text}\n" if newline and not text.endswith("\n") else text
    atomic_write_bytes(path, ended.encode(encoding), mode=mode)


def atomic_write_json(
    path: StrPath,
    payload: object,
    *,
    indent: int | None = 2,
    sort_keys: bool = False,
    ensure_ascii: bool = False,
    mode: int | None = None,
) -> None:
    """Write `payload` as JSON with a final line feed; what is not JSON leaves `path` untouched.

    Raises:
        TypeError: `payload` holds something that JSON has no form for.
        ValueError: It holds a number that is not finite.
    """
    text = json.dumps(
        payload, indent=indent, sort_keys=sort_keys, ensure_ascii=ensure_ascii, allow_nan=False
    )
    atomic_write_text(path, text, newline=True, mode=mode)


def read_small_file(path: StrPath, *, max_bytes: int) -> bytes:
    """Return the content of a file that anybody may have put there.

    Raises:
        OSError: It cannot be read, holds more than `max_bytes`, or is a device or a pipe, which
            might never end.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    with Path(path).open("rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise OSError(errno.EFBIG, f"larger than {max_bytes} bytes", str(path))
    return data


def make_private_directory(directory: StrPath) -> None:
    """Create a directory, and those above it that are missing, readable by their owner alone."""
    path = Path(directory)
    missing = [each for each in (path, *path.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))


def safe_child(root: StrPath, name: str) -> Path:
    """Return `root / name` for a name that is one plain path component.

    Raises:
        ValueError: `name` is empty, is `.` or `..`, or holds a separator or a character that some
            file system refuses.
    """
    if name in {"", ".", ".."} or not _NOT_IN_A_NAME.isdisjoint(name):
        raise ValueError(f"{name!r} cannot name a file; expected one plain path component")
    return Path(root) / name


class FileLock:
    """An advisory lock on a file, respected by everyone who asks for it.

    It holds between processes and between two locks of one process, and ends with the process.
    The file itself stays: deleting a lock file lets two holders in.

    Args:
        target: Path of the file, created with mode 0600 when it is missing, or the descriptor of
            an open file, which the lock never closes.
        kind: "exclusive" for one holder; "shared" for any number of them and no exclusive one.
            Windows has no shared locks: there each is exclusive.
    """

    __slots__ = ("_fd", "_kind", "_owns_fd", "_target", "held")

    held: bool
    """Whether this object has the lock now."""

    def __init__(self, target: StrPath | int, *, kind: LockKind = "exclusive") -> None:
        self._target = target
        self._kind: LockKind = kind
        self._fd = -1
        self._owns_fd = not isinstance(target, int)
        self.held = False

    def acquire(self, *, timeout: float | None = 0.0) -> bool:
        """Take the lock and return whether that worked.

        Args:
            timeout: Seconds to wait for another holder; 0 does not wait, None waits for ever.

        Raises:
            RuntimeError: This object already has the lock.
        """
        if self.held:
            raise RuntimeError(f"the lock on {self._target!r} is already held; release it first")
        self._open()
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            # Neither flock nor msvcrt can wait for a limited time, hence the polling.
            while not (locked := _try_lock(self._fd, self._kind)):
                if deadline is not None and time.monotonic() >= deadline:
                    break
                time.sleep(_LOCK_POLL_SECONDS)
            self.held = locked
        finally:
            if not self.held:
                self._close()
        return locked

    def release(self) -> None:
        """Give the lock back; without it nothing happens."""
        if self.held:
            self.held = False
            _unlock(self._fd)
            self._close()

    def __enter__(self) -> Self:
        self.acquire(timeout=None)
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _open(self) -> None:
        if isinstance(self._target, int):
            self._fd = self._target
        else:
            self._fd = os.open(self._target, os.O_RDWR | os.O_CREAT, 0o600)

    def _close(self) -> None:
        if self._owns_fd:
            os.close(self._fd)
        self._fd = -1


if sys.platform == "win32":
    import msvcrt

    _REPLACE_ATTEMPTS = 10
    _REPLACE_WAIT_SECONDS = 0.02
    # Windows keeps others from reading a locked byte, so it is one that no file reaches.
    _LOCKED_BYTE = 0x7FFF_FFF0

    def _try_lock(fd: int, kind: LockKind) -> bool:
        os.lseek(fd, _LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except OSError as exc:
            if exc.errno in _BUSY:
                return False
            raise
        return True

    def _unlock(fd: int) -> None:
        os.lseek(fd, _LOCKED_BYTE, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_UNLCK, 1)

    def _replace(source: Path, target: Path) -> None:
        # Another program that has the target open, a virus scanner say, makes this fail for a
        # moment.
        for attempt in range(1, _REPLACE_ATTEMPTS + 1):
            try:
                source.replace(target)
            except PermissionError:
                if attempt == _REPLACE_ATTEMPTS:
                    raise
                time.sleep(_REPLACE_WAIT_SECONDS * attempt)
            else:
                return

    def sync_directory(directory: StrPath) -> None:
        """Do nothing: Windows has no call that forces the names in a directory to disk."""

else:
    import fcntl

    def _try_lock(fd: int, kind: LockKind) -> bool:
        wanted = fcntl.LOCK_SH if kind == "shared" else fcntl.LOCK_EX
        try:
            fcntl.flock(fd, wanted | fcntl.LOCK_NB)
        except OSError as exc:
            if exc.errno in _BUSY:
                return False
            raise
        return True

    def _unlock(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_UN)

    def _replace(source: Path, target: Path) -> None:
        source.replace(target)

    def sync_directory(directory: StrPath) -> None:
        """Force the names in `directory` to disk, where the file system can do that."""
        try:
            fd = os.open(directory, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as exc:
            if exc.errno not in _NO_DIRECTORY_SYNC:
                raise


def lock_holder(fd: int) -> str:
    """Return who has locked the file behind `fd`, for messages; "" where that cannot be told.

    Only Linux tells it, and only of processes of this machine.
    """
    status = os.fstat(fd)
    name = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    try:
        locks = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return ""
    # Its number, class, mode and kind, then the process, and the file.
    holders = (fields[4] for fields in map(str.split, locks) if fields[5:6] == [name])
    pid = next(holders, "")
    return f"process {pid} of this machine" if pid and pid != "-1" else ""


def keep_from_children(fd: int) -> None:
    """Let a forked child have nothing behind `fd`, until `forget` is called."""
    _descriptors.add(fd)


def forget(fd: int) -> None:
    """Tell that `fd` is closed now: its number may soon stand for another file."""
    _descriptors.discard(fd)


def _drop_in_child() -> None:
    """Put an empty file in the place of each, so that closing it again harms nobody."""
    if _descriptors:
        empty = os.open(os.devnull, os.O_RDWR)
        for fd in _descriptors:
            os.dup2(empty, fd, inheritable=False)
        os.close(empty)
        _descriptors.clear()


if hasattr(os, "register_at_fork"):  # pragma: no branch  # Windows has no fork
    os.register_at_fork(after_in_child=_drop_in_child)
