"""`rath show`: one session, row by row, with the evidence of each row in brief."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import typer

from rath._core.text import short_id
from rath.cli.evidence import brief, made_by, outcome_text, said
from rath.cli.layout import (
    cut,
    moment,
    money,
    number,
    one_line,
    padded,
    room,
    size,
    span,
    wrapped,
)
from rath.cli.loaded import load_session
from rath.cli.sessions import (
    AsJson,
    Damaged,
    SessionText,
    StoreUrl,
    find_session,
    opened_store,
    store_of,
)
from rath.cli.states import STATE_STYLES, state_of
from rath.cli.terminal import say_json, say_lines
from rath.cli.waiting import how_to_say, told_waiting, waits_in_words
from rath.session.body import Body
from rath.session.chunk import ChunkRow
from rath.session.graph.recording import lineage_extras_to_jsonable
from rath.session.loading import Loaded
from rath.session.questions.encode import entry_to_jsonable, outcome_to_jsonable
from rath.session.record import Entry, ModelCall, Operation, Record, ToolRun
from rath.session.run.stored_programs import waiting_sessions

__all__ = ["app", "row_line"]

_LABEL = 9
_KIND = 11
_PIPE_CHARS = 400
"""Of a row's text where lines are not cut to a terminal, without --full."""

Line = list[tuple[str, str]]

KIND_STYLES = {"system": "magenta", "user": "green", "assistant": "cyan", "tool_result": "yellow"}

app = typer.Typer(add_completion=False)


@app.command()
def show(
    session: SessionText,
    is_full: Annotated[bool, typer.Option("--full", help="Whole texts, on many lines.")] = False,
    store_url: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show a session: where it comes from, its rows, and how each came about.

    Of a run in progress it shows what was said so far. Of a damaged log it shows what can be
    believed, and ends with status 4.
    """
    with opened_store(store_url) as store:
        loaded = load_session(session, store, recover=True)
        ident, place = store_of(find_session(session, store), store)
        state = state_of(loaded, is_running=place.is_being_written(ident))
        if as_json:
            say_json(_as_jsonable(loaded, state))
        else:
            say_lines(_head(loaded, state))
            say_lines(_rows(loaded, is_full=is_full))
            say_lines(_rest(loaded))
            say_lines(_waiting(loaded))
    if loaded.problem is not None:
        raise Damaged(
            f"{loaded.problem}; what is shown stands before it. `rath verify` tells where the "
            "damage begins"
        )


def row_line(index: int, row: ChunkRow, *, columns: int | None) -> Line:
    """Return one line that shows a row."""
    head = f"{index:>3} {padded(row.kind_name, _KIND)} "
    limit = _PIPE_CHARS if columns is None else columns - len(head)
    return [(head, KIND_STYLES.get(row.kind_name, "")), (cut(said(row), limit), "")]


def _head(loaded: Loaded, state: str) -> Iterator[Line]:
    session, columns = loaded.session, room()
    facts = [
        ("session", str(session.id), "bold"),
        ("state", _state_text(loaded, state), STATE_STYLES.get(state, "")),
        ("made by", _origin(loaded), ""),
        ("place", _place(loaded), ""),
        ("time", _time(loaded), ""),
        ("backend", session.sandbox_backend or "", ""),
        ("took", _took(loaded), ""),
        ("log", f"{loaded.where}, {size(loaded.size)}", "dim"),
    ]
    for label, text, style in facts:
        if text:
            # What is copied from here stays in one piece.
            is_whole = label in ("session", "log")
            first, *more = [text] if is_whole else wrapped(text, _less(columns, _LABEL))
            yield [(padded(label, _LABEL), "dim"), (first, style)]
            yield from ([(" " * _LABEL, ""), (line, style)] for line in more)


def _rows(loaded: Loaded, *, is_full: bool) -> Iterator[Line]:
    columns = room()
    made = made_by(_entries(loaded))
    for index, row in enumerate(loaded.session.chunk_table):
        yield from _whole_row(index, row) if is_full else (row_line(index, row, columns=columns),)
        entry = None if row.id is None else made.get(row.id)
        if entry is not None:
            text = cut(f"    {' ' * _KIND} {brief(entry)}", columns)
            yield [(text, "dim")]


def _whole_row(index: int, row: ChunkRow) -> Iterator[Line]:
    yield [(f"{index:>3} {row.kind_name}", KIND_STYLES.get(row.kind_name, ""))]
    text: Any = row.payload.get("content")
    lines = str(text).splitlines() if text else []
    lines += [f"→ {call.name}({call.arguments})" for call in getattr(row.content, "calls", ())]
    yield from ([(f"    {line}", "")] for line in lines or [said(row)])


def _rest(loaded: Loaded) -> Iterator[Line]:
    """Yield what belongs to no row: checks, decisions, calls that failed, what is left open."""
    columns = room()
    for entry in _entries(loaded):
        is_shown = isinstance(entry, ModelCall | ToolRun) and entry.rows
        if not is_shown and not isinstance(entry, Operation):
            named = f"{entry.tool}: {brief(entry)}" if isinstance(entry, ToolRun) else brief(entry)
            yield [("    · ", "dim"), (cut(named, _less(columns, 6)), "")]
    left = loaded.unfinished
    if left is None:
        return
    for intent in left.intents:
        text = f"{intent.tool} was called ({intent.effects}), and nothing is known of its end"
        yield from _marked("?", f"{intent.call_id}: {text}", "magenta", columns)
    for result in left.results:
        text = f"{result.run.tool}: {brief(result.run)}, and its round is not done"
        yield [("    … ", "dim"), (cut(text, _less(columns, 6)), "")]
    if left.partial_text:
        shown = one_line(left.partial_text)
        yield [("    … ", "cyan"), (cut(shown, _less(columns, 6)), "")]
    if left.failure is not None and left.failure.how == "failed":
        yield from _marked("!", one_line(left.failure.error), "red", columns)


def _waiting(loaded: Loaded) -> Iterator[Line]:
    """Yield what the session waits for, and how it is said."""
    columns = room()
    for session in () if loaded.problem is not None else waiting_sessions(loaded.session):
        for call in session.open_calls:
            if call.waits:
                yield from _marked("?", one_line(waits_in_words(call)), "magenta", columns)
                for line in how_to_say(session, call):
                    yield [(f"      {line}", "dim")]


def _marked(mark: str, text: str, style: str, columns: int | None) -> Iterator[Line]:
    """Yield lines that are too important to be cut off."""
    first, *more = wrapped(text, _less(columns, 6))
    yield [(f"    {mark} ", style), (first, "")]
    yield from ([(" " * 6, ""), (line, "")] for line in more)


def _less(columns: int | None, taken: int) -> int | None:
    return None if columns is None else columns - taken


def _entries(loaded: Loaded) -> Record:
    return loaded.session.record


def _state_text(loaded: Loaded, state: str) -> str:
    more = "" if loaded.unfinished is not None else outcome_text(loaded.session.outcome)
    return ": ".join(filter(None, (state, more)))


def _origin(loaded: Loaded) -> str:
    session = loaded.session
    parents = " and ".join(short_id(parent) for parent in session.parent_session_ids)
    return f"{session.lineage_operator}{f' from {parents}' if parents else ''}"


def _operation(loaded: Loaded) -> Operation | None:
    own = (entry for entry in _entries(loaded) if isinstance(entry, Operation))
    return next((entry for entry in own if entry.session == loaded.session.id), None)


def _place(loaded: Loaded) -> str:
    operation = _operation(loaded)
    if operation is None or not operation.place.path:
        return ""
    run = operation.place.run
    inside = "" if run is None else f" in run {short_id(run)}"
    return f"{operation.place.path}#{operation.place.ordinal}{inside}"


def _time(loaded: Loaded) -> str:
    begun, ended = loaded.header.created_at, _ended_at(loaded)
    if ended is None:
        return moment(begun)
    took = max(0.0, (ended - begun).total_seconds() * 1000)
    return f"{moment(begun)} to {moment(ended)}, {span(took)}"


def _ended_at(loaded: Loaded) -> datetime | None:
    entries = _entries(loaded)
    times = [loaded.header.created_at, *(entry.at for entry in entries)]
    return max(times) if len(times) > 1 else None


def _took(loaded: Loaded) -> str:
    body = Body(loaded.session.chunk_table, _entries(loaded), given=loaded.header.given)
    usage, cost = loaded.session.cumulative_usage, body.cost()
    calls = sum(isinstance(entry, ModelCall) for entry in _entries(loaded))
    runs = sum(isinstance(entry, ToolRun) for entry in _entries(loaded))
    shown = [number(calls, "model call"), number(runs, "tool call")] if calls or runs else []
    if usage is not None:
        shown.append(number(usage.total_tokens, "token"))
    if calls:
        shown.append(money(cost.usd) + ("" if cost.is_complete else " and what is not known"))
    return ", ".join(shown)


def _as_jsonable(loaded: Loaded, state: str) -> dict[str, Any]:
    session, operation = loaded.session, _operation(loaded)
    made = made_by(_entries(loaded))
    left = loaded.unfinished
    return {
        "id": str(session.id),
        "state": state,
        "outcome": None if left is not None else outcome_to_jsonable(session.outcome),
        "problem": None if loaded.problem is None else str(loaded.problem),
        "created_at": loaded.header.created_at.isoformat(),
        "operator": session.lineage_operator,
        "kind": session.lineage_kind.value,
        "extras": lineage_extras_to_jsonable(session.lineage_extras),
        "parents": [str(parent) for parent in session.parent_session_ids],
        "run": _run_text(operation),
        "path": "" if operation is None else operation.place.path,
        "ordinal": 0 if operation is None else operation.place.ordinal,
        "backend": session.sandbox_backend,
        "where": loaded.where,
        "size": loaded.size,
        "rows": [
            _row_as_jsonable(index, row, None if row.id is None else made.get(row.id))
            for index, row in enumerate(session.chunk_table)
        ],
        "entries": [entry_to_jsonable(entry) for entry in _entries(loaded)],
        "waiting": []
        if loaded.problem is not None
        else [one for each in waiting_sessions(session) for one in told_waiting(each)],
        "open_calls": [] if left is None else [intent.call_id for intent in left.intents],
        "partial_text": "" if left is None else left.partial_text,
        "error": None if left is None or left.failure is None else left.failure.error,
    }


def _run_text(operation: Operation | None) -> str | None:
    run: UUID | None = None if operation is None else operation.place.run
    return None if run is None else str(run)


def _row_as_jsonable(index: int, row: ChunkRow, entry: Entry | None) -> dict[str, Any]:
    return {
        "index": index,
        "id": None if row.id is None else f"{row.id.session}:{row.id.index}",
        "kind": row.kind_name,
        "payload": dict(row.payload),
        "entry": None if entry is None else str(entry.id),
    }
