"""`rath resume`: go on with a run that was cut off, failed or waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, get_args

import typer

from rath.cli.loaded import loaded
from rath.cli.outcomes import told_outcome
from rath.cli.outline import counted, head, item
from rath.cli.program import load_workflow, telling
from rath.cli.sessions import AsJson, Exit, SessionText, StoreUrl, opened_store
from rath.cli.terminal import Misuse, Problem, say_json
from rath.cli.waiting import how_to_say, waits_in_words
from rath.errors import ResumeMismatch
from rath.flow import Agent, Workflow
from rath.session import Session
from rath.session.calls.decisions import Choice
from rath.session.open_calls import own_operation
from rath.session.outcome import Cancelled, Suspended
from rath.session.run.differences import resume_differences
from rath.session.scope import CancelledRuns

__all__ = ["app"]

app = typer.Typer(add_completion=False)


@app.command("resume")
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
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Go on with a run under the same id and in the same log.

    What is recorded is not done again. The exit status is 1 where the run waits for somebody.
    """
    with loaded(session, store=store) as (named,):
        found = _waiting(named, store)
        program = load_workflow(workflow)
        if check:
            _check(found, program, as_json=as_json)
            return
        _decide(found, decide or ())
        with telling(workflow):
            done = _resumed(program, found, store, "go_on" if goes_on else "keep")
        _show(done, _waiting(done, store), as_json=as_json)
        if told_outcome(done.outcome)["waits"]:
            raise typer.Exit(Exit.WORLD)


def _decide(session: Session, decided: Sequence[str]) -> None:
    """Note what was decided about calls.

    Raises:
        Misuse: A decision cannot be read, or is about no open call.
    """
    for text in decided:
        call, _, said = text.rpartition("=")
        choice = next((known for known in get_args(Choice) if known == said), None)
        if not call or choice is None:
            choices = ", ".join(get_args(Choice))
            raise Misuse(f"--decide {text!r} says nothing; expected CALL=CHOICE, one of {choices}")
        try:
            session.decide(call, choice)
        except ValueError as exc:
            raise Misuse(str(exc)) from exc


def _waiting(session: Session, store: str | None) -> Session:
    """Return the session that waits, where `session` only passes that on."""
    outcome = session.outcome
    if not isinstance(outcome, Suspended) or outcome.session == session.id:
        return session
    with opened_store(store) as opened:
        return Session.load(outcome.session, store=opened)


def _resumed(
    workflow: Workflow, session: Session, store: str | None, cancelled: CancelledRuns
) -> Session:
    """Go on, and wait for the end.

    Raises:
        Misuse: There is nothing to go on with, or it is not of this workflow.
        Problem: The workflow does something else than what is recorded.
    """
    made = own_operation(session.record, session.id)
    try:
        if made is not None and made.place.run is not None:
            with opened_store(store) as opened:
                return workflow.resume(session, store=opened, cancelled=cancelled).synchronize()
    except ValueError as exc:
        raise Misuse(str(exc)) from exc
    except ResumeMismatch as exc:
        raise Problem(str(exc)) from exc
    if not isinstance(session.outcome, Suspended):
        raise Misuse(f"session {session.id} has ended and waits for nothing")
    # It was made outside of any workflow, so all of its run is its own.
    return workflow(session).synchronize()


def _check(session: Session, workflow: Workflow, *, as_json: bool) -> None:
    """Tell in what files, tools and provider are not as they were.

    Raises:
        Misuse: The workflow has no agent at the place at which the session was made.
    """
    agent = _agent_of(session, workflow)
    found = resume_differences(
        session, tools=agent.tools, system_tools=agent.system_tools, provider=agent.agent.provider
    )
    if as_json:
        told = [{"kind": type(each).__name__, **asdict(each)} for each in found]
        say_json({"session": str(session.id), "differences": told})
        return
    head(f"{session.id}: {counted(len(found), 'difference')}")
    for each in found:
        item(str(each))


def _agent_of(session: Session, workflow: Workflow) -> Agent:
    made = own_operation(session.record, session.id)
    path = "" if made is None else made.place.path.partition(".")[2]
    found = dict(workflow.named_modules()).get(path)
    if not isinstance(found, Agent):
        raise Misuse(
            f"session {session.id} was made at {path or 'the outermost workflow'!r}, and "
            f"{type(workflow).__name__} has no agent there"
        )
    return found


def _show(session: Session, stopped: Session, *, as_json: bool) -> None:
    """Tell how a session stands, and what `stopped` waits for, on which that depends."""
    outcome, n_rows = told_outcome(session.outcome), len(session.chunk_table)
    waiting = [each for each in stopped.open_calls if each.waits]
    if as_json:
        calls = [
            {"call": each.call.id, "tool": each.call.name, "waits_for": each.waits_for}
            for each in waiting
        ]
        told = {"session": str(session.id), "n_rows": n_rows, **outcome}
        say_json({**told, "stopped": str(stopped.id), "calls": calls})
        return
    head(f"{session.id}: {outcome['state']}, {counted(n_rows, 'row')}")
    for line in (session.text() or "").splitlines():
        item(line)
    if stopped is not session:
        item(f"because of session {stopped.id}")
    if isinstance(session.outcome, Cancelled):
        item("it was cancelled; --go-on goes on with it")
    for each in waiting:
        if each.waits_for == "decision":
            item(f"waits for a decision: {each.call.name} {each.call.arguments}")
            item(f"--decide {each.call.id}=retry, skip or done", depth=2)
            continue
        item(waits_in_words(each))
        for line in how_to_say(stopped, each):
            item(line, depth=2)
