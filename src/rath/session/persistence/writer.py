"""Write a session file line by line, so that a crash leaves a readable part."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rath._core.blobs import Blob
from rath._core.files import FileLock, atomic_write_bytes, sync_directory
from rath.errors import PersistenceError
from rath.llm.chat_response import RathLLMTokenUsage
from rath.session.chunk import ChunkRow
from rath.session.persistence.blobs import BlobStore
from rath.session.persistence.paths import ensure_sessions_dir, partial_beside, session_file
from rath.session.persistence.records import (
    PersistedSessionHeader,
    encode_chunk,
    encode_header,
    encode_line,
    encode_trailer,
    header_of,
)
from rath.session.session import Session

__all__ = ["SessionFile", "SessionWriter"]

_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)


class SessionFile:
    """A session file that is being written, by one writer at a time.

    Lines go to a partial file beside `path`, which takes its name when the file is finished. A
    partial file that stays behind tells that a writer was cut off.

    Args:
        header: The first line, written at once.
        path: The finished file; by default the one of the session in `sessions_dir()`.

    Raises:
        PersistenceError: Another process or writer has the file, or it cannot be written.
    """

    def __init__(self, header: PersistedSessionHeader, *, path: Path | None = None) -> None:
        if path is None:
            ensure_sessions_dir()
        self.path = session_file(header.id) if path is None else Path(path)
        self.partial_path = partial_beside(self.path)
        self.chunks_written = 0
        self._broken = False
        # A run that is cancelled abandons its file while another thread may be writing a line.
        self._busy = threading.RLock()
        self._fd, self._lock = _open_locked(self.partial_path)
        try:
            self._write(encode_header(header))
        except BaseException:
            with contextlib.suppress(OSError):
                self.partial_path.unlink()
            self._release()
            raise

    @property
    def closed(self) -> bool:
        """Whether nothing can be written any more."""
        return self._fd < 0

    def write_chunk(self, index: int, row: ChunkRow) -> None:
        """Write one row; it is in the hands of the operating system on return.

        The bytes of its images are written before it, beside the file.

        Raises:
            RuntimeError: The file was closed.
            PersistenceError: The row holds something that JSON has no form for, or the system
                refuses to write; the file can then only be abandoned.
        """
        record = encode_chunk(index, row)
        if row.images:
            self._write_with(tuple(image.blob for image in row.images), record)
        else:
            self._write(record)
        self.chunks_written += 1

    def finish(self, usage: RathLLMTokenUsage | None) -> None:
        """Write the trailer, force everything to disk and give the file its name.

        Does nothing when the file is closed already.

        Raises:
            PersistenceError: A write failed, now or before; the partial file stays.
        """
        with self._busy:
            if self.closed:
                return
            try:
                self._finish(usage)
            finally:
                self._release()

    def abandon(self) -> None:
        """Let go of the file as it is: the partial file stays, without a trailer."""
        self._release()

    def _finish(self, usage: RathLLMTokenUsage | None) -> None:
        if self._broken:
            raise PersistenceError(
                f"{self.partial_path} stays a partial file: an earlier write to it failed"
            )
        self._write(encode_trailer(n_rows=self.chunks_written, usage=usage))
        try:
            os.fsync(self._fd)
            self._rename()
        except OSError as exc:
            raise self._unwritable(exc) from exc

    def _write_with(self, blobs: tuple[Blob, ...], record: Mapping[str, Any]) -> None:
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(BlobStore(self.path.parent).holding(blobs))
            except PersistenceError:
                self._broken = True
                raise
            self._write(record)

    def _write(self, record: Mapping[str, Any]) -> None:
        try:
            line = memoryview(encode_line(record))
        except TypeError as exc:
            raise PersistenceError(f"{self.path} cannot hold this line: {exc}") from exc
        with self._busy:
            if self.closed:
                raise RuntimeError(f"the writer of {self.path} is closed; make a new one")
            try:
                while line:
                    line = line[os.write(self._fd, line) :]
            except OSError as exc:
                self._broken = True
                raise self._unwritable(exc) from exc

    def _rename(self) -> None:
        # The lock is kept until the file has its name, so that no second writer finds the partial
        # file free and is renamed along with it.
        if sys.platform == "win32":
            self._release()  # ... save here, where what is open cannot be renamed.
        with contextlib.suppress(FileNotFoundError):
            self.partial_path.replace(self.path)
        sync_directory(self.path.parent)

    def _release(self) -> None:
        with self._busy:
            if not self.closed:
                self._lock.release()
                os.close(self._fd)
                self._fd = -1

    def _unwritable(self, exc: OSError) -> PersistenceError:
        return PersistenceError(
            f"{self.partial_path} cannot be written: {exc.strerror or exc}; what was written "
            "before can still be read"
        )


class SessionWriter(SessionFile):
    """Write a session to its file; as a context manager it closes, or abandons on an exception.

    Args:
        session: Whose lineage and placement the header takes.
        sandbox_handle_id: Under which a remote sandbox is known.
        path: The finished file; by default the one of the session in `sessions_dir()`.

    Raises:
        PersistenceError: Another process or writer has the file, or it cannot be written.

    Example:
        with SessionWriter(session) as writer:
            for index, row in enumerate(session.chunk_table):
                writer.write_chunk(index, row)
    """

    def __init__(
        self, session: Session, *, sandbox_handle_id: str | None = None, path: Path | None = None
    ) -> None:
        super().__init__(header_of(session, sandbox_handle_id=sandbox_handle_id), path=path)
        self._session = session

    def close(self) -> None:
        """Write the trailer with the session's usage and give the file its name; waits for the run.

        Does nothing when the file is closed already.

        Raises:
            PersistenceError: A write failed, now or before; the partial file stays.
        """
        if self.closed:
            return
        try:
            self.finish(self._session.cumulative_usage)
        finally:
            self.abandon()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc_type is None:
            self.close()
        else:
            self.abandon()


def _open_locked(partial: Path) -> tuple[int, FileLock]:
    """Return an open, empty partial file that nobody else writes."""
    try:
        partial.parent.mkdir(parents=True, exist_ok=True)
        while True:
            fd = os.open(partial, _APPEND, 0o600)
            lock = FileLock(fd)
            if not lock.acquire():
                os.close(fd)
                raise PersistenceError(
                    f"{partial} is being written by another process or writer; wait for it to end"
                )
            try:
                if _is_still_at(fd, partial):
                    _set_aside(fd, partial)
                    return fd, lock
            except BaseException:
                os.close(fd)
                raise
            lock.release()
            os.close(fd)
    except OSError as exc:
        raise PersistenceError(f"{partial} cannot be written: {exc.strerror or exc}") from exc


def _is_still_at(fd: int, path: Path) -> bool:
    """Return whether `path` is the open file; its last writer may have renamed it meanwhile."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def _set_aside(fd: int, partial: Path) -> None:
    """Keep what a writer that was cut off has left, under the first name that is free."""
    left = partial.read_bytes()
    if not left:
        return
    number = 1
    while (kept := partial.with_name(f"{partial.name}.{number}")).exists():
        number += 1
    atomic_write_bytes(kept, left, mode=0o600)
    os.ftruncate(fd, 0)
