"""`rath prune`: move old sessions to the trash."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated
from uuid import UUID

import typer

from rath._core.text import short_id
from rath.cli.layout import cut, moment, number, one_line, room
from rath.cli.sessions import AsJson, StoreUrl, opened_index, opened_store
from rath.cli.terminal import Misuse, note, say_json, say_lines
from rath.cli.times import duration
from rath.session.log.index import SessionSummary
from rath.session.log.retention import prunable_sessions, prune_sessions
from rath.session.log.store import SessionStore

__all__ = ["app"]

app = typer.Typer(add_completion=False)


@app.command()
def prune(
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help="Last written before, as 30d.")
    ],
    is_dry: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would go; change nothing.")
    ] = False,
    store_url: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Move sessions to the trash that were last written long ago, and remove what lay there.

    What a session that stays came from stays too, as does what cannot be believed.
    """
    try:
        age = timedelta(seconds=duration("--older-than", older_than))
    except OverflowError:
        raise Misuse(f"--older-than {older_than!r} is too long") from None
    with opened_store(store_url) as store:
        known = _known(store)
        choose = prunable_sessions if is_dry else prune_sessions
        gone = choose(older_than=age, store=store)
    if as_json:
        say_json({"dry_run": is_dry, "sessions": [str(session) for session in gone]})
    else:
        say_lines([_line(session, known.get(session)) for session in gone])
    done = "would go to the trash" if is_dry else "moved to the trash"
    note(f"{number(len(gone), 'session')} {done}")
    if gone and not is_dry:
        note("`rath rm --restore ID` brings one back, until the next prune")


def _known(store: SessionStore) -> dict[UUID, SessionSummary]:
    with opened_index(store) as index:
        return {summary.id: summary for summary in index.summaries()}


def _line(session: UUID, known: SessionSummary | None) -> list[tuple[str, str]]:
    if known is None:
        return [(str(session), "bold")]
    head = [(f"{short_id(session)}  ", "bold"), (f"{moment(known.updated_at)}  ", "dim")]
    columns = room()
    taken = sum(len(text) for text, _ in head)
    rest = one_line(known.title or known.operator)
    return [*head, (cut(rest, None if columns is None else columns - taken), "")]
