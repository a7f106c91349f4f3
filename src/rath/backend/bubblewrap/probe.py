"""Whether `bwrap` works here, found out by running it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from functools import cache

from rath.backend.bubblewrap import view
from rath.backend.bubblewrap.command import PREFIX, Sandboxing
from rath.backend.bubblewrap.provided import Provided
from rath.backend.host.process import Command

SECONDS = 10.0
"""How long the attempt may take; it takes 20 ms where all is well."""

_INSTALL = (
    "install it: the package is called bubblewrap on Debian, Ubuntu, Fedora, Arch, Alpine and "
    "openSUSE"
)
_ALLOW = (
    "the kernel forbids user namespaces to this user; an administrator allows them by sysctl: "
    "user.max_user_namespaces above 0, kernel.unprivileged_userns_clone=1 on older Debian, "
    "kernel.apparmor_restrict_unprivileged_userns=0 on Ubuntu (or an AppArmor profile for bwrap); "
    "in a container, its runtime must allow them too"
)
_TOO_OLD = "it is too old: version 0.8.0 or newer is needed"
_PROC = (
    "this container hides parts of /proc, so that no new one may be mounted; run the container "
    "with an unmasked /proc, such as docker run --security-opt systempaths=unconfined"
)
_HINTS = (
    ("nknown option", _TOO_OLD),
    ("mount proc", _PROC),
    ("user.max_user_namespaces", _ALLOW),
    ("namespace", _ALLOW),
    ("uid map", _ALLOW),
    ("ermission denied", _ALLOW),
    ("not permitted", _ALLOW),
)
"""What helps, by a part of the words of `bwrap`; the first that fits."""


def find() -> str | None:
    """Return the path of `bwrap`, None where there is none."""
    found = shutil.which("bwrap")
    return None if found is None else os.path.abspath(found)


def reason_against() -> str | None:
    """Return why no sandbox can be made here and what helps, None where one can; blocks once."""
    if sys.platform != "linux":
        return f"the bubblewrap backend needs Linux, this is {sys.platform}; use another backend"
    bwrap = find()
    if bwrap is None:
        return f"the bubblewrap backend needs the program bwrap, which is not on PATH; {_INSTALL}"
    return _tried(bwrap, os.geteuid())


@cache
def _tried(bwrap: str, uid: int) -> str | None:
    """Run `bwrap` as a sandbox would, once for each path and user of this process."""
    try:
        with tempfile.TemporaryDirectory(prefix="rath-probe-") as directory:
            status, words = _attempt(bwrap, directory)
    except OSError as exc:
        return f"the bubblewrap backend could not try {bwrap}: {exc}; see that it can be executed"
    if status == 0:
        return None
    said = words.strip().removeprefix(PREFIX) or f"status {status}, no message"
    hint = next((hint for part, hint in _HINTS if part in said), f"run {bwrap} by hand to see why")
    return f"the bubblewrap backend cannot start {bwrap} here ({said}): {hint}"


def _attempt(bwrap: str, directory: str) -> tuple[int, str]:
    """Return how `true` ended inside, and what was said on stderr."""
    provided = Provided()
    arguments = [
        *view.namespaces(network=False),
        *view.system(provided.etc, network=False),
        *view.interpreter(),
    ]
    command = Sandboxing(bwrap, arguments, provided.filter).apply(
        Command(["/bin/sh", "-c", "exit 0"], directory, {}),
        view.workspace([directory], ()),
        directory=directory,
    )
    try:
        # A file and no pipe: what a broken program leaves behind may hold a pipe open for ever.
        with tempfile.TemporaryFile() as words:
            status = _run(command, words.fileno())
            words.seek(0)
            return status, words.read(1000).decode("utf-8", "replace")
    finally:
        provided.remove()


def _run(command: Command, stderr: int) -> int:
    process = subprocess.Popen(
        list(command.argv),
        cwd=command.cwd,
        env=dict(command.env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        start_new_session=True,
    )
    try:
        return process.wait(SECONDS)
    except subprocess.TimeoutExpired:
        os.write(stderr, f"no end within {SECONDS:g} s".encode())
        return -signal.SIGKILL
    finally:
        # Before it is buried, or right after: what it left has its number still.
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
