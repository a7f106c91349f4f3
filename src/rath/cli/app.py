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
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Protocol, cast, get_args, get_origin, get_type_hints

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

import rath
from rath._core.text import did_you_mean
from rath.cli.terminal import CommandError, Exit, Misuse, complain, show_help
from rath.errors import RathError, SessionDamaged

__all__ = ["VERBS", "app", "main"]

VERBS = {
    "answer": "decisions:answer_question",
    "approve": "decisions:approve_call",
    "blame": "compare:blame_text",
    "config init": "config_init:init",
    "config set": "config:set_value",
    "config unset": "config:unset",
    "config trust": "config:trust",
    "config list": "config:list_values",
    "config get": "config:get",
    "config path": "config:path",
    "cost": "listing:cost",
    "deny": "decisions:deny_call",
    "diff": "compare:diff_sessions",
    "doctor": "doctor:doctor",
    "edit": "decisions:edit_call",
    "eval": "evaluate:run_evaluation",
    "explain": "explain:explain",
    "export": "storage:export_session",
    "fork": "storage:fork_session",
    "import": "storage:import_sessions",
    "jobs ls": "jobs:list_jobs",
    "jobs show": "jobs:show_job",
    "jobs tail": "jobs:tail_job",
    "jobs retry": "jobs:retry_items",
    "jobs cancel": "jobs:cancel_job",
    "log": "listing:log",
    "ls": "listing:ls",
    "mcp ls": "mcp:list_servers",
    "mcp test": "mcp:try_server",
    "mcp call": "mcp:call_tool",
    "mcp trust": "mcp:trust",
    "mcp serve": "runs:serve",
    "memory add": "memory:add",
    "memory forget": "memory:forget",
    "memory rebuild": "memory:rebuild",
    "memory ls": "memory:list_notes",
    "memory find": "memory:find_notes",
    "memory show": "memory:show_note",
    "profile": "profile:profile",
    "prune": "storage:prune",
    "replay": "runs:replay_session",
    "resume": "runs:resume_session",
    "rm": "storage:rm",
    "serve MODULE:WORKFLOW": "serving:serve_workflow",
    "serve token add": "serving:add_token",
    "serve token ls": "serving:list_tokens",
    "serve token rm": "serving:remove_token",
    "show": "show:show",
    "tail": "show:tail",
    "verify": "storage:verify_sessions",
    "view": "view:view",
    "worker": "worker:run_worker",
}
"""Name of a verb, with that of its group, to the module of this package and its function."""

GROUPS = {
    "config": "See and change the configuration.",
    "jobs": "See and steer workflows that run over many items.",
    "mcp": "See, try and trust the tool servers of the config.",
    "serve": "Serve a workflow to clients of OpenAI, A2A and MCP: rath serve MODULE:WORKFLOW.",
    "serve token": "Make, list and remove the tokens of clients.",
    "memory": "See and change what is remembered.",
}
"""Help of the groups of verbs."""

SUMMARIES = {
    "answer": "Answer what a tool has asked; it goes on with that when the run does.",
    "approve": "Allow a tool call that waits for it; it is made when the run goes on.",
    "blame": "Tell where a text first appeared, who made it, and what the model had read by then.",
    "config init": "Set up a model: who serves it, its name and its key.",
    "config set": "Set one value. Keys for models go to credentials.json, which only you can read.",
    "config unset": (
        "Take away one value, or a whole entry such as llm.providers.main with its key."
    ),
    "config trust": (
        "Allow the endpoints, commands, stores and sandboxes that the project's config names."
    ),
    "config list": (
        "Show every value that counts here: of the environment, the project and yourself."
    ),
    "config get": "Show one value as it counts here, or all values of a table; secrets are hidden.",
    "config path": (
        "Show the config files in the order in which they count, and which one is written to."
    ),
    "cost": "Tell how many calls were made, how many tokens they took, and what they cost.",
    "deny": "Have a tool call that waits for an approval not made; the model reads that, and why.",
    "diff": "Compare two sessions: rows from where they part, files, and what each of them took.",
    "doctor": (
        "Check configuration, keys, packages, sandboxes and files; with --live also the models."
    ),
    "edit": "Allow a tool call with other arguments; the model reads which.",
    "eval": "Evaluate a workflow on a dataset, and compare it with an earlier evaluation.",
    "explain": (
        "Answer the five questions of a session: all of them in brief, or one of them in full."
    ),
    "export": "Write a session to one file, with all that it came from and what its logs name.",
    "fork": (
        "Store a child of a session, with all of its rows or with the first ones, and say its id."
    ),
    "import": (
        "Put the sessions of a file into a store; prints the ids of those that were exported."
    ),
    "jobs ls": "List jobs, the newest first: how many of their items are done, and what they took.",
    "jobs show": "Show what came of a job: counts, costs, and each item that failed or waits.",
    "jobs tail": "Show the items of a job as they end, until the job does.",
    "jobs retry": "Start the items of a job again that failed; what was answered is not repeated.",
    "jobs cancel": "Ask the driver of a job, wherever it runs, to end it; a later start goes on.",
    "log": "Show sessions by time, the newest first, each after all that was made from it.",
    "ls": "List sessions, the newest first, each below what it was made from.",
    "mcp ls": (
        "List the tool servers of the config: where each is, who named it, and if you trust it."
    ),
    "mcp test": "Start or contact a server, and say what works and how long it took.",
    "mcp call": "Call a tool of a server, and show what it answers.",
    "mcp trust": "Allow a server that a project names, after showing what is started or contacted.",
    "mcp serve": "Serve a workflow as a tool, over stdio or HTTP, until it is ended.",
    "memory add": "Remember a note; the same words in the same category are one note.",
    "memory forget": (
        "Remove notes, or all that came from a session, so that nothing of them is left."
    ),
    "memory rebuild": (
        "Build the index of a local store again from its files, and tell what was wrong in it."
    ),
    "memory ls": "List notes and directories: the whole store, or what is below a URI.",
    "memory find": (
        "Find the notes that an agent would be reminded of, the closest first, with their scores."
    ),
    "memory show": "Show a note, and beside it where it comes from and when it expires.",
    "profile": ("Show by module path where time, tokens and money of a session or a job went."),
    "prune": (
        "Move sessions to the trash that were last written long ago, and remove what lay there."
    ),
    "replay": (
        "Replay a session from its record alone, without a network; with --at go on from a "
        "row, live."
    ),
    "resume": "Go on with a run under the same id and in the same log.",
    "rm": "Move sessions to the trash. What was made from them loads as before.",
    "serve MODULE:WORKFLOW": (
        "Serve a workflow to clients of OpenAI, A2A and MCP over HTTP, until it is ended."
    ),
    "serve token add": "Make a token for a client, with its limits, and show it once.",
    "serve token ls": "List who has a token, since when, and with which limits.",
    "serve token rm": "Remove the token of a client; servers refuse it from the next request on.",
    "show": "Show a session: where it comes from, its rows, and how each came about.",
    "tail": (
        "Show the last rows of a session; with -f also each new one, and words as they are "
        "streamed."
    ),
    "verify": "Check a session and all that it came from: checksums, parents, counts and contents.",
    "view": "Show a session, and all that it came from, on one page that needs no network.",
    "worker": (
        "Carry out the items of jobs from a queue in PostgreSQL, many at once, until it is ended."
    ),
}
"""Beginning of the help of each verb, for the lists of them; to import all of them takes long."""


def _list_jobs(ctx: typer.Context) -> None:
    """List the jobs of the default store where no verb of the group is named."""
    if ctx.invoked_subcommand is None:
        jobs: Any = importlib.import_module("rath.cli.jobs")
        jobs.list_jobs()


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
    """Options of a command that are converted only if they have to be."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options, also that of the help."""
        command: Any = super()
        parameters: list[Any] = command.get_params(ctx)
        hints = get_type_hints(cast("Any", self).callback)
        for parameter in parameters:
            if "process_value" not in vars(parameter):
                _convert_if_needed(parameter, hints.get(parameter.name))
        return parameters


class _Verb(_Options, TyperCommand):
    """One verb."""


class _Verbs(_Options, TyperGroup):
    """Verbs of the command or of one of its groups, each imported when it is called."""

    group = ""
    """Under which words its verbs stand in `VERBS`, "" for the command itself."""

    def _prefix(self) -> str:
        return f"{self.group} " if self.group else ""

    _is_listing = False

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help of the group, with the summaries of its verbs."""
        self._is_listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._is_listing = False

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
            if self._prefix():
                ctx.fail(f"No such command {cmd_name!r}.{near}")
            raise Misuse(f"no verb {cmd_name!r}.{near} Known: {', '.join(known)}")
        if self._is_listing:
            return TyperCommand(cmd_name, help=SUMMARIES[name])
        module, _, function = VERBS[name].partition(":")
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
            complain(complaint.format_message())
            if complaint.ctx is not None:
                typer.echo(f"See: {complaint.ctx.command_path} --help", err=True)
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
    """Agents over sessions: see and change how they are set up."""
    show_help(ctx)


def main() -> None:
    """Run the `rath` command with the arguments of this process, and end the process."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A name in a config may hold what the terminal has no form for.
            stream.reconfigure(errors="backslashreplace")
    app()
