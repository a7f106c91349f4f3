"""The one table: the figures of each row, beside its reference and its target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, assert_never

from benchmarks.machine import is_busy
from benchmarks.measure import Runs

Unit = Literal["s", "ms", "us", "/s", "KB", "MB", "count"]
Verdict = Literal["met", "MISSED", "busy", ""]

_PER_SECOND: dict[Unit, float] = {"s": 1.0, "ms": 1e3, "us": 1e6}
_TIMED: tuple[Unit, ...] = ("s", "ms", "us", "/s")
"""Units of figures that other work on the machine changes."""

_HEADER = ("row", "ours", "reference", "ratio", "spread", "target", "verdict")


@dataclass(frozen=True, slots=True)
class AtMost:
    """The target is a limit, in the unit of the line."""

    limit: float


@dataclass(frozen=True, slots=True)
class AtMostTimes:
    """The target is a multiple of the reference."""

    ratio: float


@dataclass(frozen=True, slots=True)
class AtLeast:
    """The target is a lower limit, in the unit of the line."""

    limit: float


Target = AtMost | AtMostTimes | AtLeast


@dataclass(frozen=True, slots=True)
class Reference:
    """The same work done otherwise."""

    name: str
    value: float | Runs
    """Seconds for the units of time."""


@dataclass(frozen=True, slots=True)
class Line:
    """One comparison."""

    row: str
    ours: float | Runs
    """Seconds for the units of time."""
    unit: Unit
    reference: Reference | None = None
    target: Target | None = None
    """None for a line that only informs."""

    @property
    def value(self) -> Runs:
        """Ours, in the unit of the line."""
        return Runs.of(self.ours) * _PER_SECOND.get(self.unit, 1.0)

    @property
    def reference_value(self) -> Runs | None:
        """The reference, in the unit of the line."""
        if self.reference is None:
            return None
        return Runs.of(self.reference.value) * _PER_SECOND.get(self.unit, 1.0)

    @property
    def ratio(self) -> Runs | None:
        """Ours over the reference, repeat by repeat; None beside nothing at all."""
        theirs = self.reference_value
        if theirs is None or theirs.median <= 0:
            return None
        return self.value / (theirs if min(theirs.values) > 0 else theirs.median)

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without a target."""
        match self.target:
            case None:
                return None
            case AtMost(limit=limit):
                return self.value.median <= limit
            case AtLeast(limit=limit):
                return self.value.median >= limit
            case AtMostTimes(ratio=ratio):
                return self.ratio is not None and self.ratio.median <= ratio
            case _:
                assert_never(self.target)


@dataclass(frozen=True, slots=True)
class Row:
    """A line, and the conditions under which it was measured."""

    name: str
    """Of the rows that are measured together; as `--only` takes it."""
    line: Line
    others: float | None = 0.0
    """The share of all CPUs that other programs took meanwhile; None where it is not known."""

    @property
    def is_busy(self) -> bool:
        """Whether the figure says little, since others used the machine meanwhile."""
        return self.line.unit in _TIMED and is_busy(self.others)

    @property
    def verdict(self) -> Verdict:
        """Whether the target is met; a busy machine gives no verdict."""
        match self.line.met:
            case None:
                return ""
            case _ if self.is_busy:
                return "busy"
            case True:
                return "met"
            case False:
                return "MISSED"


def render(rows: Sequence[Row]) -> str:
    """The table as text, one line each, columns aligned."""
    return align([_HEADER, *(_cells(row.line, row.verdict) for row in rows)])


def align(cells: Sequence[Sequence[str]]) -> str:
    """Rows as text in columns; the first row is the header."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    rows = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in cells]
    rows.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(row.rstrip() for row in rows)


def describe_target(line: Line) -> str:
    """Return the target as text; empty without one."""
    match line.target:
        case None:
            return ""
        case AtMost(limit=limit):
            return f"<= {limit:g} {line.unit}"
        case AtLeast(limit=limit):
            return f">= {limit:g} {line.unit}"
        case AtMostTimes(ratio=ratio):
            return f"<= {ratio:g} times"
        case _:
            assert_never(line.target)


def _cells(line: Line, verdict: str) -> tuple[str, ...]:
    theirs, ratio = line.reference_value, line.ratio
    reference = ""
    if line.reference is not None and theirs is not None:
        reference = f"{_number(theirs.median, line.unit)} {line.reference.name}"
    times = "" if ratio is None else f"{ratio.median:.2f}"
    return (
        line.row,
        _number(line.value.median, line.unit),
        reference,
        times,
        _spread(line.value if ratio is None else ratio),
        describe_target(line),
        verdict,
    )


def _spread(runs: Runs) -> str:
    if len(runs.values) == 1:
        return ""
    low, high = runs.spread
    return f"{low:.3g} to {high:.3g}"


def _number(value: float, unit: Unit) -> str:
    text = f"{value:.0f}" if unit == "count" or abs(value) >= 100 else f"{value:.3g}"
    return f"{text} {unit}"
