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
from collections.abc import Callable

STATE_NAME = "server.json"
USERS_NAME = "users.lock"
KEEPER_NAME = "keeper.lock"
LOG_NAME = "server.log"

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
    kept = os.open(KEEPER_NAME, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(kept, fcntl.LOCK_EX)
    if os.fork():
        os._exit(0)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    keep(command, kept)


def keep(command: list[str], kept: int) -> None:
    """Run a server until it ends or nobody holds the lock; it inherits the descriptor `kept`."""
    server: subprocess.Popen[bytes] | None = None
    try:
        signal.signal(signal.SIGTERM, _stop)
        server = _start(command, kept)
        signal.signal(signal.SIGCHLD, _stop)
        if server.poll() is not None:
            raise _Over
        users = os.open(USERS_NAME, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(users, fcntl.LOCK_EX)
    except _Over:
        pass
    except OSError as exc:
        with open(LOG_NAME, "a", encoding="utf-8") as log:
            log.write(f"{command[0]}: {exc}\n")
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL if number == signal.SIGCHLD else signal.SIG_IGN)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(STATE_NAME)
    if server is not None:
        _end(server)


def _stop(number: int, frame: object) -> None:
    raise _Over


def _start(command: list[str], kept: int) -> subprocess.Popen[bytes]:
    with open(LOG_NAME, "wb") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=[kept],
            preexec_fn=_dies_with_us(),
        )


def _dies_with_us() -> Callable[[], None] | None:
    """Return what makes a child end with this process, however that ends; Linux only."""
    if sys.platform != "linux":
        return None
    libc, parent = ctypes.CDLL(None), os.getpid()

    def arrange() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it was too late
            os.kill(os.getpid(), signal.SIGTERM)

    return arrange


def _end(server: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(server.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(_END_SECONDS)
            return


if __name__ == "__main__":
    main()
