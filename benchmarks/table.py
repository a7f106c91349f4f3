"""The one table: what each row measured, beside its reference and its target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, assert_never

Unit = Literal["s", "ms", "us", "MB", "count", "times"]

_PER_SECOND: dict[Unit, float] = {"s": 1.0, "ms": 1e3, "us": 1e6}
_HEADER = ("row", "ours", "reference", "ratio", "target", "verdict")


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
    value: float
    """Seconds for the units of time."""


@dataclass(frozen=True, slots=True)
class Line:
    """One comparison."""

    row: str
    ours: float
    """Seconds for the units of time."""
    unit: Unit
    reference: Reference | None = None
    target: Target | None = None
    """None for a line that only informs."""

    @property
    def ratio(self) -> float | None:
        """Ours over the reference."""
        return None if self.reference is None else self.ours / self.reference.value

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without a target."""
        match self.target:
            case None:
                return None
            case AtMost(limit=limit):
                return self.ours * _PER_SECOND.get(self.unit, 1.0) <= limit
            case AtLeast(limit=limit):
                return self.ours * _PER_SECOND.get(self.unit, 1.0) >= limit
            case AtMostTimes(ratio=ratio):
                return self.ratio is not None and self.ratio <= ratio
            case _:
                assert_never(self.target)


def render(lines: Sequence[Line]) -> str:
    """The table as text, one line each, columns aligned."""
    return align([_HEADER, *(_cells(line) for line in lines)])


def align(cells: Sequence[Sequence[str]]) -> str:
    """Rows as text in columns; the first row is the header."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    rows = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in cells]
    rows.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(row.rstrip() for row in rows)


def _cells(line: Line) -> tuple[str, ...]:
    reference = ""
    if line.reference is not None:
        reference = f"{_number(line.reference.value, line.unit)} {line.reference.name}"
    ratio = "" if line.ratio is None else f"{line.ratio:.2f}"
    verdict = {True: "met", False: "MISSED", None: ""}[line.met]
    ours = _number(line.ours, line.unit)
    return line.row, ours, reference, ratio, _target(line), verdict


def _target(line: Line) -> str:
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


def _number(value: float, unit: Unit) -> str:
    scaled = value * _PER_SECOND.get(unit, 1.0)
    text = f"{scaled:.0f}" if unit == "count" or scaled >= 100 else f"{scaled:.3g}"
    return f"{text} {unit}"
