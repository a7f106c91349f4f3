"""CPU and wall time of the same work done by several contenders, in turns."""

from __future__ import annotations

import gc
import resource
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """What one run cost; seconds."""

    cpu: float
    """User and system time of the process that did the work, all its threads."""
    wall: float


def measure(work: Callable[[], object]) -> Sample:
    """Run `work` once in this process."""
    gc.collect()
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return Sample(time.process_time() - cpu, time.perf_counter() - wall)


def measure_child(command: Sequence[str]) -> Sample:
    """Run a command to its end and count what the child cost.

    Raises:
        subprocess.CalledProcessError: The command failed; its output stands in the error.
    """
    cpu, wall = _children_cpu(), time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return Sample(_children_cpu() - cpu, time.perf_counter() - wall)


def interleave(
    contenders: Mapping[str, Callable[[], Sample]], *, repeats: int
) -> dict[str, Sample]:
    """Let every contender run in each repeat, so that drift of the machine meets all alike.

    Each runs once before, uncounted, to open its connections and load what it loads late.

    Returns:
        The medians of each contender.
    """
    for contend in contenders.values():
        contend()
    samples: dict[str, list[Sample]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, contend in contenders.items():
            samples[name].append(contend())
    return {name: _median(runs) for name, runs in samples.items()}


def _median(samples: Sequence[Sample]) -> Sample:
    return Sample(
        cpu=statistics.median(sample.cpu for sample in samples),
        wall=statistics.median(sample.wall for sample in samples),
    )


def _children_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
