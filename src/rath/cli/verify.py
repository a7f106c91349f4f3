"""`rath verify`: whether sessions are what was written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated
from uuid import UUID

import typer

from rath._core.text import short_id
from rath.cli.layout import number
from rath.cli.progress import progress
from rath.cli.sessions import (
    AsJson,
    Exit,
    StoreUrl,
    find_session,
    opened_index,
    opened_store,
    store_of,
)
from rath.cli.terminal import Misuse, note, say_json, say_lines
from rath.errors import PersistenceError
from rath.session.log.index import StoreIndex
from rath.session.log.store import SessionStore
from rath.session.log.verify import Problem, Verification, verify

__all__ = ["app"]

_STYLES = {"damaged": "bold red", "missing": "yellow", "note": "dim"}

app = typer.Typer(add_completion=False)


@app.command("verify")
def verify_sessions(
    session: Annotated[
        str | None,
        typer.Argument(metavar="[SESSION]", help="An id, the beginning of one, or a file."),
    ] = None,
    is_all: Annotated[bool, typer.Option("--all", help="Every session of the store.")] = False,
    store_url: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Check a session and all that it came from: checksums, parents, counts and contents.

    Exit status 4 where something is not what was written, 3 where something that was kept is not
    there any more.
    """
    if is_all == (session is not None):
        raise Misuse("expected one of SESSION and --all")
    with opened_store(store_url) as store:
        if session is None:
            found = list(_every(store))
        else:
            ident, place = store_of(find_session(session, store), store)
            found = [verify(place, ident)]
    problems = list(dict.fromkeys(problem for each in found for problem in each.problems))
    if as_json:
        say_json(
            {
                "sessions": [str(each.session) for each in found],
                "problems": [_as_jsonable(problem) for problem in problems],
            }
        )
    else:
        say_lines(_line(problem) for problem in problems)
    _tell(found, problems)


def _every(store: SessionStore) -> Iterator[Verification]:
    """Yield what is found in the sessions of which nothing was made, and in all they came from."""
    with opened_index(store) as index:
        ends = _ends(index)
    with progress("checking") as report:
        for done, session in enumerate(ends, start=1):
            try:
                yield verify(store, session)
            except PersistenceError as exc:
                yield Verification(session, 0, 0, 0, (_unreadable(session, exc),))
            report(done, len(ends))


def _ends(index: StoreIndex) -> list[UUID]:
    summaries = index.summaries()
    parents = {parent for each in summaries for parent in each.parents}
    # One that came from itself is an end too: nothing else would lead there.
    reached: set[UUID] = set()
    ends = [each.id for each in summaries if each.id not in parents]
    for end in ends:
        reached |= {end, *index.ancestors(end)}
    return ends + [each.id for each in summaries if each.id not in reached]


def _unreadable(session: UUID, exc: PersistenceError) -> Problem:
    return Problem("damaged", "line", session, str(exc))


def _as_jsonable(problem: Problem) -> dict[str, str]:
    return {
        "severity": problem.severity,
        "kind": problem.kind,
        "session": str(problem.session),
        "text": problem.text,
    }


def _line(problem: Problem) -> list[tuple[str, str]]:
    return [
        (f"{problem.severity}  ", _STYLES[problem.severity]),
        (f"{short_id(problem.session)}  ", "bold"),
        (f"{problem.kind}: {problem.text}", ""),
    ]


def _tell(found: list[Verification], problems: list[Problem]) -> None:
    severities = {problem.severity for problem in problems}
    n_lines = sum(each.n_lines for each in found)
    came = "all it came from" if len(found) == 1 else "all they came from"
    looked = f"{number(len(found), 'session')} with {came}, {number(n_lines, 'line')}"
    if "damaged" in severities:
        note(f"damaged: {looked}")
        raise typer.Exit(Exit.DAMAGED)
    if "missing" in severities:
        note(f"something is missing, the rest is as it was written: {looked}")
        raise typer.Exit(Exit.MISSING)
    note(f"sound: {looked}")
