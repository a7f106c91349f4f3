"""What a process prints: its beginning and its end, its digest, and the whole up to a limit."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import select
import tempfile
from concurrent.futures import Future
from typing import IO

from rath._async.runtime import runtime
from rath._core.blobs import Blob

MAX_OUTPUT_BYTES = 1 << 20
"""How much of each of stdout and stderr a result holds: the first and the last half of this."""

MAX_WHOLE_BYTES = 16 << 20
"""How much of an output that is longer is kept whole beside it; of more than this, the digest."""

DRAIN_SECONDS = 0.5
"""How long to read on when a process that left the group holds a pipe open."""

_HALF = MAX_OUTPUT_BYTES // 2
_CHUNK_BYTES = 1 << 16
_INLINE_BYTES = 1 << 18
"""So much is read on the loop; a process that prints more is read on a worker thread."""

_TURN_BYTES = 32 << 20
_PAUSE_MS = 5


class Capture:
    """Reads a pipe to its end in bounded memory; made and used on the runtime loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._turn: Future[bool] | None = None
        self._is_stopping = False
        self._is_dropped = False
        self._head = bytearray()
        self._tail = bytearray()
        self._n_bytes = 0
        self._digest = hashlib.sha256()
        self._spool: IO[bytes] | None = None
        self._is_long = False
        self._is_lost = False
        self._loop.add_reader(self._reader, self._readable)

    def close_writer(self) -> None:
        """Close our own copy of the end that the process writes to."""
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1

    def read_on(self) -> asyncio.Future[None]:
        """Read what is there already; the result is done at the end of the pipe."""
        if self._turn is None and not self._closed.done():
            self._readable()
        return self._closed

    def stop(self) -> asyncio.Future[None]:
        """Read no further; the result is done when that is so."""
        self._is_stopping = True
        if self._turn is None and not self._closed.done():
            self._loop.remove_reader(self._reader)
            self._shut()
        return self._closed

    def drop(self) -> None:
        """Let go of everything, at once or as soon as a worker thread has."""
        self._is_dropped = True
        self.close_writer()
        self.stop()
        self._drop_spool()

    def text(self) -> bytes:
        """Return what was read, with a note in the middle where something was left out."""
        left_out = self._n_bytes - MAX_OUTPUT_BYTES
        if left_out <= 0:
            return bytes(self._head + self._tail)
        why = b", and not kept: the temporary directory is full" if self._is_lost else b""
        note = b"\n[... output truncated: %d bytes left out%s ...]\n" % (left_out, why)
        return bytes(self._head + note + self._tail[-_HALF:])

    async def whole(self) -> Blob | None:
        """Return all that was read where `text` is only a part of it, else None.

        Without its data where that is too long, or could not be kept.
        """
        if not self._is_long:
            return None
        spool, self._spool = self._spool, None
        return await runtime().call_in_worker(lambda: self._blob(spool))

    def _blob(self, spool: IO[bytes] | None) -> Blob:
        data = None
        if spool is not None:
            with spool:
                if self._n_bytes <= MAX_WHOLE_BYTES:
                    spool.seek(0)
                    data = spool.read()
        return Blob(self._digest.hexdigest(), self._n_bytes, data)

    def _drop_spool(self) -> None:
        if self._is_dropped and self._turn is None and self._spool is not None:
            self._spool.close()
            self._spool = None

    def _readable(self) -> None:
        try:
            while self._n_bytes < _INLINE_BYTES:
                data = os.read(self._reader, _CHUNK_BYTES)
                if not data:
                    self._loop.remove_reader(self._reader)
                    self._shut()
                    return
                self._take(data)
                if len(data) < _CHUNK_BYTES:
                    return
        except BlockingIOError:
            return
        self._loop.remove_reader(self._reader)
        self._turn = runtime().start_in_worker(self._drain)
        self._turn.add_done_callback(self._turned)

    def _turned(self, turn: Future[bool]) -> None:
        # After the end of the program there is no loop to tell any more.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._go_on, turn)

    def _go_on(self, turn: Future[bool]) -> None:
        self._turn = None
        if turn.exception() is not None or turn.result() or self._is_stopping:
            self._shut()
            self._drop_spool()
        else:
            self._loop.add_reader(self._reader, self._readable)

    def _drain(self) -> bool:
        """Read on a worker thread as long as something comes; True at the end of the pipe."""
        coming = select.poll()
        coming.register(self._reader, select.POLLIN)
        enough = self._n_bytes + _TURN_BYTES
        while self._n_bytes < enough and not self._is_stopping:
            try:
                data = os.read(self._reader, _CHUNK_BYTES)
            except BlockingIOError:
                if not coming.poll(_PAUSE_MS):
                    return False
                continue
            if not data:
                return True
            self._take(data)
        return False

    def _take(self, data: bytes) -> None:
        if not self._is_long and self._n_bytes + len(data) > MAX_OUTPUT_BYTES:
            self._is_long = True
            before = bytes(self._head + self._tail)
            self._digest.update(before)
            self._keep(before)
        if self._is_long:
            self._digest.update(data)
            room = MAX_WHOLE_BYTES - self._n_bytes
            if room > 0:
                self._keep(data[:room])
        self._n_bytes += len(data)
        room = _HALF - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > MAX_OUTPUT_BYTES and self._n_bytes > MAX_OUTPUT_BYTES:
            del self._tail[:-_HALF]

    def _keep(self, data: bytes) -> None:
        """Write to the file of the whole; where the disk is full, go on without it."""
        if self._is_lost:
            return
        try:
            if self._spool is None:
                # Closed by `whole` or by `drop`. Without a buffer: that would fail at the end.
                self._spool = tempfile.TemporaryFile(buffering=0, prefix="rath-output-")  # noqa: SIM115
            view = memoryview(data)
            while view:
                view = view[self._spool.write(view) :]
        except OSError:
            self._is_lost = True
            spool, self._spool = self._spool, None
            if spool is not None:
                spool.close()

    def _shut(self) -> None:
        os.close(self._reader)
        if not self._closed.done():
            self._closed.set_result(None)


class StatusPipe:
    """A pipe on which a program tells something apart from its output, of 64 KiB at most."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)

    def close_writer(self) -> None:
        """Close our own copy of the end that the program writes to."""
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1

    def read(self) -> bytes:
        """Return what is there; called when the program has ended."""
        with contextlib.suppress(BlockingIOError):
            return os.read(self._reader, _CHUNK_BYTES)
        return b""

    def close(self) -> None:
        """Close both ends."""
        self.close_writer()
        os.close(self._reader)


async def finish(*captures: Capture) -> None:
    """Read what was printed before the process ended; what comes much later is left."""
    # Mostly all of it is there, and nothing has to be waited for.
    ends = [end for capture in captures if not (end := capture.read_on()).done()]
    if ends:
        await asyncio.wait(ends, timeout=DRAIN_SECONDS)
    stopped = [end for capture in captures if not (end := capture.stop()).done()]
    if stopped:
        await asyncio.wait(stopped)
