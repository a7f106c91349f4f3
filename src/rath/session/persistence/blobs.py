"""The bytes of images, beside the session files whose rows name them.

<directory>/<session>.jsonl        rows, which say sha256, media type and size
<directory>/blobs/<sha256>         the bytes, once for all sessions of the directory
<directory>/blobs/.lock            held while a row that names bytes is written, and by a sweep
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import stat
from collections.abc import Collection, Generator, Iterable
from pathlib import Path

from rath._core.blobs import Blob, is_digest
from rath._core.files import FileLock, atomic_write_bytes
from rath._core.trash import in_trash
from rath.errors import PersistenceError
from rath.llm.image import MAX_IMAGE_BYTES
from rath.session.persistence.paths import (
    INDEX_FILE_NAME,
    PARTIAL_SUFFIX,
    SESSION_FILE_SUFFIX,
    ensure_private,
)

__all__ = ["BLOBS_DIR_NAME", "BlobStore"]

BLOBS_DIR_NAME = "blobs"

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
        self.path = directory / BLOBS_DIR_NAME
        """Where the bytes stand; made when the first are written."""

    @contextlib.contextmanager
    def holding(self, blobs: Collection[Blob]) -> Generator[None, None, None]:
        """Write the bytes of `blobs`, and keep them from every sweep while the block runs.

        What has no bytes is left out: a row may name images that were lost already.

        Raises:
            PersistenceError: They cannot be written.
        """
        whole = {blob.digest: blob.data for blob in blobs if blob.data is not None}
        if not whole:
            yield
            return
        ensure_private(self.path)
        for digest, content in whole.items():
            self._save(digest, content)
        with self._locked():
            for digest, content in whole.items():
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
        try:
            content = file.read_bytes() if _may_be_read(file) else b""
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as exc:
            raise PersistenceError(f"{file} cannot be read: {exc.strerror or exc}") from exc
        return content if hashlib.sha256(content).hexdigest() == digest else None

    def named_by(self, files: Iterable[Path]) -> set[str]:
        """Return the digests of what is here that any of `files` names; the missing name none."""
        here = self._digests()
        named: set[str] = set()
        for file in files if here else ():
            with contextlib.suppress(OSError):
                named |= _digests_in(file)
        return here & named

    def sweep(self, digests: Collection[str] | None = None) -> None:
        """Remove what no file of the directory names any more.

        A file counts that is named like a session file or begins like one, whether it can be
        believed or not; where one cannot be read, everything is kept. Cost: those files are read,
        and the beginning of every other, unless there is nothing to remove.

        Args:
            digests: Look at these only, not at all that is here.
        """
        here = self._digests()
        unnamed = here if digests is None else here & set(digests)
        if not unnamed:
            return
        mentions = _Mentions(self._directory)
        try:
            # Without the lock first: afterwards only what has changed since is read again.
            mentions.update()
            if unnamed <= mentions.digests:
                return
            with self._locked():
                mentions.update()
                for digest in unnamed - mentions.digests:
                    self._file(digest).unlink(missing_ok=True)
        except (OSError, PersistenceError) as exc:
            _logger.warning("nothing more is removed from %s: %s", self.path, exc)

    def _file(self, digest: str) -> Path:
        assert is_digest(digest)
        return self.path / digest

    def _digests(self) -> set[str]:
        try:
            return {file.name for file in self.path.iterdir() if is_digest(file.name)}
        except (FileNotFoundError, NotADirectoryError):
            return set()

    def _save(self, digest: str, content: bytes) -> None:
        file = self._file(digest)
        try:
            if not _is_whole(file, digest):
                atomic_write_bytes(file, content, mode=0o600)
        except OSError as exc:
            raise PersistenceError(f"{file} cannot be written: {exc.strerror or exc}") from exc

    @contextlib.contextmanager
    def _locked(self) -> Generator[None, None, None]:
        lock = FileLock(self.path / _LOCK_NAME)
        try:
            is_held = lock.acquire(timeout=_LOCK_SECONDS)
        except OSError as exc:
            raise PersistenceError(f"{self.path} cannot be locked: {exc.strerror or exc}") from exc
        if not is_held:
            raise PersistenceError(
                f"{self.path} was locked by another process for {_LOCK_SECONDS:g} s; end that "
                "process if it hangs"
            )
        try:
            yield
        finally:
            lock.release()


class _Mentions:
    """The digests that the session files of a directory, and of its trash, hold as text."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen: dict[Path, tuple[int, int]] = {}
        self.digests: set[str] = set()

    def update(self) -> None:
        """Read what is new or has changed; nothing that was found is forgotten.

        Raises:
            OSError: A file cannot be read.
        """
        # Twice: a listing may miss a file that is being renamed, and the next one has it.
        for _ in range(2):
            for directory in (self._directory, *in_trash(self._directory)):
                self._read_all(directory)

    def _read_all(self, directory: Path) -> None:
        try:
            with os.scandir(directory) as entries:
                files = [Path(entry.path) for entry in entries]
        except (FileNotFoundError, NotADirectoryError):
            return  # What lay in the trash is gone, or is no directory.
        for path in files:
            self._read(path)

    def _read(self, path: Path) -> None:
        try:
            status = path.stat()
            stamp = (status.st_size, status.st_mtime_ns)
            if not stat.S_ISREG(status.st_mode) or self._seen.get(path) == stamp:
                return
            if _may_be_session(path.name, path):
                self.digests |= _digests_in(path)
        except FileNotFoundError:
            return
        self._seen[path] = stamp


def _may_be_session(name: str, path: Path) -> bool:
    """Tell whether a file may be that of a session; copies and renamed ones count."""
    if name.startswith(INDEX_FILE_NAME):
        return False  # It holds what was said in sessions, whatever that looks like.
    if SESSION_FILE_SUFFIX in name or name.endswith(PARTIAL_SUFFIX):
        return True
    # A run is written under any name that its caller gives.
    with path.open("rb") as file:
        return _HEADER.search(file.read(_HEADER_BYTES)) is not None


def _digests_in(path: Path) -> set[str]:
    """Return all text in a file that looks like a digest."""
    found: set[bytes] = set()
    before = b""
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            text = before + chunk
            found.update(_DIGEST.findall(text))
            before = text[-63:]  # one that lies across the border
    return {digest.decode() for digest in found}


def _is_whole(file: Path, digest: str) -> bool:
    try:
        with file.open("rb") as handle:
            return hashlib.file_digest(handle, "sha256").hexdigest() == digest
    except FileNotFoundError:
        return False


def _may_be_read(file: Path) -> bool:
    """Tell whether a file is one that ends, and that fits into memory."""
    status = file.stat()
    return stat.S_ISREG(status.st_mode) and status.st_size <= MAX_IMAGE_BYTES
