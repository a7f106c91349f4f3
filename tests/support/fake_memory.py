"""A memory that answers what a test says and keeps what it was asked."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from rath.memory import (
    MemoryBackend,
    MemoryCapabilities,
    MemoryCommitResult,
    MemoryFindResult,
    MemoryHit,
    MemoryOp,
    MemoryOpCommit,
    MemoryOpFind,
    MemoryOpWrite,
    MemoryResult,
    MemoryStoreSpec,
    MemoryWriteResult,
    ScopeModel,
)

Answer = Callable[[MemoryOp], MemoryResult]


class FakeMemory(MemoryBackend):
    """Holds every operation in `asked`, in order.

    Args:
        answer: Gives the result of an operation, or raises; by default everything succeeds.
        hits: What a search finds by default.
    """

    name = "fake"

    def __init__(self, answer: Answer | None = None, *, hits: tuple[MemoryHit, ...] = ()) -> None:
        self.asked: list[MemoryOp] = []
        self.has_committed = threading.Event()
        self._answer = answer or self._success
        self._hits = hits

    @classmethod
    def capabilities(cls) -> MemoryCapabilities:
        return MemoryCapabilities(
            ScopeModel.KV, True, False, False, False, False, False, False, True, False
        )

    @classmethod
    def supported_ops(cls) -> frozenset[type[MemoryOp]]:
        return frozenset({MemoryOpWrite, MemoryOpFind, MemoryOpCommit})

    async def aopen(self, spec: MemoryStoreSpec | None) -> Any:
        return self

    async def aclose(self, native: Any) -> None:
        pass

    async def adispatch(self, native: Any, op: MemoryOp) -> MemoryResult:
        self.asked.append(op)
        if isinstance(op, MemoryOpCommit):
            self.has_committed.set()
        return self._answer(op)

    def of(self, kind: type[MemoryOp]) -> list[Any]:
        """The operations of one kind, in order."""
        return [op for op in self.asked if isinstance(op, kind)]

    def _success(self, op: MemoryOp) -> MemoryResult:
        match op:
            case MemoryOpWrite(uri, content):
                return MemoryWriteResult(uri, len(content))
            case MemoryOpFind():
                return MemoryFindResult(self._hits)
            case _:
                return MemoryCommitResult("task", "memory://session/x", 0)
