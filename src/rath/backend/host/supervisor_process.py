"""A small process beside ours that starts commands, and ends whatever they leave behind.

It runs under `python -I -S` and imports nothing of rath, so that it starts fast; Linux only.

    our process --socket--> supervisor --fork--> runner --spawn--> a command, in its own session
         `---------------------socket-------------->'

A runner adopts what its command orphans, so that all of it can be found and ended: when it is told
to, and when our process ends, by whatever means. What goes over the sockets:

    to the supervisor   one byte with a descriptor: fork a runner that serves this socket
    to a runner         length (4 bytes) and that many bytes: number of arguments, numbers of
                        descriptors, directory, arguments and variables with zero bytes between
                        them; with it these descriptors. Length 0: end the command
    from a runner       kind (1 byte) and number (4 bytes): see `ReplyKind`
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterable, Iterator

LENGTH = struct.Struct("!I")
REPLY = struct.Struct("!ci")

TERM_SECONDS = 0.5
"""How long a command may take to end after SIGTERM."""

LEAVE_SECONDS = 0.2
"""How long what an ended command left in its group has to leave it, as `setsid X &`; a guess."""

_LOOK_MS = 2.0

_STRAYS_MS = 200.0
"""How often to look again for what a killed runner has left, until none is found twice."""

GRACE_SECONDS = 3.0
"""How long runners may take to end their commands once our process has gone."""

_PR_SET_CHILD_SUBREAPER = 36


class ReplyKind:
    """Kinds of replies of a runner."""

    BORN = b"B"
    """It is there; the number is its process id."""

    ENDED = b"X"
    """The command has ended; the number is its wait status."""

    IDLE = b"I"
    """Nothing of it is left: the runner can take another one."""

    UNUSED = b"U"
    """Nobody has used it for as long as `main` was told; sent once."""

    NO_DIRECTORY = b"D"
    """It could not be started in its directory; the number is the errno."""

    NO_PROGRAM = b"P"
    """It could not be started; the number is the errno."""


class Reaper:
    """Adopts and ends the descendants of this process."""

    def __init__(self) -> None:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.wake: int
        self.wake, writer = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _, __: None)  # that there is one wakes us

    def drain(self) -> None:
        """Forget the wake-ups so far."""
        try:
            while len(os.read(self.wake, 4096)) == 4096:
                pass
        except BlockingIOError:
            pass

    def wait(self, seconds: float) -> None:
        """Wait until a child ends, or `seconds` at most."""
        poll = select.poll()
        poll.register(self.wake, select.POLLIN)
        poll.poll(max(0.0, seconds) * 1000)
        self.drain()


class Runner:
    """Runs one command after another for our process, and ends all that each of them started."""

    def __init__(self, channel: socket.socket, parent: int, idle_ms: float) -> None:
        self._reaper = Reaper()
        self._channel = channel
        self._idle_ms = idle_ms
        self._received = bytearray()
        self._descriptors: list[int] = []
        self._main: int | None = None
        self._left: tuple[int, int, float] | None = None  # group, status of its leader, deadline
        self._is_ending = False
        self._is_clear = True
        self._is_unused = True
        self._replies = REPLY.pack(ReplyKind.BORN, os.getpid())
        self._parent = parent
        self._poll = select.poll()
        for descriptor in (channel.fileno(), self._reaper.wake, parent):
            self._poll.register(descriptor, select.POLLIN)

    def work(self) -> None:
        """Do what our process asks for, until it goes away."""
        self._flush()
        while True:
            ready = {descriptor for descriptor, _ in self._poll.poll(self._patience())}
            if not ready and self._left is None:
                self._is_unused = True
                self._replies += REPLY.pack(ReplyKind.UNUSED, 0)
            if self._reaper.wake in ready or self._left is not None:
                self._reaper.drain()
                self._reap()
            is_asked = self._channel.fileno() in ready
            if self._parent in ready or (is_asked and not self._receive()):
                break
            self._flush()
        self._end_all()

    def _patience(self) -> float | None:
        if self._left is not None:
            return _LOOK_MS  # nobody tells when a process leaves a group
        return self._idle_ms if self._is_clear and not self._is_unused else None

    def _receive(self) -> bool:
        """Take what has come and obey it; False when our process has gone."""
        room = socket.CMSG_SPACE(4 * 4)
        try:
            data, ancillary, _, _ = self._channel.recvmsg(1 << 16, room, socket.MSG_CMSG_CLOEXEC)
        except OSError:
            return False
        self._descriptors.extend(_descriptors(ancillary))
        self._received += data
        while len(self._received) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._received)
            if len(self._received) < LENGTH.size + length:
                break
            payload = bytes(self._received[LENGTH.size : LENGTH.size + length])
            del self._received[: LENGTH.size + length]
            if payload:
                self._start(payload)
            else:
                self._end()
        return bool(data)

    def _start(self, payload: bytes) -> None:
        kind = ReplyKind.NO_DIRECTORY
        self._is_unused = False
        try:
            n_arguments, numbers, directory, *rest = payload.split(b"\0")
            os.chdir(directory)
            kind = ReplyKind.NO_PROGRAM
            n = int(n_arguments)
            variables = dict(variable.split(b"=", 1) for variable in rest[n:])
            places = dict(zip(map(int, numbers.split(b",")), self._descriptors, strict=True))
            self._main = _spawn(rest[:n], variables, places)
            self._is_clear = self._is_ending = False
        except OSError as exc:
            self._replies += REPLY.pack(kind, exc.errno or 0)
        except ValueError:
            self._replies += REPLY.pack(kind, errno.EINVAL)
        finally:
            for descriptor in self._descriptors:
                os.close(descriptor)
            self._descriptors.clear()
            os.chdir("/")

    def _end(self) -> None:
        """End the command and all below it: politely first, where it is still there."""
        self._is_ending = True
        leader = self._main
        if leader is not None:
            signal_group(leader, signal.SIGTERM)
            deadline = time.monotonic() + TERM_SECONDS
            while self._reap() and self._main == leader and time.monotonic() < deadline:
                self._reaper.wait(deadline - time.monotonic())
        self._end_all()

    def _end_all(self) -> None:
        """Kill every descendant: those of a killed child become our own children."""
        self._is_ending = True
        pause = 0.005
        if self._main is not None:
            signal_group(self._main, signal.SIGKILL)
        while self._reap():
            kill(children())
            self._flush()
            self._reaper.wait(pause)
            pause = min(pause * 2, 0.2)

    def _reap(self) -> bool:
        """Bury the children that have ended; tell whether others are left."""
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._main:
                    self._main, self._left = None, (*ended, time.monotonic() + LEAVE_SECONDS)
            self._end_group()
        except ChildProcessError:
            self._end_group()
            if not self._is_clear:
                self._is_clear = True
                self._replies += REPLY.pack(ReplyKind.IDLE, 0)
            return False
        return True

    def _end_group(self) -> None:
        """Kill what an ended command left in its group, as soon as nobody there is leaving it."""
        if self._left is None:
            return
        group, status, deadline = self._left
        if not self._is_ending and time.monotonic() < deadline and _has_members(group):
            return
        # It has members, or had some a moment ago: nobody else has got its number.
        signal_group(group, signal.SIGKILL)
        self._left = None
        self._replies += REPLY.pack(ReplyKind.ENDED, status)

    def _flush(self) -> None:
        replies, self._replies = self._replies, b""
        try:
            if replies:
                self._channel.send(replies)
        except OSError:
            return  # our process has gone, which the next look at the socket tells


class Supervisor:
    """Forks runners for our process, and ends what a runner that was killed has left."""

    def __init__(self, control: socket.socket, parent: int, idle_ms: float) -> None:
        self._reaper = Reaper()
        self._control = control
        self._parent = parent
        self._idle_ms = idle_ms
        self._runners: set[int] = set()
        self._n_looks = 0  # how often to look yet for what a killed runner has left

    def work(self) -> None:
        """Fork runners until our process has gone; then see that nothing of it is left."""
        poll = select.poll()
        for descriptor in (self._control.fileno(), self._reaper.wake, self._parent):
            poll.register(descriptor, select.POLLIN)
        while True:
            patience = _STRAYS_MS if self._n_looks else None
            ready = {descriptor for descriptor, _ in poll.poll(patience)}
            if self._reaper.wake in ready or self._n_looks:
                self._reaper.drain()
                self._reap()
            if self._parent in ready or (self._control.fileno() in ready and not self._fork()):
                break
        self._control.close()
        deadline = time.monotonic() + GRACE_SECONDS
        while self._reap():
            left = deadline - time.monotonic()
            if left <= 0:
                kill(children())
            self._reaper.wait(left if left > 0 else 0.2)

    def _fork(self) -> bool:
        try:
            room = socket.CMSG_SPACE(4)
            data, ancillary, _, _ = self._control.recvmsg(1, room, socket.MSG_CMSG_CLOEXEC)
        except OSError:
            return False
        for descriptor in _descriptors(ancillary):
            try:
                runner = os.fork()
            except OSError:
                runner = -1  # its socket closes, which tells our process
            if runner == 0:
                self._control.close()
                Runner(socket.socket(fileno=descriptor), self._parent, self._idle_ms).work()
                os._exit(0)
            os.close(descriptor)
            if runner > 0:
                self._runners.add(runner)
        return bool(data)

    def _reap(self) -> bool:
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] in self._runners:
                    self._runners.discard(ended[0])
                    self._n_looks = 2 if ended[1] != 0 else self._n_looks
        except ChildProcessError:
            self._n_looks = 0
            return False
        if self._n_looks:
            strays = children() - self._runners
            kill(strays)
            # One more look than needed: between two of them something may have come to us.
            self._n_looks = 2 if strays else self._n_looks - 1
        return True


def children() -> set[int]:
    """Return the children of this process."""
    me = os.getpid()
    return {pid for pid, parent, _ in processes() if parent == me}


def kill(pids: Iterable[int]) -> None:
    """Kill children of this process, which it has not buried yet."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            continue  # it runs as somebody else: waited for instead


def processes() -> Iterator[tuple[int, int, bool]]:
    """Yield the id of each process, that of its parent, and whether it has not ended."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            process = process_at(int(name))
            if process is not None:
                yield process


def process_at(pid: int) -> tuple[int, int, bool] | None:
    """Return a process as `processes` does, None where there is none of that id."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            stat = file.read(1024)
    except OSError:
        return None
    state, parent = stat[stat.rindex(b")") + 1 :].split(None, 2)[:2]
    return pid, int(parent), state not in (b"Z", b"X")


def _has_members(group: int) -> bool:
    try:
        os.waitid(os.P_PGID, group, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def signal_group(leader: int, number: int) -> None:
    """Send a signal to a process group, where one is left that may be signalled."""
    try:
        os.killpg(leader, number)
    except OSError:
        return  # gone, or all of it runs as somebody else; on macOS only dead members left


def _spawn(arguments: list[bytes], variables: dict[bytes, bytes], places: dict[int, int]) -> int:
    """Start a program whose descriptors are those that `places` names by number."""
    actions = [(os.POSIX_SPAWN_DUP2, source, number) for number, source in places.items()]
    for number, source in places.items():
        if number == source:
            # Not every C library lets one pass that keeps its number.
            os.set_inheritable(source, True)
    failed: OSError | None = None
    for program in _candidates(arguments[0], variables):
        try:
            return os.posix_spawn(
                program,
                arguments,
                variables,
                file_actions=actions,
                setsid=True,
                setsigmask=(),
                setsigdef=_SIGNALS,
            )
        except (FileNotFoundError, NotADirectoryError) as exc:
            failed = failed or exc
        except OSError as exc:
            if failed is None or isinstance(failed, FileNotFoundError | NotADirectoryError):
                failed = exc
    raise failed or FileNotFoundError(2, "")


_SIGNALS = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
"""What Python, or our process, ignores a command must not."""


def _candidates(program: bytes, variables: dict[bytes, bytes]) -> Iterator[bytes]:
    if b"/" in program:
        yield program
        return
    for directory in variables.get(b"PATH", os.defpath.encode()).split(b":"):
        candidate = os.path.join(directory, program)
        # Looking is cheaper than forking for each directory.
        if os.access(candidate, os.F_OK, effective_ids=True):
            yield candidate


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    found: list[int] = []
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found += struct.unpack(f"{len(data) // 4}i", data[: len(data) // 4 * 4])
    return found


def main() -> None:
    """Detach from our process and serve it.

    Last arguments: its socket, its process id, and after how many seconds an idle runner says so.
    """
    # A signal that our process blocks would stay so: no runner would learn of an end.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    control = socket.socket(fileno=int(sys.argv[-3]))
    parent = os.pidfd_open(int(sys.argv[-2]))
    # Its child goes on: no process of ours waits for it, and none of its signals reach us.
    if os.fork() == 0:
        Supervisor(control, parent, float(sys.argv[-1]) * 1000).work()
    os._exit(0)
