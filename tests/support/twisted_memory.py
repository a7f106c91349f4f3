"""A memory with one fault, for tests of the contract that must find it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from rath.conformance import check_memory
from rath.memory import MemoryOp, MemoryOpWrite, MemoryResult
from rath.testing import FakeMemory
from rath.testing.memory import FakeStore
from tests.support.contracts import failed_checks

__all__ = ["Rest", "Twist", "Twisted", "failures", "words"]

Rest: TypeAlias = Callable[[MemoryOp], Awaitable[MemoryResult]]
"""Does an operation as it should be done."""

Twist: TypeAlias = "Callable[[Twisted, MemoryOp, Rest], Awaitable[MemoryResult]]"
"""Does an operation in its own way."""


class Twisted(FakeMemory):
    """A memory without fault but for what `twist` makes of its operations."""

    def __init__(self, twist: Twist) -> None:
        super().__init__()
        self.native = FakeStore("")
        """The store that is asked."""

        self.texts: dict[str, str] = {}
        self.seen: dict[str, set[str]] = {}
        self.n_in_flight = 0
        self._twist = twist

    async def adispatch(self, native: FakeStore, op: MemoryOp) -> MemoryResult:
        really = super().adispatch
        self.native = native
        return await self._twist(self, op, lambda changed: really(native, changed))

    def written(self) -> list[MemoryOpWrite]:
        """Every write so far."""
        return self.ops_of(MemoryOpWrite)

    def below(self, uri: str) -> list[str]:
        """The notes below a URI."""
        return [note for note in self.notes if note.startswith(f"{uri}/")]


def failures(backend: FakeMemory) -> dict[str, str]:
    """The checks that fail, with what they say."""
    return failed_checks(check_memory, backend)


def words(text: str) -> set[str]:
    """The words of a text."""
    return set(text.casefold().split())
