"""The machine of a measurement: what it is, and what other programs took of it meanwhile."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_PROC = Path("/proc")
_PR_SET_CHILD_SUBREAPER = 36
"""Of `prctl`, see `linux/prctl.h`."""

_MAX_OTHERS = 0.1
"""The share of all CPUs that others may take before no verdict is given; a guess."""


@dataclass(frozen=True, slots=True)
class CpuClock:
    """CPU seconds spent since the machine started."""

    at: float
    busy: float
    """By all processes, and by other machines on the same hardware (`steal`)."""
    own: float
    """By this process and those that it started, directly or not."""

    @classmethod
    def read(cls) -> Self | None:
        """Return the clock now; None where the system does not tell (`/proc/stat`)."""
        if not (_PROC / "stat").exists():
            return None
        ticks = [
            int(field) for field in (_PROC / "stat").read_text().split("\n", 1)[0].split()[1:9]
        ]
        user, nice, system, _idle, _iowait, irq, softirq, steal = ticks
        per_second = os.sysconf("SC_CLK_TCK")
        busy = user + nice + system + irq + softirq + steal
        return cls(time.monotonic(), busy / per_second, _tree_ticks(os.getpid()) / per_second)

    def others_since(self, start: CpuClock) -> float:
        """Return the share of all CPUs, from 0 to 1, that others have taken since `start`."""
        others = (self.busy - start.busy) - (self.own - start.own)
        available = (self.at - start.at) * (os.cpu_count() or 1)
        return min(1.0, max(0.0, others / available))


def adopt_orphans() -> None:
    """Keep what this process starts below it, also when the process between them ends; on Linux.

    Else the time of such a process, as the supervisor of a sandbox is one, would be that of others.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def is_busy(others: float | None) -> bool:
    """Tell whether others took too much; by the load where their share is not known."""
    if others is not None:
        return others > _MAX_OTHERS
    return os.getloadavg()[0] > (os.cpu_count() or 1)


def describe_machine() -> dict[str, str | int]:
    """Return the facts on which figures depend; no name of the machine."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu_model(),
        "cpus": os.cpu_count() or 1,
        "memory_mb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20,
        "python": platform.python_version(),
    }


def status_of(process: int | str = "self") -> dict[str, int]:
    """Return the kilobytes and counts that `/proc` tells of a process, such as VmRSS and Threads.

    Raises:
        OSError: The system does not tell them, or there is no such process.
    """
    lines = (_PROC / str(process) / "status").read_text().splitlines()
    pairs = ((key, rest.split()) for key, _, rest in (line.partition(":") for line in lines))
    numbers = {key: int(words[0]) for key, words in pairs if words and words[0].isdecimal()}
    return numbers | {"Descriptors": len(os.listdir(_PROC / str(process) / "fd"))}


def _tree_ticks(root: int) -> int:
    """Return the CPU ticks of a process, of those below it, and of those below that have ended."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in _PROC.iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            # The name, in parentheses, may hold anything.
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        parents[int(entry.name)] = int(fields[1])
        ticks[int(entry.name)] = sum(map(int, fields[11:15]))
    return sum(ticks[process] for process in ticks if _is_below(process, root, parents))


def _is_below(process: int, root: int, parents: dict[int, int]) -> bool:
    while process != root and process in parents:
        process = parents[process]
    return process == root


def _cpu_model() -> str:
    try:
        lines = (_PROC / "cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor()
