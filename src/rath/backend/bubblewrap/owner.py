"""Names that tell which process a directory belongs to, so that what a dead one left is found."""

from __future__ import annotations

import contextlib
import os
import re

_NAME = re.compile(r"rath-bwrap-(\d+)-(\d+)-(\d+)-[0-9a-f]+")


def new_name() -> str:
    """Return a name for a directory of this process that no other directory has."""
    namespace, pid = os.stat("/proc/self/ns/pid").st_ino, os.getpid()
    return f"rath-bwrap-{namespace}-{pid}-{_started(pid)}-{os.urandom(6).hex()}"


def is_stale(name: str) -> bool:
    """Tell whether `name` was made by `new_name` in a process that has ended.

    Of processes in another pid namespace nothing can be told from here: theirs are not stale.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        return False
    namespace, pid, started = (int(each) for each in match.groups())
    return os.stat("/proc/self/ns/pid").st_ino == namespace and _started(pid) != started


def _started(pid: int) -> int | None:
    """Return when a process was started, in ticks since boot; None for one that is not there."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        stat = file.read()
        # The name of the program stands in brackets and may hold anything: fields after it.
        return int(stat[stat.rindex(b")") + 2 :].split()[19])
    return None
