"""Sessions in a notebook: rows, outcome, tokens, money, and the explorer as a link."""

from __future__ import annotations

import base64
from collections.abc import Iterator

from rath._core import html
from rath._core.text import one_line_preview, short_id
from rath.session.body import Body
from rath.session.chunk import ChunkRow, readable_json
from rath.session.content import AssistantTurn, SystemText, ToolFeedback, UserText
from rath.session.record import ModelCall, ToolRun
from rath.session.session import Session
from rath.session.view.page import explorer_html

MAX_CHARS = 400
"""Characters of a row's text that are shown."""

EDGE_ROWS = 10
"""Rows that are shown at either end of a long session."""

MAX_PAGE_BYTES = 256_000
"""Largest explorer that is put into a notebook, which stores what it shows."""


def session_html(session: Session) -> str:
    """Return a session as HTML, as it is now; never waits and never raises for a failed run."""
    body = session.core.body.latest or Body(session.partial_table)
    parts = [html.facts(f"Session {short_id(session.id)}", _details(session, body))]
    parts.append(html.table(("", "row", "text", "how"), _rows(session, body)))
    if session.is_pending:
        parts.append(html.note("its run goes on; show it again for more"))
    else:
        parts.append(_explorer(session))
    return "".join(parts)


def _details(session: Session, body: Body) -> Iterator[str]:
    if session.is_pending:
        yield "pending"
    elif (error := session.core.body.error(is_read=False)) is not None:
        yield f"failed: {type(error).__name__}: {one_line_preview(str(error), MAX_CHARS)}"
    else:
        yield type(session.outcome).__name__
    yield session.lineage_operator
    yield f"{len(body.table):,} rows"
    content = session.core.inherited(body)
    usage, cost = content.usage(), content.cost()
    if usage is not None:
        yield f"{usage.prompt_tokens:,} + {usage.completion_tokens:,} tokens"
    if cost.n_priced:
        yield f"${cost.usd:.4f}" + ("" if cost.is_complete else " + unpriced")
    yield session.sandbox_backend or ""


def _rows(session: Session, body: Body) -> Iterator[tuple[str, str, str, str]]:
    """Yield the cells of the rows, the middle left out where there are many."""
    maker_of = {
        row: entry
        for entry in session.core.inherited(body).record
        if isinstance(entry, ModelCall | ToolRun)
        for row in entry.rows
    }
    n_rows = len(body.table)
    for index, row in enumerate(body.table):
        if EDGE_ROWS <= index < n_rows - EDGE_ROWS:
            if index == EDGE_ROWS:
                yield "", "", f"… {n_rows - 2 * EDGE_ROWS:,} more rows", ""
            continue
        maker = None if row.id is None else maker_of.get(row.id)
        yield str(index), row.kind_name, _row_text(row), _how(maker)


def _row_text(row: ChunkRow) -> str:
    match row.content:
        case SystemText(text) | UserText(text):
            shown = text
        case AssistantTurn(text, calls):
            wanted = (f"→ {call.name}({readable_json(call.arguments)})" for call in calls)
            shown = "\n".join(filter(None, (text, *wanted)))
        case ToolFeedback(_, name, body):
            shown = f"← {name}: {readable_json(body)}"
        case other:
            shown = str(other.payload)
    return shown if len(shown) <= MAX_CHARS else f"{shown[:MAX_CHARS]} …"


def _how(entry: ModelCall | ToolRun | None) -> str:
    """Return which model answered or where a tool ran, and how long that took."""
    match entry:
        case ModelCall(evidence=evidence):
            model = evidence.served_model or evidence.requested_model or ""
            return f"{model} {evidence.duration_ms:,.0f} ms".strip()
        case ToolRun():
            place = "" if entry.sandbox is None else f" in {entry.sandbox.backend}"
            return f"{entry.status}{place} {entry.duration_ms:,.0f} ms"
        case _:
            return ""


def _explorer(session: Session) -> str:
    name = short_id(session.id)
    page = explorer_html(session).encode()
    if len(page) > MAX_PAGE_BYTES:
        return html.note(f"its explorer, once it is stored: rath view {session.id} --open")
    encoded = base64.b64encode(page).decode()
    return html.download(f"session-{name}.html", encoded, "what happened: the explorer, as a page")
