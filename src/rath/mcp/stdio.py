"""A server as a child process: started, spoken to over its pipes, ended with all it started."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import time
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCNotification, jsonrpc_message_adapter

from rath._async.runtime import runtime
from rath._core.dataclasses import dataclass
from rath._core.text import decode_output
from rath.config.redaction import printable

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

__all__ = ["MAX_MESSAGE_BYTES", "Child", "LogTail", "RateLimit", "descriptors", "open_child",
           "replace_lone_surrogates"]  # fmt: skip

MAX_MESSAGE_BYTES = 64 << 20
"""Longest message of a server, in bytes; a longer one ends the connection. A guess."""

LEAVE_SECONDS = 2.0
"""How long a server may take to end after its input was closed."""

TERM_SECONDS = 1.0
"""How long it may take after SIGTERM."""

EXIT_SECONDS = 0.25
"""The same for both at exit of the interpreter, which leaves about one second for all."""

BURST = 1000
"""How many may come at once. A guess: more steps of one call than anybody looks at."""

PER_SECOND = 200.0
"""How many may come for long; each costs about half a millisecond of the one loop, measured."""

MAX_LOG_BYTES = 8192
"""How much of what a server prints is kept."""

SHOWN_LINES = 6
SHOWN_CHARS = 1000

_LONE_SURROGATE = re.compile(
    rb"\\\\"  # a backslash that is written: what follows it is no escape
    rb"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)
"""A surrogate without its other half, as the group; other things that begin alike are passed by."""

_CHUNK_BYTES = 1 << 16

_log = logging.getLogger("rath.mcp")
_ours: set[int] = set()
"""Our ends of the pipes of all servers."""


class LogTail:
    """The end of a stream of bytes."""

    __slots__ = ("_data",)

    def __init__(self) -> None:
        self._data = b""

    def add(self, data: bytes) -> None:
        """Add what was printed; the beginning of a long output is forgotten."""
        self._data = (self._data + data)[-MAX_LOG_BYTES:]

    def lines(self, hide: Callable[[str], str] = str) -> str:
        """Return the last lines, " | " between them, without escapes and what `hide` hides."""
        text = printable(decode_output(self._data))
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return hide(" | ".join(lines[-SHOWN_LINES:]))[-SHOWN_CHARS:]


class RateLimit:
    """A bucket of `BURST` notifications that fills again with time.

    Args:
        clock: Seconds from any beginning.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._tokens = float(BURST)
        self._filled_at = clock()

    def allows(self) -> bool:
        """Take one more, and tell whether there was room for it."""
        now = self._clock()
        self._tokens = min(BURST, self._tokens + (now - self._filled_at) * PER_SECOND)
        self._filled_at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


def replace_lone_surrogates(line: bytes) -> bytes:
    """Return a line of JSON with U+FFFD for each half of a character, which no parser takes.

    Programs that cut a text cut some characters in two.
    """
    return _LONE_SURROGATE.sub(lambda match: match[0] if match[1] is None else rb"\ufffd", line)


@dataclass(slots=True)
class Child:
    """Facts about a server that was started."""

    stderr: LogTail = field(default_factory=LogTail)
    noise: LogTail = field(default_factory=LogTail)
    """Output on its stdout that is no message."""

    pid: int | None = None
    exit_code: int | None = None
    """Its status once it has ended; minus the number of the signal that ended it."""


@contextlib.asynccontextmanager
async def open_child(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | None,
    child: Child,
    on_lost: Callable[[], None],
    on_dropped: Callable[[str], None] = lambda _: None,
) -> AsyncGenerator[TransportStreams]:
    """Start a server and give the streams of its messages.

    Args:
        argv: The program and its arguments.
        env: All of its variables.
        cwd: Where it starts.
        child: Is told what becomes of it.
        on_lost: Called when it closes its output: nothing will be answered any more.
        on_dropped: Called with the method of a notification that is not passed on, since the
            server sends more of them than anybody can read.

    Raises:
        OSError: It could not be started.
    """
    process = await asyncio.create_subprocess_exec(
        *argv,
        env=dict(env),
        cwd=cwd,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    child.pid = process.pid
    ours = descriptors(process)
    _ours.update(ours)
    received, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, to_send = anyio.create_memory_object_stream[SessionMessage](0)
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(_take, process, received, child, on_lost, on_dropped)
            group.start_soon(_give, process, to_send, received, on_lost)
            stderr_end = anyio.Event()
            group.start_soon(_listen, process, child, stderr_end)
            try:
                yield read, write
            finally:
                # What was cancelled still ends its server; each wait here is bounded.
                with anyio.CancelScope(shield=True):
                    for stream in (read, write):
                        stream.close()
                    await _end(process, stderr_end)
                child.exit_code = process.returncode
                group.cancel_scope.cancel()
    finally:
        _ours.difference_update(ours)
        for half in (received, read, write, to_send):
            half.close()


async def _take(
    process: Process,
    received: MemoryObjectSendStream[SessionMessage | Exception],
    child: Child,
    on_lost: Callable[[], None],
    on_dropped: Callable[[str], None],
) -> None:
    """Pass on what the server says."""
    assert process.stdout is not None
    rate_limit = RateLimit(time.monotonic)
    async with received:
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            async for line in _lines(process.stdout):
                message = _message(line, child)
                if message is None:
                    continue
                content = message.message
                if isinstance(content, JSONRPCNotification) and not rate_limit.allows():
                    on_dropped(content.method)
                    continue
                await received.send(message)
    # A server that cannot write its output does not come to read that its input has ended.
    while await process.stdout.read(_CHUNK_BYTES):
        pass
    on_lost()


async def _give(
    process: Process,
    to_send: MemoryObjectReceiveStream[SessionMessage],
    received: MemoryObjectSendStream[SessionMessage | Exception],
    on_lost: Callable[[], None],
) -> None:
    """Pass on what is said to the server."""
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        async with to_send:
            async for item in to_send:
                text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                process.stdin.write(text.encode() + b"\n")
                await process.stdin.drain()
            return
    received.close()  # its input is closed: what was asked is not answered
    on_lost()


async def _listen(process: Process, child: Child, stderr_end: anyio.Event) -> None:
    """Keep the end of what the server writes to stderr."""
    assert process.stderr is not None
    while data := await process.stderr.read(_CHUNK_BYTES):
        child.stderr.add(data)
    stderr_end.set()


async def _end(process: Process, stderr_end: anyio.Event) -> None:
    """End a server as the protocol says: close its input, wait, SIGTERM, wait, SIGKILL."""
    is_exit = runtime().is_closing
    try:
        if process.stdin is not None:
            process.stdin.close()
        if not await _has_ended(process, EXIT_SECONDS if is_exit else LEAVE_SECONDS):
            _signal(process, signal.SIGTERM)
            await _has_ended(process, EXIT_SECONDS if is_exit else TERM_SECONDS)
    finally:
        # Also what it left in its group: nobody else has got that number yet.
        _signal(process, signal.SIGKILL)
        await _has_ended(process, TERM_SECONDS)
        # Its last words may still be in the pipe.
        with anyio.move_on_after(EXIT_SECONDS):
            await stderr_end.wait()
        transport: Any = getattr(process, "_transport", None)
        if transport is not None:
            transport.close()  # something that left the group may still hold a pipe


async def _has_ended(process: Process, seconds: float) -> bool:
    """Wait for the end of the process itself, whoever still holds its pipes."""
    deadline = asyncio.get_running_loop().time() + seconds
    while process.returncode is None:
        if asyncio.get_running_loop().time() >= deadline:
            return False
        # `wait()` waits for the pipes too, which a grandchild may keep open.
        await asyncio.sleep(0.005)
    return True


def _signal(process: Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


async def _lines(stream: asyncio.StreamReader) -> AsyncGenerator[bytes]:
    """Yield whole lines; the search goes on where it ended, since a line may be megabytes."""
    waiting = bytearray()
    while data := await stream.read(_CHUNK_BYTES):
        searched = len(waiting)
        waiting += data
        begin = 0
        while (end := waiting.find(b"\n", max(begin, searched))) >= 0:
            yield bytes(waiting[begin:end])
            begin = end + 1
        del waiting[:begin]
        if len(waiting) > MAX_MESSAGE_BYTES:
            _log.warning("a tool server sent a message above %d bytes", MAX_MESSAGE_BYTES)
            return


def _message(line: bytes, child: Child) -> SessionMessage | None:
    if not line.strip():
        return None
    for form in (line, replace_lone_surrogates(line)):
        with contextlib.suppress(ValueError):
            return SessionMessage(jsonrpc_message_adapter.validate_json(form, by_name=False))
    child.noise.add(line + b"\n")
    _log.debug("a tool server printed a line that is no message (%d bytes)", len(line))
    return None


def descriptors(process: Process) -> set[int]:
    """Return our ends of its pipes that are open: of one that has ended, some are closed."""
    pipes = [process.stdin and process.stdin.transport]
    transport: Any = getattr(process, "_transport", None)
    if transport is not None:
        pipes += [transport.get_pipe_transport(number) for number in (1, 2)]
    found = [pipe.get_extra_info("pipe") for pipe in pipes if pipe is not None]
    return {pipe.fileno() for pipe in found if pipe is not None and not pipe.closed}


def _let_go_after_fork() -> None:
    """Let a forked child hold no pipe: the server would not learn that the parent closed it."""
    if not _ours:
        return
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in _ours:
        # Not closed: objects of the parent still name it, and would close another's.
        with contextlib.suppress(OSError):
            os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)
    _ours.clear()


if hasattr(os, "register_at_fork"):  # pragma: no branch  # Windows has no fork
    os.register_at_fork(after_in_child=_let_go_after_fork)
