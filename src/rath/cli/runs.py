"""`rath resume`, `replay` and `mcp serve`: runs of workflows and agents from a command line."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Annotated, get_args

import typer

import rath
from rath._core.text import did_you_mean
from rath.cli.decisions import outcome_json, reply_commands, waiting_text
from rath.cli.explain import require_evidence
from rath.cli.render import count_of, head, item
from rath.cli.stores import SessionText, StoreUrl, load_sessions, use_store
from rath.cli.terminal import AsJson, CommandError, Exit, Misuse, misuse_on, say_json
from rath.errors import RathError
from rath.flow import Agent, Workflow
from rath.flow.serving import ServeOptions, serve_mcp
from rath.llm import Provider
from rath.session import Session
from rath.session.bindings import WorkspaceMode
from rath.session.calls.decisions import Choice
from rath.session.log.store import SessionStore
from rath.session.open_calls import own_operation
from rath.session.outcome import Cancelled, Suspended
from rath.session.questions.lineage import Question, find_missing, lineage_of
from rath.session.run.differences import resume_differences
from rath.session.scope import CancelledRuns

_RATH = f"{Path(rath.__file__).parent}{os.sep}"
"""The directory of this package."""

_NEEDS_OF_REPLAY: tuple[Question, ...] = ("seen", "where", "origin")
"""The questions that are answered from what a replay is made of."""


def resume_session(
    session: SessionText,
    workflow: Annotated[
        str,
        typer.Argument(metavar="MODULE:WORKFLOW", help="The program; `agents:team` in agents.py."),
    ],
    decide: Annotated[
        list[str] | None,
        typer.Option(
            "--decide", metavar="CALL=CHOICE", help="retry, skip or done, for a call by its id."
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only tell what is another than it was.")
    ] = False,
    goes_on: Annotated[
        bool, typer.Option("--go-on", help="Go on with runs that were cancelled, too.")
    ] = False,
    workspace: Annotated[
        WorkspaceMode,
        typer.Option("--workspace", metavar="require|rebuild|none", help="Where files are gone."),
    ] = "require",
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Resume a run that was cut off, failed or waits, in its own log.

    What is recorded is not done again. The exit status is 1 where the run waits for somebody.
    """
    with load_sessions(session, store=store) as (named,):
        found = _waiting(named, store)
        program = load_workflow(workflow)
        if check:
            _show_differences(found, program, as_json=as_json)
            return
        for text in decide or ():
            _decide(found, text)
        with program_errors(workflow), use_store(store) as opened:
            done = go_on(program, found, opened, goes_on=goes_on, workspace=workspace).synchronize()
        _show_resumed(done, _waiting(done, store), store, as_json=as_json)
        if isinstance(done.outcome, Suspended):
            raise typer.Exit(Exit.WORLD)


def _decide(session: Session, text: str) -> None:
    """Record a decision about a call.

    Raises:
        Misuse: It cannot be read, or is about no open call.
    """
    call, _, word = text.rpartition("=")
    choice = next((known for known in get_args(Choice) if known == word), None)
    if not call or choice is None:
        choices = ", ".join(get_args(Choice))
        raise Misuse(f"--decide {text!r} says nothing; expected CALL=CHOICE, one of {choices}")
    with misuse_on(ValueError):
        session.decide(call, choice)


def _waiting(session: Session, store: str | None) -> Session:
    """Return the session that waits, where `session` only passes that on."""
    outcome = session.outcome
    if not isinstance(outcome, Suspended) or outcome.session == session.id:
        return session
    with use_store(store) as opened:
        return Session.load(outcome.session, store=opened)


def go_on(
    workflow: Workflow,
    session: Session,
    store: SessionStore,
    *,
    goes_on: bool = False,
    workspace: WorkspaceMode = "require",
) -> Session:
    """Go on with a run that waits or was cut off, and return its session, which may be pending.

    Raises:
        Misuse: There is nothing to go on with, or it is not of this workflow.
        ResumeMismatch: The workflow does something else than what is recorded.
    """
    operation = own_operation(session.record, session.id)
    if operation is not None and operation.place.run is not None:
        cancelled: CancelledRuns = "go_on" if goes_on else "keep"
        with misuse_on(ValueError):
            return workflow.resume(session, store=store, cancelled=cancelled, workspace=workspace)
    if not isinstance(session.outcome, Suspended):
        raise Misuse(f"session {session.id} has ended and waits for nothing")
    # It was made outside of any workflow, so all of its run is its own.
    return workflow(session)


def _show_differences(session: Session, workflow: Workflow, *, as_json: bool) -> None:
    """Show in what files, tools and provider are not as they were.

    Raises:
        Misuse: The workflow has no agent at the place at which the session was replayed.
    """
    operation = own_operation(session.record, session.id)
    path = "" if operation is None else operation.place.path.partition(".")[2]
    agent = dict(workflow.named_modules()).get(path)
    if not isinstance(agent, Agent):
        raise Misuse(
            f"session {session.id} was made at {path or 'the outermost workflow'!r}, and "
            f"{type(workflow).__name__} has no agent there"
        )
    found = resume_differences(
        session, tools=agent.tools, system_tools=agent.system_tools, provider=agent.agent.provider
    )
    if as_json:
        differences = [{"kind": type(each).__name__, **asdict(each)} for each in found]
        say_json({"session": session.id, "differences": differences})
        return
    head(f"{session.id}: {count_of(len(found), 'difference')}")
    for each in found:
        item(str(each))


def _show_resumed(session: Session, stopped: Session, store: str | None, *, as_json: bool) -> None:
    """Show a session, and what `stopped` waits for, on which that depends."""
    outcome, n_rows = outcome_json(session.outcome), len(session.chunk_table)
    waiting = [each for each in stopped.open_calls if each.waits]
    if as_json:
        calls = [
            {"call": each.call.id, "tool": each.call.name, "waits_for": each.waits_for}
            for each in waiting
        ]
        facts = {"session": session.id, "n_rows": n_rows, **outcome}
        say_json({**facts, "stopped": stopped.id, "calls": calls})
        return
    head(f"{session.id}: {outcome['state']}, {count_of(n_rows, 'row')}")
    for text in session.text().splitlines():
        item(text)
    if stopped is not session:
        item(f"because of session {stopped.id}")
    if isinstance(session.outcome, Cancelled):
        item("it was cancelled; --go-on goes on with it")
    for each in waiting:
        if each.waits_for == "decision":
            item(f"waits for a decision: {each.call.name} {each.call.arguments}")
            item(f"--decide {each.call.id}=retry, skip or done", depth=2)
            continue
        item(waiting_text(each))
        for command in reply_commands(stopped, each, store):
            item(command, depth=2)


def replay_session(
    session: SessionText,
    at: Annotated[
        int | None,
        typer.Option("--at", metavar="ROW", help="Go on live from here: the first row left out."),
    ] = None,
    prompt: Annotated[
        str | None, typer.Option("--prompt", help="What the user says there; needs --at.")
    ] = None,
    provider: Annotated[
        str | None,
        typer.Option(
            "--provider", metavar="PROVIDER", help="The entry of the config to ask instead."
        ),
    ] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Replay a session from its record, offline; --at branches there, live.

    The exit status is 1 where the replay is not what the record says, and 3 where the record lacks
    what it would be made of.
    """
    if at is None and (prompt is not None or provider is not None):
        raise Misuse("--prompt and --provider say how to go on live, so they need --at ROW")
    with load_sessions(session, store=store) as (found,):
        if at is None:
            lineage = lineage_of(found)
            needed = [find_missing(lineage, name) for name in _NEEDS_OF_REPLAY]
            require_evidence([each for missing in needed for each in missing])
            replayed, result = found.replay(), "replayed: rows, record and requests are the same"
        else:
            with misuse_on(KeyError, ValueError):
                instead = None if provider is None else Provider.from_config(provider)
                branch = found.replay(at=at, prompt=prompt, provider=instead)
            replayed = branch.synchronize()
            with use_store(store) as opened:
                replayed.save(store=opened)
            result = f"went on from row {at}"
        n_rows = len(replayed.chunk_table)
        if as_json:
            facts = {"session": replayed.id, "of": found.id, "n_rows": n_rows}
            say_json({**facts, **outcome_json(replayed.outcome)})
            return
        head(f"{replayed.id}: {result}, {count_of(n_rows, 'row')}")
        text = replayed.text() if replayed.id != found.id else None
        for each in (text or "").splitlines():
            item(each)


def serve(
    workflow: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:WORKFLOW", help="What to serve; agents:team, or path/agents.py:team."
        ),
    ],
    name: Annotated[
        str | None, typer.Option("--name", help="Of the tool; by default that of the class.")
    ] = None,
    over_http: Annotated[
        bool, typer.Option("--http", help="Listen for streamable HTTP, in place of stdio.")
    ] = False,
    host: Annotated[str, typer.Option("--host", help="To listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="To listen on; 0 for a free one.")] = 8000,
    path: Annotated[str, typer.Option("--path", help="Of the address.")] = "/mcp",
    token_env: Annotated[
        str | None,
        typer.Option("--token-env", metavar="NAME", help="Variable with the token to ask for."),
    ] = None,
    allowed_hosts: Annotated[
        list[str] | None,
        typer.Option("--allow-host", metavar="NAME:PORT", help="Also called so. Repeatable."),
    ] = None,
    any_session: Annotated[
        bool,
        typer.Option("--any-session", help="Let clients go on with any session of the store."),
    ] = False,
    store: StoreUrl = None,
) -> None:
    """Serve a workflow as an MCP tool, over stdio or HTTP.

    Clients give a message, and get the answer and the id of a session that is stored here. What
    the program prints goes to standard error.
    """
    token = None if token_env is None else os.environ.get(token_env, "")
    if token == "":
        raise Misuse(f"the variable {token_env!r} of --token-env is not set; put the token there")
    with use_store(store) as opened:
        options = ServeOptions(
            path=path,
            token=token,
            allowed_hosts=tuple(allowed_hosts or ()),
            sessions="any" if any_session else "own",
            store=opened,
        )
        with misuse_on(ValueError, TypeError):
            serve_mcp(
                partial(load_workflow, workflow),
                name=name or workflow.rpartition(":")[2].rpartition(".")[2] or None,
                transport="http" if over_http else "stdio",
                host=host,
                port=port,
                options=options,
            )


_MAKERS: tuple[type, ...] = (type, partial, FunctionType, MethodType, BuiltinFunctionType)
"""What may make a workflow; a tool can be called as well."""


def load_workflow(name: str) -> Workflow:
    """Import `module:attribute`, looked for in the working directory first, and return it.

    A module may be named by its file, as in `path/agents.py:team`.

    The attribute is a workflow, or a class of one or a function that makes one without arguments.

    Raises:
        Misuse: There is no such module or attribute, or it is no workflow.
        CommandError: It raises something.
    """
    found = load_object(name, "workflow; expected MODULE:ATTRIBUTE, such as agents:team")
    if callable(found) and isinstance(found, _MAKERS):
        with program_errors(name):
            found = found()
    if not isinstance(found, Workflow):
        raise Misuse(f"{name!r} is of type {type(found).__name__}; expected a workflow or an agent")
    return found


def load_object(name: str, expected: str) -> object:
    """Import `module:attribute` and return what it is.

    Args:
        name: Module or file, and attribute.
        expected: What a name without one lacks, for the message.

    Raises:
        Misuse: There is no such module or attribute.
        CommandError: The module raises something.
    """
    module_name, _, path = name.rpartition(":")
    if not module_name or not path:
        raise Misuse(f"{name!r} names no {expected}")
    found: object = _module(module_name)
    for part in path.split("."):
        if not hasattr(found, part):
            advice = did_you_mean(part, dir(found)) or _workflows_in(found)
            raise Misuse(f"{name!r}: no attribute {part!r}.{advice}")
        found = getattr(found, part)
    return found


def _workflows_in(found: object) -> str:
    if not isinstance(found, ModuleType):
        return ""
    names = [name for name, each in vars(found).items() if isinstance(each, Workflow)]
    return f" Workflows there: {', '.join(names)}" if names else ""


def _module(name: str) -> ModuleType:
    file = Path(name).resolve() if name.endswith(".py") else None
    if file is not None and not file.is_file():
        raise Misuse(f"no file {name!r}")
    here, module_name = str(file.parent if file else Path.cwd()), file.stem if file else name
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        with program_errors(name):
            found = importlib.import_module(module_name)
    except CommandError as exc:
        lacks = exc.__cause__
        if not isinstance(lacks, ModuleNotFoundError) or lacks.name is None:
            raise
        if not f"{module_name}.".startswith(f"{lacks.name}."):
            raise  # something that the module itself needs
        raise Misuse(f"no module {module_name!r} in {here!r} or among the packages") from lacks
    if file is not None and Path(found.__file__ or "").resolve() != file:
        sys.path.remove(here)
        raise Misuse(f"{name!r} has the name of another module, {found.__file__}; rename the file")
    return found


@contextmanager
def program_errors(name: str) -> Generator[None]:
    """Tell in one line what a program raises, and where.

    Raises:
        CommandError: It raised something that does not say itself what to do, or ended.
    """
    try:
        yield
    except (RathError, OSError, CommandError):
        raise
    except (Exception, SystemExit) as exc:  # programs of others raise anything; it is told
        text = f"{name!r} raised {type(exc).__name__}: {exc}{_place(exc)}"
        raise CommandError(text) from exc


def _place(exc: BaseException) -> str:
    frames = traceback.extract_tb(exc.__traceback__)
    own = [each for each in frames if each.filename != __file__ and "<frozen" not in each.filename]
    its = [each for each in own if "/importlib/" not in each.filename]
    its = [each for each in its if not each.filename.startswith(_RATH)]  # the message says it
    return f" ({its[-1].filename}:{its[-1].lineno})" if its else ""
