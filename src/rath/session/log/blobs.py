"""Content that the session files of one directory name, each under its sha256."""

from __future__ import annotations

import contextlib
import logging
import re
import stat
from collections.abc import Collection, Generator
from hashlib import file_digest, sha256
from pathlib import Path

from rath._core.blobs import Blob, is_digest
from rath._core.files import FileLock, atomic_write_bytes
from rath._core.retention import in_trash
from rath.errors import PersistenceError
from rath.llm.image import MAX_IMAGE_BYTES
from rath.session.log.paths import (
    INDEX_FILE_NAME,
    PARTIAL_SUFFIX,
    SESSION_FILE_SUFFIX,
    ensure_private,
    os_errors,
)

__all__ = ["BlobStore"]

_BLOBS = "blobs"
_LOCK_NAME = ".lock"
_LOCK_SECONDS = 60.0
"""Far longer than the lock is ever held; a guess."""

_CHUNK_BYTES = 1 << 20
_DIGEST = re.compile(rb"[0-9a-f]{64}")
_HEADER_BYTES = 1 << 16
"""How far a session file is looked for its header, whose first member says what it is."""

_HEADER = re.compile(rb'"record_type"\s*:\s*"header"')

_logger = logging.getLogger(__name__)


class BlobStore:
    """The bytes that the session files of one directory name; all its methods block.

    A writer saves bytes, then takes the lock, sees that they are still there, and writes its row.
    A sweep removes under the same lock what no row names. So bytes are never removed between
    their writing and that of the row.

    Args:
        directory: Where the session files stand.
    """

    __slots__ = ("_directory", "path")

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.path: Path = directory / _BLOBS
        """Where the bytes stand; made when the first are written."""

    @contextlib.contextmanager
    def holding(self, blobs: Collection[Blob]) -> Generator[None, None, None]:
        """Write the bytes of `blobs`, and keep them from every sweep while the block runs.

        What has no bytes is left out: a row may name images that were lost already.

        Raises:
            PersistenceError: They cannot be written.
        """
        contents = {blob.digest: blob.data for blob in blobs if blob.data is not None}
        if not contents:
            yield
            return
        ensure_private(self.path)
        for digest, content in contents.items():
            self._save(digest, content)
        with self._locked():
            for digest, content in contents.items():
                if not self._file(digest).exists():
                    self._save(digest, content)
            yield

    def read(self, digest: str) -> bytes | None:
        """Return content by its sha256, None where it is not there or damaged.

        Raises:
            PersistenceError: It is there and cannot be read.
        """
        if not is_digest(digest):
            return None
        file = self._file(digest)
        missing = contextlib.suppress(FileNotFoundError, NotADirectoryError)
        with os_errors(file, "cannot be read"), missing:
            status = file.stat()
            # One that has no end, or does not fit into memory, is not ours.
            is_ours = stat.S_ISREG(status.st_mode) and status.st_size <= MAX_IMAGE_BYTES
            content = file.read_bytes() if is_ours else b""
            return content if sha256(content).hexdigest() == digest else None
        return None

    def sweep(self) -> None:
        """Remove what no file of the directory names any more.

        A file counts that is named like a session file or begins like one, whether it can be
        believed or not; where one cannot be read, everything is kept. Cost: those files are read,
        and the beginning of every other, unless there is nothing to remove.
        """
        unnamed = self._digests()
        stamps: dict[Path, tuple[int, int]] = {}
        try:
            # Without the lock first: afterwards only what has changed since is read again.
            unnamed -= self._mentioned(stamps) if unnamed else set()
            if not unnamed:
                return
            with self._locked():
                for digest in unnamed - self._mentioned(stamps):
                    self._file(digest).unlink(missing_ok=True)
        except (OSError, PersistenceError) as exc:
            _logger.warning("nothing more is removed from %s: %s", self.path, exc)

    def _file(self, digest: str) -> Path:
        assert is_digest(digest)
        return self.path / digest

    def _digests(self) -> set[str]:
        return {file.name for file in _entries(self.path) if is_digest(file.name)}

    def _mentioned(self, stamps: dict[Path, tuple[int, int]]) -> set[str]:
        """Return every apparent digest in files of sessions that are new or have changed.

        Args:
            stamps: Size and time of each file when it was read; is kept up to date.

        Raises:
            OSError: A file cannot be read.
        """
        digests: set[str] = set()
        # Twice: a listing may miss a file that is being renamed, and the next one has it.
        for _ in range(2):
            directories = (self._directory, *in_trash(self._directory))
            for path in (each for directory in directories for each in _entries(directory)):
                with contextlib.suppress(FileNotFoundError):
                    status = path.stat()
                    stamp = (status.st_size, status.st_mtime_ns)
                    if stat.S_ISREG(status.st_mode) and stamps.get(path) != stamp:
                        digests |= _digests_in(path) if _may_be_session(path) else set()
                        stamps[path] = stamp
        return digests

    def _save(self, digest: str, content: bytes) -> None:
        file = self._file(digest)
        with os_errors(file, "cannot be written"):
            if not _is_intact(file, digest):
                atomic_write_bytes(file, content, mode=0o600)

    @contextlib.contextmanager
    def _locked(self) -> Generator[None, None, None]:
        lock = FileLock(self.path / _LOCK_NAME)
        with os_errors(self.path, "cannot be locked"):
            is_locked = lock.acquire(timeout=_LOCK_SECONDS)
        if not is_locked:
            raise PersistenceError(
                f"{self.path} was locked by another process for {_LOCK_SECONDS:g} s; end that "
                "process if it hangs"
            )
        try:
            yield
        finally:
            lock.release()


def _entries(directory: Path) -> list[Path]:
    """Return the entries of a directory; nothing where it is gone, or is none."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return list(directory.iterdir())
    return []


def _may_be_session(path: Path) -> bool:
    """Tell whether a file may be that of a session; copies and renamed ones count."""
    if path.name.startswith(INDEX_FILE_NAME):
        return False  # It holds what was said in sessions, whatever that looks like.
    if SESSION_FILE_SUFFIX in path.name or path.name.endswith(PARTIAL_SUFFIX):
        return True
    # A run is written under any name that its caller gives.
    with path.open("rb") as file:
        return _HEADER.search(file.read(_HEADER_BYTES)) is not None


def _digests_in(path: Path) -> set[str]:
    """Return all text in a file that looks like a digest."""
    digests: set[bytes] = set()
    before = b""
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            text = before + chunk
            digests.update(_DIGEST.findall(text))
            before = text[-63:]  # one that lies across the border
    return {digest.decode() for digest in digests}


def _is_intact(file: Path, digest: str) -> bool:
    with contextlib.suppress(FileNotFoundError), file.open("rb") as handle:
        return file_digest(handle, "sha256").hexdigest() == digest
    return False
