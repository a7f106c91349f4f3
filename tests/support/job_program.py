"""The program of jobs in tests, and what is counted of it: see `rath.conformance.engine_program`.

`tests.support.job_program:team` is its reference.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from rath.conformance.engine_program import (
    Behaviour,
    CountedItem,
    CountedTeam,
    FileName,
    counted_items,
    lines,
    mend,
    release,
)

__all__ = [
    "Behaviour",
    "CountedItem",
    "CountedTeam",
    "count",
    "counted_items",
    "lines",
    "mend",
    "release",
    "repeated_calls",
    "team",
]


def team() -> CountedTeam:
    """Make the workflow."""
    return CountedTeam()


def count(folder: Path, name: FileName) -> Counter[str]:
    """How many lines of a file there are of each item, by its key."""
    return Counter(words[0] for words in lines(folder, name))


def repeated_calls(folder: Path) -> dict[tuple[str, ...], int]:
    """The calls of the model that were made more than once: item, agent and turn."""
    calls = Counter(map(tuple, lines(folder, "calls")))
    return {call: n for call, n in calls.items() if n > 1}
