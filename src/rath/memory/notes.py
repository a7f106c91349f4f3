"""Notes that are named by their content, and what is told about a note when it is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

from rath.memory.op_types import MemoryOpWrite
from rath.memory.uri import content_digest, note_uri

__all__ = ["EXPIRES_AT", "KEEP_BOTH", "MODEL", "ROWS", "SESSION_ID", "note_op", "places"]

KEEP_BOTH = MappingProxyType({"on_conflict": "keep_both"})
"""Metadata of a write that must not replace another note.

A store that knows it gives the newcomer a longer name when its place is taken by other content,
and reports that URI in the result; a store that does not know it replaces the older note.
"""

EXPIRES_AT = "expires_at"
"""Key in the metadata of a write: when the note is forgotten, an ISO 8601 time with its zone."""

SESSION_ID = "session_id"
"""Key in the metadata of a write: the session that the note comes from."""

ROWS = "rows"
"""Key in the metadata of a write: the rows of that session it comes from, as in "3,4"."""

MODEL = "model"
"""Key in the metadata of a write: the model that made the note of what was said in the session."""


def note_op(
    content: str,
    *,
    scope: str = "user",
    category: str = "preferences",
    wait: bool = False,
    ttl: timedelta | float | None = None,
    session_id: str | None = None,
    rows: Sequence[int] = (),
) -> MemoryOpWrite:
    """Return the write that stores `content` once, whoever stores it and however often.

    Args:
        content: The note.
        scope: One of `MEMORY_SCOPES`.
        category: Directory of the note within the scope.
        wait: Wait until the store is done with the note.
        ttl: How long it is kept, in seconds or as a timedelta; for ever by default.
        session_id: The session that it comes from.
        rows: Indexes of the rows of that session that it comes from.

    Raises:
        ValueError: `ttl` is not above 0, or beyond the year 9999.
    """
    metadata: dict[str, str] = dict(KEEP_BOTH)
    if ttl is not None:
        metadata[EXPIRES_AT] = _end_of(ttl).isoformat()
    if session_id is not None:
        metadata[SESSION_ID] = session_id
        metadata[ROWS] = ",".join(map(str, rows))
    uri = note_uri(scope, category, content)
    return MemoryOpWrite(uri, content, wait=wait, metadata=MappingProxyType(metadata))


def _end_of(ttl: timedelta | float) -> datetime:
    try:
        kept = ttl if isinstance(ttl, timedelta) else timedelta(seconds=ttl)
        end = datetime.now(UTC) + kept
    except (OverflowError, ValueError) as exc:
        raise ValueError(
            f"ttl must be a time that ends before the year 10000, got {ttl!r}; leave it out to "
            "keep the note for ever"
        ) from exc
    if kept <= timedelta(0):
        raise ValueError(f"ttl must be above 0, got {ttl!r}; to remove a note, forget it")
    return end


def places(op: MemoryOpWrite) -> Iterator[str]:
    """Yield where a note may stand, best first: one place, or more for a `KEEP_BOTH` write."""
    yield op.uri
    metadata: Mapping[str, str] = op.metadata or {}
    if metadata.get("on_conflict") == KEEP_BOTH["on_conflict"]:
        directory, _, _ = op.uri.rpartition("/")
        digest = content_digest(op.content)
        yield f"{directory}/{digest[:16]}"
        yield f"{directory}/{digest}"
