"""The texts in rows and files, and whether one holds another, whatever the blanks between words."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import assert_never, cast

from rath._core.blobs import Blob
from rath._core.text import one_line_preview
from rath.session.chunk import ChunkRow
from rath.session.content import AssistantTurn, Opaque, SystemText, ToolFeedback, UserText
from rath.session.file_changes.diff import is_text

_AROUND = 40
"""Characters on either side of a find that an excerpt shows."""


class Needle:
    """A text that is looked for.

    Raises:
        ValueError: It holds nothing but blanks.
    """

    def __init__(self, text: str) -> None:
        self.text = _plain(text)
        if not self.text:
            raise ValueError("there is nothing to look for: the text is blank")

    def found_in(self, texts: Iterator[str]) -> str | None:
        """Return what stands around the text in the first of `texts` that holds it, else None."""
        for text in texts:
            plain = _plain(text)
            at = plain.find(self.text)
            if at >= 0:
                start, end = max(0, at - _AROUND), at + len(self.text) + _AROUND
                before, after = "…" * (start > 0), "…" * (end < len(plain))
                return f"{before}{plain[start:end]}{after}"
        return None

    def in_row(self, row: ChunkRow) -> str | None:
        """Return an excerpt of a row that holds the text, else None."""
        return self.found_in(texts_of(row))

    def in_blob(self, blob: Blob | None) -> str | None:
        """Return an excerpt of a file that holds the text, else None."""
        if blob is None or blob.data is None or not is_text(blob.data):
            return None
        return self.found_in(iter((blob.data.decode(),)))


def texts_of(row: ChunkRow) -> Iterator[str]:
    """Yield what a row says; of JSON first the texts in it, unescaped, and then the whole."""
    content = row.content
    match content:
        case SystemText(text):
            yield text
        case UserText() as said:
            yield said.described
        case AssistantTurn(text, calls):
            yield text or ""
            for call in calls:
                yield from _of_json(call.arguments)
                yield call.name
        case ToolFeedback(_, _, body) as result:
            yield from _of_json(body)
            if result.images:
                yield result.described
        case Opaque(payload):
            yield from _leaves(dict(payload))
        case _:
            assert_never(content)


def preview(row: ChunkRow, max_chars: int) -> str:
    """Return the beginning of what a row says, on one line."""
    match row.content:
        case AssistantTurn(text, calls):
            called = " ".join(f"{call.name}({call.arguments})" for call in calls)
            return one_line_preview(" ".join(filter(None, (text, called))), max_chars)
        case ToolFeedback(_, name) as result:
            return one_line_preview(f"{name}: {result.described}", max_chars)
        case _:
            return one_line_preview(next(texts_of(row), ""), max_chars)


def _of_json(text: str) -> Iterator[str]:
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    yield from _leaves(value)
    yield text


def _leaves(value: object) -> Iterator[str]:
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, Mapping):
            todo += reversed(list(cast("Mapping[str, object]", item).values()))
        elif isinstance(item, list | tuple):
            todo += reversed(cast("list[object]", item))


def _plain(text: str) -> str:
    return " ".join(text.split())
