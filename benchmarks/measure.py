"""Figures of the same work done by several contenders, in turns."""

from __future__ import annotations

import gc
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_CHILD_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Runs:
    """One quantity, measured once in each repeat; arithmetic keeps the repeats apart."""

    values: tuple[float, ...]

    @classmethod
    def of(cls, value: float | Runs | Iterable[float]) -> Runs:
        """Return runs of a single value, or of many."""
        if isinstance(value, Runs):
            return value
        return cls((value,) if isinstance(value, int | float) else tuple(value))

    @property
    def median(self) -> float:
        """The figure that is shown."""
        return statistics.median(self.values)

    @property
    def spread(self) -> tuple[float, float]:
        """The lowest and the highest value."""
        return min(self.values), max(self.values)

    def __add__(self, other: float | Runs) -> Runs:
        return Runs(tuple(mine + theirs for mine, theirs in self._pairs(other)))

    def __sub__(self, other: float | Runs) -> Runs:
        return Runs(tuple(mine - theirs for mine, theirs in self._pairs(other)))

    def __mul__(self, factor: float) -> Runs:
        return Runs(tuple(value * factor for value in self.values))

    def __truediv__(self, other: float | Runs) -> Runs:
        return Runs(tuple(mine / theirs for mine, theirs in self._pairs(other)))

    def _pairs(self, other: float | Runs) -> Iterable[tuple[float, float]]:
        """Values of the same repeat; runs of different numbers have none, and their medians stand.

        A single value stands beside each of the other side.
        """
        mine, theirs = self.values, Runs.of(other).values
        if 1 not in (len(mine), len(theirs)) and len(mine) != len(theirs):
            mine, theirs = (self.median,), (Runs.of(other).median,)
        n = max(len(mine), len(theirs))
        return zip(mine * (n // len(mine)), theirs * (n // len(theirs)), strict=True)


@dataclass(frozen=True, slots=True)
class Sample:
    """The cost of one run; seconds."""

    cpu: float
    """User and system time of the process that did the work, all its threads."""
    wall: float


@dataclass(frozen=True, slots=True)
class Costs:
    """The cost of all runs of a contender; seconds."""

    cpu: Runs
    wall: Runs


Figures = Mapping[str, float]
"""Named quantities of one run."""


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
    subprocess.run(command, check=True, capture_output=True, timeout=_CHILD_SECONDS)
    return Sample(_children_cpu() - cpu, time.perf_counter() - wall)


def run_fresh(*arguments: str, python: str = sys.executable, cwd: Path | None = None) -> Figures:
    """Run a Python program in a process of its own, and read the figures that it prints as JSON.

    Args:
        arguments: Those of the interpreter, such as `-m`, a module, and what it takes.
        python: The interpreter.
        cwd: Where it finds modules first; the current directory by default.
    """
    command = [python, *arguments]
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, timeout=_CHILD_SECONDS, cwd=cwd
    )
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def interleave(contenders: Mapping[str, Callable[[], Sample]], *, repeats: int) -> dict[str, Costs]:
    """Let every contender run in each repeat, so that drift of the machine meets all alike.

    Each runs once before, uncounted, to open its connections and load what it loads late.
    """
    samples = _in_turns(contenders, repeats=repeats)
    return {
        name: Costs(Runs.of(run.cpu for run in runs), Runs.of(run.wall for run in runs))
        for name, runs in samples.items()
    }


def interleave_figures(
    contenders: Mapping[str, Callable[[], Figures]], *, repeats: int, warms_up: bool = True
) -> dict[str, dict[str, Runs]]:
    """`interleave` for contenders that give figures of any kind.

    Args:
        contenders: Each runs once.
        repeats: How often.
        warms_up: Whether each runs once before, uncounted.
    """
    samples = _in_turns(contenders, repeats=repeats, warms_up=warms_up)
    return {
        name: {key: Runs.of(run[key] for run in runs) for key in runs[0]}
        for name, runs in samples.items()
    }


def quartile(rounds: Sequence[Sample]) -> Sample:
    """Return the lower quartile of many rounds: what else runs only adds to some of them."""
    return Sample(
        statistics.quantiles((each.cpu for each in rounds), n=4)[0],
        statistics.quantiles((each.wall for each in rounds), n=4)[0],
    )


def _in_turns(
    contenders: Mapping[str, Callable[[], T]], *, repeats: int, warms_up: bool = True
) -> dict[str, list[T]]:
    if warms_up:
        for contend in contenders.values():
            contend()
    samples: dict[str, list[T]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, contend in contenders.items():
            samples[name].append(contend())
    return samples


def _children_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
