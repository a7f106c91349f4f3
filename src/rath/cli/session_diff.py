"""`rath diff`: two stored sessions side by side."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated

import typer

from rath.cli.loaded import loaded
from rath.cli.outline import counted, head, item, room, short
from rath.cli.sessions import AsJson, StoreUrl
from rath.cli.show_effects import file_in_words
from rath.cli.terminal import say, say_json, say_rows
from rath.session import ChunkRow
from rath.session.questions import Comparison, compare
from rath.session.questions.comparison import preview
from rath.session.questions.encode import encode_answer

__all__ = ["app"]

app = typer.Typer(add_completion=False)

_LEAST_FOR_COLUMNS = 80
"""Columns of a terminal on which rows stand beside each other; on others below each other."""

_GAP = 10
"""Columns that are taken by the index, the mark and the blanks between."""


@app.command("diff")
def diff_sessions(
    left: Annotated[str, typer.Argument(metavar="A", help="A session, as `rath ls` shows it.")],
    right: Annotated[str, typer.Argument(metavar="B", help="Another one.")],
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Compare two sessions: rows from where they part, files, and what each of them took."""
    with loaded(left, right, store=store) as (one, other):
        found = compare(one, other)
    if as_json:
        say_json(encode_answer(found))
        return
    head(f"{short(found.left)} and {short(found.right)}")
    item(f"{counted(found.n_common, 'row')} in common")
    for pair in found.rows:
        _show_rows(pair.index, pair.left, pair.right, is_same=pair.is_same)
    _show_files(found)
    _show_counts(found)


def _show_rows(index: int, left: ChunkRow | None, right: ChunkRow | None, *, is_same: bool) -> None:
    mark = "=" if is_same else "|"
    if room(0) >= _LEAST_FOR_COLUMNS:
        width = (room(0) - _GAP) // 2
        say(f"{index:>4} {_cell(left, width):<{width}} {mark} {_cell(right, width)}")
        return
    for side, row in (("<", left), (">", right)):
        if row is not None and not (is_same and side == ">"):
            say(f"{index:>4} {'=' if is_same else side} {_cell(row, room(0) - _GAP)}")


def _cell(row: ChunkRow | None, width: int) -> str:
    if row is None:
        return ""
    label = f"{row.kind_name}: "
    return (label + preview(row, max(1, width - len(label))))[:width]


def _show_files(found: Comparison) -> None:
    for pair in found.files:
        sides = (pair.left, pair.right)
        words = ["untouched" if side is None else file_in_words(side) for side in sides]
        if pair.is_same:
            item(f"file {pair.path}: the same in both ({words[0]})")
        else:
            item(f"file {pair.path}: {words[0]} | {words[1]}")


def _show_counts(found: Comparison) -> None:
    rows = [("", short(found.left), short(found.right))]
    for each in fields(found.left_counts):
        if each.name == "is_priced":
            continue
        left, right = (
            str(getattr(side, each.name)) for side in (found.left_counts, found.right_counts)
        )
        rows.append((each.name.replace("_", " "), left, right))
    if not (found.left_counts.is_priced and found.right_counts.is_priced):
        rows[-1] = ("usd, as far as known", *rows[-1][1:])
    say_rows(rows, ["dim", "", ""])
