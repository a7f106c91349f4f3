"""Directories of forks: claimed by a lock, gone when nobody needs them any more."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self
from uuid import uuid4

from rath._async.runtime import runtime
from rath._core.files import FileLock, forget, keep_from_children
from rath._core.retention import remove_tree
from rath.backend.host.copying import CopyFailed
from rath.backend.persistence.paths import ensure_forks_root
from rath.errors import BackendError

LOCK_NAME = "lock"
"""File in each directory of a fork; who may delete the directory holds the lock on it."""

_logger = logging.getLogger(__name__)

FILES_NAME = "files"
"""Directory in it that holds, or shows, the files of a workspace."""


class LayerDirectory:
    """A new directory `<home>/sandboxes/forks/<uuid>` of this process; blocks on the disk.

    It goes with `aremove`, when the object is collected, or at the end of the interpreter. The
    lock ends with the process in any case, so that another one may delete what was left.

    Raises:
        CopyFailed: It cannot be made.
    """

    def __init__(self) -> None:
        try:
            self.path, fd, lock = _claimed(ensure_forks_root())
        except (BackendError, OSError) as exc:
            raise CopyFailed("the workspace", str(exc)) from exc
        self.files = os.path.join(self.path, FILES_NAME)
        self._claim = _Claim(Path(self.path), fd, lock)
        runtime().keep_open(self._claim)
        finalizer = weakref.finalize(self, self._claim.drop)
        # At exit the runtime removes what is left, after the work that may still use it.
        finalizer.atexit = False

    @classmethod
    @contextmanager
    def made(cls) -> Generator[Self]:
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
                with suppress(OSError):
                    remove_tree(path)

    def remove(self) -> None:
        """Remove it; again it does nothing. Blocks on the disk."""
        self._claim.remove()

    async def aremove(self) -> None:
        """Remove it, and wait; again it does nothing."""
        await self._claim.aclose()


def _claimed(above: Path) -> tuple[str, int, FileLock]:
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


class _Claim:
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
