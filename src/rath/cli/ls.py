"""`rath ls`: the sessions of a store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID

import typer

from rath._core.text import short_id
from rath.cli.layout import cut, moment, money, number, one_line, padded, room
from rath.cli.sessions import AsJson, StoreUrl, find_run, opened_index, opened_store, session_id_of
from rath.cli.states import STATE_STYLES, STATES
from rath.cli.terminal import Misuse, note, say_json, say_lines
from rath.cli.times import time_of
from rath.cli.tree import Branch, lineage_of
from rath.session.graph.kind import LineageKind
from rath.session.log.index import SessionFilter, SessionSummary, StoreIndex

__all__ = ["app", "as_jsonable", "place_of"]

_DEFAULT_LIMIT = 50
_MAX_DEPTH = 30
"""Columns that the lines of a tree may take; what is deeper is not indented further."""

_DERIVED = {
    LineageKind.OP_FORK,
    LineageKind.OP_DETACH,
    LineageKind.OP_MERGE,
    LineageKind.OP_DELEGATE,
    LineageKind.OP_SESSION_COMPRESS,
}

app = typer.Typer(add_completion=False)


@app.command()
def ls(
    text: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXT]...", help="Only where this was said.")
    ] = None,
    states: Annotated[
        list[str] | None,
        typer.Option("--state", help="Only in this state, such as failed or running. Repeatable."),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", help="Begun since: a date, or an age such as 7d.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", help="Begun before: a date, or an age such as 7d.")
    ] = None,
    operator: Annotated[
        str | None, typer.Option("--operator", help="Made by this operation, or of this kind.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="Answered by a model with this in its name.")
    ] = None,
    parent: Annotated[
        str | None, typer.Option("--parent", metavar="SESSION", help="Made from this session.")
    ] = None,
    run: Annotated[
        str | None, typer.Option("--run", metavar="RUN", help="Made in this workflow call.")
    ] = None,
    by: Annotated[
        Literal["lineage", "run", "time"],
        typer.Option("--by", help="Order: a tree, by workflow call, or a plain list."),
    ] = "lineage",
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=0, help="Only the newest; 0 for all.")
    ] = _DEFAULT_LIMIT,
    is_all: Annotated[
        bool, typer.Option("--all", "-a", help="All, also those with instructions alone.")
    ] = False,
    store_url: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """List sessions, the newest first, each below what it was made from."""
    _check_states(states or ())
    with opened_store(store_url) as store, opened_index(store) as index:
        asked = SessionFilter(
            states=states or (),
            since=None if since is None else time_of("--since", since),
            until=None if until is None else time_of("--until", until),
            operator=operator,
            model=model,
            text=" ".join(text) if text else None,
            parent=None if parent is None else session_id_of(parent, store),
            run=None if run is None else find_run(run, index),
            is_said=not is_all,
            limit=None if is_all or limit == 0 else limit + 1,
        )
        found = index.summaries(asked)
        has_more = asked.limit is not None and len(found) == asked.limit
        found = found[:limit] if has_more else found
        if as_json:
            say_json({"store": store.where, "sessions": [as_jsonable(each) for each in found]})
        else:
            say_lines(_lines(found, by))
        _tell_rest(index, asked, len(found), has_more=has_more)


def as_jsonable(session: SessionSummary) -> dict[str, Any]:
    """Return all that is known of a session, for programs."""
    return {
        "id": str(session.id),
        "created_at": session.created_at.isoformat(),
        "updated_at": session.updated_at.isoformat(),
        "state": session.state,
        "problem": session.problem,
        "operator": session.operator,
        "kind": session.kind.value,
        "parents": [str(parent) for parent in session.parents],
        "run": None if session.run is None else str(session.run),
        "path": session.path,
        "ordinal": session.ordinal,
        "title": session.title,
        "n_rows": session.n_rows,
        "n_calls": session.n_calls,
        "n_tool_runs": session.n_tool_runs,
        "tokens": session.tokens,
        "usd": str(session.usd),
        "is_priced": session.is_priced,
        "models": list(session.models),
        "backend": session.backend,
        "size": session.size,
    }


def _tell_rest(index: StoreIndex, asked: SessionFilter, n_shown: int, *, has_more: bool) -> None:
    if has_more:
        n_all = index.count(asked)
        note(f"the newest {n_shown:,} of {n_all:,} sessions; --all lists every one")
    elif not n_shown:
        note(
            f"no session of {index.store.where} fits"
            if _is_narrow(asked)
            else f"there are no sessions in {index.store.where}"
        )


def _is_narrow(asked: SessionFilter) -> bool:
    return asked != SessionFilter(is_said=asked.is_said, limit=asked.limit)


def _lines(sessions: Sequence[SessionSummary], by: str) -> Iterator[list[tuple[str, str]]]:
    match by:
        case "lineage":
            yield from _session_lines(lineage_of(sessions), sessions)
        case "run":
            yield from _run_lines(sessions)
        case _:
            yield from _session_lines([("", each) for each in sessions], sessions)


def _run_lines(sessions: Sequence[SessionSummary]) -> Iterator[list[tuple[str, str]]]:
    runs: dict[UUID | None, list[SessionSummary]] = {}
    for session in sessions:
        runs.setdefault(session.run, []).append(session)
    for run, made in runs.items():
        made.sort(key=lambda session: (session.created_at, session.id))
        yield [(cut(_run_head(run, made), room()), "bold")]
        branches = [(f"{'└' if each is made[-1] else '├'}─ ", each) for each in made]
        yield from _session_lines(branches, sessions)


def _run_head(run: UUID | None, made: Sequence[SessionSummary]) -> str:
    usd = sum((each.usd for each in made), Decimal(0))
    name = "no workflow call" if run is None else f"run {short_id(run)}"
    top = "" if run is None else f"  {made[0].path.partition('.')[0]}"
    return f"{name}{top}  {number(len(made), 'session')}, {money(usd)}"


def _session_lines(
    branches: Iterable[Branch], sessions: Sequence[SessionSummary]
) -> Iterator[list[tuple[str, str]]]:
    columns = _Columns(sessions)
    for before, session in branches:
        yield columns.line(before[-_MAX_DEPTH:], session)


class _Columns:
    """What stands beside one another in each line; less of it on a narrow terminal."""

    def __init__(self, sessions: Sequence[SessionSummary]) -> None:
        self._room = room()
        self._is_wide = self._room is None or self._room >= 100
        self._is_narrow = self._room is not None and self._room < 50
        self._state = max((len(session.state) for session in sessions), default=0)

    def line(self, before: str, session: SessionSummary) -> list[tuple[str, str]]:
        shown = [(before, "dim"), (f"{short_id(session.id)}  ", "bold")]
        style = STATE_STYLES.get(session.state, "")
        state = session.state if self._is_narrow else padded(session.state, self._state)
        shown.append((f"{state}  ", style))
        if not self._is_narrow:
            shown.append((f"{moment(session.created_at, is_short=not self._is_wide)}  ", "dim"))
        rest = _rest(session, is_wide=self._is_wide)
        if self._room is not None:
            taken = sum(len(text) for text, _ in shown)
            rest = cut(rest, self._room - taken)
        return [*shown, (rest, "")]


def place_of(session: SessionSummary) -> str:
    """Return where in a workflow a session was made, and by which operation if that is no run."""
    place = f"{session.path}#{session.ordinal}" if session.path else ""
    operation = session.operator.rpartition(".")[2] if session.kind in _DERIVED else ""
    return " ".join(filter(None, (place, operation)))


def _rest(session: SessionSummary, *, is_wide: bool) -> str:
    """Return what a session is about, and on a wide line what it took."""
    place = place_of(session)
    about = one_line(session.problem or session.title or ("" if place else session.operator))
    if not is_wide:
        return "  ".join(filter(None, (place, about)))
    joined = "".join(f" +{short_id(parent)}" for parent in session.parents[1:])
    took = [number(session.n_rows, "row")]
    if session.n_calls:
        took += [number(session.n_calls, "call"), _price(session)]
    return "  ".join(filter(None, (place, about, f"({', '.join(took)}){joined}")))


def _price(session: SessionSummary) -> str:
    return money(session.usd) if session.is_priced else f"{money(session.usd)} + unknown"


def _check_states(states: Iterable[str]) -> None:
    unknown = [state for state in states if state not in STATES]
    if unknown:
        raise Misuse(f"no state {unknown[0]!r}; expected one of {', '.join(STATES)}")
