"""The command line: its verbs, and how any of them ends.

    0  done      1  a problem was found      2  it was called in a wrong way
    3  evidence is not there      4  a session is not what was written

A verb is a function in a module of its group, named in `VERBS` and imported when it is called. It
raises `CommandError` or `Misuse`; an error of rath or of the system ends it in the same way.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, cast, get_args, get_origin, get_type_hints

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

import rath
from rath._core.text import did_you_mean
from rath.cli.terminal import AsJson, CommandError, Exit, Misuse, complain, heading, show_help
from rath.cli.verbs import GROUPS, SECTIONS, VERBS
from rath.errors import RathError, SessionDamaged

__all__ = ["VERBS", "app", "main"]

_LEAST_HELP, _MOST_HELP = 40, 100
"""Columns of the help."""

_WORDS: tuple[tuple[type, str], ...] = ((int, "N"), (float, "SECONDS"), (Path, "FILE"))
"""What stands for a value of a type in the help; else it is TEXT."""


def _list_jobs(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the jobs of the default store where no verb of the group is named."""
    if ctx.invoked_subcommand is None:
        jobs: Any = importlib.import_module("rath.cli.jobs")
        jobs.list_jobs(as_json=as_json)
    elif as_json:
        verb = f"rath jobs {ctx.invoked_subcommand}"
        raise Misuse(f"--json stands behind the verb that writes it: {verb} ... --json")


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


_MISSING = {"Missing argument 'SESSION'.": " `rath ls` lists the sessions"}
"""What to add to some complaints of typer."""


def _say_complaint(complaint: _Complaint) -> None:
    option: str | None = getattr(complaint, "option_name", None)
    if option and hasattr(complaint, "possibilities"):
        advice = did_you_mean(option, getattr(complaint, "possibilities", None) or ())
        verb = complaint.ctx and complaint.ctx.command
        if verb and any("COMMAND" in (each.metavar or "") for each in verb.params):
            advice += " Options of the command stand after --."
        complain(f"no option {option!r}.{advice}")
    else:
        # What a converter raised comes with the name that pydantic has for its kind.
        text = complaint.format_message().replace(": Value error, ", ": ")
        complain(text + _MISSING.get(text, ""))
    if complaint.ctx is not None:
        typer.echo(f"See: {complaint.ctx.command_path} --help", err=True)


_TEXTS: tuple[object, ...] = (str, str | None, list[str], list[str] | None)


def _convert_if_needed(parameter: Any, annotation: object) -> None:
    """Have a parameter take text, and its own default, as they are.

    typer converts all values by pydantic, and to import that takes longer than most verbs do.
    """
    convert = parameter.process_value
    choices = get_args(annotation) if get_origin(annotation) is Literal else ()

    def process_value(ctx: Any, value: Any) -> Any:
        source = ctx.get_parameter_source(parameter.name)
        if source is not None and source.name == "DEFAULT" and not parameter.required:
            is_list = parameter.multiple or parameter.nargs == -1
            return () if value is None and is_list else value
        if value and (annotation in _TEXTS or value in choices):
            return value
        return convert(ctx, value)

    parameter.process_value = process_value


class _Options:
    """Options of a command that are converted only if they have to be, and its help as text."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, without rich: to import it takes longer than most verbs do."""
        command: Any = self
        parameters = [each for each in command.get_params(ctx) if not each.hidden]
        arguments = [each for each in parameters if each.param_type_name == "argument"]
        formatter.width = max(_LEAST_HELP, min(_MOST_HELP, shutil.get_terminal_size().columns))
        pieces = [str(each.metavar) for each in arguments]
        if hasattr(command, "list_commands"):
            pieces.append("VERB ...")
        formatter.write_usage(ctx.command_path, " ".join(["[OPTIONS]", *pieces]))
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(command.help or "")
        self.write_verbs(ctx, formatter)
        described = [(str(each.metavar), each.help) for each in arguments if each.help]
        options = [_option_help(each) for each in parameters if each not in arguments]
        _write_section(formatter, "Arguments", described)
        _write_section(formatter, "Options", options)

    def write_verbs(self, ctx: Any, formatter: Any) -> None:
        """Write the verbs of a group, none for a verb."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options, also that of the help."""
        command: Any = super()
        parameters: list[Any] = command.get_params(ctx)
        hints = get_type_hints(cast("Any", self).callback)
        for parameter in parameters:
            if "process_value" not in vars(parameter):
                hint = hints.get(parameter.name)
                _convert_if_needed(parameter, hint)
                parameter.metavar = parameter.metavar or _word_for(hint)
        return parameters


def _word_for(hint: object) -> str:
    """Return what stands for a value of a type in the help."""
    if get_origin(hint) is Literal:
        return "|".join(map(str, get_args(hint)))
    inside = get_args(hint) or (hint,)
    return next((word for kind, word in _WORDS if kind in inside), "TEXT")


def _option_help(option: Any) -> tuple[str, str]:
    """Return the names of an option with its value, and what it is for."""
    names = ", ".join(sorted(option.opts, key=len))
    if option.secondary_opts:
        names += f" / {', '.join(option.secondary_opts)}"
    text = option.help or ""
    if option.is_flag:
        return names, text
    default = option.default
    if option.show_default is not False and default not in (None, "", (), []):
        text += f" [default: {default}]"
    return f"{names} {option.metavar}", text


def _write_section(formatter: Any, title: str, rows: Sequence[tuple[str, str]]) -> None:
    if rows:
        formatter.write_paragraph()
        formatter.write(f"{heading(title)}\n")
        with formatter.indentation():
            formatter.write_dl(rows, col_max=26)


class _Verb(_Options, TyperCommand):
    """One verb."""


class _Verbs(_Options, TyperGroup):
    """Verbs of the command or of one of its groups, each imported when it is called."""

    group = ""
    """Under which words its verbs stand in `VERBS`, "" for the command itself."""

    def _prefix(self) -> str:
        return f"{self.group} " if self.group else ""

    def write_verbs(self, ctx: Any, formatter: Any) -> None:
        """Write the verbs with their summaries, those of the command itself by section."""
        known = dict(self.summaries(ctx))
        sections = {"Verbs": [*known]} if self.group else SECTIONS
        for title, names in sections.items():
            _write_section(formatter, title, [(name, known[name]) for name in names])

    def summaries(self, ctx: Any) -> list[tuple[str, str]]:
        """Return the names of the verbs with their summaries."""
        full = {name: f"{self._prefix()}{name}" for name in self.list_commands(ctx)}
        return [
            (name, GROUPS[each] if each in GROUPS else VERBS[each].summary)
            for name, each in full.items()
        ]

    def list_commands(self, ctx: Any) -> list[str]:
        prefix = self._prefix()
        names = [name.removeprefix(prefix) for name in VERBS if name.startswith(prefix)]
        first = dict.fromkeys(name.partition(" ")[0] for name in names)
        return list(first) if prefix else sorted(first)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        name = f"{self._prefix()}{cmd_name}"
        if name in GROUPS:
            group = typer.Typer(cls=_Verbs, add_completion=False)
            group.callback(invoke_without_command=True, help=GROUPS[name])(
                _list_jobs if name == "jobs" else show_help
            )
            command = cast("_Verbs", typer.main.get_command(group))
            command.name, command.group = cmd_name, name
            return command
        if name not in VERBS and ":" in cmd_name:
            name = f"{self._prefix()}MODULE:WORKFLOW"
        if name not in VERBS:
            known = self.list_commands(ctx)
            near = did_you_mean(cmd_name, known)
            of = f" of `rath {self.group}`" if self.group else ""
            if not of and cmd_name in ("help", "version"):
                near = f" Did you mean `rath --{cmd_name}`?"
            raise Misuse(f"no verb {cmd_name!r}{of}.{near} Known: {', '.join(known)}")
        module, _, function = VERBS[name].target.partition(":")
        verb = typer.Typer(add_completion=False)
        verb.command(cmd_name, cls=_Verb)(
            getattr(importlib.import_module(f"rath.cli.{module}"), function)
        )
        return typer.main.get_command(verb)


class _CommandLine(_Verbs):
    """Ends each verb in one or two lines on stderr, without a traceback."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        if os.environ.get("_RATH_COMPLETE"):
            completion: Any = importlib.import_module("rath.cli.completion")
            completion.write_candidates(self, sys.argv[1:] if args is None else args)
            sys.exit()
        try:
            # The name is always the same: `python -m rath` would make one of its own.
            code: object = super().main(
                args, "rath", complete_var, False, windows_expand_args, **extra
            )
        except BrokenPipeError:
            # Python writes what is left when it ends, and would say that it cannot.
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = Exit.WORLD
        except (CommandError, RathError, OSError) as exc:
            complain(str(exc))
            is_damaged = isinstance(exc, SessionDamaged)
            code = getattr(exc, "exit_code", Exit.DAMAGED if is_damaged else Exit.WORLD)
        except typer.Abort:
            complain("the input ended before everything was answered; nothing is written")
            code = Exit.WORLD
        except _COMPLAINTS as exc:
            complaint = cast("_Complaint", exc)
            _say_complaint(complaint)
            code = complaint.exit_code
        sys.exit(code if isinstance(code, int) else 0)


app: typer.Typer = typer.Typer(
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
    """Run, inspect and resume agents, whose sessions are the record of what they did."""
    show_help(ctx)


def main() -> None:
    """Run the `rath` command with the arguments of this process, and end the process."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A name in a config may hold what the terminal has no form for.
            stream.reconfigure(errors="backslashreplace")
    app()
