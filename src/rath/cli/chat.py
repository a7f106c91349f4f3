"""`rath run` and `rath chat`: a workflow on what a person says, recorded turn by turn."""

from __future__ import annotations

import contextlib
import importlib
import json
import shlex
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any, cast, get_args
from uuid import UUID

import typer

from rath._core.text import did_you_mean, short_id
from rath.cli.config_init import kind_of_environment, missing_packages
from rath.cli.decisions import outcome_json, say_waiting, store_option, waiting_calls, waiting_text
from rath.cli.explain import explain
from rath.cli.render import line, money, one_line, say_lines
from rath.cli.runs import go_on, load_workflow, program_errors
from rath.cli.settings import read_settings
from rath.cli.show import outcome_text
from rath.cli.stores import StoreUrl, load_sessions, use_store
from rath.cli.terminal import (
    AsJson,
    CommandError,
    Exit,
    Misuse,
    ask,
    complain,
    misuse_on,
    note,
    say,
    say_json,
    say_part,
)
from rath.cli.view import view
from rath.config.schema import LLMProviderConfig
from rath.errors import PersistenceError, RathError
from rath.flow import Agent, Workflow
from rath.flow.agent import CallerOptions, adding
from rath.llm import Provider
from rath.session import ChunkRow, RowId, Session
from rath.session.calls.decisions import Choice
from rath.session.chunk import readable_json
from rath.session.content import AssistantTurn, ToolFeedback
from rath.session.events import TextDelta
from rath.session.graph import LineageKind
from rath.session.log.store import SessionStore
from rath.session.open_calls import OpenCall
from rath.session.outcome import Cancelled, Suspended
from rath.session.record import ToolRun
from rath.session.run.stored_programs import waiting_sessions
from rath.session.scope import recording_scope

_ASSISTANT = "You are a helpful assistant. Answer briefly."
"""Instructions of the agent that answers where no workflow is named."""

_CANCELLED = "cancelled; the conversation is as before. Ctrl-D ends it"

ProgramText = Annotated[
    str, typer.Argument(metavar="MODULE:WORKFLOW", help="The program; `agents:team` in agents.py.")
]
SandboxText = Annotated[
    str | None,
    typer.Option(
        "--sandbox",
        metavar="NAME[:DIR]",
        help="Where tools run: local, bubblewrap, ...; DIR is the working directory by default.",
    ),
]
SessionOption = Annotated[
    str | None,
    typer.Option("--session", metavar="SESSION", help="A stored session to continue."),
]


def run_workflow(
    workflow: ProgramText,
    message: Annotated[
        str | None,
        typer.Argument(metavar="[MESSAGE]", help="What the user says; without it, standard input."),
    ] = None,
    session: SessionOption = None,
    sandbox: SandboxText = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Run a workflow on a message, stream its answer, and record the run.

    The exit status is 1 where the run fails, waits for a person or was cancelled.
    """
    program = load_workflow(workflow)
    text = _message(message)
    with _recorded(session, store) as (opened, before):
        user = _user_session(before, text, sandbox)
        shown = _Shown(user, is_silent=as_json)
        with program_errors(workflow):
            out = program(user)
        where = store_option(store)
        try:
            with program_errors(workflow):
                shown.follow(out)
        except (KeyboardInterrupt, CommandError, RathError, OSError) as exc:
            if opened.holds(out.id):
                again = f"rath resume {where}{out.id} {shlex.quote(workflow)}"
                again += " --go-on" if isinstance(exc, KeyboardInterrupt) else ""
                note(f"what was recorded: rath show {where}{out.id}; to try again: {again}")
            raise
        waiting = waiting_sessions(out)
        if as_json:
            facts = {"session": out.id, "text": out.text(), **outcome_json(out.outcome)}
            say_json({**facts, "waiting": waiting_calls(waiting)})
        else:
            shown.say_end(out)
            for each in waiting:
                say_waiting(each, store)
            note(f"recorded in {opened.where}; what happened: rath explain {where}{out.id}")
    if isinstance(out.outcome, Suspended):
        raise typer.Exit(Exit.WORLD)


def chat(
    workflow: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODULE:WORKFLOW]", help="Who answers; a plain agent where none is named."
        ),
    ] = None,
    session: SessionOption = None,
    sandbox: SandboxText = None,
    store: StoreUrl = None,
) -> None:
    """Chat with a workflow in the terminal; each turn is a recorded session.

    `/help` lists the commands: fork, undo, explain, view. Calls that need an approval ask for it.
    """
    program = _default_agent() if workflow is None else load_workflow(workflow)
    with _recorded(session, store) as (opened, before):
        chatting = Chat(program, workflow, opened, before, store_url=store, sandbox=sandbox)
        note(f"each turn is recorded in {opened.where}; /help lists the commands, Ctrl-D ends")
        is_done = chatting.loop()
        if chatting.session is not None:
            note(f"to continue: {chatting.command_for(chatting.session)}")
    if not is_done and not sys.stdin.isatty():
        raise typer.Exit(Exit.WORLD)  # for a script, which reads no message


@contextmanager
def _recorded(
    session: str | None, store: str | None
) -> Generator[tuple[SessionStore, Session | None]]:
    """Record and stream what runs inside; yield the store, and the session to continue."""
    with contextlib.ExitStack() as stack:
        before: Session | None = None
        if session is not None:
            (before,) = stack.enter_context(load_sessions(session, store=store))
        opened = stack.enter_context(use_store(store))
        stack.enter_context(recording_scope(opened))
        stack.enter_context(adding(CallerOptions(streaming=True)))
        yield opened, before


def _message(message: str | None) -> str:
    """Return what the user says.

    Raises:
        Misuse: There is nothing.
    """
    if message is None and sys.stdin.isatty():
        raise Misuse("MESSAGE is missing: what the user says, or a text in standard input")
    text = sys.stdin.read() if message is None else message
    if not text.strip():
        raise Misuse("the message is empty")
    return text


def _default_agent() -> Agent:
    """Return an agent on the default model, on that of the environment, or on the embedded one.

    Raises:
        CommandError: None of them is there, or the config names one that cannot be used.
    """
    kind = kind_of_environment()
    if read_settings().at("llm.default_provider") is not None:
        try:
            provider = Provider.from_config()
        except (KeyError, ValueError) as exc:
            raise CommandError(str(exc.args[0])) from exc
    elif kind is not None:
        provider = Provider(provider_kind=kind)
    elif missing_packages(LLMProviderConfig(provider_kind="local")) is None:
        note("no model is configured: the embedded one answers, on this machine")
        provider = Provider(provider_kind="local")
    else:
        raise CommandError(
            "no model is configured; run `rath config init`, or set OPENAI_API_KEY or "
            "ANTHROPIC_API_KEY"
        )
    return Agent(_ASSISTANT, provider)


def _user_session(before: Session | None, text: str, sandbox: str | None) -> Session:
    """Return the session with which a turn begins.

    Raises:
        Misuse: There is no such sandbox, or the session to continue waits for a person.
    """
    if before is not None and isinstance(before.outcome, Suspended):
        raise Misuse(
            f"session {before.id} waits or was cancelled. What for: rath show {before.id}; to "
            f"go on with it: rath resume {before.id} MODULE:WORKFLOW, with --go-on where it was "
            "cancelled; in a chat, /undo returns to the turn before"
        )
    session = Session.from_user_message(text) if before is None else before.say(text)
    if sandbox is None:
        return session
    name, _, directory = sandbox.partition(":")
    with misuse_on(ValueError, LookupError):
        return session.to(name, spec=directory or ".")


class _Shown:
    """What of a run a person has seen: rows once, and text as it is streamed.

    Args:
        user: The session with which the run begins; its rows are not shown.
        is_silent: Show nothing.
    """

    def __init__(self, user: Session, *, is_silent: bool = False) -> None:
        self._rows: set[RowId | None] = {row.id for row in user.rows}
        self._is_silent = is_silent
        self._is_in_text = False

    def follow(self, session: Session) -> None:
        """Show rows and text of a session until its run ends.

        Raises:
            KeyboardInterrupt: Ctrl-C ended the run.
        """
        try:
            for event in session.stream():
                if self._is_silent:
                    continue
                if isinstance(event, TextDelta) and event.session == session.id:
                    say_part(event.text)
                    self._is_in_text = True
                elif isinstance(event, ChunkRow) and event.id not in self._rows:
                    self._rows.add(event.id)
                    self._show_row(event)
        finally:
            self._end_text()

    def _show_row(self, row: ChunkRow) -> None:
        was_streamed = self._is_in_text
        self._end_text()
        match row.content:
            case AssistantTurn(text, calls):
                if text and not was_streamed:
                    say(text)
                say_lines(
                    line((f"  → {each.name} ", "yellow"), (_brief(each.arguments), "dim"))
                    for each in calls
                )
            case ToolFeedback(_, name, body, _):
                say_lines([line((f"  ← {name} ", "yellow"), (_brief(body), "dim"))])
            case _:
                pass  # what the user says is known

    def _end_text(self) -> None:
        if self._is_in_text:
            say_part("\n")
        self._is_in_text = False

    def say_end(self, session: Session) -> None:
        """Show how the run ended, what the conversation took so far, and its id."""
        usage, cost = session.cumulative_usage, session.cumulative_cost
        parts = [short_id(session.id)]
        state = outcome_json(session.outcome)["state"]
        if state != "completed":
            parts.append(f"{state} {outcome_text(session.outcome)}".strip())
        if usage is not None:
            parts.append(f"{usage.prompt_tokens:,} + {usage.completion_tokens:,} tokens")
        if cost.n_priced:
            parts.append(money(cost.usd, is_complete=cost.is_complete))
        say_lines([line((" · ".join(parts), "dim"))])


def _brief(value: str) -> str:
    return one_line(readable_json(value))


class Chat:
    """A conversation in the terminal: the last session of each turn, the newest last.

    Args:
        program: Who answers.
        workflow: How a command line names the program; None for the agent that has no name.
        store: Where turns are recorded.
        session: The session to continue.
        store_url: The store as `--store` names it.
        sandbox: Where tools run, as `--sandbox` says it.
    """

    def __init__(
        self,
        program: Workflow,
        workflow: str | None,
        store: SessionStore,
        session: Session | None = None,
        *,
        store_url: str | None = None,
        sandbox: str | None = None,
    ) -> None:
        self._program = program
        self._workflow = workflow
        self._store = store
        self._store_url = store_url
        self._sandbox = sandbox
        self._turns: list[Session] = [] if session is None else [session]

    @property
    def session(self) -> Session | None:
        """The session of the last turn; None before the first one."""
        return self._turns[-1] if self._turns else None

    def command_for(self, session: Session) -> str:
        """Return the command that continues a session with this program."""
        program = "" if self._workflow is None else f"{shlex.quote(self._workflow)} "
        return f"rath chat {program}{store_option(self._store_url)}--session {session.id}"

    def loop(self) -> bool:
        """Read what the user says and answer it; return whether the last of it was carried out."""
        is_done = True
        if self.session is not None and isinstance(self.session.outcome, Suspended):
            try:
                self._settle(self.session)
                del self._turns[0]  # the same turn, before it went on
            except KeyboardInterrupt:
                note(_CANCELLED)
        while (text := _read_line()) is not None:
            if not text:
                continue
            is_done = False
            try:
                if text.startswith("/"):
                    if not self._command(text):
                        return True
                else:
                    self._turn(text)
                is_done = True
            except KeyboardInterrupt:
                note(_CANCELLED)
            except (CommandError, RathError, OSError) as exc:
                complain(f"{exc}\nthe conversation is as before")
        return is_done

    def _turn(self, text: str) -> None:
        user = _user_session(self.session, text, self._sandbox)
        self._sandbox = None  # derived sessions keep their place
        out = self._run(partial(self._program, user), _Shown(user))
        self._settle(out)

    def _run(self, begin: Callable[[], Session], shown: _Shown) -> Session:
        """Begin a run, show it as it goes, and return its session when it has ended.

        Raises:
            KeyboardInterrupt: Ctrl-C has cancelled it.
        """
        out: Session | None = None
        try:
            with program_errors(self._workflow or "the agent"):
                out = begin()
                shown.follow(out)
        except KeyboardInterrupt:
            if out is not None:
                out.cancel()
            raise
        shown.say_end(out)
        return out

    def _settle(self, out: Session) -> None:
        """Ask for what a run waits for until it waits no more, and make it the last turn.

        Raises:
            CommandError: Another program has decided, or goes on with it.
        """
        try:
            out = self._decided(out)
        except PersistenceError as exc:
            raise CommandError(
                f"{exc}\nto see what became of it: rath show {out.id}\n"
                f"to go on from there: {self.command_for(out)}"
            ) from exc
        self._turns.append(out)

    def _decided(self, out: Session) -> Session:
        """Return the session of a run after all decisions that a person makes now.

        Where all were made before, the run goes on; once, in case that it waits for something else.
        """
        is_tried = False
        while isinstance(out.outcome, Suspended) and not isinstance(out.outcome, Cancelled):
            calls = [
                (each, call)
                for each in waiting_sessions(out)
                for call in each.open_calls
                if call.waits
            ]
            is_stuck, is_tried = is_tried and not calls, not calls
            if is_stuck or not all(_decide(each, call) for each, call in calls):
                note(f"it waits; later: {self.command_for(out)}")
                break
            out = self._run(partial(go_on, self._program, out, self._store), _Shown(out))
        return out

    def _command(self, text: str) -> bool:
        """Carry out a command, and return whether the chat goes on."""
        name, _, rest = text[1:].strip().partition(" ")
        command = _COMMANDS.get(name)
        if command is None:
            complain(f"no command /{name}.{did_you_mean(name, _COMMANDS)} Known: {_KNOWN}")
            return True
        return command(self, rest.strip())

    def help(self, _: str) -> bool:
        """List the commands."""
        width = max(map(len, _COMMANDS))
        for name, command in _COMMANDS.items():
            say_lines([line((f"  /{name:<{width}}  ", "bold"), command.__doc__ or "")])
        return True

    def fork(self, _: str) -> bool:
        """Continue on a copy; the session so far stays as it is."""
        session = self._last()
        self._turns.append(session.fork().synchronize())
        note(
            f"on {short_id(self._turns[-1].id)} now; {session.id} stays as it is, and /undo returns"
        )
        return True

    def undo(self, _: str) -> bool:
        """Return to the session before the last turn, or before the fork."""
        undone = self._last()
        if len(self._turns) == 1 and (earlier := _session_before(undone)) is not None:
            self._turns.insert(0, Session.load(earlier, store=self._store))
        self._turns.pop()
        own = [each for each in undone.record if isinstance(each, ToolRun) and each.file_effects]
        before = 0 if self.session is None else len(self.session.record)
        note(f"back before the last turn; it stays recorded as {undone.id}")
        if own and len(undone.record) > before:
            note(f"files stay as they are now; what tools changed: rath explain {undone.id}")
        return True

    def explain(self, _: str) -> bool:
        """Tell what the model saw, who answered, where tools ran and what they changed."""
        explain(str(self._last().id), store=self._store_url)
        return True

    def view(self, _: str) -> bool:
        """Write the conversation as a page."""
        view(str(self._last().id), store=self._store_url)
        return True

    def quit(self, _: str) -> bool:
        """End the chat; `--session` continues it."""
        return False

    def _last(self) -> Session:
        """Return the session of the last turn.

        Raises:
            CommandError: There is none.
        """
        if self.session is None:
            raise CommandError("nothing was said yet")
        return self.session


def _session_before(session: Session) -> UUID | None:
    """Return the session before a fork or the last turn, None where that was the first one."""
    edge = session.core.as_parent()
    is_fork = session.lineage_kind is LineageKind.OP_FORK
    while edge.provenance is not None and edge.provenance.parents:
        is_next_turn = edge.provenance.kind is LineageKind.OP_INPUT
        edge = edge.provenance.parents[0]
        if is_fork or is_next_turn:
            return edge.id
    return None


_COMMANDS: dict[str, Callable[[Chat, str], bool]] = {
    "help": Chat.help,
    "fork": Chat.fork,
    "undo": Chat.undo,
    "explain": Chat.explain,
    "view": Chat.view,
    "quit": Chat.quit,
}
_KNOWN = ", ".join(f"/{name}" for name in _COMMANDS)


def _decide(session: Session, call: OpenCall) -> bool:
    """Ask a person about a call that waits; return whether there is a decision."""
    say_lines([line(("  ? ", "magenta"), waiting_text(call), is_whole=True)])
    while True:
        try:
            match call.waits_for:
                case "approval":
                    return _ask_approval(session, call)
                case "input":
                    session.answer(_ask_answer(call), call)
                    return True
                case _:
                    choices = (*get_args(Choice), "later")
                    choice = ask("retry, skip, done, or later", choices=choices)
                    if choice != "later":
                        session.decide(call, cast("Choice", choice))
                    return choice != "later"
        except (ValueError, TypeError) as exc:
            complain(str(exc))  # asked again
        except typer.Abort:
            return False


def _ask_approval(session: Session, call: OpenCall) -> bool:
    choice = ask("allow it? (y)es, (n)o, (e)dit, (l)ater", choices=("y", "n", "e", "l"))
    match choice:
        case "y":
            session.approve(call)
        case "n":
            session.deny(call, ask("reason"))
        case "e":
            session.edit(call, json.loads(ask("arguments, a JSON object")))
        case _:
            return False
    return True


def _ask_answer(call: OpenCall) -> Any:
    """Return the answer to a question: JSON where it is, else the text as it stands."""
    text = ask("answer")
    try:
        return json.loads(text)
    except ValueError:
        return text


def _read_line() -> str | None:
    """Return what the user says next, without blanks around it; None at the end of the input."""
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if is_terminal:
        with contextlib.suppress(ImportError):
            importlib.import_module("readline")  # history and editing for `input`
    while True:
        try:
            text = input("\nyou> " if is_terminal else "")
        except EOFError:
            return None
        except KeyboardInterrupt:
            note("Ctrl-D or /quit ends the chat")
            continue
        return text.strip()
