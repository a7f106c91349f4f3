"""Rows and entries of a page, each once, however many sessions share them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar
from uuid import UUID

from rath.session.chunk import ChunkRow
from rath.session.record import Entry
from rath.session.view.nodes import Node

T = TypeVar("T")
Range = tuple[int, int]
"""First index, and how many."""


class Numbered(Generic[T]):
    """Things by number, in the order in which they came; `fresh` gives those since it was asked."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._fresh: list[T] = []

    def number(self, key: Hashable, thing: T) -> int:
        """Return the number of `key`; under a new key `thing` gets the next one."""
        known = self._numbers.get(key)
        if known is not None:
            return known
        self._fresh.append(thing)
        self._numbers[key] = number = len(self._numbers)
        return number

    def find(self, key: Hashable) -> int | None:
        """Return the number of `key`, None where there is none."""
        return self._numbers.get(key)

    def fresh(self) -> list[T]:
        """Return what came since this was last asked, in order."""
        fresh, self._fresh = self._fresh, []
        return fresh


class Catalogue:
    """Numbers the rows and entries of sessions; a session is then a few ranges of numbers."""

    def __init__(self) -> None:
        self.rows: Numbered[ChunkRow] = Numbered()
        self.entries: Numbered[Entry] = Numbered()
        self._contents: dict[Hashable, ChunkRow] = {}

    def row_ranges(self, node: Node) -> list[Range]:
        """Number the rows of a session; O(rows)."""
        if node.body is None:
            return []
        return _ranges(self._row_number(row) for row in node.body.table)

    def entry_ranges(self, node: Node) -> list[Range]:
        """Number the entries of a session's record; O(entries)."""
        if node.body is None:
            return []
        return _ranges(self.entries.number(entry.id, entry) for entry in node.body.record)

    def entry(self, entry: UUID | None) -> int | None:
        """Return the number of an entry by its id."""
        return None if entry is None else self.entries.find(entry)

    def _row_number(self, row: ChunkRow) -> int:
        key: Hashable = row.id
        known = self._contents.setdefault(key, row)
        # A run that was made again from a copy of its past may use a name twice.
        if known is not row and known != row:
            key = (row.id, row.digest)
        return self.rows.number(key, row)


def _ranges(numbers: Iterable[int]) -> list[Range]:
    """Return consecutive numbers as ranges, in the same order."""
    ranges: list[Range] = []
    for number in numbers:
        if ranges and sum(ranges[-1]) == number:
            ranges[-1] = (ranges[-1][0], ranges[-1][1] + 1)
        else:
            ranges.append((number, 1))
    return ranges
