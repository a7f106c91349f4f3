"""`rath log`: what came from what, the newest first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated
from uuid import UUID

import typer

from rath._core.text import short_id
from rath.cli.graph import drawn, newest_first
from rath.cli.layout import cut, moment, one_line, padded, room
from rath.cli.ls import as_jsonable, place_of
from rath.cli.sessions import AsJson, StoreUrl, opened_index, opened_store, session_id_of
from rath.cli.states import STATE_STYLES
from rath.cli.terminal import Problem, note, say_json, say_lines
from rath.session.log.index import SessionFilter, SessionSummary, StoreIndex

__all__ = ["app"]

_DEFAULT_LIMIT = 100
Line = list[tuple[str, str]]

app = typer.Typer(add_completion=False)


@app.command()
def log(
    session: Annotated[
        str | None,
        typer.Argument(
            metavar="[SESSION]",
            help="Only this one and what it came from: an id, or the beginning of one.",
        ),
    ] = None,
    is_graph: Annotated[
        bool, typer.Option("--graph", "-g", help="Draw lines to what each was made from.")
    ] = False,
    has_descendants: Annotated[
        bool, typer.Option("--descendants", help="With SESSION: also what came from it.")
    ] = False,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=0, help="Only the newest; 0 for all.")
    ] = _DEFAULT_LIMIT,
    store_url: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show sessions by time, the newest first, each after all that was made from it."""
    with opened_store(store_url) as store:
        ident = None if session is None else session_id_of(session, store)
        with opened_index(store) as index:
            found = _found(index, ident, has_descendants=has_descendants)
    ordered = newest_first(found)
    shown = ordered[:limit] if limit else ordered
    if as_json:
        say_json({"sessions": [as_jsonable(each) for each in shown]})
    elif is_graph:
        say_lines(_graph(shown))
    else:
        say_lines(_about("", each) for each in shown)
    if len(shown) < len(ordered):
        note(f"the newest {len(shown):,} of {len(ordered):,} sessions; -n 0 shows all")


def _found(index: StoreIndex, ident: UUID | None, *, has_descendants: bool) -> list[SessionSummary]:
    if ident is None:
        return list(index.summaries(SessionFilter(is_said=True)))
    wanted = [ident, *index.ancestors(ident)]
    if has_descendants:
        wanted += index.descendants(ident)
    found = index.known(wanted)
    if ident not in {each.id for each in found}:
        raise Problem(f"session {ident} is not in {index.store.where}; `rath ls` lists what is")
    return found


def _graph(sessions: Sequence[SessionSummary]) -> Iterator[Line]:
    lines = list(drawn(sessions))
    widest = max((len(before) for before, _ in lines), default=0)
    columns = room()
    # Beside a wide graph there would be no place for words.
    width = widest if columns is None else min(widest, columns // 2)
    for before, session in lines:
        graph = padded(cut(before, width), width)
        if session is None:
            yield [(graph.rstrip(), "yellow")]
        else:
            yield _about(f"{graph}  ", session)


def _about(before: str, session: SessionSummary) -> Line:
    columns = room()
    is_narrow = columns is not None and columns < 80
    shown = [
        (before, "yellow"),
        (f"{short_id(session.id)}  ", "bold"),
        (f"{session.state}  ", STATE_STYLES.get(session.state, "")),
    ]
    if not is_narrow:
        shown.append((f"{moment(session.created_at)}  ", "dim"))
    taken = sum(len(text) for text, _ in shown)
    made = place_of(session) or session.operator
    rest = f"{made}  {one_line(session.problem or session.title)}".rstrip()
    return [*shown, (cut(rest, None if columns is None else columns - taken), "")]
