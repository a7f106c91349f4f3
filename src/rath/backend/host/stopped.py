"""The end of a keeper that does not answer, and of all that it looked after; Linux only."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass

SECONDS = 0.5
"""How long to look for what is left; what forks meanwhile is found by the next look."""

_PAUSE = 0.005


def end_stopped(keeper: int) -> bool:
    """Kill all processes below a keeper, then itself; tell whether nothing below it is left.

    While it is stopped it still adopts what its processes orphan, so that all of it is found.
    Blocks for half a second at most.
    """
    deadline = time.monotonic() + SECONDS
    while (left := living_below(keeper)) and time.monotonic() < deadline:
        for process in left:
            _kill(process)
        # The kernel tells only its parent when a process has ended.
        time.sleep(_PAUSE)
    with contextlib.suppress(OSError):
        os.kill(keeper, signal.SIGKILL)
    return not left


@dataclass(frozen=True, slots=True)
class Process:
    """A process as /proc shows it."""

    pid: int
    parent: int
    is_living: bool


def living_below(ancestor: int) -> list[Process]:
    """Return the descendants of a process that have not ended."""
    children: dict[int, list[Process]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        process = _seen(int(name))
        if process is not None:
            children.setdefault(process.parent, []).append(process)
    below = list(children.get(ancestor, ()))
    for process in below:
        below += children.get(process.pid, ())
    return [process for process in below if process.is_living]


def _kill(process: Process) -> None:
    with contextlib.suppress(OSError):
        descriptor = os.pidfd_open(process.pid)
        try:
            # Looked at again: by now the number may belong to another process.
            if _seen(process.pid) == process:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)


def _seen(pid: int) -> Process | None:
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            stat = file.read(1024)
    except OSError:
        return None
    state, parent = stat[stat.rindex(b")") + 1 :].split(None, 2)[:2]
    return Process(pid, int(parent), state not in (b"Z", b"X"))
