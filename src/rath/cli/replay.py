"""`rath replay`: run a stored session again, from its record or on another course."""

from __future__ import annotations

from typing import Annotated

import typer

from rath.cli.explain import require_evidence
from rath.cli.loaded import loaded
from rath.cli.outcomes import told_outcome
from rath.cli.outline import counted, head, item
from rath.cli.sessions import AsJson, SessionText, StoreUrl, opened_store
from rath.cli.terminal import Misuse, Problem, say_json
from rath.errors import ReplayDifference
from rath.llm import Provider
from rath.session import Session
from rath.session.questions.lineage import Question, find_missing, lineage_of

__all__ = ["app"]

_NEEDED: tuple[Question, ...] = ("seen", "where", "origin")
"""The questions that are answered from what a replay is made of."""

app = typer.Typer(add_completion=False)


@app.command("replay")
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
        typer.Option("--provider", metavar="NAME", help="The entry of the config to ask instead."),
    ] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Replay a session from its record alone, without a network; with --at go on from a row, live.

    The exit status is 1 where the replay is not what the record says, and 3 where the record lacks
    what it would be made of.
    """
    if at is None and (prompt is not None or provider is not None):
        raise Misuse("--prompt and --provider say how to go on live, so they need --at ROW")
    with loaded(session, store=store) as (found,):
        if at is None:
            made, told = _strictly(found), "replayed: rows, record and requests are the same"
        else:
            made = _live(found, at, prompt, provider)
            with opened_store(store) as opened:
                made.save(store=opened)
            told = f"went on from row {at}"
        _show(found, made, told, as_json=as_json)


def _strictly(session: Session) -> Session:
    """Replay a session.

    Raises:
        EvidenceMissing: What was not recorded cannot be compared.
        Problem: Something comes out otherwise.
    """
    lineage = lineage_of(session)
    require_evidence([each for name in _NEEDED for each in find_missing(lineage, name)])
    try:
        return session.replay()
    except ReplayDifference as exc:
        raise Problem(str(exc)) from exc


def _live(session: Session, at: int, prompt: str | None, provider: str | None) -> Session:
    """Go on from a row, and wait for the end.

    Raises:
        Misuse: There is no such row, or no such provider, or the recorded agent cannot go on here.
    """
    try:
        asked = None if provider is None else Provider.from_config(provider)
        return session.replay(at=at, prompt=prompt, provider=asked).synchronize()
    except KeyError as exc:
        raise Misuse(str(exc.args[0])) from exc
    except ValueError as exc:
        raise Misuse(str(exc)) from exc


def _show(before: Session, made: Session, told: str, *, as_json: bool) -> None:
    n_rows = len(made.chunk_table)
    if as_json:
        outcome = told_outcome(made.outcome)
        say_json({"session": str(made.id), "of": str(before.id), "n_rows": n_rows, **outcome})
        return
    head(f"{made.id}: {told}, {counted(n_rows, 'row')}")
    text = made.text() if made.id != before.id else None
    for line in (text or "").splitlines():
        item(line)
