"""Which texts of a document are embedded: its beginning, in parts that small models read whole."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from rath._core.text import valid_unicode

PART_CHARS = 1000
"""Characters of a part; in English these are about the 256 tokens that small models read."""

MAX_PARTS = 8
"""What follows in a document is found by its words only."""

_DIGEST_BYTES = 12


def parts_of(texts: Sequence[str]) -> list[str]:
    """Return the parts of a document: texts that follow each other stand together where they fit.

    Args:
        texts: The text of a note, or what was said in a transcript.
    """
    parts: list[str] = []
    for piece in _pieces(texts):
        if parts and len(parts[-1]) + len(piece) < PART_CHARS:
            parts[-1] += f"\n{piece}"
        elif len(parts) < MAX_PARTS:
            parts.append(piece)
        else:
            break
    return [valid_unicode(part) for part in parts]


def digest_of(part: str) -> bytes:
    """Return the name of a text among vectors: equal texts have one vector."""
    return hashlib.blake2b(part.encode(), digest_size=_DIGEST_BYTES).digest()


def _pieces(texts: Sequence[str]) -> Iterator[str]:
    for text in texts:
        rest = text.strip()
        while rest:
            end = _end_of_piece(rest)
            yield rest[:end].rstrip()
            rest = rest[end:].lstrip()


def _end_of_piece(text: str) -> int:
    """Return where the first piece ends: at a line or word in its second half, if there is one."""
    if len(text) <= PART_CHARS:
        return len(text)
    for separator in ("\n\n", "\n", " "):
        found = text.rfind(separator, PART_CHARS // 2, PART_CHARS)
        if found > 0:
            return found
    return PART_CHARS
