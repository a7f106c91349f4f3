"""Forces new notes to disk in the background, within about a second.

A process that is killed loses nothing: what was renamed into its place stays there. A power cut or
a crash of the operating system may take the new notes of about the last second, or leave them
empty; it never brings an older text of a note back, because what replaces a note is on disk before
the write returns, as is each write with `wait=True` and all of a store that was closed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from rath._async.runtime import runtime
from rath._core.files import sync_directory
from rath.memory.adapters.local.layout import logger

DELAY_SECONDS = 0.5
"""How long new notes are gathered before they are forced to disk together."""

_FEW = 16
"""Up to so many files are forced to disk one by one; more go with their whole file system."""

_TO_SYNC = os.O_RDWR if sys.platform == "win32" else os.O_RDONLY | os.O_NONBLOCK
Sync = Callable[[Path, Collection[str]], None]

_CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)


def sync(root: Path, paths: Collection[str]) -> None:
    """Wait until files below `root`, and the directories above them, are on disk.

    Raises:
        OSError: They may not be.
    """
    if len(paths) <= _FEW or not _sync_file_system(root):
        _sync_files(root, paths)


def _sync_files(root: Path, paths: Collection[str]) -> None:
    directories: set[str] = set()
    for path in paths:
        # What was replaced or removed since was forced to disk, or need not be there.
        with suppress(FileNotFoundError, NotADirectoryError):
            fd = os.open(path, _TO_SYNC)
            try:
                os.fsync(fd)
            except OSError as exc:
                if exc.errno not in _CANNOT_SYNC:
                    raise
            finally:
                os.close(fd)
        directory = os.path.dirname(path)
        while directory not in directories and len(directory) >= len(str(root)):
            directories.add(directory)
            directory = os.path.dirname(directory)
    for directory in directories:
        with suppress(FileNotFoundError, NotADirectoryError):
            sync_directory(directory)


def _find_syncfs() -> Callable[[int], int] | None:
    if sys.platform != "linux":
        return None
    try:
        return ctypes.CDLL(None, use_errno=True).syncfs
    except (OSError, AttributeError):
        return None


_syncfs = _find_syncfs()


def _sync_file_system(root: Path) -> bool:
    """Force all of a file system to disk; False where there is no such call."""
    if _syncfs is None:
        return False
    try:
        fd = os.open(root, os.O_RDONLY)
    except FileNotFoundError:
        # Nobody wants a store that was removed on disk.
        return True
    try:
        if _syncfs(fd) == 0:
            return True
        code = ctypes.get_errno()
        if code in _CANNOT_SYNC:
            return False
        raise OSError(code, os.strerror(code), str(root))
    finally:
        os.close(fd)


class Syncing:
    """The notes of a store that are not known to be on disk yet.

    Args:
        root: Directory of the store.
        delay_seconds: How long notes are gathered.
        act: Forces files below the root to disk, as `sync` does.
    """

    def __init__(
        self, root: Path, *, delay_seconds: float = DELAY_SECONDS, act: Sync = sync
    ) -> None:
        self._root = root
        self._act = act
        self._delay_seconds = delay_seconds
        self._changed = threading.Condition()
        self._pending: set[str] = set()
        self._n_added = 0
        self._n_done = 0
        self._is_at_work = False
        self._at_once = threading.Event()
        self._failure: OSError | None = None
        self._pid = os.getpid()

    def add(self, path: Path) -> None:
        """Have a new file, and the directories above it, forced to disk soon."""
        with self._changed:
            if self._pid != os.getpid():
                # The thread that would do it stayed in the parent, with the work of the parent.
                self._pid, self._is_at_work, self._pending = os.getpid(), False, set()
            self._pending.add(str(path))
            self._n_added += 1
            if self._is_at_work:
                return
            try:
                runtime().start_in_worker(self._work)
                self._is_at_work = True
                return
            except RuntimeError:
                # The interpreter is exiting and starts no thread any more.
                self._pending.discard(str(path))
        self.force(path)

    def hold(self) -> None:
        """Keep other threads from adding notes."""
        self._changed.acquire()

    def let_go(self) -> None:
        """End what `hold` began."""
        self._changed.release()

    def force(self, path: Path) -> None:
        """Wait until a file, and the directories above it, are on disk.

        Raises:
            OSError: It may not be, or an earlier note that was to be forced in the background.
        """
        self._act(self._root, {str(path)})
        self._raise_failure()

    def flush(self) -> None:
        """Wait until all notes that were added are on disk.

        Raises:
            OSError: Some may not be, now or since the last error.
        """
        self.wait()
        self._raise_failure()

    def wait(self) -> None:
        """Wait until everything that was added was forced to disk, or that failed."""
        with self._changed:
            n_added = self._n_added
            self._at_once.set()
            self._changed.wait_for(lambda: not self._is_busy_with(n_added))

    def _is_busy_with(self, n_added: int) -> bool:
        return self._is_at_work and self._n_done < n_added and self._pid == os.getpid()

    def _work(self) -> None:
        while self._take_up():
            pass

    def _take_up(self) -> bool:
        """Force one batch to disk; False when there was none, and so no more to do."""
        self._at_once.wait(self._delay_seconds)
        with self._changed:
            self._at_once.clear()
            batch, self._pending = self._pending, set()
            n_added = self._n_added
            if not batch:
                self._is_at_work = False
                return False
        try:
            self._act(self._root, batch)
        except OSError as exc:
            logger.error(
                "%d new notes of %s may not be on disk: %s; look after the disk and write them "
                "again",
                len(batch),
                self._root,
                exc,
            )
            self._failure = exc
        except BaseException as exc:
            self._failure = OSError(errno.EIO, repr(exc))
            # What nobody foresaw: closing must not wait for work that nobody does any more.
            with self._changed:
                self._is_at_work = False
            raise
        finally:
            with self._changed:
                self._n_done = n_added
                self._changed.notify_all()
        return True

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise OSError(
                failure.errno,
                f"new notes may not be on disk ({failure}); look after the disk and write them "
                "again",
                str(self._root),
            )
