"""Pictures of objects in notebooks: HTML without scripts, in which every text stays text.

Styles stand inline and take the colours of the notebook, light or dark. Packages from sessions to
evaluations share this, so it stands below them all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape as escape_html

from rath._core.text import valid_unicode

_CELL = "text-align:left;vertical-align:top;padding:2px 10px 2px 0;white-space:pre-wrap"
_FAINT = "opacity:.65"


def escape(text: str) -> str:
    """Return text as HTML that shows it; a lone surrogate, which no notebook can send, is replaced.

    Args:
        text: Any text, also of an exception.
    """
    return escape_html(valid_unicode(text))


def facts(title: str, details: Iterable[str] = ()) -> str:
    """Return one line: a title in bold, and what else is known; empty texts are left out.

    Args:
        title: What is shown.
        details: Such as the outcome, tokens and money.
    """
    rest = "".join(f" · {escape(each)}" for each in details if each)
    return f"<div><b>{escape(title)}</b>{rest}</div>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table with one line for the names of its columns."""
    names = "".join(f'<th style="{_CELL};{_FAINT}">{escape(each)}</th>' for each in head)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{escape(cell)}</td>' for cell in row) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table>"


def tree(label: str, detail: str, branches: Sequence[str]) -> str:
    """Return a node of a tree that opens and closes, with its branches, which are HTML already."""
    head = f"<b>{escape(label)}</b> <span style='{_FAINT}'>{escape(detail)}</span>"
    if not branches:
        return f"<div style='padding-left:1em'>{head}</div>"
    inner = "".join(f"<div style='padding-left:1em'>{each}</div>" for each in branches)
    return f"<details open><summary>{head}</summary>{inner}</details>"


def note(text: str) -> str:
    """Return a line that is less important than the rest."""
    return f"<div style='{_FAINT}'>{escape(text)}</div>"


def download(name: str, encoded: str, text: str) -> str:
    """Return a link that saves a page.

    Args:
        name: Of the file.
        encoded: The page, in base64.
        text: What the link says.
    """
    return (
        f'<a download="{escape(name)}" href="data:text/html;base64,{escape(encoded)}">'
        f"{escape(text)}</a>"
    )
