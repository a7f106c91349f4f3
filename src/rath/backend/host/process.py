"""Commands of this host: bounded in time and output, ended with all that they started."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rath._async.runtime import runtime
from rath._core.blobs import Blob
from rath.backend.host.capture import (
    DRAIN_SECONDS,
    MAX_OUTPUT_BYTES,
    MAX_WHOLE_BYTES,
    Capture,
    StatusPipe,
    finish,
)
from rath.backend.host.groups import start_group
from rath.backend.host.keeper import KeptCommand, Leftovers
from rath.backend.host.supervisor import is_supported, supervisor

__all__ = [
    "DEFAULT_TIMEOUT",
    "DRAIN_SECONDS",
    "MAX_OUTPUT_BYTES",
    "MAX_WHOLE_BYTES",
    "Command",
    "Ended",
    "Leftovers",
    "run_process",
]

DEFAULT_TIMEOUT = 120.0
"""Seconds after which a command is ended unless its caller said otherwise; a guess."""

STATUS_NUMBER = 8
"""The descriptor on which a program reports, where it is asked to; needs a supervisor."""

_INLINE_STDIN_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Command:
    """What to start."""

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
class Ended:
    """How it ended, and what it printed."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    elapsed_ms: float
    timed_out: bool
    stdout_full: Blob | None = None
    """All that it printed, where `stdout` is only the first and the last part of it."""

    stderr_full: Blob | None = None
    report: bytes | None = None
    """What it wrote to `STATUS_NUMBER`, where it was given that; 64 KiB at most."""

    is_gone: bool = True
    """False when it was told to end and something of it was seen to run on."""


async def run_process(command: Command, *, leftovers: Leftovers | None = None) -> Ended:
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
    with contextlib.ExitStack() as held:
        # One by one: where the second cannot be made, the first is let go.
        streams = [_captured(held), _captured(held)]
        report = StatusPipe() if command.reports and is_supported() else None
        if report is not None:
            held.callback(report.close)
        running = await _started(command, streams, report)
        try:
            left = max(limit - (time.perf_counter() - started), 0.0)
            await asyncio.wait([running.ended], timeout=left)
            timed_out = not running.ended.done()
        except BaseException:
            await running.end()
            raise
        if timed_out:
            await running.end()
        elif isinstance(running, KeptCommand):
            _leave(running, leftovers)
        if running.failure is not None and not timed_out:
            raise running.failure
        await finish(*streams)
        elapsed_ms = (time.perf_counter() - started) * 1000.0
        stdout, stderr = streams
        return Ended(
            running.exit_code,
            stdout.text(),
            stderr.text(),
            elapsed_ms,
            timed_out,
            await stdout.whole(),
            await stderr.whole(),
            None if report is None else report.read(),
            running.is_gone,
        )


def _captured(held: contextlib.ExitStack) -> Capture:
    capture = Capture()
    held.callback(capture.drop)
    return capture


class _Running(Protocol):
    """A command that was started."""

    ended: asyncio.Future[None]
    failure: OSError | None

    @property
    def exit_code(self) -> int: ...
    @property
    def is_gone(self) -> bool: ...
    async def end(self) -> None: ...


def _leave(command: KeptCommand, leftovers: Leftovers | None) -> None:
    """Decide about what an ended command has left running."""
    if leftovers is None:
        command.ask_end()
    elif not command.cleared.done():
        leftovers.add(command)


async def _started(
    command: Command, streams: Sequence[Capture], report: StatusPipe | None
) -> _Running:
    if not command.argv or not command.argv[0]:
        raise ValueError("the command is empty; name a program to run")
    descriptors = {number: stream.writer for number, stream in enumerate(streams, start=1)}
    stdin = -1
    try:
        if command.stdin is not None:
            stdin = descriptors[0] = await _input(command.stdin)
        if not is_supported():
            return await start_group(
                command.argv,
                cwd=command.cwd,
                env=command.env,
                descriptors=list(descriptors.values()),
            )
        if report is not None:
            descriptors[STATUS_NUMBER] = report.writer
        return await supervisor().start(
            _payload(command, descriptors),
            list(descriptors.values()),
            program=command.argv[0],
            directory=command.cwd,
        )
    finally:
        for stream in streams:
            stream.close_writer()
        if report is not None:
            report.close_writer()
        if stdin >= 0:
            os.close(stdin)


def _payload(command: Command, descriptors: Iterable[int]) -> bytes:
    """Return the command as a keeper reads it."""
    numbers = ",".join(map(str, descriptors))
    parts = [str(len(command.argv)).encode(), numbers.encode(), os.fsencode(command.cwd)]
    parts += map(os.fsencode, command.argv)
    for name, value in command.env.items():
        key = os.fsencode(name)
        if not key or b"=" in key:
            raise ValueError(f"a variable cannot be named {name!r}")
        parts.append(key + b"=" + os.fsencode(value))
    if any(b"\0" in part for part in parts):
        raise ValueError("an argument, a variable or the directory holds a zero character")
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
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.lseek(descriptor, 0, os.SEEK_SET)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
