"""Temporary directories whose names tell whose they are, so that what a dead process left goes."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from functools import cache

PRUNE_SECONDS = 1.0
"""How long to go on removing what dead processes left; a guess. The next process does the rest."""

_NAME = re.compile(r"rath-.+?-(\d+)-(\d+)-(\d+)-[0-9a-f]+")


def new_name(kind: str) -> str:
    """Return a name for a directory of this process that no other directory has; Linux only."""
    namespace, pid = os.stat("/proc/self/ns/pid").st_ino, os.getpid()
    return f"rath-{kind}-{namespace}-{pid}-{_started(pid)}-{os.urandom(6).hex()}"


def new_directory(kind: str) -> str:
    """Make a private directory among the temporary ones and return its path.

    Raises:
        OSError: It cannot be made.
    """
    above = tempfile.gettempdir()
    try:
        path = os.path.join(above, new_name(kind))
    except FileNotFoundError:
        # No /proc, as on macOS: nobody will find out whether its process has ended.
        return tempfile.mkdtemp(prefix=f"rath-{kind}-", dir=above)
    os.mkdir(path, 0o700)
    return path


def is_stale(name: str) -> bool:
    """Tell whether `name` was made by `new_name` in a process that has ended.

    Of processes in another pid namespace nothing can be told from here: theirs are not stale.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        return False
    namespace, pid, started = (int(each) for each in match.groups())
    return os.stat("/proc/self/ns/pid").st_ino == namespace and _started(pid) != started


@cache
def prune_once() -> None:
    """Call `prune` if this process has not done so yet."""
    prune()


def prune() -> None:
    """Remove the temporary directories of processes that have ended; blocks, about a second."""
    deadline = time.monotonic() + PRUNE_SECONDS
    with contextlib.suppress(OSError):
        for path in _stale(tempfile.gettempdir()):
            if time.monotonic() >= deadline:
                return
            shutil.rmtree(path, ignore_errors=True)


def _stale(above: str) -> Iterator[str]:
    for name in filter(is_stale, os.listdir(above)):
        path = os.path.join(above, name)
        with contextlib.suppress(OSError):
            found = os.lstat(path)
            # Others may make names in a shared directory; theirs are not ours to remove.
            is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
            if is_ours and not _holds_mounts(os.path.realpath(path)):
                yield path


def _holds_mounts(path: str) -> bool:
    """Tell whether a file system is mounted there, whose files would be removed too."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        points = [line.split(" ", 5)[4] for line in file]
    return any(point == path or point.startswith(f"{path}/") for point in points)


def _started(pid: int) -> int | None:
    """Return when a process was started, in ticks since boot; None for one that is not there."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read()
        # The name of the program stands in brackets and may hold anything: fields after it.
        return int(fields[fields.rindex(b")") + 2 :].split()[19])
    return None
