"""Content by digest: what is too big for a record entry and must not be lost."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import TYPE_CHECKING

from rath._core.lazy_imports import lazy_modules

if TYPE_CHECKING:
    import hashlib
else:
    (hashlib,) = lazy_modules(__name__, "hashlib")


MAX_BLOB_BYTES = 1 << 20
"""Largest content that is kept, in bytes; larger content keeps its digest and size only."""

_DIGEST = re.compile("[0-9a-f]{64}")

Fetch = Callable[[str], bytes | None]
"""Gives content by its sha256, None where it is not there or damaged; may block."""


class Blob:
    """Content known by its sha256; `data` is None when it was too large to keep, or was lost.

    Frozen. No dataclass: what writes those by their fields would write, and fetch, the content.

    Args:
        digest: sha256 of the content, in hex.
        size: Length of the content in bytes.
        data: The content; it counts in no comparison.
    """

    __match_args__ = ("digest", "size", "data")
    __slots__ = ("__weakref__", "_fetch", "data", "digest", "size")
    digest: str
    size: int
    data: bytes | None
    _fetch: Fetch

    def __init__(self, digest: str, size: int, data: bytes | None = None) -> None:
        set_slot = object.__setattr__
        set_slot(self, "digest", digest)
        set_slot(self, "size", size)
        set_slot(self, "data", data)

    @classmethod
    def from_bytes(cls, content: bytes, *, keep: int = MAX_BLOB_BYTES) -> Blob:
        """Return the blob of `content`, holding it when it has at most `keep` bytes."""
        data = content if len(content) <= keep else None
        return cls(hashlib.sha256(content).hexdigest(), len(content), data)

    @classmethod
    def fetched(cls, digest: str, size: int, fetch: Fetch) -> Blob:
        """Return a blob whose `data` is what `fetch(digest)` gives when it is read first."""
        blob = cls(digest, size)
        # Without its value the slot is asked through `__getattr__`.
        object.__delattr__(blob, "data")
        object.__setattr__(blob, "_fetch", fetch)
        return blob

    @property
    def is_kept(self) -> bool:
        """Whether the content is held, or was kept somewhere; reads nothing.

        What was kept may be lost since: then `data` is None all the same.
        """
        return hasattr(self, "_fetch") or self.data is not None

    def without_data(self) -> Blob:
        """Return the same, known by digest and size only."""
        return Blob(self.digest, self.size)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Blob):
            return NotImplemented
        return (self.digest, self.size) == (other.digest, other.size)

    def __hash__(self) -> int:
        return hash((self.digest, self.size))

    def __repr__(self) -> str:
        return f"Blob(digest={self.digest!r}, size={self.size!r})"

    def __reduce__(self) -> tuple[type[Blob], tuple[str, int, bytes | None]]:
        return Blob, (self.digest, self.size, self.data)

    def __setattr__(self, name: str, value: object) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    if not TYPE_CHECKING:  # Checkers would take any name for an attribute.

        def __getattr__(self, name: str) -> bytes | None:
            if name != "data":
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            data = self._fetch(self.digest)
            object.__setattr__(self, "data", data)
            return data


def is_digest(text: str) -> bool:
    """Tell whether `text` is a sha256 in lower-case hex, so that it may name a file."""
    return _DIGEST.fullmatch(text) is not None
