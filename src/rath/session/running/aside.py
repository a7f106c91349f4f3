"""Work that costs time for every row: beside the runtime thread when there are many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from rath._async.runtime import runtime
from rath.session.chunk import ChunkRow, ChunkTable
from rath.session.content import AssistantTurn, Opaque, SystemText, ToolFeedback, UserText

T = TypeVar("T")

MANY_ROWS = 200
"""Above this a worker thread is used: at about 10 us a row the trip is short then; a guess."""

BYTES_PER_ROW = 500
"""Bytes of an image that take as long to encode as a row: 20 ns each, measured. A character of
text takes less and counts the same: so much text is rare, and the trip costs little beside it."""


def rows_worth(rows: ChunkTable | Sequence[ChunkRow]) -> int:
    """Return how many short rows take as long to encode as `rows`, when these are few."""
    n_rows = len(rows)
    if n_rows > MANY_ROWS:
        return n_rows
    return n_rows + sum(map(_n_bytes, rows)) // BYTES_PER_ROW


async def aside(n_rows: int, make: Callable[[], T]) -> T:
    """Return `make()`, which walks over `n_rows` rows; on a worker thread when they are many."""
    if n_rows <= MANY_ROWS:
        return make()
    return await runtime().call_in_worker(make)


def _n_bytes(row: ChunkRow) -> int:
    """Return how long a row is: characters of its texts, bytes of its images."""
    match row.content:
        case SystemText(text):
            return len(text)
        case UserText(text, images) | ToolFeedback(_, _, text, images):
            return len(text) + sum(image.blob.size for image in images)
        case AssistantTurn(text, calls):
            return len(text or "") + sum(len(call.arguments) for call in calls)
        case Opaque():
            return 0  # skipped in requests
