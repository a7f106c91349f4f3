"""Commands in process groups of their own, where no supervisor can run: macOS, old kernels."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial

from rath._async.runtime import runtime

TERM_SECONDS = 0.5
"""How long a group may take to end after SIGTERM; exit of the interpreter leaves 1.2 s for all."""

LEAVE_SECONDS = 0.2
"""How long what an ended command left in its group may take to leave it, by `setsid`; a guess."""

_LOOK_SECONDS = 0.002


class GroupCommand:
    """A running process and its group; used on the runtime loop only."""

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
    def is_gone(self) -> bool:
        """Whether the process has ended."""
        return self.ended.done()

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
            _signal_group(self._process.pid, number)

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
        _signal_group(self._process.pid, signal.SIGKILL)
        # After the end of the program there is no loop to tell any more.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._set_ended)

    def _set_ended(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


async def start_group(
    argv: Sequence[str], *, cwd: str, env: Mapping[str, str], descriptors: Sequence[int]
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
        partial(_start, list(argv), cwd, dict(env), list(descriptors))
    )
    waiting = asyncio.wrap_future(starting)
    try:
        return GroupCommand(await asyncio.shield(waiting))
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


def _start(
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
            _signal_group(process.pid, signal.SIGKILL)


def _has_members(pid: int) -> bool:
    try:
        os.killpg(pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _signal_group(pid: int, number: signal.Signals) -> None:
    # Gone already, or, on macOS, only dead members left.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
