"""The sockets of processes that run commands for us, and the commands that they run."""

from __future__ import annotations

import array
import asyncio
import errno
import os
import signal
import socket
from collections.abc import Callable, Sequence
from contextvars import Context
from functools import partial

from rath._async.runtime import runtime
from rath.backend.host.stopped import end_stopped
from rath.backend.host.supervisor_process import LENGTH, REPLY, TERM_SECONDS, Reply

END_SECONDS = TERM_SECONDS + 0.5
"""How long to wait for the end of a command that was told to end."""

SETTLE_SECONDS = 0.1
"""How long a process that was killed with its command may take to be gone; a guess."""

_LOST = "the process that looked after the command was killed, and the command with it"


class KeptCommand:
    """A command that a keeper runs; used on the runtime loop only."""

    def __init__(self, keeper: Keeper, program: str, directory: str) -> None:
        loop = asyncio.get_running_loop()
        self._keeper = keeper
        self._program = program
        self._directory = directory
        self.ended: asyncio.Future[None] = loop.create_future()
        """Done when the command itself has ended, or could not be started."""

        self.cleared: asyncio.Future[None] = loop.create_future()
        """Done when nothing of it is left."""

        self.exit_code = -signal.SIGKILL
        self.failure: OSError | None = None
        """Why it could not be started, or is not known of any more."""

        self.is_gone = True
        """False when something of it was seen to run on though it was ended by force."""

    async def end(self) -> None:
        """End it and all that it started, by force where its keeper does not do so in time."""
        self.ask_end()
        await asyncio.wait([self.cleared], timeout=END_SECONDS)
        await self.end_by_force()

    async def end_by_force(self) -> None:
        """Kill it with its keeper if anything of it is left."""
        if not self.cleared.done():
            self.is_gone = await self._keeper.akill()

    def ask_end(self) -> None:
        """Tell its keeper to end it, if anything of it is left."""
        if not self.cleared.done():
            self._keeper.send_end()

    def hear(self, kind: bytes, number: int) -> None:
        """Take note of what its keeper says."""
        match kind:
            case Reply.ENDED:
                self.exit_code = os.waitstatus_to_exitcode(number)
            case Reply.NO_DIRECTORY:
                self.fail(OSError(number, os.strerror(number), self._directory))
            case Reply.NO_PROGRAM:
                self.fail(OSError(number, _reason(number), self._program))
            case _:
                set_done(self.cleared)
        set_done(self.ended)

    def fail(self, failure: OSError) -> None:
        """Take note that it is not there."""
        if not self.ended.done():
            self.failure = failure
        set_done(self.ended)
        set_done(self.cleared)


class Keeper:
    """The socket of a process that runs one command at a time and ends what it leaves behind."""

    def __init__(self, channel: socket.socket, freed: Callable[[Keeper], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._freed = freed
        self._received = b""
        self._command: KeptCommand | None = None
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
    ) -> KeptCommand:
        """Let it start a command; how that went, the command knows when it has ended."""
        self._command = command = KeptCommand(self, program, directory)
        frame = LENGTH.pack(len(payload)) + payload
        try:
            n_sent = send_with(self.channel, frame, descriptors)
            if n_sent < len(frame):
                await self._loop.sock_sendall(self.channel, frame[n_sent:])
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
        pid, is_gone = self._pid, self.is_lost
        if pid is not None and not self.is_lost:
            is_gone = await runtime().call_in_worker(partial(end_stopped, pid))
        self.close()
        return is_gone

    def close(self) -> None:
        """Leave it; its process ends its command and then itself."""
        if not self.is_lost:
            self._loop.remove_reader(self.channel.fileno())
            self.channel.close()
            self._clear(OSError(errno.ECHILD, _LOST))
            self._freed(self)

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
            if kind == Reply.BORN:
                self._pid = number
            elif self._command is not None:
                self._command.hear(kind, number)
                if self._command.cleared.done():
                    self._clear(None)
                    self._freed(self)

    def _clear(self, failure: OSError | None) -> None:
        command, self._command = self._command, None
        if command is not None and failure is not None:
            command.fail(failure)


class Leftovers:
    """What the commands of one sandbox left running on purpose: ended with the sandbox."""

    def __init__(self) -> None:
        self._commands: set[KeptCommand] = set()

    def add(self, command: KeptCommand) -> None:
        """Remember a command of which something is left, until nothing is."""
        self._commands.add(command)
        # In no context: that of the run that began it would live as long.
        command.cleared.add_done_callback(
            lambda _: self._commands.discard(command), context=Context()
        )

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left running."""
        return not self._commands

    def now(self) -> frozenset[KeptCommand]:
        """Return the commands of which something is left."""
        return frozenset(self._commands)

    async def asettle(self, before: frozenset[KeptCommand]) -> None:
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


def send_with(channel: socket.socket, data: bytes, descriptors: Sequence[int]) -> int:
    """Send the beginning of `data` with descriptors; return how much that was."""
    rights = array.array("i", descriptors)
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
    return channel.sendmsg([data], ancillary, socket.MSG_NOSIGNAL)


def set_done(future: asyncio.Future[None]) -> None:
    """Set a future that says no more than that something happened."""
    if not future.done():
        future.set_result(None)


def _reason(number: int) -> str:
    """Return why a program could not be started."""
    reason = os.strerror(number)
    if number == errno.E2BIG:
        return f"{reason}; give a long text as the input (stdin) or in a file"
    return reason
