"""How a session looks in a terminal."""

from __future__ import annotations

from uuid import UUID

from rath._core.text import one_line_preview, short_id
from rath.session.chunk import ChunkRow, ChunkTable, readable_json, show_images
from rath.session.content import AssistantTurn, SystemText, ToolFeedback, UserText

EDGE_ROWS = 4
"""Rows shown at either end of a long table."""

MAX_TEXT = 256
"""Characters of a row's text that are shown."""

MAX_ARGUMENTS = 160
"""Characters of a call's arguments that are shown."""


def show_pending(session: UUID, operator: str) -> str:
    """Return the picture of a session whose run is still going."""
    return f"Session(id={short_id(session)}, pending …, operator={operator!r})"


def show_session(session: UUID, table: ChunkTable, operator: str) -> str:
    """Return the picture of a session: its rows, the middle left out when there are many."""
    return (
        f"Session(id={short_id(session)},\n  chunks={_show_rows(table)},\n"
        f"  operator={operator!r},\n)"
    )


def _show_rows(table: ChunkTable) -> str:
    n_rows = len(table)
    if n_rows == 0:
        return "[]"
    if n_rows <= 2 * EDGE_ROWS + 1:
        lines = [_show_row(index, row) for index, row in enumerate(table)]
    else:
        lines = [_show_row(index, table[index]) for index in range(EDGE_ROWS)]
        lines.append(f"... ({n_rows - 2 * EDGE_ROWS} chunks omitted) ...")
        tail = range(n_rows - EDGE_ROWS, n_rows)
        lines += [_show_row(index, table[index]) for index in tail]
    return "[\n    " + ",\n    ".join(lines) + "\n  ]"


def _show_row(index: int, row: ChunkRow) -> str:
    match row.content:
        case SystemText(text) | UserText(text):
            shown = show_images(row.images, MAX_TEXT) + repr(one_line_preview(text, MAX_TEXT))
        case AssistantTurn(text, calls):
            parts = [] if text is None else [f"text={one_line_preview(text, MAX_TEXT)!r}"]
            if calls:
                listed = ", ".join(
                    f"{call.name}({one_line_preview(call.arguments, MAX_ARGUMENTS)!r})"
                    for call in calls
                )
                parts.append(f"tools=[{listed}]")
            shown = ", ".join(parts) or "(empty)"
        case ToolFeedback(call_id, name, body):
            text = one_line_preview(readable_json(body), MAX_TEXT)
            images = show_images(row.images, MAX_TEXT)
            shown = f"{images}name={name!r}, id={call_id!r}, body={text!r}"
        case other:
            shown = repr(one_line_preview(str(dict(other.payload)), MAX_TEXT))
    return f"[{index}] {row.kind_name}: {shown}"
