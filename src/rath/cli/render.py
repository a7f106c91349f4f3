"""Layout of answers by rich: lines, tables, outlines, findings and progress bars."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import field, fields
from datetime import UTC, datetime
from decimal import Decimal
from itertools import groupby
from typing import Any, Literal, TypeAlias, cast, get_args

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rath._core.dataclasses import dataclass
from rath._core.text import visible
from rath.cli.terminal import say_json, write

STATE_STYLES = {
    "completed": "green",
    "running": "cyan",
    "failed": "red",
    "damaged": "bold red",
    "cut_off": "yellow",
    "needs_approval": "magenta",
    "needs_input": "magenta",
    "needs_decision": "magenta",
}

_SIZES = ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB"))
UNPRICED = "unpriced"
"""The one word for a price that is not known."""

_CENT = Decimal("0.01")
_SMALL = Decimal("0.000001")
_MIN_CUT, _MAX_NAME = 8, 24
"""Columns that a cut text has at least, and those that a name has at most."""

_LEAST = 28
"""Columns that a text of an outline has at least, however deep it stands."""

_PAUSE_SECONDS = 0.1
"""Between two drawings of a progress bar."""


_COLUMNS: Mapping[str, dict[str, Any]] = {
    "right": {"justify": "right", "no_wrap": True},
    "name": {"max_width": _MAX_NAME, "overflow": "fold"},
    "cut": {"overflow": "ellipsis"},
}
"""The columns of a table that are more than a style."""


def room() -> int | None:
    """Return how many columns a line may take, None where nothing is cut: in a pipe or a file."""
    if os.environ.get("COLUMNS", "").isdecimal() or sys.stdout.isatty():
        return max(20, shutil.get_terminal_size().columns)
    return None


def one_line(text: str) -> str:
    """Return a text on one line, with single blanks."""
    return " ".join(text.split())


def moment(at: datetime, *, is_short: bool = False) -> str:
    """Return a time in UTC: `2026-11-01 12:30`, or without the year."""
    if at.timestamp() == 0:
        return "unknown"
    return at.astimezone(UTC).strftime("%m-%d %H:%M" if is_short else "%Y-%m-%d %H:%M")


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


def count_of(count: int, noun: str) -> str:
    """Return a count with its noun: `1 call`, `2,000 calls`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def money(usd: Decimal, *, is_complete: bool = True) -> str:
    """Return US dollars: to the cent, and as exactly as needed below one.

    Args:
        usd: What is known of a sum.
        is_complete: Whether all of it is known; else the text says that some is `unpriced`.
    """
    if not is_complete:
        return UNPRICED if usd == 0 else f"{money(usd)} + {UNPRICED}"
    if usd == 0 or usd >= _CENT:
        return f"${usd.quantize(_CENT):,f}"
    return f"${usd.quantize(_SMALL).normalize():f}" if usd >= _SMALL else "<$0.000001"


def size(n_bytes: int) -> str:
    """Return a number of bytes with the unit that fits it."""
    for unit, name in _SIZES:
        if n_bytes >= unit:
            return f"{n_bytes / unit:.1f} {name}"
    return f"{n_bytes} B"


def line(*parts: str | tuple[str, str], is_whole: bool = False) -> Text:
    """Return a line of texts, some with a style; control characters in them are written out.

    Args:
        parts: The texts.
        is_whole: Never cut it: it may be copied.
    """
    text_line = Text(end="", overflow="ignore" if is_whole else "ellipsis")
    for part in parts:
        text, style = (part, "") if isinstance(part, str) else part
        text_line.append(visible(text, but="\t" if is_whole else ""), style)
    return text_line


def cut(text: Text, columns: int) -> None:
    """Leave out the end of a line that takes more columns, unless it is to stay whole."""
    if text.overflow != "ignore" and text.cell_len > columns:
        text.truncate(columns - 1, overflow="crop")
        text.rstrip()
        text.append("…")


def say_lines(lines: Iterable[Text]) -> None:
    """Write lines to stdout: on a terminal cut to its width, in a pipe whole and at once."""
    console, columns = Console(), room()
    plain: list[str] = []
    for each in lines:
        each.rstrip()
        if columns is not None:
            cut(each, columns)
        if console.is_terminal:
            write(each)
        else:
            plain.append(f"{each.plain}\n")
    sys.stdout.write("".join(plain))
    sys.stdout.flush()


def say_table(
    rows: Iterable[Sequence[str | Text]],
    styles: Sequence[str],
    *,
    is_folded: bool = False,
    gap: int = 2,
) -> None:
    """Write a table to stdout.

    Args:
        rows: The cells; only those with a style of their own may have many lines.
        styles: The style of each column; `right` aligns it to the right, `cut` leaves out the end
            of its texts on a terminal that is too narrow, and `name` breaks long ones.
        is_folded: Break the texts of the last column there. With neither a line is as long as it
            needs to be.
        gap: Blanks between columns.
    """
    console, table = Console(), Table.grid(padding=(0, gap, 0, 0))
    for style in styles:
        table.add_column(**_COLUMNS.get(style, {"style": style, "no_wrap": True}))
    if is_folded:
        table.columns[-1].no_wrap, table.columns[-1].overflow = False, "fold"
    natural = [0] * len(styles)
    for row in rows:
        cells = [_cell(each) for each in row]
        for at, (cell, style) in enumerate(zip(cells, styles, strict=True)):
            natural[at] = max(natural[at], cell.cell_len)
            if style == "cut":
                cell.no_wrap, cell.overflow = True, "ellipsis"
        table.add_row(*cells)
    gaps = gap * len(styles)
    least = 0
    if "cut" in styles:  # numbers are never cut
        for column, columns, style in zip(table.columns, natural, styles, strict=True):
            column.min_width = min(columns, _MIN_CUT) if style == "cut" else columns
            least += column.min_width
        least += gaps
    width = max((room() if is_folded or "cut" in styles else None) or sum(natural) + gaps, least)
    for segments in console.render_lines(table, console.options.update(width=width), pad=False):
        text_line = Text(end="")
        for segment in segments:
            text_line.append(segment.text, segment.style)
        text_line.rstrip()
        write(text_line)


def _cell(cell: str | Text) -> Text:
    """Return a cell in which control characters are written out, whoever made it."""
    if isinstance(cell, str):
        return Text(visible(cell, but=""))
    clean = visible(cell.plain)
    return cell if clean == cell.plain else Text(clean, cell.style)


def head(text: str) -> None:
    """Write the line that an answer begins with."""
    item(text, depth=0, style="bold")


def item(text: str, *, depth: int = 1, style: str = "") -> None:
    """Write one thing of an outline, wrapped where it is too long; what goes on is indented."""
    before = "  " * depth
    text = visible(text).replace("\n", " ")
    columns = outline_room(depth)
    first = Text(text).wrap(Console(), columns)[0].plain
    rest = text[len(first) :].lstrip()
    write(Text.assemble(before, (first.rstrip(), style)))
    for each in Text(rest).wrap(Console(), columns - 4) if rest else ():
        write(Text.assemble(f"{before}    ", (each.plain.rstrip(), style)))


def outline_room(depth: int = 0) -> int:
    """Return how many columns a text of an outline has at that depth."""
    return max(_LEAST, Console().width - 2 * depth)


Level: TypeAlias = Literal["ok", "note", "warning", "problem"]
"""A note is good to know and nothing to mend; a warning may become a problem."""

LEVELS: tuple[Level, ...] = get_args(Level)
_LEVEL_STYLES: Mapping[Level, str] = {
    "ok": "green", "note": "cyan", "warning": "yellow", "problem": "bold red",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fix:
    """What `rath doctor --fix` can do about a finding."""

    text: str
    """What that is, as a command: "make FILE private"."""

    make: Callable[[], object]
    """Does it, or raises why not."""


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """The result of one check."""

    group: str
    subject: str
    level: Level
    text: str
    advice: str = ""
    """What to do about it."""

    details: Mapping[str, object] = field(default_factory=dict[str, object])
    """More of it, for programs; JSON values."""

    fix: Fix | None = None

    def cleaned(self, clean: Callable[[str], str]) -> CheckFinding:
        """Return the finding with every text in it cleaned."""

        def cleaned(value: object) -> Any:
            if isinstance(value, str):
                return clean(value)
            if isinstance(value, list | tuple):
                return [cleaned(each) for each in cast("Sequence[object]", value)]
            return value

        details = {name: cleaned(value) for name, value in self.details.items()}
        texts = (clean(text) for text in (self.subject, self.text, self.advice))
        subject, text, advice = texts
        return CheckFinding(self.group, subject, self.level, text, advice, details, self.fix)


def count_levels(findings: Iterable[CheckFinding]) -> dict[Level, int]:
    """Return how many findings there are of each level."""
    levels = [finding.level for finding in findings]
    return {level: levels.count(level) for level in LEVELS}


def say_findings(
    findings: Sequence[CheckFinding], payload: Mapping[str, object], *, as_json: bool
) -> None:
    """Write findings group by group or, for programs, as the last member of `payload`."""
    if as_json:
        say_json({**payload, "findings": [*map(_finding_json, findings)]})
        return
    for group, members in groupby(findings, key=lambda finding: finding.group):
        say_lines([line((group, "bold"))])
        rows: list[list[str | Text]] = []
        for each in members:
            text = Text(visible(each.text))
            fix = "" if each.fix is None else f"rath doctor --fix: {each.fix.text}"
            for advice in filter(None, (each.advice, fix)):
                text.append(f"\n-> {visible(advice)}", "cyan")
            rows.append([Text(f"  {each.level:<7}", _LEVEL_STYLES[each.level]), each.subject, text])
        say_table(rows, ["", "name", ""], is_folded=True)
        say_lines([line()])


def _finding_json(finding: CheckFinding) -> dict[str, object]:
    names = (each.name for each in fields(finding) if each.name != "fix")
    found = {name: getattr(finding, name) for name in names}
    return found if finding.fix is None else {**found, "fix": finding.fix.text}


@contextmanager
def busy(title: str) -> Generator[None]:
    """Show that a piece of work is being done whose length nobody knows: on stderr, as `progress`.

    Nothing may be written to the terminal meanwhile.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(f"{title} ..."):
        yield


@contextmanager
def progress(title: str) -> Generator[Callable[[int, int], None]]:
    """Show how far a piece of work is: on stderr, only where that is a terminal.

    The bar appears with the first report, is drawn by who reports and is gone in the end.

    Args:
        title: What is being done, such as "reading sessions".

    Yields:
        A function of the number of things done and of all.
    """
    console = Console(stderr=True)
    with ExitStack() as stack:
        bar: Any = None
        drawn_at = 0.0

        def report(n_done: int, n_all: int) -> None:
            nonlocal bar, drawn_at
            if not console.is_terminal:
                return
            if bar is None:
                # Most work is done before there is anything to report, and needs no bar loaded.
                rich = importlib.import_module("rich.progress")
                columns = (
                    rich.TextColumn("{task.description}"), rich.BarColumn(),
                    rich.MofNCompleteColumn(),
                )  # fmt: skip
                bar = rich.Progress(*columns, console=console, transient=True, auto_refresh=False)
                stack.enter_context(bar)
                bar.add_task(title, total=None)
            bar.update(bar.task_ids[0], completed=n_done, total=n_all)
            if n_done == n_all or time.monotonic() - drawn_at > _PAUSE_SECONDS:
                drawn_at = time.monotonic()
                bar.refresh()

        yield report
