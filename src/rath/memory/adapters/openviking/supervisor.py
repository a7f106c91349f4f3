"""The process that starts a server, and ends it when nobody uses it any more.

It runs on its own, with the standard library only, and knows its users by a lock: each holds
`users.lock` shared, which the system takes back however a process ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import subprocess
import sys

LOG = "server.log"
_END_SECONDS = 15.0
_PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""


class _Over(BaseException):
    """The server has ended, or this process shall."""


def main() -> None:
    """Leave the process that started us, then serve; arguments: a directory, and the command."""
    home, *command = sys.argv[1:]
    os.chdir(home)
    # Held until this process and the server have ended: both inherit it.
    lock = os.open("keeper.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    if os.fork():
        os._exit(0)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    supervise(command, lock)


def supervise(command: list[str], lock: int) -> None:
    """Run a server until it ends or nobody uses it; it inherits the descriptor `lock`."""
    server: subprocess.Popen[bytes] | None = None
    try:
        signal.signal(signal.SIGTERM, _stop)
        server = _start(command, lock)
        signal.signal(signal.SIGCHLD, _stop)
        if server.poll() is not None:
            raise _Over
        users = os.open("users.lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(users, fcntl.LOCK_EX)
    except _Over:
        pass
    except OSError as exc:
        with open(LOG, "a", encoding="utf-8") as log:
            log.write(f"{command[0]}: {exc}\n")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with contextlib.suppress(FileNotFoundError):
        os.unlink("server.json")
    if server is None:
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(server.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(_END_SECONDS)
            return


def _stop(number: int, frame: object) -> None:
    raise _Over


def _start(command: list[str], lock: int) -> subprocess.Popen[bytes]:
    libc, parent = ctypes.CDLL(None), os.getpid()

    def die_with_parent() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it was too late
            os.kill(os.getpid(), signal.SIGTERM)

    with open(LOG, "wb") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=[lock],
            preexec_fn=die_with_parent if sys.platform == "linux" else None,
        )


if __name__ == "__main__":
    main()
