"""A persistent sequence: append and fork are O(1), old versions stay as they were.

A linked list whose nodes also hold one jump pointer, chosen so that the jumps form a skew-binary
pattern; indexing and common prefixes then take O(log n) steps (E. W. Myers, "An applicative
random-access stack", Information Processing Letters 17(5), 1983).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")
V = TypeVar("V")


class _Node(Generic[T]):
    __slots__ = ("jump", "parent", "size", "value")

    def __init__(self, value: T, parent: _Node[T] | None) -> None:
        self.value = value
        self.parent = parent
        if parent is None:
            self.size = 1
            self.jump: _Node[T] | None = None
            return
        self.size = parent.size + 1
        jump = parent.jump
        far = None if jump is None else jump.jump
        near_size = 0 if jump is None else jump.size
        far_size = 0 if far is None else far.size
        # Two jumps of equal length below are bridged by one; otherwise jump to the parent.
        self.jump = far if parent.size - near_size == near_size - far_size else parent


class Vector(Generic[T]):
    """An immutable sequence that shares its front with the versions it came from.

    `append` gives a new vector in O(1); `v[i]` takes O(log n); iteration and `since` take time
    only for what they yield. Equality is by value and O(n); versions with the same last node are
    equal at once.
    """

    __slots__ = ("_last",)

    def __init__(self, items: Iterable[T] = ()) -> None:
        last: _Node[T] | None = None
        for item in items:
            last = _Node(item, last)
        self._last = last

    @staticmethod
    def _of(last: _Node[V] | None) -> Vector[V]:
        copy: Vector[V] = Vector()
        copy._last = last  # a constructor of the same class
        return copy

    def append(self, item: T) -> Vector[T]:
        """Return a vector with `item` added at the end; O(1)."""
        return Vector._of(_Node(item, self._last))

    def extend(self, items: Iterable[T]) -> Vector[T]:
        """Return a vector with `items` added at the end; O(number of items)."""
        last = self._last
        for item in items:
            last = _Node(item, last)
        return Vector._of(last)

    def prefix(self, size: int) -> Vector[T]:
        """Return the first `size` items as a vector that shares them; O(log n)."""
        if not 0 <= size <= len(self):
            raise IndexError(f"prefix of {size} items asked of a vector that has {len(self)}")
        return Vector._of(_at_size(self._last, size))

    def since(self, start: int) -> tuple[T, ...]:
        """Return the items from index `start` to the end; O(number returned)."""
        count = max(0, len(self) - max(0, start))
        items: list[T] = []
        node = self._last
        for _ in range(count):
            assert node is not None
            items.append(node.value)
            node = node.parent
        items.reverse()
        return tuple(items)

    def common_prefix(self, other: Vector[T]) -> int:
        """Return how many leading items both share by identity of their history; O(log n)."""
        return _shared_size(self._last, other._last)

    def __len__(self) -> int:
        return 0 if self._last is None else self._last.size

    def __getitem__(self, index: int) -> T:
        size = len(self)
        place = index + size if index < 0 else index
        if not 0 <= place < size:
            raise IndexError(f"index {index} asked of a vector that has {size} items")
        node = _at_size(self._last, place + 1)
        assert node is not None
        return node.value

    def __iter__(self) -> Iterator[T]:
        return iter(self.since(0))

    def __reversed__(self) -> Iterator[T]:
        node = self._last
        while node is not None:
            yield node.value
            node = node.parent

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Vector):
            return NotImplemented
        theirs = cast("Vector[object]", other)
        if self._last is theirs._last:
            return True
        shared = _shared_size(self._last, theirs._last)
        return len(self) == len(theirs) and self.since(shared) == theirs.since(shared)

    def __hash__(self) -> int:
        return hash(self.since(0))

    def __repr__(self) -> str:
        return f"Vector({list(self)!r})"


def _shared_size(mine: _Node[Any] | None, theirs: _Node[Any] | None) -> int:
    """Return the size of the longest prefix that both sequences have in common as one node."""
    if mine is None or theirs is None:
        return 0
    size = min(mine.size, theirs.size)
    mine, theirs = _at_size(mine, size), _at_size(theirs, size)
    while mine is not theirs:
        assert mine is not None
        assert theirs is not None
        # Equal sizes have equal jump shapes, so both sides move in step.
        if mine.jump is not theirs.jump:
            mine, theirs = mine.jump, theirs.jump
        else:
            mine, theirs = mine.parent, theirs.parent
    return 0 if mine is None else mine.size


def _at_size(node: _Node[T] | None, size: int) -> _Node[T] | None:
    """Return the ancestor of `node` at which the sequence has `size` items."""
    if size == 0:
        return None
    while node is not None and node.size != size:
        jump = node.jump
        node = jump if jump is not None and jump.size >= size else node.parent
    return node
