"""Write a session file line by line, so that a crash leaves a readable part."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from rath.errors import PersistenceError
from rath.session.chunk import ChunkRow
from rath.session.events import Event, Row
from rath.session.log.ancestors import trailer_of
from rath.session.log.files import FileStore
from rath.session.log.format import Batch, Encoder
from rath.session.log.header import Identity, header_line
from rath.session.log.paths import ensure_sessions_dir, session_file
from rath.session.session import Session

__all__ = ["SessionWriter"]


class SessionWriter:
    """Write a session to its file; as a context manager it closes, or abandons on an exception.

    Rows are written as they are given, and the record of the session when the file is closed.
    Lines go to a partial file beside `path`, which takes its name when the file is finished. A
    partial file that stays behind tells that a writer was cut off. A finished file that stood
    there before is kept as `<path>.1`, or the next number that is free, and a warning is logged.

    Args:
        session: Whose lineage, placement and record the file takes.
        sandbox_handle_id: Under which a remote sandbox is known.
        path: The finished file; by default the one of the session in `sessions_dir()`.

    Raises:
        PersistenceError: Another process or writer has the file, or it cannot be written.

    Example:
        with SessionWriter(session) as writer:
            for index, row in enumerate(session.chunk_table):
                writer.write_chunk(index, row)
    """

    path: Path
    """The finished file."""

    partial_path: Path
    """Where lines go until the file is finished."""

    chunks_written: int
    """Rows written so far."""

    def __init__(
        self, session: Session, *, sandbox_handle_id: str | None = None, path: Path | None = None
    ) -> None:
        if path is None:
            ensure_sessions_dir()
        self.path = session_file(session.id) if path is None else Path(path)
        self.chunks_written = 0
        self._session = session
        self._encoder = Encoder(session.id)
        self._busy = threading.Lock()
        who = Identity.of(
            session.id,
            session.provenance,
            session.core.placement,
            provider=session.provider,
            lineage=session.lineage,
            sandbox_handle_id=sandbox_handle_id,
        )
        body = session.core.body
        content = body.latest if body.done() else None
        usage = () if content is None else content.given
        first = self._encoded(header_line(who, given=usage))
        self._log = FileStore.at(self.path, session.id).replace(session.id, backs_up=True)
        self.partial_path = Path(self._log.where)
        try:
            self._append(first)
        except PersistenceError:
            self._log.abandon()
            raise

    @property
    def closed(self) -> bool:
        """Whether nothing can be written any more."""
        return self._log.closed

    def write_chunk(self, index: int, row: ChunkRow) -> None:
        """Write one row; it is in the hands of the operating system on return.

        The bytes of its images are written before it, beside the file.

        Args:
            index: Of the row in the session; rows are told by their order in the file.
            row: The row.

        Raises:
            RuntimeError: The file was closed.
            PersistenceError: The row holds something that JSON has no form for, or the system
                refuses to write; the file can then only be abandoned.
        """
        with self._busy:
            self._append(self._encoded(Row(self.chunks_written, row)))
            self.chunks_written += 1

    def close(self) -> None:
        """Write the record and the trailer and give the file its name; waits for the run.

        Does nothing when the file is closed already.

        Raises:
            PersistenceError: A write failed, now or before; the partial file stays.
        """
        if self.closed:
            return
        try:
            self._session.synchronize()
            self._close()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Let go of the file as it is: the partial file stays, without a trailer."""
        self._log.abandon()

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

    def _close(self) -> None:
        if self._log.is_lost:
            return  # somebody has moved or removed it, and wants no other
        body = self._session.core.inherited(self._session.core.body.result())
        with self._busy:
            trailer = trailer_of(body, n_rows=self.chunks_written)
            self._append(self._encoded(*body.record, trailer))
            self._log.finish()

    def _append(self, batch: Batch) -> None:
        self._log.append(batch.data, blobs=batch.blobs)

    def _encoded(self, *lines: Event) -> Batch:
        try:
            return self._encoder.add(*lines)
        except (TypeError, ValueError) as exc:
            raise PersistenceError(f"{self.path} cannot hold this line: {exc}") from exc
