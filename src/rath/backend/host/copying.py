"""Whole trees copied: blocks are shared where the file system can do that."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import sys
from collections.abc import Iterator
from typing import Literal

from rath.backend.host.temporaries import is_temporary

CopyMethod = Literal["reflink", "copy"]

_SOURCE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_TARGET = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_FICLONE = 0x40049409
"""`_IOW(0x94, 9, int)` of linux/fs.h: the target shares the blocks of the source."""

_BUFFER_BYTES = 1 << 20
_NO_CLONE = (errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EPERM)


MAX_DEPTH = 256
"""How deep directories may be nested: two descriptors are held for each level; a guess."""


class CopyFailed(Exception):
    """Files of a workspace could not be copied; says which and why."""

    def __init__(self, path: str, reason: str | OSError) -> None:
        self.path = path
        self.reason = reason.strerror or str(reason) if isinstance(reason, OSError) else reason
        super().__init__(f"{path!r} cannot be copied: {self.reason}")


def copy_tree(source: str, target: str) -> CopyMethod:
    """Copy what the directory `source` holds into `target`, which is made; blocks on the disk.

    Modes, times and symbolic links are kept, the owner too where this process may give files away.
    Links stay as they are and are never followed. Hard links become files of their own. Pipes,
    sockets and devices are left out, and so is `target`'s own surroundings where it lies inside
    `source`. What disappears meanwhile counts as not there.

    Returns:
        Whether all content shares its blocks with the source.

    Raises:
        CopyFailed: An entry cannot be read or written; what was copied until then is left.
    """
    try:
        os.mkdir(target, 0o700)
        around = os.stat(os.path.dirname(os.path.dirname(target)))
        copier = _Copier((around.st_dev, around.st_ino))
        reading = os.open(source, _DIRECTORY)
        try:
            writing = os.open(target, _DIRECTORY)
            try:
                copier.copy_directory(reading, writing, "", 0)
            finally:
                os.close(writing)
        finally:
            os.close(reading)
    except OSError as exc:
        raise CopyFailed(source, exc) from exc
    return "reflink" if copier.is_cloning else "copy"


class _Copier:
    """Copies one tree; holds one pair of open directories for each level of it."""

    def __init__(self, left_out: tuple[int, int]) -> None:
        self._left_out = left_out
        self._own = (os.geteuid(), os.getegid())
        self._buffer = bytearray(_BUFFER_BYTES)
        self.is_cloning = sys.platform == "linux"

    def copy_directory(self, source: int, target: int, path: str, depth: int) -> None:
        """Copy all entries of one open directory into another, then its mode and times."""
        with os.scandir(source) as scan:
            names = [
                (entry.name, entry.is_dir(follow_symlinks=False))
                for entry in scan
                if not is_temporary(entry.name)
            ]
        for name, is_directory in names:
            below = f"{path}/{name}" if path else name
            try:
                with contextlib.suppress(FileNotFoundError):
                    if is_directory:
                        self._copy_below(source, target, name, below, depth)
                    else:
                        self._copy_entry(source, target, name)
            except OSError as exc:
                raise CopyFailed(below, exc) from exc
        self._keep_metadata(target, os.fstat(source))

    def _copy_below(self, source: int, target: int, name: str, path: str, depth: int) -> None:
        if depth == MAX_DEPTH:
            raise OSError(errno.ENAMETOOLONG, f"directories are nested over {MAX_DEPTH} deep")
        inner = os.open(name, _DIRECTORY, dir_fd=source)
        try:
            state = os.fstat(inner)
            if (state.st_dev, state.st_ino) == self._left_out:
                return
            os.mkdir(name, 0o700, dir_fd=target)
            made = os.open(name, _DIRECTORY, dir_fd=target)
            try:
                self.copy_directory(inner, made, path, depth + 1)
            finally:
                os.close(made)
        finally:
            os.close(inner)

    def _copy_entry(self, source: int, target: int, name: str) -> None:
        state = os.stat(name, dir_fd=source, follow_symlinks=False)
        if stat.S_ISREG(state.st_mode):
            self._copy_file(source, target, name)
        elif stat.S_ISLNK(state.st_mode):
            os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
            if self._is_foreign(state):
                with contextlib.suppress(PermissionError):
                    os.chown(name, state.st_uid, state.st_gid, dir_fd=target, follow_symlinks=False)
            times = (state.st_atime_ns, state.st_mtime_ns)
            os.utime(name, ns=times, dir_fd=target, follow_symlinks=False)

    def _copy_file(self, source: int, target: int, name: str) -> None:
        reading = os.open(name, _SOURCE, dir_fd=source)
        try:
            state = os.fstat(reading)
            if not stat.S_ISREG(state.st_mode):
                return
            writing = os.open(name, _TARGET, 0o600, dir_fd=target)
            try:
                if not self._clone(reading, writing):
                    self._copy_content(reading, writing, state)
                self._keep_metadata(writing, state)
            finally:
                os.close(writing)
        finally:
            os.close(reading)

    def _clone(self, reading: int, writing: int) -> bool:
        if self.is_cloning:
            try:
                fcntl.ioctl(writing, _FICLONE, reading)
            except OSError as exc:
                if exc.errno not in _NO_CLONE:
                    raise
                self.is_cloning = False
        return self.is_cloning

    def _copy_content(self, reading: int, writing: int, state: os.stat_result) -> None:
        if state.st_size <= _BUFFER_BYTES:
            n_bytes = os.readv(reading, [self._buffer])
            while n_bytes:
                _write_all(writing, memoryview(self._buffer)[:n_bytes])
                n_bytes = os.readv(reading, [self._buffer])
            return
        for start, end in _filled(reading, state):
            _copy_range(reading, writing, start, end)
        os.ftruncate(writing, state.st_size)

    def _keep_metadata(self, fd: int, state: os.stat_result) -> None:
        if self._is_foreign(state):
            with contextlib.suppress(PermissionError):
                os.fchown(fd, state.st_uid, state.st_gid)
        os.fchmod(fd, stat.S_IMODE(state.st_mode))
        os.utime(fd, ns=(state.st_atime_ns, state.st_mtime_ns))

    def _is_foreign(self, state: os.stat_result) -> bool:
        return (state.st_uid, state.st_gid) != self._own


def _write_all(fd: int, data: memoryview) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _filled(fd: int, state: os.stat_result) -> Iterator[tuple[int, int]]:
    """Yield the parts of a file that are no holes."""
    if state.st_blocks * 512 >= state.st_size or not hasattr(os, "SEEK_DATA"):
        yield 0, state.st_size
        return
    end = 0
    while end < state.st_size:
        try:
            start = os.lseek(fd, end, os.SEEK_DATA)
        except OSError as exc:
            if exc.errno == errno.ENXIO:
                return
            raise
        end = os.lseek(fd, start, os.SEEK_HOLE)
        yield start, end


def _copy_range(reading: int, writing: int, start: int, end: int) -> None:
    os.lseek(reading, start, os.SEEK_SET)
    os.lseek(writing, start, os.SEEK_SET)
    while start < end:
        data = os.read(reading, min(end - start, _BUFFER_BYTES))
        if not data:
            return
        _write_all(writing, memoryview(data))
        start += len(data)
