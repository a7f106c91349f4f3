"""`rath fork`: a stored child of a stored session."""

from __future__ import annotations

from typing import Annotated

import typer

from rath.cli.loaded import loaded
from rath.cli.outline import counted
from rath.cli.sessions import AsJson, SessionText, StoreUrl, opened_store
from rath.cli.terminal import Misuse, note, say, say_json
from rath.session import Session

__all__ = ["app"]

app = typer.Typer(add_completion=False)


@app.command("fork")
def fork_session(
    session: SessionText,
    at: Annotated[
        int | None,
        typer.Option("--at", metavar="ROW", help="The first row that the child leaves out."),
    ] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Store a child of a session, with all of its rows or with the first ones, and say its id."""
    with loaded(session, store=store) as (found,):
        child = _child(found, at)
        with opened_store(store) as opened:
            child.save(store=opened)
        n_rows = len(child.chunk_table)
        if as_json:
            say_json({"session": str(child.id), "parent": str(found.id), "n_rows": n_rows})
            return
        say(str(child.id))
        note(f"a child of session {found.id} with {counted(n_rows, 'row')}")


def _child(session: Session, at: int | None) -> Session:
    if at is None:
        return session.fork()
    try:
        # A branch with which nobody goes on yet.
        return session.replay(at=at, agent=lambda branch: branch)
    except ValueError as exc:
        raise Misuse(str(exc)) from exc
