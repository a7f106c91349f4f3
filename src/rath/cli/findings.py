"""What a check found, and how it is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Literal, TypeAlias, cast, get_args

from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["LEVELS", "Finding", "Level", "as_json", "cleaned", "counts", "show"]

Level: TypeAlias = Literal["ok", "note", "warning", "problem"]
"""A note is good to know and nothing to mend; a warning may become a problem."""

LEVELS: tuple[Level, ...] = get_args(Level)

_STYLES: Mapping[Level, str] = {
    "ok": "green", "note": "cyan", "warning": "yellow", "problem": "bold red",
}  # fmt: skip
_WIDTH = max(map(len, LEVELS))
_MAX_SUBJECT = 24
"""Columns that all subjects together are made to fill; a longer one moves its own text alone."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found about one thing."""

    group: str
    subject: str
    level: Level
    text: str
    advice: str = ""
    """What to do about it."""

    details: Mapping[str, object] = field(default_factory=dict[str, object])
    """More of it, for programs; JSON values."""


def counts(findings: Iterable[Finding]) -> dict[Level, int]:
    """Return how many findings there are of each level."""
    levels = [finding.level for finding in findings]
    return {level: levels.count(level) for level in LEVELS}


def cleaned(finding: Finding, clean: Callable[[str], str]) -> Finding:
    """Return a finding with every text in it cleaned."""
    return replace(
        finding,
        subject=clean(finding.subject),
        text=clean(finding.text),
        advice=clean(finding.advice),
        details={name: _cleaned_value(value, clean) for name, value in finding.details.items()},
    )


def as_json(finding: Finding) -> dict[str, object]:
    """Return a finding for programs."""
    told = {name: getattr(finding, name) for name in ("group", "subject", "level", "text")}
    return {**told, "advice": finding.advice, "details": dict(finding.details)}


def show(findings: Sequence[Finding]) -> None:
    """Write findings to stdout, group by group: in columns on a terminal, else in whole lines."""
    console = Console(highlight=False)
    for group, members in groupby(findings, key=lambda finding: finding.group):
        console.print(Text(group, "bold"), soft_wrap=True)
        if console.is_terminal:
            console.print(_table([*members]))
        else:
            _print_lines(console, [*members])
        console.print()


def _table(findings: Sequence[Finding]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(width=_WIDTH + 2, no_wrap=True)
    table.add_column(max_width=_MAX_SUBJECT, overflow="fold")
    table.add_column(ratio=1, overflow="fold")
    for finding in findings:
        table.add_row(
            Text(f"  {finding.level}", _STYLES[finding.level]), finding.subject, _told(finding)
        )
    return table


def _told(finding: Finding) -> Text:
    told = Text(finding.text)
    if finding.advice:
        told.append(f"\n-> {finding.advice}", "cyan")
    return told


def _print_lines(console: Console, findings: Sequence[Finding]) -> None:
    width = min(max(len(finding.subject) for finding in findings), _MAX_SUBJECT)
    for finding in findings:
        head = f"  {finding.level:<{_WIDTH}}  {finding.subject:<{width}}"
        console.print(Text(f"{head}  {finding.text}"), soft_wrap=True)
        if finding.advice:
            console.print(Text(f"  {'':<{_WIDTH}}  -> {finding.advice}"), soft_wrap=True)


def _cleaned_value(value: object, clean: Callable[[str], str]) -> object:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list | tuple):
        return [_cleaned_value(item, clean) for item in cast("Iterable[object]", value)]
    return value
