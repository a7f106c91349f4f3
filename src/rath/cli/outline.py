"""Answers as an outline on a narrow terminal: one thing a line, what belongs to it below it."""

from __future__ import annotations

import textwrap
from uuid import UUID

from rich.console import Console

from rath.cli.terminal import say, visible

__all__ = ["counted", "head", "item", "room", "short"]

_INDENT = 2
_LEAST = 24
"""Columns that a text has at least, however deep it stands."""


def head(text: str) -> None:
    """Write the line that an answer begins with."""
    _write(text, depth=0, style="bold")


def item(text: str, *, depth: int = 1, style: str = "") -> None:
    """Write one thing, wrapped where it is too long; what goes on stands further in."""
    _write(text, depth=depth, style=style)


def room(depth: int, used: int = 0) -> int:
    """Return how many columns a text at that depth has beside `used` others."""
    return max(_LEAST, Console().width - _INDENT * depth - used)


def counted(count: int, what: str) -> str:
    """Return a number of things in words."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def short(session: UUID) -> str:
    """Return the beginning of an id that tells sessions apart for a person."""
    return str(session).partition("-")[0]


def _write(text: str, *, depth: int, style: str) -> None:
    before = " " * (_INDENT * depth)
    lines = textwrap.wrap(
        visible(text),
        room(0),
        initial_indent=before,
        subsequent_indent=before + " " * (2 * _INDENT),
        break_on_hyphens=False,
    )
    for line in lines or [""]:
        say(line, style=style)
