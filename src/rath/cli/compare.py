"""`rath blame` and `rath diff`: where texts came from, and two sessions side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Annotated, assert_never

import typer

from rath._core.text import short_id
from rath.cli.explain import effect_text, require_evidence
from rath.cli.render import UNPRICED, count_of, head, item, line, outline_room, say_lines, say_table
from rath.cli.stores import SessionText, StoreUrl, load_sessions
from rath.cli.terminal import AsJson, CommandError, NoPager, misuse_on, note, paged, say_json
from rath.session import ChunkRow
from rath.session.questions import Appearance, Comparison, blame, compare
from rath.session.questions.comparison import preview
from rath.session.questions.encode import encode_answer
from rath.session.record import Change, ModelCall, ToolRun

_MOST_PLACES = 20
"""Places that are shown on a terminal."""

_MOST_SOURCES = 5
"""Sources that are listed by name."""

_LEAST_FOR_COLUMNS = 80
"""Columns of a terminal on which rows stand beside each other; on others below each other."""

_GAP = 10
"""Columns that are taken by the index, the mark and the blanks between."""


def blame_text(
    session: SessionText,
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="Some words of an answer, or a line of a file.")
    ],
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Find where a text first appeared, who wrote it, and from what.

    Blanks do not count. The exit status is 1 where the text stands nowhere, and 3 where evidence
    is missing.
    """
    with load_sessions(session, store=store) as (found,):
        with misuse_on(ValueError):
            answer = blame(found, text)
        if as_json:
            say_json(encode_answer(answer))
        else:
            for number, each in enumerate(answer.appearances[:_MOST_PLACES]):
                head(f"{'then' if number else 'first'}: {_where(each)}")
                item(each.excerpt)
                for about in _about(each):
                    item(about)
            more = len(answer.appearances) - _MOST_PLACES
            if more > 0:
                note(f"{count_of(more, 'other place')} came later; --json lists all")
    require_evidence(answer.missing)
    if not answer.appearances:
        raise CommandError(
            f"{text!r} stands nowhere in session {found.id}, nor in what it came from"
        )


def _where(each: Appearance) -> str:
    turn = "" if each.turn is None else f"turn {each.turn} · "
    match each.place:
        case "row":
            assert each.row is not None
            place = f"row {each.row.index} of session {short_id(each.row.session)}, by {each.by}"
            return f"{turn}{place}"
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
        yield f"{read} {model}, model call {short_id(entry.id)}"
    elif isinstance(entry, ToolRun):
        yield f"made by {entry.tool} ({entry.call_id}), {entry.status}"
    elif isinstance(entry, Change):
        call = "" if entry.call_id is None else f" of {entry.call_id}"
        yield f"taken out of the {entry.what}{call} by the hook {each.hook}"
    if each.hook and not isinstance(entry, Change):
        yield f"put there by the hook {each.hook}"
    if each.place == "row" and each.by in ("model", "summary"):
        names = [
            f"row {source.row.index} of {short_id(source.row.session)}"
            if source.row is not None
            else f"note {source.uri}"
            if source.place == "note"
            else "its instructions"
            for source in each.seen[:_MOST_SOURCES]
        ]
        more = len(each.seen) - len(names)
        others = f" and {count_of(more, 'other place')}" if more else ""
        yield (
            f"the model had read it in {', '.join(names)}{others}"
            if names
            else "nothing that the model had read holds it"
        )


def diff_sessions(
    left: Annotated[str, typer.Argument(metavar="A", help="A session, as `rath ls` shows it.")],
    right: Annotated[str, typer.Argument(metavar="B", help="Another one.")],
    no_pager: NoPager = False,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Compare two sessions: rows, files, calls, tokens and cost."""
    with load_sessions(left, right, store=store) as (one, other):
        found = compare(one, other)
    if as_json:
        say_json(encode_answer(found))
        return
    with paged(is_off=no_pager):
        _show_comparison(found)


def _show_comparison(found: Comparison) -> None:
    head(f"{short_id(found.left)} and {short_id(found.right)}")
    item(f"{count_of(found.n_common, 'row')} in common")
    for pair in found.rows:
        _show_rows(pair.index, pair.left, pair.right, is_same=pair.is_same)
    for file in found.files:
        sides = (file.left, file.right)
        one_, other_ = ("untouched" if side is None else effect_text(side) for side in sides)
        same = f"the same in both ({one_})"
        item(f"file {file.path}: {same if file.is_same else f'{one_} | {other_}'}")
    _show_counts(found)


def _show_rows(index: int, left: ChunkRow | None, right: ChunkRow | None, *, is_same: bool) -> None:
    columns = outline_room()
    if columns >= _LEAST_FOR_COLUMNS:
        width = (columns - _GAP) // 2
        one = line(_row(left, width))
        one.truncate(width, pad=True)
        say_lines([line(f"{index:>4} {one.plain} {'=' if is_same else '|'} {_row(right, width)}")])
        return
    for side, row in (("<", left), (">", right)):
        if row is not None and not (is_same and side == ">"):
            say_lines([line(f"{index:>4} {'=' if is_same else side} {_row(row, columns - _GAP)}")])


def _row(row: ChunkRow | None, width: int) -> str:
    if row is None:
        return ""
    label = f"{row.kind_name}: "
    return label + preview(row, max(1, width - len(label)))


def _show_counts(found: Comparison) -> None:
    left, right = found.left_counts, found.right_counts
    names = [each.name for each in fields(left) if each.name != "is_priced"]
    rows = [["", short_id(found.left), short_id(found.right)]]
    for name in names:
        label = name.replace("_", " ")
        if name == names[-1] and not (left.is_priced and right.is_priced):
            label = f"usd, with {UNPRICED} calls"
        rows.append([label, str(getattr(left, name)), str(getattr(right, name))])
    say_table(rows, ["dim", "", ""])
