"""Notes on their way to their places: written whole elsewhere in the store, then renamed.

A reader sees the old note or the new one, never a part; and what a crash leaves behind lies where
no listing and no search looks.
"""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from rath._core.files import atomic_write_bytes
from rath.memory.adapters.local.indexing.index import Stamp
from rath.memory.adapters.local.layout import DRAFTS_NAME, is_draft

STALE_SECONDS = 3600.0
"""Older drafts were left behind by a process that ended; far above what any write takes."""

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)


class Draft:
    """The text of a note in a file of its own, which `place` puts where the note belongs.

    Leaving its `with` block removes a draft that was not placed.

    Args:
        root: Directory of the store.
        data: The bytes of the note.
        mode: Permission bits; what the umask allows by default.
    """

    def __init__(self, root: Path, data: bytes, *, mode: int | None = None) -> None:
        self._data = data
        self._mode = mode
        self._path: str | None = None
        self._is_forced = False
        self._stamp = Stamp(0, 0)
        # In another directory than its place, whose time of change tells of whole notes only.
        place = f"{root}/{DRAFTS_NAME}"
        with suppress(OSError):
            self._write(place)
        if self._path is None:
            with suppress(OSError):
                os.makedirs(place, exist_ok=True)
                self._write(place)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._path is not None:
            with suppress(OSError):
                os.unlink(self._path)

    def force_to_disk(self) -> None:
        """Wait until its bytes are on disk.

        Raises:
            OSError: They may not be.
        """
        if self._path is not None and not self._is_forced:
            try:
                fd = os.open(self._path, os.O_RDWR)
            except FileNotFoundError:
                # Who scrubs the store removed it; `place` writes it again, and forces that to disk.
                self._path = None
                return
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
            self._is_forced = True

    def set_mode(self, mode: int) -> None:
        """Give it the permission bits of the note that it replaces."""
        if mode != self._mode:
            self._mode = mode
            if self._path is not None:
                with suppress(FileNotFoundError):
                    os.chmod(self._path, mode)

    def place(self, target: Path) -> Stamp:
        """Rename it to `target`, over what stands there, and return the state of the file."""
        if self._path is not None:
            with suppress(OSError):
                os.replace(self._path, target)
                self._path = None
                return self._stamp
        # Another file system, or no right to make drafts; this raises what stands in the way.
        atomic_write_bytes(target, self._data, mode=self._mode)
        mark_as_ours(target)
        status = os.stat(target)
        return Stamp(status.st_mtime_ns, status.st_size)

    def _write(self, directory: str) -> None:
        path = f"{directory}/.atomic_{os.urandom(8).hex()}.tmp"
        fd = os.open(path, _NEW_FILE, 0o666 if self._mode is None else 0o600)
        self._path = path
        try:
            with os.fdopen(fd, "wb", buffering=0) as file:
                rest = memoryview(self._data)
                while rest:
                    rest = rest[file.write(rest) :]
                marked = mark_as_ours(fd if os.utime in os.supports_fd else path)
                changed_at = os.fstat(fd).st_mtime_ns if marked is None else marked
            self._stamp = Stamp(changed_at, len(self._data))
            if self._mode is not None:
                os.chmod(path, self._mode)
        except BaseException:
            self._path = None
            with suppress(OSError):
                os.unlink(path)
            raise


def mark_as_ours(path: str | Path | int) -> int | None:
    """Give what rath has to itself a time of change that no later change has by chance.

    Returns:
        That time in nanoseconds; None where the file system or its owner does not allow it.
    """
    now = time.time_ns()
    try:
        os.utime(path, ns=(now, now))
        return now if os.stat(path).st_mtime_ns == now else None
    except OSError:
        return None


def remove_stale_drafts(directory: Path) -> None:
    """Remove what ended processes left behind in one directory; best effort."""
    oldest = time.time() - STALE_SECONDS
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if not is_draft(entry.name):
                continue
            with suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode) and status.st_mtime < oldest:
                    os.unlink(entry.path)
