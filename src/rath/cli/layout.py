"""How sessions are shown in lines: numbers, times, and what fits beside one another."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from datetime import UTC, datetime
from decimal import Decimal

from rich.cells import cell_len, set_cell_size

from rath.cli.terminal import visible

__all__ = [
    "cut",
    "moment",
    "money",
    "number",
    "one_line",
    "padded",
    "room",
    "size",
    "span",
    "wrapped",
]

_ELLIPSIS = "…"
_SIZES = ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB"))
_CENT = Decimal("0.01")
_SMALL = Decimal("0.000001")


def room() -> int | None:
    """Return how many columns a line may take, None where nothing is cut: in a pipe or a file."""
    if os.environ.get("COLUMNS", "").isdecimal() or sys.stdout.isatty():
        return max(20, shutil.get_terminal_size().columns)
    return None


def one_line(text: str) -> str:
    """Return a text on one line, with single blanks."""
    return " ".join(text.split())


def cut(line: str, columns: int | None) -> str:
    """Return a line, its control characters written out, without its end where it is longer."""
    line = visible(line, but="")
    if columns is None or cell_len(line) <= columns:
        return line
    if columns < 1:
        return ""
    return set_cell_size(line, columns - 1).rstrip() + _ELLIPSIS


def wrapped(text: str, columns: int | None) -> list[str]:
    """Return a text on as many lines as it needs, at least one; a long word stands out."""
    shown = visible(text, but="")
    if columns is None or not shown:
        return [shown]
    return textwrap.wrap(
        shown, max(1, columns), break_long_words=False, break_on_hyphens=False
    ) or [""]


def padded(text: str, columns: int) -> str:
    """Return a text with blanks after it, so that it takes at least so many columns."""
    return text + " " * (columns - cell_len(text))


def moment(time: datetime, *, is_short: bool = False) -> str:
    """Return a time in UTC: `2026-11-01 12:30`, or without the year."""
    if time.timestamp() == 0:
        return "unknown"
    return time.astimezone(UTC).strftime("%m-%d %H:%M" if is_short else "%Y-%m-%d %H:%M")


def span(milliseconds: float) -> str:
    """Return a duration with the unit that fits it."""
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms"
    seconds = milliseconds / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def number(count: int, noun: str) -> str:
    """Return a count and what is counted: `1 call`, `2,000 calls`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def money(usd: Decimal) -> str:
    """Return US dollars: to the cent, and as exactly as needed below one."""
    if usd == 0 or usd >= _CENT:
        return f"${usd.quantize(_CENT):,f}"
    return f"${usd.quantize(_SMALL).normalize():f}" if usd >= _SMALL else "<$0.000001"


def size(n_bytes: int) -> str:
    """Return a number of bytes with the unit that fits it."""
    for unit, name in _SIZES:
        if n_bytes >= unit:
            return f"{n_bytes / unit:.1f} {name}"
    return f"{n_bytes} B"
