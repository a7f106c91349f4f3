"""The page itself: one HTML file that holds its data, style and code, and asks nobody for more."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from importlib.resources import files
from os import PathLike
from pathlib import Path

from rath._core.files import atomic_write_text
from rath._core.text import one_line_preview, short_id, valid_unicode
from rath.session.graph.provenance import Edge
from rath.session.session import Session
from rath.session.view.encode import PageEncoder
from rath.session.view.limits import PageLimits
from rath.session.view.nodes import nodes_of
from rath.session.view.texts import harmless

STYLES = ("base.css", "panes.css", "rows.css", "evidence.css")
SCRIPTS = (
    "dom.js", "format.js", "data.js", "graph.js", "items.js", "list.js", "lineage.js", "diff.js",
    "evidence_call.js", "evidence.js", "search.js", "compare.js", "keys.js", "live.js", "main.js",
)  # fmt: skip
"""In the order in which they stand in the page; together they are one module."""


def write_page(
    session: Session,
    path: str | PathLike[str],
    *,
    compare: Session | None = None,
    others: Sequence[Session] = (),
    limits: PageLimits | None = None,
) -> Path:
    """Write one HTML file that shows a session and all that it came from; never waits for a run.

    The file needs no network and no other file. What stands in the sessions is shown as text and
    can do nothing on the page.

    Args:
        session: The one that is shown first.
        path: The file; replaced where there is one.
        compare: A second one, shown beside it from where the two part.
        others: More sessions of the lineage, such as branches that were not merged.
        limits: How much is shown of what is long.

    Returns:
        The path of the file.

    Raises:
        OSError: The file cannot be written.
    """
    heads = [session.as_parent()]
    if compare is not None:
        heads.append(compare.as_parent())
    encoder = PageEncoder(limits or PageLimits())
    data = encoder.encode(nodes_of([*heads, *(each.as_parent() for each in others)]))
    target = Path(path)
    atomic_write_text(target, page_html(data, heads, title=_title(session)))
    return target


def page_html(data: str, heads: Sequence[Edge], *, title: str, events: str = "") -> str:
    """Return the page.

    Args:
        data: As `PageEncoder.encode` gives it.
        heads: The session to show, and the one to compare it with, if there is one.
        title: Of the document.
        events: Where the page hears of what is new, on the server that it came from; "" for never.
    """
    style, code = _joined(STYLES), _joined(SCRIPTS)
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; "
        f"style-src '{_hash(style)}'; script-src '{_hash(code)}'"
    )
    if events:
        policy += "; connect-src 'self'"
    parts = {
        "policy": policy,
        "title": html.escape(valid_unicode(title)),
        "style": style,
        "head": html.escape(" ".join(str(head.id) for head in heads)),
        "events": html.escape(events),
        "data": harmless(data),
        "code": code,
    }
    page = _asset("page.html")
    pieces = page.split("{{")
    made = [pieces[0]]
    for piece in pieces[1:]:
        name, _, rest = piece.partition("}}")
        made += (parts[name], rest)
    return "".join(made)


def _title(session: Session) -> str:
    said = (row.payload.get("content") for row in session.partial_table if row.kind == "user")
    first = next((text for text in said if isinstance(text, str)), "")
    return " · ".join(filter(None, (one_line_preview(first, 60), short_id(session.id))))


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}"


@cache
def _joined(names: tuple[str, ...]) -> str:
    """Return style sheets or scripts one after the other, as they stand in their element."""
    return "\n" + "\n".join(map(_asset, names))


@cache
def _asset(name: str) -> str:
    return files("rath").joinpath("view", name).read_text("utf-8")
