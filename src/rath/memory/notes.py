"""Notes that are named by their content: an identical note is stored once."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType

from rath.memory.op_types import MemoryOpWrite
from rath.memory.uri import content_digest, note_uri

__all__ = ["KEEP_BOTH", "note_op", "places"]

KEEP_BOTH = MappingProxyType({"on_conflict": "keep_both"})
"""Metadata of a write that must not replace another note.

A store that knows it gives the newcomer a longer name when its place is taken by other content,
and reports that URI in the result; a store that does not know it replaces the older note.
"""


def note_op(
    content: str, *, scope: str = "user", category: str = "preferences", wait: bool = False
) -> MemoryOpWrite:
    """Return the write that stores `content` once, whoever stores it and however often."""
    uri = note_uri(scope, category, content)
    return MemoryOpWrite(uri, content, wait=wait, metadata=KEEP_BOTH)


def places(op: MemoryOpWrite) -> Iterator[str]:
    """Yield where a note may stand, best first: one place, or more for a `KEEP_BOTH` write."""
    yield op.uri
    if (op.metadata or {}).get("on_conflict") == KEEP_BOTH["on_conflict"]:
        directory, _, _ = op.uri.rpartition("/")
        digest = content_digest(op.content)
        yield f"{directory}/{digest[:16]}"
        yield f"{directory}/{digest}"
