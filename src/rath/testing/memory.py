"""A memory in a dict."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar, TypeAlias, TypeVar

from rath._core.dataclasses import dataclass
from rath.errors import UnsupportedMemoryOp
from rath.memory import notes, uri
from rath.memory import op_types as ops
from rath.memory import results as res
from rath.memory.abc import MemoryBackend, MemoryStoreSpec
from rath.memory.capabilities import MemoryCapabilities, ScopeModel
from rath.memory.driver import OperationFailed, decoded
from rath.memory.notes import NO_METADATA, Metadata
from rath.memory.op_types import MemoryOp
from rath.memory.results import MemoryResult

__all__ = ["FakeMemory", "FakeStore", "MemoryAnswer"]

MemoryAnswer: TypeAlias = Callable[[MemoryOp], MemoryResult | None]
"""Scripts what an operation gives; None lets it do what it does."""

OpT = TypeVar("OpT", bound=MemoryOp)


@dataclass(frozen=True, slots=True)
class FakeStore:
    """A store of `FakeMemory`; all of them share its notes."""

    handle: str


def _now() -> datetime:
    return datetime.now(UTC)


class FakeMemory(MemoryBackend):
    """A memory backend without disk: notes in a dict, found by the words that they share.

    Args:
        notes: What it knows from the start, by URI.
        answer: Scripts some or all operations: failures, delays, hits.
        clock: Tells the time, by which notes expire; it must have a zone.

    Example:
        >>> memory = FakeMemory({"memory://user/memories/a": "tea, not coffee"})
        >>> with memory.open() as store:
        ...     store.dispatch(MemoryOpFind("coffee")).hits[0].uri
        'memory://user/memories/a'
    """

    name = "fake"

    def __init__(
        self,
        notes: Mapping[str, str] | None = None,
        *,
        answer: MemoryAnswer | None = None,
        clock: Callable[[], datetime] = _now,
    ) -> None:
        self.notes: dict[str, str] = dict(notes or {})
        """Every note by its URI."""
        self.ops: list[MemoryOp] = []
        """Every operation so far, in order."""
        self._metadata: dict[str, Metadata] = {}
        self._archives: dict[str, str] = {}
        """The URI of its transcript, by run."""
        self._answer = answer
        self._clock = clock
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
            supports_forget=True,
        )

    @classmethod
    def supported_ops(cls) -> frozenset[type[MemoryOp]]:
        return frozenset(cls._HANDLERS)

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
        now = self._clock().timestamp()
        self._drop([place for place, each in self._metadata.items() if each.is_expired(now)])
        wrong = _wrong_uri(op)
        if wrong is not None:
            return res.MemoryExecutionFailure("invalid_uri", f"{wrong!r} is no place in a memory")
        handler = self._HANDLERS.get(type(op))
        if handler is None:
            raise UnsupportedMemoryOp(type(op), self.name)
        try:
            return handler(self, op)
        except OperationFailed as exc:
            return exc.failure

    def _write(self, op: ops.MemoryOpWrite) -> MemoryResult:
        choices = [uri.to_public_uri(each) for each in notes.places(op)]
        free = (each for each in choices if self.notes.get(each, op.content) == op.content)
        place = next(free, choices[-1])
        is_same = self.notes.get(place) == op.content
        try:
            new = Metadata.from_write(op.metadata or {}, now=self._clock().timestamp())
        except ValueError as exc:
            raise OperationFailed("unsupported", f"the metadata cannot be kept: {exc}") from exc
        self.notes[place] = op.content
        self._metadata[place] = self._metadata_of(place).union(new) if is_same else new
        where = op.uri if place == choices[0] else place
        return res.MemoryWriteResult(where, len(op.content.encode()))

    def _metadata_of(self, place: str) -> Metadata:
        return self._metadata.get(place, NO_METADATA)

    def _read(self, op: ops.MemoryOpRead) -> MemoryResult:
        place = uri.to_public_uri(op.uri)
        text = self.notes.get(place)
        if text is None:
            raise OperationFailed("not_found", f"there is no note at {op.uri!r}")
        about = self._metadata_of(place)
        found = (op.uri, text.encode(), op.level, about.sources, about.expires_at)
        return decoded(op, res.MemoryReadResult(*found))

    def _list(self, op: ops.MemoryOpList | ops.MemoryOpTree) -> MemoryResult:
        depth = op.depth if isinstance(op, ops.MemoryOpTree) else 0
        return res.MemoryListResult(tuple(self._entries(op.uri, depth)))

    def _entries(self, directory: str, depth: int) -> Iterator[res.MemoryEntry]:
        above = _above(directory)
        below = [note.removeprefix(above) for note in self.notes if note.startswith(above)]
        for name in sorted({path.partition("/")[0] for path in below}):
            if name in below:
                size = len(self.notes[above + name].encode())
                yield res.MemoryEntry(name, above + name, is_dir=False, size=size)
            if any(path.startswith(name + "/") for path in below):
                yield res.MemoryEntry(name, above + name, is_dir=True)
                if depth > 0:
                    yield from self._entries(above + name, depth - 1)

    def _find(self, op: ops.MemoryOpFind | ops.MemoryOpSearch) -> MemoryResult:
        wanted = set(op.query.casefold().split())
        where = uri.to_public_uri(op.target_uri or uri.MEMORY_URI_ROOT)
        hits = [
            res.MemoryHit(each, float(len(wanted & set(text.casefold().split()))), text)
            for each, text in self.notes.items()
            if each == where or each.startswith(_above(where))
        ]
        found = sorted((hit for hit in hits if hit.score), key=lambda hit: (-hit.score, hit.uri))
        return res.MemoryFindResult(tuple(found[: max(0, op.top_k)]))

    def _commit(self, op: ops.MemoryOpCommit) -> MemoryResult:
        place = f"{_session_uri(op.session_id)}/commits/{len(self.ops)}"
        if op.run is not None:
            place = self._archives.setdefault(op.run, place)
        self.notes.setdefault(place, "\n".join(str(message) for message in op.messages))
        return res.MemoryCommitResult(None, place, 0 if op.wait else -1)

    def _forget(self, op: ops.MemoryOpForget) -> MemoryResult:
        if op.uri is None:
            return self._forget_session(str(op.session_id))
        place = uri.to_public_uri(op.uri)
        below = [note for note in self.notes if note.startswith(_above(place))]
        if place not in self.notes and not below:
            raise OperationFailed("not_found", f"there is nothing at {place!r}")
        if place not in self.notes and not op.recursive:
            text = f"{place!r} is a directory; recursive=True forgets all that is below it"
            raise OperationFailed("unsupported", text)
        return self._drop([place, *(below if op.recursive else ())])

    def _forget_session(self, session_id: str) -> MemoryResult:
        gone = [each for each in self.notes if each.startswith(_above(_session_uri(session_id)))]
        for place, about in list(self._metadata.items()):
            if about.comes_from(session_id):
                rest = about.without(session_id)
                self._metadata[place] = rest or about
                if rest is None:
                    gone.append(place)
        return self._drop(gone)

    def _drop(self, places: list[str]) -> MemoryResult:
        found = sorted(place for place in places if place in self.notes)
        for place in found:
            del self.notes[place]
            self._metadata.pop(place, None)
        return res.MemoryForgetResult(tuple(found))

    _HANDLERS: ClassVar[Mapping[type[MemoryOp], Callable[[Any, Any], MemoryResult]]] = {
        ops.MemoryOpWrite: _write,
        ops.MemoryOpRead: _read,
        ops.MemoryOpList: _list,
        ops.MemoryOpTree: _list,
        ops.MemoryOpFind: _find,
        ops.MemoryOpSearch: _find,
        ops.MemoryOpCommit: _commit,
        ops.MemoryOpForget: _forget,
    }


def _wrong_uri(op: MemoryOp) -> str | None:
    """Return what an operation names that is no place in a memory, None where all is well."""
    named, may_be_root = None, False
    match op:
        case ops.MemoryOpWrite() | ops.MemoryOpRead():
            named = op.uri
        case ops.MemoryOpForget():
            named = _session_uri(str(op.session_id)) if op.uri is None else op.uri
        case ops.MemoryOpList() | ops.MemoryOpTree():
            named, may_be_root = op.uri, True
        case ops.MemoryOpFind() | ops.MemoryOpSearch():
            named, may_be_root = op.target_uri, True
        case ops.MemoryOpCommit():
            is_plain = "/" not in op.session_id and uri.names_place(_session_uri(op.session_id))
            return None if is_plain else op.session_id
        case _:
            pass
    if named is None or uri.names_place(named) or (may_be_root and uri.is_memory_root(named)):
        return None
    return named


def _session_uri(session_id: str) -> str:
    return f"memory://session/{session_id}"


def _above(place: str) -> str:
    return uri.MEMORY_URI_PREFIX if uri.is_memory_root(place) else uri.to_public_uri(place) + "/"
