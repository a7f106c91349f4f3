"""Three-way merge of texts by lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rath.backend.parts import split_lines
from rath.session.file_changes.line_matching import common_runs

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class _Common:
    """Lines that stand in all three texts, with no change in between."""

    base: int
    ours: int
    theirs: int
    size: int


def merge_texts(base: str, ours: str, theirs: str) -> str | None:
    """Return `base` with the changes of both, None where both changed the same lines differently.

    Lines that only one side changed are taken from that side; changes that touch each other are of
    the same lines. Exchanging the sides gives the same result.
    """
    merged = merge_lines(split_lines(base), split_lines(ours), split_lines(theirs))
    return None if merged is None else "".join(merged)


def merge_lines(
    base: Sequence[str], ours: Sequence[str], theirs: Sequence[str]
) -> list[str] | None:
    """Return the merged lines, None for a conflict."""
    merged: list[str] = []
    at = _Common(0, 0, 0, 0)
    for common in _in_all(base, ours, theirs):
        between = chosen(
            base[at.base : common.base],
            ours[at.ours : common.ours],
            theirs[at.theirs : common.theirs],
        )
        if between is None:
            return None
        merged += between
        merged += base[common.base : common.base + common.size]
        end = common.size
        at = _Common(common.base + end, common.ours + end, common.theirs + end, 0)
    return merged


def chosen(base: V, ours: V, theirs: V) -> V | None:
    """Return the value that counts of three, None where both sides changed it differently."""
    if ours in (base, theirs):
        return theirs
    return ours if theirs == base else None


def _in_all(base: Sequence[str], ours: Sequence[str], theirs: Sequence[str]) -> Iterator[_Common]:
    """Yield what is common to all three, in order; at last an empty one at the end."""
    mine, others = common_runs(base, ours), common_runs(base, theirs)
    i = j = 0
    while i < len(mine) and j < len(others):
        a, b = mine[i], others[j]
        start, end = max(a.a, b.a), min(a.a + a.size, b.a + b.size)
        if start < end:
            yield _Common(start, a.b + start - a.a, b.b + start - b.a, end - start)
        if a.a + a.size <= b.a + b.size:
            i += 1
        else:
            j += 1
    yield _Common(len(base), len(ours), len(theirs), 0)
