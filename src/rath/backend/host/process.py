"""Commands of this host: bounded in time and output, ended with all that they started."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import field
from functools import partial
from typing import IO

from rath._async.runtime import runtime
from rath._core.blobs import Blob
from rath._core.dataclasses import dataclass
from rath.backend.host.paths import write_all
from rath.backend.host.supervisor import (
    Leftovers,
    SupervisedCommand,
    is_supported,
    set_done,
    supervisor,
)
from rath.backend.host.supervisor_process import LEAVE_SECONDS, TERM_SECONDS, signal_group
from rath.backend.results import CommandResult, truncation_note

DEFAULT_TIMEOUT = 120.0
"""Seconds after which a command is ended unless its caller said otherwise; a guess."""

STATUS_NUMBER = 8
"""The descriptor on which a program reports, where it is asked to; needs a supervisor."""

_INLINE_STDIN_BYTES = 1 << 20
_LOOK_SECONDS = 0.002

INHERITED = frozenset(
    {
        "HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER",
        "VIRTUAL_ENV",
    }
)  # fmt: skip
"""Variables of this process that commands see, with all `LC_*`; keys and tokens stay out."""


def environment(
    *added: Mapping[str, str] | None, names: Collection[str] = INHERITED
) -> dict[str, str]:
    """Return what a command sees: the few inherited variables, then each of `added` in turn."""
    variables = {
        name: os.environ[name] for name in os.environ if name in names or name.startswith("LC_")
    }
    for more in added:
        variables.update(more or {})
    return variables


@dataclass(frozen=True, slots=True)
class HostCommand:
    """Command to start."""

    argv: Sequence[str]
    cwd: str
    env: Mapping[str, str] = field(repr=False)
    """The whole environment. Left out of `repr`: values may be secret."""

    stdin: bytes | None = None
    timeout: float | None = None
    """Seconds, `DEFAULT_TIMEOUT` for None."""

    visible: tuple[str, ...] = ()
    """Files outside the workspace that it reads; who confines it lets it see them."""

    reports: bool = False
    """Whether the program gets `STATUS_NUMBER`, to tell us something apart from its output."""


@dataclass(frozen=True, slots=True)
class CommandEnd:
    """How a command ended."""

    result: CommandResult
    timed_out: bool
    report: bytes | None = None
    """What it wrote to `STATUS_NUMBER`, where it was given that."""

    has_exited: bool = True
    """False when it was told to end and something of it was seen to run on."""


async def run_process(command: HostCommand, *, leftovers: Leftovers | None = None) -> CommandEnd:
    """Start a process, wait for its end and return what it printed.

    It is over when the process itself has ended: what is left of its group is killed then. On
    timeout and on cancellation the group gets SIGTERM, and half a second later all that it
    started gets SIGKILL; without a supervisor, only what is still in its group.

    Args:
        command: What to start.
        leftovers: Takes what the command left running in sessions of their own; without it, that
            is killed when the command has ended.

    Raises:
        OSError: It could not be started.
        ValueError: An argument or a variable holds a zero character, or `argv` is empty.
    """
    limit = command.timeout
    if limit is None or math.isnan(limit):
        limit = DEFAULT_TIMEOUT
    started = time.perf_counter()
    captures: dict[int, Capture] = {}
    reports = command.reports and is_supported()
    try:
        for number in (1, 2, STATUS_NUMBER) if reports else (1, 2):
            captures[number] = Capture()
        running = await _started(command, captures)
        try:
            # Only now: the process begins meanwhile.
            for capture in captures.values():
                capture.start_reading()
            left = max(limit - (time.perf_counter() - started), 0.0)
            await asyncio.wait([running.ended], timeout=left)
            timed_out = not running.ended.done()
        except BaseException:
            await running.end()
            raise
        if timed_out:
            await running.end()
        elif isinstance(running, SupervisedCommand):
            if leftovers is None:
                running.ask_end()
            elif not running.cleared.done():
                leftovers.add(running)
        if running.failure is not None and not timed_out:
            raise running.failure
        stdout, stderr = captures[1], captures[2]
        await finish(stdout, stderr)
        elapsed_ms = (time.perf_counter() - started) * 1000.0
        result = CommandResult(
            running.exit_code,
            stdout.text(),
            stderr.text(),
            elapsed_ms,
            await stdout.whole(),
            await stderr.whole(),
        )
        report = None
        if reports:
            captures[STATUS_NUMBER].read_on()
            report = captures[STATUS_NUMBER].text()
        return CommandEnd(result, timed_out, report, running.has_exited)
    finally:
        for capture in captures.values():
            capture.drop()


async def _started(
    command: HostCommand, captures: Mapping[int, Capture]
) -> SupervisedCommand | GroupCommand:
    if not command.argv or not command.argv[0]:
        raise ValueError("the command is empty; name a program to run")
    descriptors = {number: capture.writer for number, capture in captures.items()}
    stdin = -1
    try:
        if command.stdin is not None:
            stdin = descriptors[0] = await _input(command.stdin)
        if not is_supported():
            return await GroupCommand.start(
                command.argv,
                cwd=command.cwd,
                env=command.env,
                descriptors=list(descriptors.values()),
            )
        return await supervisor().start(
            _payload(command, descriptors),
            list(descriptors.values()),
            program=command.argv[0],
            directory=command.cwd,
        )
    finally:
        for capture in captures.values():
            capture.close_writer()
        if stdin >= 0:
            os.close(stdin)


def _payload(command: HostCommand, descriptors: Iterable[int]) -> bytes:
    """Return the command as a runner reads it."""
    numbers = ",".join(map(str, descriptors))
    parts = [str(len(command.argv)).encode(), numbers.encode(), os.fsencode(command.cwd)]
    parts += map(os.fsencode, command.argv)
    for name, value in command.env.items():
        key = os.fsencode(name)
        if not key or b"=" in key:
            raise ValueError(f"a variable cannot be named {name!r}; expected a name without '='")
        parts.append(key + b"=" + os.fsencode(value))
    if any(b"\0" in part for part in parts):
        raise ValueError(
            "an argument, a variable or the directory holds a zero character, which no process can "
            "be given; leave it out"
        )
    return b"\0".join(parts)


async def _input(data: bytes) -> int:
    """Return a descriptor that gives `data`: nobody has to feed it while the process runs."""
    if len(data) <= _INLINE_STDIN_BYTES:
        return _filled(data)
    filling = runtime().start_in_worker(lambda: _filled(data))
    try:
        return await asyncio.wrap_future(filling)
    except asyncio.CancelledError:
        filling.add_done_callback(lambda done: os.close(done.result()))
        raise


def _filled(data: bytes) -> int:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("stdin")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    try:
        write_all(descriptor, memoryview(data))
        os.lseek(descriptor, 0, os.SEEK_SET)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


class GroupCommand:
    """A running process and its group, where no supervisor can run: macOS, old kernels.

    Used on the runtime loop only.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        """Done when the process has ended."""

        self.failure: OSError | None = None
        self._is_ending = False
        runtime().start_in_worker(self._wait).add_done_callback(self._waited)

    @property
    def exit_code(self) -> int:
        """The process's status; -SIGKILL for one that the kernel would not end in time."""
        code = self._process.returncode
        return -signal.SIGKILL if code is None else code

    @property
    def has_exited(self) -> bool:
        """Whether the process has ended."""
        return self.ended.done()

    @classmethod
    async def start(
        cls, argv: Sequence[str], *, cwd: str, env: Mapping[str, str], descriptors: Sequence[int]
    ) -> GroupCommand:
        """Start a command on a worker thread: fork and exec would stall every session.

        Args:
            argv: The program and its arguments.
            cwd: Where it starts.
            env: All of its variables.
            descriptors: Its stdout and stderr, perhaps its stdin.

        Raises:
            OSError: It could not be started.
        """
        starting = runtime().start_in_worker(
            partial(_popen, list(argv), cwd, dict(env), list(descriptors))
        )
        waiting = asyncio.wrap_future(starting)
        try:
            return cls(await asyncio.shield(waiting))
        except asyncio.CancelledError:
            # A start takes milliseconds: waited out, so that no process is left behind at exit,
            # when the worker's own callbacks may come too late.
            try:
                await asyncio.wait([waiting])
            finally:
                if starting.done():
                    _end_unwanted(starting)
                else:
                    starting.add_done_callback(_end_unwanted)
            raise

    async def end(self) -> None:
        """End the group: SIGTERM, then SIGKILL; a second cancellation skips the waiting."""
        self._is_ending = True
        self._signal(signal.SIGTERM)
        try:
            await asyncio.wait([self.ended], timeout=TERM_SECONDS)
        finally:
            self._signal(signal.SIGKILL)
        await asyncio.wait([self.ended], timeout=TERM_SECONDS)

    def _signal(self, number: signal.Signals) -> None:
        if not self.ended.done():
            signal_group(self._process.pid, number)

    def _wait(self) -> None:
        """Wait for its end, and a moment for those that are about to leave its group."""
        self._process.wait()
        deadline = time.monotonic() + LEAVE_SECONDS
        while not self._is_ending and time.monotonic() < deadline:
            if not _has_members(self._process.pid):
                return
            # Nobody tells when a process leaves a group.
            time.sleep(_LOOK_SECONDS)

    def _waited(self, waiting: Future[None]) -> None:
        # Whatever is left of the group: a process that has just ended has no successor yet.
        signal_group(self._process.pid, signal.SIGKILL)
        # After the end of the program there is no loop to tell any more.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(set_done, self.ended)


def _popen(
    argv: list[str], cwd: str, env: dict[str, str], descriptors: list[int]
) -> subprocess.Popen[bytes]:
    stdout, stderr, *stdin = descriptors
    return subprocess.Popen(
        argv,
        cwd=cwd,
        env=env,
        stdin=stdin[0] if stdin else subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
    )


def _end_unwanted(starting: Future[subprocess.Popen[bytes]]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        with starting.result() as process:
            signal_group(process.pid, signal.SIGKILL)


def _has_members(pid: int) -> bool:
    try:
        os.killpg(pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


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
        self.writer: int
        self._reader, self.writer = os.pipe()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._turn: Future[bool] | None = None
        self._is_reading = False
        self._is_stopping = False
        self._is_dropped = False
        self._head = bytearray()
        self._tail = bytearray()
        self._n_bytes = 0
        self._digest = hashlib.sha256()
        self._spool: IO[bytes] | None = None
        self._is_long = False
        self._is_lost = False

    def close_writer(self) -> None:
        """Close our own copy of the end that the process writes to."""
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1

    def start_reading(self) -> None:
        """Read from now on whatever comes."""
        if not self._is_reading:
            os.set_blocking(self._reader, False)
            self._loop.add_reader(self._reader, self._readable)
            self._is_reading = True

    def read_on(self) -> asyncio.Future[None]:
        """Read what is there already; the result is done at the end of the pipe."""
        if self._turn is None and not self._closed.done():
            self.start_reading()
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
        why = ", and not kept: the temporary directory is full" if self._is_lost else ""
        note = truncation_note(left_out, why)
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
            write_all(self._spool.fileno(), memoryview(data))
        except OSError:
            self._is_lost = True
            spool, self._spool = self._spool, None
            if spool is not None:
                spool.close()

    def _shut(self) -> None:
        os.close(self._reader)
        if not self._closed.done():
            self._closed.set_result(None)


async def finish(*captures: Capture) -> None:
    """Read what was printed before the process ended; what comes much later is left."""
    # Mostly all of it is there, and nothing has to be waited for.
    ends = [end for capture in captures if not (end := capture.read_on()).done()]
    if ends:
        await asyncio.wait(ends, timeout=DRAIN_SECONDS)
    stopped = [end for capture in captures if not (end := capture.stop()).done()]
    if stopped:
        await asyncio.wait(stopped)
