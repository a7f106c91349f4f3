"""Our side of the process that starts commands and ends what they leave behind; Linux only."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from rath._async.runtime import runtime
from rath.backend.host.keeper import Keeper, KeptCommand, send_with, set_done

MAX_IDLE = 8
"""Keepers that wait for another command; a guess: each is a process of one or two MB."""

START_SECONDS = 20.0

_PROGRAM = "import sys; sys.path.append(sys.argv[1]); import supervisor_process as s; s.main()"


@cache
def is_supported() -> bool:
    """Tell whether commands can be supervised here: Linux 5.3 or newer, a Python to run."""
    if sys.platform != "linux" or not sys.executable or getattr(sys, "frozen", False):
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return Path(__file__).with_name("supervisor_process.py").is_file()


class Supervisor:
    """The process that forks keepers, and our connections to it and to them."""

    def __init__(self) -> None:
        self._control: asyncio.Future[socket.socket] | None = None
        self._keepers: set[Keeper] = set()
        self._idle: list[Keeper] = []
        self._sending = asyncio.Lock()

    async def start(
        self, payload: bytes, descriptors: Sequence[int], *, program: str, directory: str
    ) -> KeptCommand:
        """Start a command.

        Args:
            payload: The command as `supervisor_process` reads it.
            descriptors: Its stdout and stderr, perhaps its stdin.
            program: What an error about the program names.
            directory: What an error about the directory names.

        Raises:
            OSError: The supervisor cannot be started.
        """
        keeper = self._idle.pop() if self._idle else await self._forked()
        return await keeper.start(payload, descriptors, program=program, directory=directory)

    async def aclose(self) -> None:
        """Leave all of them: they end what is running, then themselves."""
        self.disown()
        for keeper in list(self._keepers):
            keeper.close()
        runtime().forget(self)

    def disown(self) -> None:
        """Close the connection to the supervisor; another one is started when it is needed."""
        control, self._control = self._control, None
        if control is not None:
            control.add_done_callback(_close_result)

    def forget_sockets(self) -> None:
        """Close our copies in a forked child, and leave the event loop of the parent alone."""
        for keeper in self._keepers:
            keeper.channel.close()
        control = self._control
        if control is not None and control.done() and not control.cancelled():
            with contextlib.suppress(OSError):
                control.result().close()

    async def _forked(self) -> Keeper:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                await self._send(theirs.fileno())
            except BaseException:
                ours.close()
                raise
        keeper = Keeper(ours, self._take_back)
        self._keepers.add(keeper)
        return keeper

    async def _send(self, descriptor: int) -> None:
        async with self._sending:
            control = await self._connected()
            try:
                await _send_descriptor(control, descriptor)
            except (BrokenPipeError, ConnectionResetError):
                # It was killed; what keepers run goes on without it.
                self.disown()
                await _send_descriptor(await self._connected(), descriptor)

    async def _connected(self) -> socket.socket:
        if self._control is None:
            self._control = asyncio.wrap_future(runtime().start_in_worker(_connect))
            runtime().keep_open(self)
        control = self._control
        try:
            return await asyncio.shield(control)
        except OSError:
            if self._control is control:
                self._control = None
            raise

    def _take_back(self, keeper: Keeper) -> None:
        if keeper.is_lost:
            self._keepers.discard(keeper)
            if keeper in self._idle:
                self._idle.remove(keeper)
        elif len(self._idle) < MAX_IDLE:
            self._idle.append(keeper)
        else:
            keeper.close()


_supervisor: Supervisor | None = None


def supervisor() -> Supervisor:
    """Return the one of this process; called on the runtime loop."""
    global _supervisor
    if _supervisor is None:
        _supervisor = Supervisor()
    return _supervisor


def _forget_after_fork() -> None:
    """Start afresh in a forked child: our end of a socket must not live on in it."""
    global _supervisor
    if _supervisor is not None:
        _supervisor.forget_sockets()
    _supervisor = None


if hasattr(os, "register_at_fork"):  # pragma: no branch  # Windows has no fork
    os.register_at_fork(after_in_child=_forget_after_fork)


def _connect() -> socket.socket:
    """Start the supervisor; on a worker thread."""
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            here = str(Path(__file__).parent)
            subprocess.run(
                [sys.executable, "-I", "-S", "-c", _PROGRAM, here, str(theirs.fileno()),
                 str(os.getpid())],
                cwd="/",
                env={name: os.environ[name] for name in _LOADER if name in os.environ},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                check=True,
                timeout=START_SECONDS,
            )  # fmt: skip
    except subprocess.SubprocessError as exc:
        ours.close()
        raise OSError(
            errno.ECHILD, f"the process that runs commands did not start ({exc})", sys.executable
        ) from exc
    except BaseException:
        ours.close()
        raise
    ours.setblocking(False)
    return ours


_LOADER = ("LD_LIBRARY_PATH",)
"""Variables without which some builds of Python do not start; nothing else reaches it."""


async def _send_descriptor(control: socket.socket, descriptor: int) -> None:
    while True:
        try:
            send_with(control, b"k", [descriptor])
        except BlockingIOError:
            await _writable(control)
        else:
            return


async def _writable(control: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    writable: asyncio.Future[None] = loop.create_future()
    loop.add_writer(control.fileno(), set_done, writable)
    try:
        await writable
    finally:
        loop.remove_writer(control.fileno())


def _close_result(control: asyncio.Future[socket.socket]) -> None:
    if not control.cancelled() and control.exception() is None:
        control.result().close()
