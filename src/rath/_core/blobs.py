"""Content by digest: what is too big for a record entry and must not be lost."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from hashlib import sha256

MAX_BLOB_BYTES = 1 << 20
"""Largest content that is kept, in bytes; larger content keeps its digest and size only."""

_DIGEST = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Blob:
    """Content known by its sha256; `data` is None when it was too large to keep."""

    digest: str
    """sha256 of the content, in hex."""

    size: int
    """Length of the content in bytes."""

    data: bytes | None = field(default=None, repr=False, compare=False)

    @classmethod
    def from_bytes(cls, content: bytes, *, keep: int = MAX_BLOB_BYTES) -> Blob:
        """Return the blob of `content`, holding it when it has at most `keep` bytes."""
        kept = content if len(content) <= keep else None
        return cls(sha256(content).hexdigest(), len(content), kept)


def is_digest(text: str) -> bool:
    """Tell whether `text` is a sha256 in lower-case hex, so that it may name a file."""
    return _DIGEST.fullmatch(text) is not None
