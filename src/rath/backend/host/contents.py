"""Contents of files by digest, kept aside so that they outlive the files."""

from __future__ import annotations

import os
import tempfile
import threading
import weakref
from collections.abc import Set as AbstractSet

MAX_STORE_BYTES = 512 << 20
"""How much the store of one workspace holds, in bytes; a guess: a large source tree fits."""

MIN_WASTE_BYTES = 32 << 20
"""Contents that nobody asks for any more are dropped once they fill so much, and half of it."""


class ContentStore:
    """Contents in a file without a name: it goes with the process, however that ends.

    The file lies in the directory for temporary files. All methods may be called on any thread
    and block on the disk.

    Raises:
        OSError: No temporary file can be made.
    """

    def __init__(self, max_bytes: int = MAX_STORE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._fd = _unnamed_file()
        self._closing = weakref.finalize(self, os.close, self._fd)
        self._places: dict[str, tuple[int, int]] = {}
        self._end = 0

    @property
    def n_bytes(self) -> int:
        """Length of the file."""
        return self._end

    def put(self, digest: str, content: bytes) -> bool:
        """Keep `content`; False where the store or the disk is full."""
        with self._lock:
            if digest in self._places:
                return True
            if self._end + len(content) > self._max_bytes:
                return False
            try:
                _write(self._fd, content, self._end)
            except OSError:
                return False
            self._places[digest] = (self._end, len(content))
            self._end += len(content)
        return True

    def get(self, digest: str) -> bytes | None:
        """Return the content of `digest`, None if it was not kept."""
        with self._lock:
            place = self._places.get(digest)
            if place is None:
                return None
            content = os.pread(self._fd, place[1], place[0])
        return content if len(content) == place[1] else None

    def keep_only(self, wanted: AbstractSet[str]) -> None:
        """Drop what is not `wanted`, once it is worth the copying."""
        with self._lock:
            kept = {digest: at for digest, at in self._places.items() if digest in wanted}
            n_bytes = sum(size for _, size in kept.values())
            if self._end - n_bytes < max(MIN_WASTE_BYTES, self._end // 2):
                return
            self._copy(kept)

    def close(self) -> None:
        """Free the disk; what was kept is gone."""
        with self._lock:
            self._places = {}
            self._closing()

    def _copy(self, kept: dict[str, tuple[int, int]]) -> None:
        places: dict[str, tuple[int, int]] = {}
        end = 0
        try:
            fresh = _unnamed_file()
        except OSError:
            return
        try:
            for digest, (start, size) in kept.items():
                _write(fresh, os.pread(self._fd, size, start), end)
                places[digest] = (end, size)
                end += size
        except OSError:
            # No room for two: the old file is still whole.
            os.close(fresh)
            return
        self._closing()
        self._closing = weakref.finalize(self, os.close, fresh)
        self._fd, self._places, self._end = fresh, places, end


def _unnamed_file() -> int:
    fd, path = tempfile.mkstemp(prefix="rath-contents-")
    os.unlink(path)
    return fd


def _write(fd: int, content: bytes, start: int) -> None:
    view = memoryview(content)
    while view:
        n_written = os.pwrite(fd, view, start)
        view, start = view[n_written:], start + n_written
