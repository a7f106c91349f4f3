"""What the command says and asks: answers on stdout, all else on stderr."""

from __future__ import annotations

import getpass
import json
import sys
import unicodedata
from collections.abc import Iterable, Sequence

import typer
from rich.console import Console
from rich.text import Text

__all__ = [
    "Misuse",
    "Problem",
    "ask",
    "ask_secret",
    "ask_yes_no",
    "complain",
    "note",
    "say",
    "say_json",
    "say_lines",
    "say_part",
    "say_rows",
    "show_help",
    "visible",
    "warn",
]


_JOINERS = "\u200c\u200d"
"""Within words and emoji; without them some cannot be read."""


class Problem(Exception):
    """Ends the command with exit status 1; its text is all that the user sees."""

    exit_code = 1


class Misuse(Problem):
    """Ends the command with exit status 2: it was not called as it should be."""

    exit_code = 2


def say(text: str, *, style: str = "") -> None:
    """Write one line to stdout, however long."""
    _write(Console(), Text(visible(text), style))


def say_lines(lines: Iterable[Sequence[tuple[str, str]]]) -> None:
    """Write many lines to stdout, each of parts with a style; as fast as a pipe takes them."""
    console = Console()
    if console.is_terminal:
        for line in lines:
            _write(console, Text.assemble(*((visible(text), style) for text, style in line)))
        return
    plain = ["".join(text for text, _ in line).rstrip() + "\n" for line in lines]
    say_part("".join(plain))


def say_part(text: str) -> None:
    """Write a part of a line to stdout, at once."""
    sys.stdout.write(visible(text))
    sys.stdout.flush()


def say_rows(rows: Sequence[Sequence[str]], styles: Sequence[str]) -> None:
    """Write a table to stdout: columns with a style each, one line a row, nothing cut off."""
    cells = [[visible(cell, but="") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    console = Console()
    for row in cells:
        line = Text()
        for cell, width, style in zip(row, widths, styles, strict=True):
            line.append(cell, style).append(" " * (width - len(cell) + 2))
        line.rstrip()
        _write(console, line)


def say_json(payload: object) -> None:
    """Write JSON to stdout for another program."""
    say(json.dumps(payload, indent=2))


def note(text: str) -> None:
    """Tell something beside the answer."""
    _write(Console(stderr=True), Text.assemble(("note: ", "cyan"), visible(text)))


def warn(text: str) -> None:
    """Tell what may become a problem."""
    _write(Console(stderr=True), Text.assemble(("warning: ", "yellow"), visible(text)))


def complain(text: str) -> None:
    """Tell what went wrong."""
    _write(Console(stderr=True), Text.assemble(("error: ", "bold red"), visible(text)))


def show_help(ctx: typer.Context) -> None:
    """Show what a verb can do where it was called alone; for a callback of a typer app."""
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


def ask(question: str, *, default: str = "", choices: Sequence[str] = ()) -> str:
    """Return the answer, stripped; nothing is the default.

    With `choices` anything else is asked again.

    Raises:
        typer.Abort: The input has ended.
    """
    shown_default = f" [{default}]" if default else ""
    while True:
        answer = _answer(f"{question}{shown_default}: ") or default
        if not choices or answer in choices:
            return answer
        complain(f"{answer!r} is none of {', '.join(choices)}")


def ask_yes_no(question: str) -> bool:
    """Return whether the answer is yes; nothing is no."""
    return ask(f"{question} (y/n)", default="n", choices=("y", "n", "yes", "no")).startswith("y")


def ask_secret(question: str) -> str:
    """Return a secret, stripped: typed without echo, or a line of what is piped in.

    Raises:
        typer.Abort: The input has ended.
    """
    if not sys.stdin.isatty():
        return _answer(f"{question}: ")
    try:
        return getpass.getpass(f"{question}: ").strip()
    except EOFError:
        raise typer.Abort from None


def _answer(prompt: str) -> str:
    # `input` and what is built on it write to stdout, which belongs to the answer of the verb.
    sys.stderr.write(prompt)
    sys.stderr.flush()
    line = sys.stdin.readline()
    if not line:
        sys.stderr.write("\n")
        raise typer.Abort
    return line.strip()


def visible(text: str, *, but: str = "\n\t") -> str:
    """Return a text with its control characters written out, except those in `but`.

    Whatever stands in a config or an answer, a terminal gets no commands from it.
    """
    if text.isprintable():
        return text
    return "".join(
        char if _is_visible(char) or char in but else char.encode("unicode_escape").decode()
        for char in text
    )


def _write(console: Console, text: Text) -> None:
    console.print(text, soft_wrap=True, highlight=False)


def _is_visible(char: str) -> bool:
    # To Python no space is printable but the one of ASCII.
    return char.isprintable() or char in _JOINERS or unicodedata.category(char) == "Zs"
