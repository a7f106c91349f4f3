"""`rath rm`: move sessions to the trash, and bring them back."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import typer

from rath.cli.sessions import StoreUrl, opened_store, session_id_of
from rath.cli.terminal import Misuse, Problem, note, say
from rath.session.log.retention import delete_session
from rath.session.log.store import SessionStore

__all__ = ["app"]

app = typer.Typer(add_completion=False)


@app.command()
def rm(
    sessions: Annotated[
        list[str], typer.Argument(metavar="SESSION...", help="Ids, or the beginnings of ids.")
    ],
    is_restored: Annotated[
        bool, typer.Option("--restore", help="Bring them back; takes whole ids.")
    ] = False,
    store_url: StoreUrl = None,
) -> None:
    """Move sessions to the trash. What was made from them loads as before.

    They lie there until `rath prune` or `rath gc` empties it.
    """
    with opened_store(store_url) as store:
        if is_restored:
            _restore(sessions, store)
            return
        # All of them are looked for before the first one goes.
        found = dict.fromkeys(session_id_of(text, store) for text in sessions)
        for session in found:
            if not delete_session(session, store=store):
                raise Problem(f"session {session} is not in {store.where}; `rath ls` lists what is")
            say(f"moved to the trash: {session}")
    named = " ".join(map(str, found))
    place = "" if store_url is None else f" --store {store_url}"
    note(f"`rath rm --restore {named}{place}` brings {'it' if len(found) == 1 else 'them'} back")


def _restore(sessions: list[str], store: SessionStore) -> None:
    for session in [_whole_id(text) for text in sessions]:
        if not store.restore(session):
            raise Problem(f"session {session} is not in the trash of {store.where}")
        say(f"brought back: {session}")


def _whole_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise Misuse(
            f"{text!r} is no whole id; what is in the trash is named by all of its digits"
        ) from None
