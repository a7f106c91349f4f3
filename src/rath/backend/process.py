"""Child processes in groups of their own: bounded in time and output, ended as a whole."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import IO

from rath._async.runtime import runtime

DEFAULT_TIMEOUT = 120.0
"""Seconds after which a command is ended unless its caller said otherwise; a guess."""

MAX_OUTPUT_BYTES = 1 << 20
"""How much of each of stdout and stderr is kept: the first and the last half of this."""

TERM_SECONDS = 0.5
"""How long a group may take to end after SIGTERM; exit of the interpreter leaves 1.2 s for all."""

DRAIN_SECONDS = 0.5
"""How long to read on when a process that left the group holds a pipe open."""


@dataclass(frozen=True, slots=True)
class Command:
    """What to start."""

    argv: Sequence[str]
    cwd: str
    env: Mapping[str, str]
    """The whole environment."""

    stdin: bytes | None = None
    timeout: float | None = None
    """Seconds, `DEFAULT_TIMEOUT` for None."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How it ended, and what it printed."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    elapsed_ms: float
    timed_out: bool


async def run_process(command: Command) -> Ended:
    """Start a process, wait for its end and return what it printed.

    It is over when the process itself has ended: what is left of its group is killed then. On
    timeout and on cancellation the group gets SIGTERM, and SIGKILL `TERM_SECONDS` later.

    Raises:
        OSError: It could not be started.
        ValueError: An argument or a variable holds a zero character, or `argv` is empty.
    """
    limit = command.timeout
    if limit is None or math.isnan(limit):
        limit = DEFAULT_TIMEOUT
    started = time.perf_counter()
    child = _Child(await _started(command))
    try:
        await child.attach()
        await asyncio.wait([child.ended], timeout=max(limit - (time.perf_counter() - started), 0.0))
        timed_out = not child.ended.done()
        if not timed_out:
            await child.drain()
    except BaseException:
        await child.end()
        raise
    else:
        if timed_out:
            await child.end()
            await child.drain()
    finally:
        child.detach()
    elapsed_ms = (time.perf_counter() - started) * 1000.0
    out, err = child.stdout.text(), child.stderr.text()
    return Ended(child.exit_code, out, err, elapsed_ms, timed_out)


class _Capture(asyncio.Protocol):
    """Reads a pipe to its end and keeps the first and the last part of it."""

    def __init__(self) -> None:
        self.closed = asyncio.get_running_loop().create_future()
        self._head = bytearray()
        self._tail = bytearray()
        self._n_bytes = 0

    def data_received(self, data: bytes) -> None:
        half = MAX_OUTPUT_BYTES // 2
        self._n_bytes += len(data)
        room = half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * half:
            del self._tail[:-half]

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)

    def text(self) -> bytes:
        """Return what was read, with a note in the middle where something was left out."""
        half = MAX_OUTPUT_BYTES // 2
        left_out = self._n_bytes - 2 * half
        if left_out <= 0:
            return bytes(self._head + self._tail)
        note = b"\n[... output truncated: %d bytes left out ...]\n" % left_out
        return bytes(self._head + note + self._tail[-half:])


class _Child:
    """A running process, its group and its pipes; used on the runtime loop only."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._loop = asyncio.get_running_loop()
        self._transports: list[asyncio.ReadTransport] = []
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self.stdout = _Capture()
        self.stderr = _Capture()
        self._watch_exit()

    @property
    def exit_code(self) -> int:
        """The process's status; -SIGKILL for one that the kernel would not end in time."""
        code = self._process.returncode
        return -signal.SIGKILL if code is None else code

    async def attach(self) -> None:
        """Start to read the pipes."""
        pipes = ((self._process.stdout, self.stdout), (self._process.stderr, self.stderr))
        for pipe, capture in pipes:
            transport, _ = await self._loop.connect_read_pipe(partial(_same, capture), pipe)
            self._transports.append(transport)

    async def drain(self) -> None:
        """Read what the process had printed before it ended."""
        await asyncio.wait([self.stdout.closed, self.stderr.closed], timeout=DRAIN_SECONDS)

    async def end(self) -> None:
        """End the group: SIGTERM, then SIGKILL; a second cancellation skips the waiting."""
        self._signal(signal.SIGTERM)
        try:
            await asyncio.wait([self.ended], timeout=TERM_SECONDS)
        finally:
            self._signal(signal.SIGKILL)
        await asyncio.wait([self.ended], timeout=TERM_SECONDS)

    def detach(self) -> None:
        """Close the pipes; the exit stays watched until it has come."""
        for transport in self._transports:
            transport.close()
        for pipe in (self._process.stdout, self._process.stderr)[len(self._transports) :]:
            if pipe is not None:
                pipe.close()

    def _signal(self, number: signal.Signals) -> None:
        if not self.ended.done():
            _signal_group(self._process.pid, number)

    def _watch_exit(self) -> None:
        if sys.platform == "linux":
            with contextlib.suppress(OSError):
                pidfd = os.pidfd_open(self._process.pid)
                self._loop.add_reader(pidfd, self._exited, pidfd)
                return
        # Without pidfd a thread waits; asyncio's own child watchers belong to the user's loop.
        runtime().start_in_worker(self._process.wait).add_done_callback(
            lambda _: self._loop.call_soon_threadsafe(self._exited, None)
        )

    def _exited(self, pidfd: int | None) -> None:
        if pidfd is not None:
            self._loop.remove_reader(pidfd)
            os.close(pidfd)
        # Before the process is reaped, so that its number still means this group.
        _signal_group(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if not self.ended.done():
            self.ended.set_result(None)


def _same(capture: _Capture) -> _Capture:
    return capture


async def _started(command: Command) -> subprocess.Popen[bytes]:
    """Start the process on a worker thread: fork and exec would stall every session."""
    starting = runtime().start_in_worker(partial(_start, command))
    waiting = asyncio.wrap_future(starting)
    try:
        return await asyncio.shield(waiting)
    except asyncio.CancelledError:
        # A start takes milliseconds: waited out, so that no process is left behind at exit, when
        # the worker's own callbacks may come too late.
        try:
            await asyncio.wait([waiting])
        finally:
            if starting.done():
                _end_unwanted(starting)
            else:
                starting.add_done_callback(_end_unwanted)
        raise


def _start(command: Command) -> subprocess.Popen[bytes]:
    if not command.argv:
        raise ValueError("the command is empty; name a program to run")
    with contextlib.ExitStack() as stack:
        stdin: int | IO[bytes] = subprocess.DEVNULL
        if command.stdin is not None:
            # A file instead of a pipe: nobody has to feed it while the process runs.
            stdin = stack.enter_context(tempfile.TemporaryFile())
            stdin.write(command.stdin)
            stdin.seek(0)
        return subprocess.Popen(
            list(command.argv),
            cwd=command.cwd,
            env=dict(command.env),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )


def _end_unwanted(starting: Future[subprocess.Popen[bytes]]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        with starting.result() as process:
            _signal_group(process.pid, signal.SIGKILL)


def _signal_group(pid: int, number: signal.Signals) -> None:
    # Gone already, or, on macOS, only dead members left.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
