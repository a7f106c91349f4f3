"""The command line: its verbs, and how any of them ends.

    0  done      1  a problem was found      2  it was called in a wrong way
    3  evidence is not there      4  a session is not what was written

A verb is a typer app in a module of its own, named in `VERBS` and imported when it is called. It
raises `Problem` or `Misuse`; an error of rath or of the system ends it in the same way.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Protocol, cast

import typer
import typer.main
from typer.core import TyperGroup

import rath
from rath._core.text import did_you_mean
from rath.cli.terminal import Misuse, Problem, complain, show_help
from rath.errors import RathError, SessionDamaged

__all__ = ["VERBS", "app", "main"]

VERBS = {
    "answer": "rath.cli.deciding:answer",
    "approve": "rath.cli.deciding:approve",
    "config": "rath.cli.config:app",
    "cost": "rath.cli.cost:app",
    "deny": "rath.cli.deciding:deny",
    "doctor": "rath.cli.doctor:app",
    "edit": "rath.cli.deciding:edit",
    "explain": "rath.cli.explain:app",
    "export": "rath.cli.session_export:app",
    "import": "rath.cli.session_import:app",
    "blame": "rath.cli.blame:app",
    "diff": "rath.cli.session_diff:app",
    "resume": "rath.cli.resume:app",
    "replay": "rath.cli.replay:app",
    "fork": "rath.cli.fork:app",
    "log": "rath.cli.log:app",
    "ls": "rath.cli.ls:app",
    "mcp": "rath.cli.mcp:app",
    "memory": "rath.cli.memory:app",
    "prune": "rath.cli.prune:app",
    "rm": "rath.cli.rm:app",
    "show": "rath.cli.show:app",
    "tail": "rath.cli.tail:app",
    "verify": "rath.cli.verify:app",
    "view": "rath.cli.view:app",
}
"""Name of a verb to the `module:attribute` of its app."""


_DAMAGED = 4


class _Complaint(Protocol):
    """What typer raises where the command line cannot be understood."""

    exit_code: int
    ctx: Any

    def format_message(self) -> str: ...


# It has no public name, and its home has moved between versions of typer.
_COMPLAINTS = cast(
    "type[Exception]",  # what the name says
    next(cls for cls in typer.BadParameter.__mro__ if cls.__name__ == "ClickException"),
)


class _CommandLine(TyperGroup):
    """Loads verbs late, and ends each in one or two lines on stderr, without a traceback."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in VERBS:
            raise Misuse(
                f"no verb {cmd_name!r}.{did_you_mean(cmd_name, VERBS)} Known: {', '.join(VERBS)}"
            )
        module, _, attribute = VERBS[cmd_name].partition(":")
        command = typer.main.get_command(getattr(importlib.import_module(module), attribute))
        command.name = cmd_name
        return command

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        try:
            # The name is always the same: `python -m rath` would make one of its own.
            code: object = super().main(
                args, "rath", complete_var, False, windows_expand_args, **extra
            )
        except Problem as exc:
            complain(str(exc))
            code = exc.exit_code
        except SessionDamaged as exc:
            complain(str(exc))
            code = _DAMAGED
        except BrokenPipeError:
            code = _end_without_reader()
        except (RathError, OSError) as exc:
            complain(str(exc))
            code = 1
        except typer.Abort:
            complain("the input ended before everything was answered; nothing is written")
            code = 1
        except _COMPLAINTS as exc:
            code = _explain(cast("_Complaint", exc))
        sys.exit(code if isinstance(code, int) else 0)


def _end_without_reader() -> int:
    """Let the process end quietly where nobody reads any more, as behind `| head`."""
    # Python writes what is left when it ends, and would say that it cannot.
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _explain(complaint: _Complaint) -> int:
    complain(complaint.format_message())
    if complaint.ctx is not None:
        typer.echo(f"See: {complaint.ctx.command_path} --help", err=True)
    return complaint.exit_code


app = typer.Typer(
    cls=_CommandLine,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"rath {rath.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def rath_command(
    ctx: typer.Context,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Agents over sessions: see and change how they are set up."""
    show_help(ctx)


def main() -> None:
    """Run the `rath` command with the arguments of this process, and end the process."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A name in a config may hold what the terminal has no form for.
            stream.reconfigure(errors="backslashreplace")
    app()
