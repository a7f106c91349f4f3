"""The rows or entries of a session, and the ranges of them with which others begin."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Generic, Protocol, Self, TypeVar
from uuid import UUID

from rath._core.vector import Vector
from rath.errors import PersistenceError
from rath.session.persistence.lines import Part

T = TypeVar("T")


class Hash(Protocol):
    """A digest that is being made."""

    def update(self, data: bytes, /) -> None: ...
    def copy(self) -> Self: ...
    def hexdigest(self) -> str: ...


class Ranges(Generic[T]):
    """The rows or entries of one session, and digests over ranges of them.

    A digest goes on from the longest one that is known: those of a chain of sessions cost together
    as much as one over all their rows.

    Args:
        items: All of them.
        to_bytes: What is hashed of one.
        known: A size, and the digest over that many items.
    """

    __slots__ = ("_known", "_to_bytes", "items")

    def __init__(
        self,
        items: Vector[T],
        to_bytes: Callable[[T], bytes],
        known: tuple[int, Hash] | None = None,
    ) -> None:
        self.items = items
        self._to_bytes = to_bytes
        self._known: list[tuple[int, Hash]] = [(0, sha256())]
        if known is not None and known[0]:
            self._known.append(known)

    def digest(self, start: int, stop: int) -> str:
        """Return the sha256 over the items from `start` to `stop`, in hex."""
        if not start:
            return self.known(stop)[1].hexdigest()
        return self._grown(sha256(), start, stop).hexdigest()

    def known(self, size: int) -> tuple[int, Hash]:
        """Return `size` and the digest over that many items, which must not be changed."""
        at = bisect_right(self._known, size, key=lambda known: known[0])
        n_hashed, digest = self._known[at - 1]
        if n_hashed != size:
            digest = self._grown(digest.copy(), n_hashed, size)
            self._known.insert(at, (size, digest))
        return size, digest

    def extended(self, items: Sequence[T]) -> Ranges[T]:
        """Return these and some more."""
        return Ranges(self.items.extend(items), self._to_bytes, self._known[-1])

    def _grown(self, digest: Hash, start: int, stop: int) -> Hash:
        digest.update(b"".join(map(self._to_bytes, self.items.prefix(stop).since(start))))
        return digest


def joined(
    parts: Sequence[Part],
    find: Callable[[UUID], Ranges[T] | None],
    to_bytes: Callable[[T], bytes],
    what: str,
) -> tuple[Ranges[T], PersistenceError | None]:
    """Return what a session begins with, up to the first range that cannot be had, and why.

    The first range shares the memory of the session that it is from.

    Args:
        parts: The ranges, in order.
        find: Gives the rows or entries of a session, None where it is not there.
        to_bytes: What is hashed of one.
        what: What they are, for messages: "rows" or "entries".
    """
    made = Ranges(Vector[T](), to_bytes)
    for part in parts:
        source = find(part.session)
        problem = _problem(part, source, what)
        if problem is not None or source is None:
            return made, problem
        if not len(made.items) and not part.start:
            made = Ranges(source.items.prefix(part.stop), to_bytes, source.known(part.stop))
        else:
            made = made.extended(source.items.prefix(part.stop).since(part.start))
    return made, None


def _problem(part: Part, source: Ranges[T] | None, what: str) -> PersistenceError | None:
    begins = f"the session begins with {what} {part.start} to {part.stop} of session {part.session}"
    if source is None:
        return PersistenceError(
            f"{begins}, which is not there; bring that one back from the trash or import it"
        )
    if part.stop > len(source.items):
        return PersistenceError(
            f"{begins}, which has only {len(source.items)}: its log was cut, or is another one"
        )
    if source.digest(part.start, part.stop) != part.digest:
        return PersistenceError(
            f"{begins}, and these are not what they were: its log was changed, or is another one"
        )
    return None
