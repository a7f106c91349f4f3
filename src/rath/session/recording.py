"""Writing a run to its session file while it goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import UUID

from rath._async.runtime import runtime
from rath.session.chunk import ChunkRow, ChunkTable
from rath.session.persistence.paths import ensure_private, session_file
from rath.session.persistence.records import header_of
from rath.session.persistence.writer import SessionFile
from rath.session.session import Session


@dataclass(frozen=True, slots=True)
class RecordingPlan:
    """Where a run is written."""

    path: Path
    """Absolute: a later change of the working directory moves no file."""

    in_store: bool = False
    """Whether the file stands in the store of the home, whose directory is private."""

    sandbox_handle_id: str | None = None

    def open(self, session: Session) -> SessionFile:
        """Return the file, locked, with the header of `session` in it; blocks."""
        if self.in_store:
            ensure_private(self.path.parent)
        header = header_of(session, sandbox_handle_id=self.sandbox_handle_id)
        return SessionFile(header, path=self.path)


def plan_recording(
    session: UUID, *, persist: bool, path: Path | str | None, sandbox_handle_id: str | None
) -> RecordingPlan | None:
    """Return where a run that makes `session` is written, as home and working directory are now.

    Args:
        session: The session that is made.
        persist: Write to the store of the home, unless `path` is given.
        path: Write to this file.
        sandbox_handle_id: Identity of a remote sandbox, for the header.
    """
    if path:
        return RecordingPlan(Path(path).absolute(), False, sandbox_handle_id)
    if persist:
        return RecordingPlan(session_file(session).absolute(), True, sandbox_handle_id)
    return None


class Recording:
    """The file of one run; does nothing without a plan.

    A run that ends by itself closes its file with a trailer; one that fails or is cancelled leaves
    the partial file, which is the sign of it.
    """

    def __init__(self, plan: RecordingPlan | None, snapshot: Callable[[], Session]) -> None:
        self._plan = plan
        self._snapshot = snapshot
        self._writer: SessionFile | None = None
        self._n_rows = 0

    async def begin(self) -> None:
        """Open the file and write the rows that the run starts from."""
        if self._plan is None:
            return
        session = self._snapshot()
        opening = runtime().start_in_worker(partial(self._plan.open, session))
        try:
            self._writer = await asyncio.wrap_future(opening)
        except asyncio.CancelledError:
            # The worker goes on; what it opens belongs to nobody then.
            opening.add_done_callback(_abandon)
            raise
        await self.flush(session.chunk_table)

    async def flush(self, table: ChunkTable) -> None:
        """Write the rows that came since; a failure to write fails the run."""
        if self._writer is not None and len(table) > self._n_rows:
            rows = table.since(self._n_rows)
            await runtime().call_in_worker(partial(_write, self._writer, self._n_rows, rows))
            self._n_rows = len(table)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        writer = self._writer
        if writer is None:
            return
        if error is not None:
            # On a thread that nobody waits for: a cancelled run must not be held up by a disk.
            runtime().start_in_worker(writer.abandon)
            return
        final = self._snapshot()
        try:
            await self.flush(final.chunk_table)
            await runtime().call_in_worker(partial(writer.finish, final.cumulative_usage))
        except BaseException:
            runtime().start_in_worker(writer.abandon)
            raise


def _abandon(opening: Future[SessionFile]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().abandon()


def _write(writer: SessionFile, start: int, rows: tuple[ChunkRow, ...]) -> None:
    for index, row in enumerate(rows, start=start):
        writer.write_chunk(index, row)
