"""The right to have a model read one transcript, which one process has at a time."""

from __future__ import annotations

import os
from pathlib import Path

from rath._core.files import FileLock
from rath.memory.adapters.local.extraction.archive import Archive
from rath.memory.adapters.local.layout import TRANSCRIPT_NAME

_OPENED = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


class Claim:
    """A lock on a transcript; its end, or that of the process, gives it back.

    The transcript itself is locked: it is written once, so whoever opens it by its name gets the
    same file, and no file is left beside it.
    """

    def __init__(self, fd: int, lock: FileLock) -> None:
        self._fd = fd
        self._lock = lock

    @classmethod
    def take(cls, root: Path, archive: Archive, *, patience: float) -> Claim | None:
        """Return the claim, or None while somebody else has it or when the transcript is gone.

        Args:
            root: Directory of the store.
            archive: The transcript.
            patience: Seconds to wait for somebody else.

        Raises:
            OSError: The transcript cannot be opened for writing, so nothing can be noted there.
        """
        if not archive.is_there(root):
            return None
        try:
            fd = os.open(archive.path(root, TRANSCRIPT_NAME), _OPENED)
        except FileNotFoundError:
            return None
        lock = FileLock(fd)
        try:
            if lock.acquire(timeout=patience):
                return cls(fd, lock)
        finally:
            if not lock.held:
                os.close(fd)
        return None

    def end(self) -> None:
        """Give it back."""
        self._lock.release()
        os.close(self._fd)
