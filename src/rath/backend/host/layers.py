"""Layers: directories of forks and the files in them, copied from frozen ones or put on top."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import stat
import sys
import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Generic, Literal, Self, TypeVar, cast
from uuid import uuid4

from rath._async.runtime import runtime
from rath._core.files import FileLock, forget, keep_from_children
from rath._core.retention import remove_tree
from rath.backend.file_tools import OutsideWorkspace
from rath.backend.host.paths import (
    MAX_DEPTH,
    OPEN_DIRECTORY,
    Workspace,
    descriptor,
    is_temporary,
    write_all,
)
from rath.backend.host.process import HostCommand
from rath.backend.host.scan import TreeSource
from rath.backend.persistence.paths import ensure_forks_root
from rath.backend.snapshots import NewFile
from rath.errors import BackendError

T = TypeVar("T")

LayerKind = Literal["frozen", "overlay", "reflink", "copy"]
"""What holds the files: the frozen ones until the first change, then one of the others."""

LOCK_NAME = "lock"
"""File in each directory of a fork; who may delete the directory holds the lock on it."""

_SOURCE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FICLONE = 0x40049409
"""`_IOW(0x94, 9, int)` of linux/fs.h: the target shares the blocks of the source."""

_BUFFER_BYTES = 1 << 20
_NO_CLONE = (errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EPERM)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_logger = logging.getLogger(__name__)


class CopyFailed(Exception):
    """Files of a workspace could not be copied; says which and why."""

    def __init__(self, path: str, reason: str | OSError) -> None:
        self.path = path
        self.reason: str = reason.strerror or str(reason) if isinstance(reason, OSError) else reason
        super().__init__(f"{path!r} cannot be copied: {self.reason}")


def copy_tree(source: str, target: str) -> Literal["reflink", "copy"]:
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
        with (
            descriptor(os.open(source, OPEN_DIRECTORY)) as reading,
            descriptor(os.open(target, OPEN_DIRECTORY)) as writing,
        ):
            copier.copy_directory(reading, writing, "", 0)
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
        with descriptor(os.open(name, OPEN_DIRECTORY, dir_fd=source)) as inner:
            state = os.fstat(inner)
            if (state.st_dev, state.st_ino) == self._left_out:
                return
            os.mkdir(name, 0o700, dir_fd=target)
            with descriptor(os.open(name, OPEN_DIRECTORY, dir_fd=target)) as copy:
                self.copy_directory(inner, copy, path, depth + 1)

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
        with descriptor(os.open(name, _SOURCE, dir_fd=source)) as reading:
            state = os.fstat(reading)
            if not stat.S_ISREG(state.st_mode):
                return
            with descriptor(os.open(name, _CREATE, 0o600, dir_fd=target)) as writing:
                if not self._clone(reading, writing):
                    self._copy_content(reading, writing, state)
                self._keep_metadata(writing, state)

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
                write_all(writing, memoryview(self._buffer)[:n_bytes])
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
        write_all(writing, memoryview(data))
        start += len(data)


class SharedJob(Generic[T]):
    """What a blocking job returned, while it runs or once it has; a failure is forgotten.

    It refers to its job only while that runs, so that an object may hold a job of its own. And to
    no exception, whose frames would hold what they worked on.
    """

    def __init__(self) -> None:
        self._running: Future[tuple[T] | tuple[str, str]] | None = None

    @property
    def is_started(self) -> bool:
        """Whether it runs or has returned something."""
        running = self._running
        if running is None or not running.done():
            return running is not None
        return running.exception() is None and len(running.result()) == 1

    @property
    def result(self) -> T:
        """What it returned; there once `aresult` has given it."""
        assert self._running is not None
        return cast("T", self._running.result()[0])

    async def aresult(self, job: Callable[[], T]) -> T:
        """Return what the job returns; the first who asks starts it on a worker thread.

        A waiter that is cancelled ends nothing.

        Raises:
            CopyFailed: The job did.
        """
        if not self.is_started:
            # No callback: a future keeps those that it has called, and this object with them.
            self._running = runtime().start_in_worker(partial(_outcome, [job]))
        assert self._running is not None
        outcome = await asyncio.shield(asyncio.wrap_future(self._running))
        if len(outcome) == 2:
            raise CopyFailed(*outcome)
        return outcome[0]


def _outcome(jobs: list[Callable[[], T]]) -> tuple[T] | tuple[str, str]:
    # Taken out, so that the worker no longer refers to the job when its result can be read.
    job = jobs.pop()
    try:
        return (job(),)
    except CopyFailed as exc:
        return (exc.path, exc.reason)


class LayerDirectory:
    """A new directory `<home>/sandboxes/forks/<uuid>` of this process; blocks on the disk.

    It goes with `aremove`, when the object is collected, or at the end of the interpreter. The
    lock ends with the process in any case, so that another one may delete what was left.

    Raises:
        CopyFailed: It cannot be made.
    """

    def __init__(self) -> None:
        try:
            self.path: str
            self.path, fd, lock = _claim_new(ensure_forks_root())
        except (BackendError, OSError) as exc:
            raise CopyFailed("the workspace", str(exc)) from exc
        self.files: str = os.path.join(self.path, "files")
        self._claim = _DirectoryClaim(Path(self.path), fd, lock)
        runtime().keep_open(self._claim)
        finalizer = weakref.finalize(self, self._claim.drop)
        # At exit the runtime removes what is left, after the work that may still use it.
        finalizer.atexit = False

    @classmethod
    @contextmanager
    def create(cls) -> Generator[Self]:
        """Make one for what is put into it inside the block; it is removed if that fails."""
        directory = cls()
        try:
            yield directory
        except BaseException:
            directory.remove()
            raise

    def clear(self) -> None:
        """Remove what is in it, as after a failure. Blocks on the disk."""
        for path in Path(self.path).iterdir():
            if path.name != LOCK_NAME:
                with contextlib.suppress(OSError):
                    remove_tree(path)

    def remove(self) -> None:
        """Remove it; again it does nothing. Blocks on the disk."""
        self._claim.remove()

    async def aremove(self) -> None:
        """Remove it, and wait; again it does nothing."""
        await self._claim.aclose()


def _claim_new(above: Path) -> tuple[str, int, FileLock]:
    # It gets its name together with the lock: nobody finds it there without.
    making = above / f".{uuid4()}"
    making.mkdir(mode=0o700)
    fd = os.open(making / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
    # A child that lives on would hold the lock for a process that is gone.
    keep_from_children(fd)
    lock = FileLock(fd)
    try:
        lock.acquire()
        return str(making.rename(above / making.name[1:])), fd, lock
    except BaseException:
        _let_go(fd, lock)
        raise


def _let_go(fd: int, lock: FileLock) -> None:
    lock.release()
    forget(fd)
    os.close(fd)


class _DirectoryClaim:
    """What removes a directory; knows nothing of the object that stands for it."""

    def __init__(self, path: Path, fd: int, lock: FileLock) -> None:
        self._path = path
        self._fd = fd
        self._lock = lock
        self._pid = os.getpid()
        self._removing = threading.Lock()

    def drop(self) -> None:
        """Submit the removal; in a forked child the directory belongs to the parent."""
        if self._pid == os.getpid():
            runtime().close_soon(self)

    async def aclose(self) -> None:
        await runtime().call_in_worker(self.remove)

    def remove(self) -> None:
        """Remove it; blocks on the disk."""
        with self._removing:
            if self._lock.held and self._pid == os.getpid():
                try:
                    remove_tree(self._path)
                except OSError as exc:
                    _logger.warning("%s cannot be removed: %s; do it by hand", self._path, exc)
                _let_go(self._fd, self._lock)
                runtime().forget(self)


class Layer:
    """Files that began as frozen ones and belong to one sandbox: a copy, unless derived.

    Args:
        directory: Where it is put.
        lower: The frozen files.

    Raises:
        CopyFailed: They cannot be copied; nothing is left of it.
    """

    kind: LayerKind

    def __init__(self, directory: LayerDirectory, lower: str) -> None:
        self._files = directory.files
        try:
            self.kind = copy_tree(lower, self._files)
        except CopyFailed:
            directory.clear()
            raise

    @property
    def root(self) -> str:
        """Path of the workspace as commands see it."""
        return self._files

    @property
    def door(self) -> str:
        """Path by which this process opens it."""
        return self._files

    def source(self) -> TreeSource | None:
        """Return what looks at the changed files alone, None where all must be looked at."""
        return None

    def entering(self, command: HostCommand) -> HostCommand:
        """Return the command that runs `command` where the files are."""
        return command

    def close(self) -> None:
        """Free what it holds except its directory; blocks."""


def apply_changes(door: str, changes: Mapping[str, NewFile | None]) -> None:
    """Put new files into a directory of our own and take others out; blocks on the disk.

    Raises:
        CopyFailed: One of them cannot be written.
    """
    workspace = Workspace.inner(door)
    # What goes, goes first: a file may take the place of a directory that becomes empty.
    for path in sorted(changes, key=lambda path: (changes[path] is not None, path)):
        try:
            _apply(workspace, path, changes[path])
        except OutsideWorkspace as exc:
            raise CopyFailed(path, str(exc)) from exc
        except OSError as exc:
            raise CopyFailed(path, exc) from exc


def _apply(workspace: Workspace, path: str, new: NewFile | None) -> None:
    above, _, name = path.rpartition("/")
    if name in ("", ".", ".."):
        raise OSError("this is no path of a file")
    try:
        with workspace.locate(above or ".", make_parents=new is not None) as found:
            if new is not None:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(found.name, dir_fd=found.directory)
            with descriptor(found.open(os.O_RDONLY | os.O_DIRECTORY)) as directory:
                _remove(directory, name)
                if new is not None:
                    _put(directory, name, new)
    except (FileNotFoundError, NotADirectoryError):
        if new is not None:
            raise


def _remove(directory: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=directory)
    except FileNotFoundError:
        pass
    except (IsADirectoryError, PermissionError):
        os.rmdir(name, dir_fd=directory)


def _put(directory: int, name: str, new: NewFile) -> None:
    if stat.S_ISLNK(new.mode):
        os.symlink(os.fsdecode(new.data), name, dir_fd=directory)
        return
    fd = os.open(name, _CREATE, 0o600, dir_fd=directory)
    with os.fdopen(fd, "wb") as file:
        file.write(new.data)
        os.fchmod(fd, stat.S_IMODE(new.mode))
