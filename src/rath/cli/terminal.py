"""Input and output of the command: answers on stdout, notes, questions and errors on stderr."""

from __future__ import annotations

import getpass
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import IntEnum
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from rath._core.lazy_imports import lazy_modules

if TYPE_CHECKING:
    from rich import console as rich_console
    from rich import text as rich_text
else:
    # Help, versions and completion need no more than typer.
    rich_console, rich_text = lazy_modules(
        __name__, rich_console="rich.console", rich_text="rich.text"
    )

from rath._core.text import visible

AsJson = Annotated[bool, typer.Option("--json", help="Write JSON, for programs.")]
NoPager = Annotated[
    bool, typer.Option("--no-pager", help="Write long answers to the terminal at once.")
]
IsAgreed = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")


class Exit(IntEnum):
    """The exit statuses of the command."""

    ANSWERED = 0
    WORLD = 1
    MISUSE = 2
    MISSING = 3
    DAMAGED = 4
    INTERRUPTED = 130


class CommandError(Exception):
    """Ends the command with exit status 1; its text is all that the user sees."""

    exit_code = Exit.WORLD


class Misuse(CommandError):
    """Ends the command with exit status 2: it was not called as it should be."""

    exit_code = Exit.MISUSE


@contextmanager
def misuse_on(*kinds: type[Exception]) -> Generator[None]:
    """Take errors of some kinds for a wrong call of the command.

    Raises:
        Misuse: One was raised; the text is its own.
    """
    try:
        yield
    except kinds as exc:
        raise Misuse(str(exc.args[0] if isinstance(exc, KeyError) and exc.args else exc)) from exc


class EvidenceMissing(CommandError):
    """Ends the command with exit status 3: the store does not hold what was asked for."""

    exit_code = Exit.MISSING


class Damaged(CommandError):
    """Ends the command with exit status 4: a log cannot be believed."""

    exit_code = Exit.DAMAGED


def write(text: rich_text.Text, *, to_stderr: bool = False) -> None:
    """Write one line, however long; its control characters are written out already."""
    rich_console.Console(stderr=to_stderr).print(text, soft_wrap=True, highlight=False)


def say(text: str, *, style: str = "") -> None:
    """Write one line to stdout, however long."""
    write(rich_text.Text(visible(text), style))


def say_part(text: str) -> None:
    """Write a part of a line to stdout, at once."""
    sys.stdout.write(visible(text))
    sys.stdout.flush()


def say_json(payload: object) -> None:
    """Write JSON to stdout for another program; a dataclass is an object of its fields."""
    say(json.dumps(payload, indent=2, default=_jsonable))


def say_json_line(payload: object) -> None:
    """Write JSON to stdout on one line, for a program that reads one after another."""
    say(json.dumps(payload, default=_jsonable))
    sys.stdout.flush()


def _jsonable(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, UUID | Decimal | PurePath):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def note(text: str) -> None:
    """Write a note to stderr."""
    _tell("note", "cyan", text)


def warn(text: str) -> None:
    """Write a warning to stderr."""
    _tell("warning", "yellow", text)


def complain(text: str) -> None:
    """Write an error to stderr."""
    _tell("error", "bold red", text)


def _tell(label: str, style: str, text: str) -> None:
    text = visible(text)
    write(rich_text.Text.assemble((f"{label}: ", style), text), to_stderr=True)


class _HeldOutput(io.StringIO):
    """Text for a terminal that is held back until its length is known."""

    def isatty(self) -> bool:
        """Have it written as for the terminal."""
        return True


@contextmanager
def paged(*, is_off: bool = False) -> Generator[None]:
    """Show in a pager what is written to stdout, where that is a terminal and too small for it.

    The pager is that of `PAGER`, else `less`; with `PAGER=` or `PAGER=cat` there is none.
    """
    command = shlex.split(os.environ.get("PAGER", "less"))
    terminal = sys.stdout
    if is_off or not command or command == ["cat"] or not terminal.isatty():
        yield
        return
    held = sys.stdout = _HeldOutput()
    try:
        yield
    finally:
        sys.stdout = terminal
        text = held.getvalue()
        if text.count("\n") < shutil.get_terminal_size().lines or not _page(command, text):
            terminal.write(text)
            terminal.flush()


def _page(command: list[str], text: str) -> bool:
    """Show a text in a pager; return whether there is one."""
    # R shows colours, and F ends it where the text fits after all.
    environment = {**os.environ, "LESS": os.environ.get("LESS", "FRX")}
    try:
        with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment) as pager:
            with suppress(BrokenPipeError, KeyboardInterrupt):
                pager.communicate(text.encode(errors="backslashreplace"))
            while pager.returncode is None:
                with suppress(KeyboardInterrupt):  # Ctrl-C is a key of the pager
                    pager.wait()
    except OSError:
        return False
    return True


def heading(title: str) -> str:
    """Return a title of a help text, bold on a terminal that takes colours."""
    return title if os.environ.get("NO_COLOR") else typer.style(title, bold=True)


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
    hint = f" [{default}]" if default else ""
    while True:
        answer = _answer(f"{question}{hint}: ") or default
        if not choices or answer in choices:
            return answer
        complain(f"{answer!r} is none of {', '.join(choices)}")


def ask_yes_no(question: str, *, option: str = "--yes") -> bool:
    """Return whether the answer is yes; nothing is no.

    Args:
        question: What is asked.
        option: Agrees without being asked.

    Raises:
        CommandError: The input has ended; the text names the option.
    """
    choices = ("y", "n", "yes", "no")
    try:
        return ask(f"{question} (y/n)", default="n", choices=choices).startswith("y")
    except typer.Abort:
        raise CommandError(
            f"the input ended before this was answered, so it is not done; {option} agrees "
            "without being asked"
        ) from None


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


def duration(option: str, text: str) -> timedelta:
    """Return the duration that a text such as `30d` names.

    Raises:
        Misuse: It names none, or one that is too long; the text names the option.
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise Misuse(
            f"{option} {text!r} is no time; expected a number with s, m, h, d or w, as 30d"
        )
    try:
        return timedelta(seconds=float(found[1]) * _SECONDS[found[2]])
    except OverflowError:
        raise Misuse(f"{option} {text!r} is too long") from None


def time_of(option: str, text: str | None) -> datetime | None:
    """Return the time of a date, or of an age such as `7d`; dates without a zone are UTC.

    Raises:
        Misuse: It is neither; the text names the option.
    """
    if text is None:
        return None
    if found := _DURATION.fullmatch(text.strip()):
        try:
            return datetime.now(UTC) - timedelta(seconds=float(found[1]) * _SECONDS[found[2]])
        except OverflowError:
            return datetime.min.replace(tzinfo=UTC)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise Misuse(
            f"{option} {text!r} is no time; expected an age such as 12h or 7d, or a date such as "
            "2026-11-01 or 2026-11-01T12:30"
        ) from None
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
