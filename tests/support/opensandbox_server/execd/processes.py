"""Processes of commands: started in a group of their own, followed until their end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

_PIECE = 1 << 16
_ENV_FILE = "EXECD_ENVS"

OnOutput = Callable[[str, bytes], None]
"""Called with `stdout` or `stderr` and what was written to it."""


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """The environment of a command: the sandbox's, what was persisted in it, its own."""
    return {**os.environ, **_persisted(), **extra}


def _persisted() -> dict[str, str]:
    """The lines `NAME=VALUE` of the file that `EXECD_ENVS` names; values are taken as they are."""
    try:
        lines = Path(os.environ[_ENV_FILE]).read_text("utf-8", "replace").splitlines()
    except (KeyError, OSError):
        return {}
    pairs = (line.partition("=") for line in lines if "=" in line)
    return {name.strip(): value for name, _, value in pairs}


def start(
    argv: Sequence[str], cwd: str, env: Mapping[str, str], *, is_merged: bool = False
) -> subprocess.Popen[bytes]:
    """Start a process without input, in a process group of its own."""
    return subprocess.Popen(
        argv,
        cwd=cwd,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if is_merged else subprocess.PIPE,
        process_group=0,
    )


def as_user(argv: Sequence[str], uid: int | None, gid: int | None) -> list[str]:
    """The same command under these ids, in a user namespace inside that of the sandbox."""
    if uid is None and gid is None:
        return list(argv)
    user = 0 if uid is None else uid
    group = user if gid is None else gid
    return ["unshare", "--user", f"--map-user={user}", f"--map-group={group}", "--", *argv]


def follow(process: subprocess.Popen[bytes], timeout: float | None, on_output: OnOutput) -> int:
    """Hand over what a process writes until it ends, and return its exit code.

    Processes that it leaves behind do not hold this up: what they write later is thrown away.

    Args:
        timeout: Seconds after which the whole group is killed; None for no limit.
        on_output: Called on this thread.
    """
    names = {
        stream.fileno(): name
        for name, stream in (("stdout", process.stdout), ("stderr", process.stderr))
        if stream is not None
    }
    deadline = None if timeout is None else time.monotonic() + timeout
    exit_fd = os.pidfd_open(process.pid)
    poller = select.poll()
    for fd in (*names, exit_fd):
        poller.register(fd, select.POLLIN)
    is_running = True
    while is_running:
        left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
        events = poller.poll(left)
        if not events:
            signal_group(process.pid, signal.SIGKILL)
            deadline = None
        for fd, _ in events:
            if fd == exit_fd:
                is_running = False
            elif data := os.read(fd, _PIECE):
                on_output(names[fd], data)
            else:
                poller.unregister(fd)
                del names[fd]
    os.close(exit_fd)
    for fd, name in names.items():
        for data in _rest(fd):
            on_output(name, data)
    _leave(process, bool(names))
    return process.wait()


def _rest(fd: int) -> Iterator[bytes]:
    """What stands in a pipe; at most what a pipe holds, as others may go on writing."""
    os.set_blocking(fd, False)
    with contextlib.suppress(BlockingIOError):
        for _ in range(4):
            if not (data := os.read(fd, _PIECE)):
                return
            yield data


def _leave(process: subprocess.Popen[bytes], has_writers: bool) -> None:
    """Close the pipes of an ended process, or keep reading for those that still hold them."""
    streams = [stream for stream in (process.stdout, process.stderr) if stream is not None]
    if not has_writers:
        for stream in streams:
            stream.close()
        return

    def sink() -> None:
        for stream in streams:
            os.set_blocking(stream.fileno(), True)
        poller = select.poll()
        open_fds = {stream.fileno() for stream in streams}
        for fd in open_fds:
            poller.register(fd, select.POLLIN)
        while open_fds:
            for fd, _ in poller.poll():
                if not os.read(fd, _PIECE):
                    poller.unregister(fd)
                    open_fds.discard(fd)
        for stream in streams:
            stream.close()

    threading.Thread(target=sink, daemon=True).start()


def signal_group(pid: int, number: signal.Signals) -> bool:
    """Signal a process and its group; False when there is none left."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return False
    return True


def exit_reason(code: int) -> str:
    """Why a process failed, as Go says it."""
    if code < 0:
        text = signal.strsignal(-code) or f"signal {-code}"
        return f"signal: {text.lower()}"
    return f"exit status {code}"
