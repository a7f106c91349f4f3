"""`rath blame`: where a text of an answer, or a line of a file, came from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, assert_never

import typer

from rath.cli.explain import require_evidence
from rath.cli.loaded import loaded
from rath.cli.outline import counted, head, item, short
from rath.cli.sessions import AsJson, SessionText, StoreUrl
from rath.cli.terminal import Misuse, Problem, note, say_json
from rath.session import Session
from rath.session.questions import Appearance, Blame, blame
from rath.session.questions.encode import encode_answer
from rath.session.record import Change, ModelCall, ToolRun

__all__ = ["app"]

app = typer.Typer(add_completion=False)

_MOST_PLACES = 20
"""Places that are shown on a terminal."""

_MOST_SOURCES = 5
"""Sources that are listed by name."""


@app.command("blame")
def blame_text(
    session: SessionText,
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="Some words of an answer, or a line of a file.")
    ],
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Tell where a text first appeared, who made it, and what the model had read by then.

    Blanks do not count. The exit status is 1 where the text stands nowhere, and 3 where evidence
    is missing.
    """
    with loaded(session, store=store) as (found,):
        answer = _answer(found, text)
        if as_json:
            say_json(encode_answer(answer))
        else:
            _show(answer)
    require_evidence(answer.missing)
    if not answer.appearances:
        raise Problem(f"{text!r} stands nowhere in session {found.id}, nor in what it came from")


def _answer(session: Session, text: str) -> Blame:
    try:
        return blame(session, text)
    except ValueError as exc:
        raise Misuse(str(exc)) from exc


def _show(answer: Blame) -> None:
    for number, each in enumerate(answer.appearances[:_MOST_PLACES]):
        head(f"{'then' if number else 'first'}: {_where(each)}")
        item(each.excerpt)
        for line in _about(each):
            item(line)
    more = len(answer.appearances) - _MOST_PLACES
    if more > 0:
        note(f"{counted(more, 'other place')} came later; --json lists all")


def _where(each: Appearance) -> str:
    turn = "" if each.turn is None else f"turn {each.turn} · "
    match each.place:
        case "row":
            assert each.row is not None
            return f"{turn}row {each.row.index} of session {short(each.row.session)}, by {each.by}"
        case "file":
            return f"{turn}file {each.path}"
        case "note":
            return f"{turn}note {each.uri or '(no address)'}"
        case "instructions":
            return f"{turn}instructions of the agent"
        case "result":
            return f"{turn}the whole result of a tool, of which the model read a part"
        case "verdict":
            return "report of a check"
        case "replaced":
            return f"{turn}what a hook put something else for"
        case _:
            assert_never(each.place)


def _about(each: Appearance) -> Iterator[str]:
    entry = each.entry
    if isinstance(entry, ModelCall):
        model = entry.evidence.served_model or entry.evidence.requested_model
        read = "read by" if each.place in ("note", "instructions") else "written by"
        yield f"{read} {model}, model call {short(entry.id)}"
    elif isinstance(entry, ToolRun):
        yield f"made by {entry.tool} ({entry.call_id}), {entry.status}"
    elif isinstance(entry, Change):
        call = "" if entry.call_id is None else f" of {entry.call_id}"
        yield f"taken out of the {entry.what}{call} by the hook {each.hook}"
    if each.hook and not isinstance(entry, Change):
        yield f"put there by the hook {each.hook}"
    if each.place == "row" and each.by in ("model", "summary"):
        yield _read(each)


def _read(each: Appearance) -> str:
    if not each.seen:
        return "nothing that the model had read holds it"
    names = [
        f"row {source.row.index} of {short(source.row.session)}"
        if source.row is not None
        else f"note {source.uri}"
        if source.place == "note"
        else "its instructions"
        for source in each.seen[:_MOST_SOURCES]
    ]
    more = len(each.seen) - len(names)
    return f"the model had read it in {', '.join(names)}" + (
        f" and {counted(more, 'other place')}" if more else ""
    )
