"""Our side of the process that starts commands and ends what they leave behind; Linux only.

What goes over its sockets: see `supervisor_process`.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextvars import Context
from functools import cache, partial
from pathlib import Path

from rath._async.runtime import runtime
from rath.backend.host.paths import descriptor
from rath.backend.host.supervisor_process import (
    LENGTH,
    REPLY,
    TERM_SECONDS,
    ReplyKind,
    process_at,
    processes,
)

END_SECONDS = TERM_SECONDS + 0.5
"""How long to wait for the end of a command that was told to end."""

SETTLE_SECONDS = 0.1
"""How long a process that was killed with its command may take to be gone; a guess."""

STOPPED_SECONDS = 0.5
"""How long to look for what a stopped runner has left; what forks meanwhile is found by the next
look."""

MIN_IDLE = 8
"""Runners that wait for another command however long; a guess: each is a process of 1 MB."""

MAX_IDLE = 64
"""Runners that wait at all: who runs many commands at once mostly does so again soon."""

IDLE_SECONDS = 30.0
"""After how long without a command those beyond `MIN_IDLE` end; a guess."""

START_SECONDS = 20.0

_PAUSE = 0.005
_PROGRAM = "import sys; sys.path.append(sys.argv[1]); import supervisor_process as s; s.main()"
_LOADER = ("LD_LIBRARY_PATH",)
"""Variables without which some builds of Python do not start; nothing else reaches it."""

_LOST = "the process that looked after the command was killed, and the command with it"


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


class SupervisedCommand:
    """A command that a runner runs; used on the runtime loop only."""

    def __init__(self, runner: RunnerChannel, program: str, directory: str) -> None:
        loop = asyncio.get_running_loop()
        self._runner = runner
        self._program = program
        self._directory = directory
        self.ended: asyncio.Future[None] = loop.create_future()
        """Done when the command itself has ended, or could not be started."""

        self.cleared: asyncio.Future[None] = loop.create_future()
        """Done when nothing of it is left."""

        self.exit_code: int = -signal.SIGKILL
        self.failure: OSError | None = None
        """Why it could not be started, or is not known of any more."""

        self.has_exited: bool = True
        """False when something of it was seen to run on though it was ended by force."""

    async def end(self) -> None:
        """End it and all that it started, by force where its runner does not do so in time."""
        self.ask_end()
        await asyncio.wait([self.cleared], timeout=END_SECONDS)
        await self.end_by_force()

    async def end_by_force(self) -> None:
        """Kill it with its runner if anything of it is left."""
        if not self.cleared.done():
            self.has_exited = await self._runner.akill()

    def ask_end(self) -> None:
        """Tell its runner to end it, if anything of it is left."""
        if not self.cleared.done():
            self._runner.send_end()

    def note_reply(self, kind: bytes, number: int) -> None:
        """Take note of a reply of its runner."""
        if kind == ReplyKind.ENDED:
            self.exit_code = os.waitstatus_to_exitcode(number)
        elif kind == ReplyKind.NO_DIRECTORY:
            self.fail(OSError(number, os.strerror(number), self._directory))
        elif kind == ReplyKind.NO_PROGRAM:
            reason = os.strerror(number)
            if number == errno.E2BIG:
                reason += "; give a long text as the input (stdin) or in a file"
            self.fail(OSError(number, reason, self._program))
        else:
            set_done(self.cleared)
        set_done(self.ended)

    def fail(self, failure: OSError) -> None:
        """Take note that it is not there."""
        if not self.ended.done():
            self.failure = failure
        set_done(self.ended)
        set_done(self.cleared)


class RunnerChannel:
    """The socket of a process that runs one command at a time and ends what it leaves behind."""

    def __init__(
        self,
        channel: socket.socket,
        on_idle: Callable[[RunnerChannel], None],
        on_unused: Callable[[RunnerChannel], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_idle = on_idle
        self._on_unused = on_unused
        self._received = b""
        self._command: SupervisedCommand | None = None
        self._pid: int | None = None
        self.channel = channel
        channel.setblocking(False)
        # It outlives the run that needed it first, whose context would stay alive with it.
        Context().run(self._loop.add_reader, channel.fileno(), self._readable)

    @property
    def is_lost(self) -> bool:
        """Whether its process has gone."""
        return self.channel.fileno() < 0

    async def start(
        self, payload: bytes, descriptors: Sequence[int], *, program: str, directory: str
    ) -> SupervisedCommand:
        """Let it start a command; how that went, the command knows when it has ended.

        Raises:
            ConnectionError: Its process has gone before it had the whole command.
        """
        self._command = command = SupervisedCommand(self, program, directory)
        frame = LENGTH.pack(len(payload)) + payload
        try:
            n_sent = _send_with(self.channel, frame, descriptors)
            if n_sent < len(frame):
                await self._loop.sock_sendall(self.channel, frame[n_sent:])
        except ConnectionError:
            self._command = None
            self.close()
            raise
        except OSError:
            self.close()
        except BaseException:
            self.close()  # it has half of a request
            raise
        return command

    def send_end(self) -> None:
        """Tell it to end its command and all that this has started."""
        try:
            self.channel.send(LENGTH.pack(0))
        except OSError:
            self.close()

    async def akill(self) -> bool:
        """Kill its process and all below it, and tell whether nothing was left of that.

        For one that does not answer: a command can stop it, being the same user.
        """
        pid, has_exited = self._pid, self.is_lost
        if pid is not None and not self.is_lost:
            has_exited = await runtime().call_in_worker(partial(end_stopped, pid))
        self.close()
        return has_exited

    def close(self) -> None:
        """Leave it; its process ends its command and then itself."""
        if not self.is_lost:
            self._loop.remove_reader(self.channel.fileno())
            self.channel.close()
            command, self._command = self._command, None
            if command is not None:
                command.fail(OSError(errno.ECHILD, _LOST))
            self._on_idle(self)

    def _readable(self) -> None:
        try:
            data = self.channel.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        self._received += data
        while len(self._received) >= REPLY.size:
            kind, number = REPLY.unpack_from(self._received)
            self._received = self._received[REPLY.size :]
            if kind == ReplyKind.BORN:
                self._pid = number
            elif kind == ReplyKind.UNUSED:
                self._on_unused(self)
            elif self._command is not None:
                self._command.note_reply(kind, number)
                if self._command.cleared.done():
                    self._command = None
                    self._on_idle(self)


class Leftovers:
    """What the commands of one sandbox left running on purpose: ended with the sandbox."""

    def __init__(self) -> None:
        self._commands: set[SupervisedCommand] = set()

    def add(self, command: SupervisedCommand) -> None:
        """Remember a command of which something is left, until nothing is."""
        self._commands.add(command)
        # In no context: that of the run that started it would live as long.
        command.cleared.add_done_callback(
            lambda _: self._commands.discard(command), context=Context()
        )

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left running."""
        return not self._commands

    def now(self) -> frozenset[SupervisedCommand]:
        """Return the commands of which something is left."""
        return frozenset(self._commands)

    async def asettle(self, before: frozenset[SupervisedCommand]) -> None:
        """Wait a moment for the end of what was killed with the commands since `before`."""
        killed = [command.cleared for command in self._commands - before]
        if killed:
            await asyncio.wait(killed, timeout=SETTLE_SECONDS)

    async def aend(self) -> None:
        """End all of it."""
        commands = list(self._commands)
        for command in commands:
            command.ask_end()
        if commands:
            await asyncio.wait([each.cleared for each in commands], timeout=END_SECONDS)
        for command in commands:
            await command.end_by_force()


class SupervisorClient:
    """The process that forks runners, and our connections to it and to them.

    Args:
        idle_seconds: How long more than a few runners wait for another command.
    """

    def __init__(self, idle_seconds: float = IDLE_SECONDS) -> None:
        self._idle_seconds = idle_seconds
        self._control: asyncio.Future[socket.socket] | None = None
        self._runners: set[RunnerChannel] = set()
        self._idle: list[RunnerChannel] = []
        self._sending = asyncio.Lock()

    async def start(
        self, payload: bytes, descriptors: Sequence[int], *, program: str, directory: str
    ) -> SupervisedCommand:
        """Start a command.

        Args:
            payload: The command as `supervisor_process` reads it.
            descriptors: Its stdout and stderr, perhaps its stdin.
            program: What an error about the program names.
            directory: What an error about the directory names.

        Raises:
            OSError: The supervisor cannot be started.
        """
        while True:
            is_new = not self._idle
            runner = await self._forked() if is_new else self._idle.pop()
            try:
                return await runner.start(
                    payload, descriptors, program=program, directory=directory
                )
            except ConnectionError as exc:
                if is_new:
                    raise OSError(errno.ECHILD, _LOST) from exc

    async def aclose(self) -> None:
        """Leave all of them: they end what is running, then themselves."""
        self.disown()
        for runner in list(self._runners):
            runner.close()
        runtime().forget(self)

    def disown(self) -> None:
        """Close the connection to the supervisor; another one is started when it is needed."""
        control, self._control = self._control, None
        if control is not None:
            control.add_done_callback(_close_result)

    def close_inherited(self) -> None:
        """Close our copies in a forked child, and leave the event loop of the parent alone."""
        for runner in self._runners:
            runner.channel.close()
        control = self._control
        if control is not None and control.done():
            with contextlib.suppress(OSError):
                _close_result(control)

    async def _forked(self) -> RunnerChannel:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                async with self._sending:
                    try:
                        await self._send(theirs.fileno())
                    except (BrokenPipeError, ConnectionResetError):
                        # It was killed; what runners run goes on without it.
                        self.disown()
                        await self._send(theirs.fileno())
            except BaseException:
                ours.close()
                raise
        runner = RunnerChannel(ours, self._take_back, self._close_surplus)
        self._runners.add(runner)
        return runner

    async def _send(self, descriptor: int) -> None:
        """Send a descriptor to the supervisor, which is started if there is none."""
        if self._control is None:
            self._control = asyncio.wrap_future(runtime().start_in_worker(self._connect))
            runtime().keep_open(self)
        pending = self._control
        try:
            control = await asyncio.shield(pending)
        except OSError:
            if self._control is pending:
                self._control = None
            raise
        loop = asyncio.get_running_loop()
        while True:
            try:
                _send_with(control, b"k", [descriptor])
                return
            except BlockingIOError:
                writable: asyncio.Future[None] = loop.create_future()
                loop.add_writer(control.fileno(), set_done, writable)
            try:
                await writable
            finally:
                loop.remove_writer(control.fileno())

    def _connect(self) -> socket.socket:
        """Start the supervisor; on a worker thread."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                numbers = (theirs.fileno(), os.getpid(), self._idle_seconds)
                arguments = [str(Path(__file__).parent), *map(str, numbers)]
                subprocess.run(
                    [sys.executable, "-I", "-S", "-c", _PROGRAM, *arguments],
                    cwd="/",
                    env={name: os.environ[name] for name in _LOADER if name in os.environ},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                    check=True,
                    timeout=START_SECONDS,
                )
        except subprocess.SubprocessError as exc:
            ours.close()
            raise OSError(
                errno.ECHILD,
                f"the process that runs commands did not start ({exc})",
                sys.executable,
            ) from exc
        except BaseException:
            ours.close()
            raise
        ours.setblocking(False)
        return ours

    def _take_back(self, runner: RunnerChannel) -> None:
        if runner.is_lost:
            self._runners.discard(runner)
            if runner in self._idle:
                self._idle.remove(runner)
        elif len(self._idle) < MAX_IDLE:
            self._idle.append(runner)
        else:
            runner.close()

    def _close_surplus(self, runner: RunnerChannel) -> None:
        """Leave a runner that has waited long, unless it is one of a few or was just given work."""
        if runner in self._idle and len(self._idle) > MIN_IDLE:
            runner.close()


_supervisor: SupervisorClient | None = None


def supervisor() -> SupervisorClient:
    """Return the one of this process; called on the runtime loop."""
    global _supervisor
    if _supervisor is None:
        _supervisor = SupervisorClient()
    return _supervisor


def _forget_after_fork() -> None:
    """Start afresh in a forked child: our end of a socket must not live on in it."""
    global _supervisor
    if _supervisor is not None:
        _supervisor.close_inherited()
    _supervisor = None


if hasattr(os, "register_at_fork"):  # pragma: no branch  # Windows has no fork
    os.register_at_fork(after_in_child=_forget_after_fork)


def _send_with(channel: socket.socket, data: bytes, descriptors: Sequence[int]) -> int:
    """Send the beginning of `data` with descriptors; return how much that was."""
    rights = array.array("i", descriptors)
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
    return channel.sendmsg([data], ancillary, socket.MSG_NOSIGNAL)


def set_done(future: asyncio.Future[None]) -> None:
    """Set a future that says no more than that something happened."""
    if not future.done():
        future.set_result(None)


def _close_result(control: asyncio.Future[socket.socket]) -> None:
    if not control.cancelled() and control.exception() is None:
        control.result().close()


def end_stopped(runner: int) -> bool:
    """Kill all processes below a runner, then itself; tell whether nothing below it is left.

    While it is stopped it still adopts what its processes orphan, so that all of it is found.
    Blocks for half a second at most.
    """
    deadline = time.monotonic() + STOPPED_SECONDS
    while (left := living_below(runner)) and time.monotonic() < deadline:
        for process in left:
            with contextlib.suppress(OSError), descriptor(os.pidfd_open(process[0])) as pidfd:
                # Looked at again: by now the number may belong to another process.
                if process_at(process[0]) == process:
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        # The kernel tells only its parent when a process has ended.
        time.sleep(_PAUSE)
    with contextlib.suppress(OSError):
        os.kill(runner, signal.SIGKILL)
    return not left


def living_below(ancestor: int) -> list[tuple[int, int, bool]]:
    """Return the descendants of a process that have not ended, as `processes` does."""
    children: dict[int, list[tuple[int, int, bool]]] = {}
    for process in processes():
        children.setdefault(process[1], []).append(process)
    below = list(children.get(ancestor, ()))
    for process in below:
        below += children.get(process[0], ())
    return [process for process in below if process[2]]
