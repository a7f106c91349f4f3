"""A persistent sequence: append and fork are O(1), old versions stay as they were.

A linked list of segments, each of which holds the items that were added at once or by one writer.
A segment also has one jump pointer, chosen so that the jumps form a skew-binary pattern; indexing
then takes O(log segments) steps (E. W. Myers, "An applicative random-access stack", Information
Processing Letters 17(5), 1983).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Generic, TypeVar, cast

T = TypeVar("T")
V = TypeVar("V")


class Segment(Generic[T]):
    """Items behind the first `start` ones of a sequence; only a `GrowingVector` adds to them."""

    __slots__ = ("depth", "items", "jump", "parent", "start")

    def __init__(self, items: Sequence[T], parent: Segment[T] | None, start: int) -> None:
        self.items: Sequence[T] = items
        self.parent: Segment[T] | None = parent
        self.start: int = start
        self.depth: int = 0
        self.jump: Segment[T] | None = None
        if parent is None:
            return
        self.depth = parent.depth + 1
        jump = parent.jump
        far = None if jump is None else jump.jump
        # Two jumps of equal length below are bridged by one; otherwise jump to the parent.
        is_bridge = jump is not None and parent.depth - jump.depth == jump.depth - (
            -1 if far is None else far.depth
        )
        self.jump = far if is_bridge else parent


class Vector(Generic[T]):
    """An immutable sequence that shares its front with the versions it came from.

    `append` gives a new vector in O(1); `v[i]` takes O(log segments); iteration and `since` take
    time only for what they yield. Equality is by value and O(n); versions with the same end are
    equal at once.
    """

    __slots__ = ("_size", "last")

    last: Segment[T] | None
    """The last segment, of which it may have a part only; None for an empty sequence."""

    def __init__(self, items: Iterable[T] = ()) -> None:
        first = tuple(items)
        self.last = Segment(first, None, 0) if first else None
        self._size = len(first)

    @staticmethod
    def ending_in(last: Segment[V] | None, size: int) -> Vector[V]:
        """Return the first `size` items up to those of a segment."""
        copy: Vector[V] = Vector()
        copy.last = last
        copy._size = size
        return copy

    def append(self, item: T) -> Vector[T]:
        """Return a vector with `item` added at the end; O(1)."""
        return Vector.ending_in(Segment((item,), self.last, self._size), self._size + 1)

    def extend(self, items: Iterable[T]) -> Vector[T]:
        """Return a vector with `items` added at the end; O(number of items)."""
        added = tuple(items)
        if not added:
            return self
        return Vector.ending_in(Segment(added, self.last, self._size), self._size + len(added))

    def prefix(self, size: int) -> Vector[T]:
        """Return the first `size` items as a vector that shares them; O(log segments)."""
        if not 0 <= size <= self._size:
            raise IndexError(f"prefix of {size} items asked of a vector that has {self._size}")
        return Vector.ending_in(self._segment_before(size), size) if size else Vector()

    def since(self, start: int) -> tuple[T, ...]:
        """Return the items from index `start` to the end; O(number returned)."""
        start = max(0, start)
        if start >= self._size:
            return ()
        segment, stop = self.last, self._size
        pieces: list[Sequence[T]] = []
        while segment is not None:
            begin = segment.start
            pieces.append(segment.items[max(start - begin, 0) : stop - begin])
            segment, stop = segment.parent if begin > start else None, begin
        return tuple(pieces[0] if len(pieces) == 1 else chain.from_iterable(reversed(pieces)))

    def common_prefix(self, other: Vector[T]) -> int:
        """Return how many leading items both share by identity of their history.

        O(segments since they parted).
        """
        mine, size = self.last, self._size
        theirs, their_size = other.last, other._size
        while mine is not theirs:
            # What both have begins before either of these, so the later one is none of it.
            if mine is not None and (theirs is None or mine.start >= theirs.start):
                size = mine.start
                mine = mine.parent
            elif theirs is not None:
                their_size = theirs.start
                theirs = theirs.parent
        return min(size, their_size)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> T:
        place = index + self._size if index < 0 else index
        if not 0 <= place < self._size:
            raise IndexError(
                f"there is no item {index}: the vector has {self._size} items; count from 0, or "
                "from the end with -1"
            )
        segment = self._segment_before(place + 1)
        return segment.items[place - segment.start]

    def __iter__(self) -> Iterator[T]:
        return iter(self.since(0))

    def __reversed__(self) -> Iterator[T]:
        segment, stop = self.last, self._size
        while segment is not None:
            # By index: its writer may add to it meanwhile.
            for place in range(stop - segment.start - 1, -1, -1):
                yield segment.items[place]
            stop = segment.start
            segment = segment.parent

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Vector):
            return NotImplemented
        theirs = cast("Vector[T]", other)
        if self._size != theirs._size:
            return False
        shared = self.common_prefix(theirs)
        return shared == self._size or self.since(shared) == theirs.since(shared)

    def __hash__(self) -> int:
        return hash(self.since(0))

    def __repr__(self) -> str:
        return f"Vector({list(self)!r})"

    def _segment_before(self, size: int) -> Segment[T]:
        """Return the segment of the item at index `size - 1`."""
        segment = self.last
        assert segment is not None
        while segment.start >= size:
            jump = segment.jump
            segment = jump if jump is not None and jump.start >= size else segment.parent
            assert segment is not None
        return segment


class GrowingVector(Generic[T]):
    """A vector that one writer appends to; `vector` is a snapshot in O(1)."""

    __slots__ = ("_items", "_segment", "_start")

    def __init__(self, start: Vector[T]) -> None:
        self._start = start
        self._items: list[T] = []
        # It never touches the segments of others: who forgets what was added here frees it.
        self._segment = Segment(self._items, start.last, len(start))

    @property
    def vector(self) -> Vector[T]:
        """All items so far."""
        size = len(self._items)
        if not size:
            return self._start
        return Vector.ending_in(self._segment, self._segment.start + size)

    def append(self, item: T) -> None:
        """Add an item at the end; O(1)."""
        self._items.append(item)

    def __len__(self) -> int:
        return self._segment.start + len(self._items)
