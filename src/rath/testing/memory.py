"""A memory in a dict."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from rath.errors import UnsupportedMemoryOp
from rath.memory.abc import MemoryBackend, MemoryStoreSpec
from rath.memory.capabilities import MemoryCapabilities, ScopeModel
from rath.memory.notes import places
from rath.memory.op_types import (
    MemoryOp,
    MemoryOpCommit,
    MemoryOpFind,
    MemoryOpList,
    MemoryOpRead,
    MemoryOpSearch,
    MemoryOpTree,
    MemoryOpWrite,
)
from rath.memory.results import (
    MemoryCommitResult,
    MemoryEntry,
    MemoryExecutionFailure,
    MemoryFindResult,
    MemoryHit,
    MemoryListResult,
    MemoryReadResult,
    MemoryResult,
    MemoryWriteResult,
)
from rath.memory.uri import MEMORY_URI_ROOT, to_public_uri, valid_memory_uri

__all__ = ["FakeMemory", "FakeStore", "MemoryAnswer"]

MemoryAnswer: TypeAlias = Callable[[MemoryOp], MemoryResult | None]
"""Scripts what an operation gives; None lets it do what it does."""

OpT = TypeVar("OpT", bound=MemoryOp)


@dataclass(frozen=True, slots=True)
class FakeStore:
    """A store of `FakeMemory`; all of them share its notes."""

    handle: str


class FakeMemory(MemoryBackend):
    """A memory backend without disk: notes in a dict, found by the words that they share.

    Args:
        notes: What it knows from the start, by URI.
        answer: Scripts some or all operations: failures, delays, hits.

    Example:
        >>> memory = FakeMemory({"memory://user/memories/a": "tea, not coffee"})
        >>> with memory.open() as store:
        ...     store.dispatch(MemoryOpFind("coffee")).hits[0].uri
        'memory://user/memories/a'
    """

    name = "fake"

    def __init__(
        self, notes: Mapping[str, str] | None = None, *, answer: MemoryAnswer | None = None
    ) -> None:
        self.notes = dict(notes or {})
        """Every note by its URI."""
        self.ops: list[MemoryOp] = []
        """Every operation so far, in order."""
        self._answer = answer
        self._ids = itertools.count(1)

    @classmethod
    def capabilities(cls) -> MemoryCapabilities:
        return MemoryCapabilities(
            scope_model=ScopeModel.KV,
            supports_write=True,
            supports_read=True,
            supports_list=True,
            supports_tree=True,
            supports_vector_search=False,
            supports_intent_search=False,
            supports_resource_ingest=False,
            supports_session_commit=True,
            supports_l0_l1_l2=False,
        )

    @classmethod
    def supported_ops(cls) -> frozenset[type[MemoryOp]]:
        return frozenset(
            {
                MemoryOpWrite,
                MemoryOpRead,
                MemoryOpList,
                MemoryOpTree,
                MemoryOpFind,
                MemoryOpSearch,
                MemoryOpCommit,
            }
        )

    def ops_of(self, kind: type[OpT]) -> list[OpT]:
        """Return the operations of one kind, in order."""
        return [op for op in self.ops if isinstance(op, kind)]

    async def aopen(self, spec: MemoryStoreSpec | None) -> FakeStore:
        return FakeStore(f"fake-{next(self._ids)}")

    async def aclose(self, native: FakeStore) -> None:
        """Keep the notes: closing a memory forgets nothing."""

    async def adispatch(self, native: FakeStore, op: MemoryOp) -> MemoryResult:
        self.ops.append(op)
        scripted = self._answer(op) if self._answer is not None else None
        if scripted is not None:
            return scripted
        match op:
            case MemoryOpWrite():
                return self._write(op)
            case MemoryOpRead(uri):
                return self._read(op) if valid_memory_uri(uri) else _invalid(uri)
            case MemoryOpList(uri):
                return MemoryListResult(tuple(self._entries(uri, 0)))
            case MemoryOpTree(uri, depth):
                return MemoryListResult(tuple(self._entries(uri, depth)))
            case MemoryOpFind() | MemoryOpSearch():
                return MemoryFindResult(tuple(self._hits(op)))
            case MemoryOpCommit():
                return self._commit(op)
            case _:
                raise UnsupportedMemoryOp(type(op), self.name)

    def _write(self, op: MemoryOpWrite) -> MemoryResult:
        if not valid_memory_uri(op.uri) or {"", ".", ".."} & set(op.uri.split("/")[2:]):
            return _invalid(op.uri)
        choices = [to_public_uri(uri) for uri in places(op)]
        uri = next((u for u in choices if self.notes.get(u, op.content) == op.content), choices[-1])
        self.notes[uri] = op.content
        return MemoryWriteResult(op.uri if uri == choices[0] else uri, len(op.content.encode()))

    def _read(self, op: MemoryOpRead) -> MemoryResult:
        text = self.notes.get(to_public_uri(op.uri))
        if text is None:
            return MemoryExecutionFailure("not_found", f"there is no note at {op.uri!r}")
        data = text.encode() if op.encoding is None else text
        return MemoryReadResult(op.uri, data, op.level)

    def _entries(self, uri: str, depth: int) -> Iterator[MemoryEntry]:
        above = to_public_uri(uri).rstrip("/") + "/"
        below = [note.removeprefix(above) for note in self.notes if note.startswith(above)]
        for name in sorted({path.partition("/")[0] for path in below}):
            if name in below:
                size = len(self.notes[above + name].encode())
                yield MemoryEntry(name, above + name, is_dir=False, size=size)
            if any(path.startswith(name + "/") for path in below):
                yield MemoryEntry(name, above + name, is_dir=True)
                if depth > 0:
                    yield from self._entries(above + name, depth - 1)

    def _hits(self, op: MemoryOpFind | MemoryOpSearch) -> list[MemoryHit]:
        wanted = set(op.query.casefold().split())
        above = to_public_uri(op.target_uri or MEMORY_URI_ROOT)
        hits = [
            MemoryHit(uri, float(len(wanted & set(text.casefold().split()))), text)
            for uri, text in self.notes.items()
            if uri.startswith(above)
        ]
        found = sorted((hit for hit in hits if hit.score), key=lambda hit: (-hit.score, hit.uri))
        return found[: max(0, op.top_k)]

    def _commit(self, op: MemoryOpCommit) -> MemoryResult:
        if not op.session_id or "/" in op.session_id:
            return _invalid(op.session_id)
        uri = f"memory://session/{op.session_id}/commits/{len(self.ops)}"
        self.notes[uri] = "\n".join(str(message) for message in op.messages)
        return MemoryCommitResult(None, uri, 0 if op.wait else -1)


def _invalid(uri: str) -> MemoryExecutionFailure:
    return MemoryExecutionFailure("invalid_uri", f"{uri!r} is no place in a memory")
