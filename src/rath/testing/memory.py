"""A memory in a dict."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeAlias, TypeVar

from rath.errors import UnsupportedMemoryOp
from rath.memory.abc import MemoryBackend, MemoryStoreSpec
from rath.memory.capabilities import MemoryCapabilities, ScopeModel
from rath.memory.notes import EXPIRES_AT, MODEL, ROWS, SESSION_ID, places
from rath.memory.op_types import (
    MemoryOp,
    MemoryOpCommit,
    MemoryOpFind,
    MemoryOpForget,
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
    MemoryForgetResult,
    MemoryHit,
    MemoryListResult,
    MemoryReadResult,
    MemoryResult,
    MemorySource,
    MemoryWriteResult,
)
from rath.memory.uri import (
    MEMORY_URI_PREFIX,
    MEMORY_URI_ROOT,
    is_memory_root,
    names_place,
    to_public_uri,
)

__all__ = ["FakeMemory", "FakeStore", "MemoryAnswer"]

MemoryAnswer: TypeAlias = Callable[[MemoryOp], MemoryResult | None]
"""Scripts what an operation gives; None lets it do what it does."""

OpT = TypeVar("OpT", bound=MemoryOp)


@dataclass(frozen=True, slots=True)
class FakeStore:
    """A store of `FakeMemory`; all of them share its notes."""

    handle: str


@dataclass(frozen=True, slots=True)
class _About:
    """What was told when a note was written."""

    expires_at: datetime | None = None
    sources: tuple[MemorySource, ...] = ()
    is_remembered: bool = True
    """It was also written without the name of a session, and so outlives all of them."""


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
        self.notes = dict(notes or {})
        """Every note by its URI."""
        self.ops: list[MemoryOp] = []
        """Every operation so far, in order."""
        self._about: dict[str, _About] = {}
        self._committed: dict[str, str] = {}
        """By run: where its transcript is."""
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
        return frozenset(
            {
                MemoryOpWrite,
                MemoryOpRead,
                MemoryOpList,
                MemoryOpTree,
                MemoryOpFind,
                MemoryOpSearch,
                MemoryOpCommit,
                MemoryOpForget,
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
        self._drop_expired()
        wrong = _wrong_uri(op)
        if wrong is not None:
            return _invalid(wrong)
        match op:
            case MemoryOpWrite():
                return self._write(op)
            case MemoryOpRead():
                return self._read(op)
            case MemoryOpList(uri):
                return MemoryListResult(tuple(self._entries(uri, 0)))
            case MemoryOpTree(uri, depth):
                return MemoryListResult(tuple(self._entries(uri, depth)))
            case MemoryOpFind() | MemoryOpSearch():
                return MemoryFindResult(tuple(self._hits(op)))
            case MemoryOpCommit():
                return self._commit(op)
            case MemoryOpForget(str(uri)):
                return self._forget(to_public_uri(uri), is_recursive=op.recursive)
            case MemoryOpForget(None, str(session_id)):
                return self._forget_session(session_id)
            case _:
                raise UnsupportedMemoryOp(type(op), self.name)

    def _write(self, op: MemoryOpWrite) -> MemoryResult:
        choices = [to_public_uri(uri) for uri in places(op)]
        uri = next((u for u in choices if self.notes.get(u, op.content) == op.content), choices[-1])
        is_same = self.notes.get(uri) == op.content
        try:
            about = _told(op.metadata or {}, self._about.get(uri, _About()) if is_same else None)
        except ValueError as exc:
            return MemoryExecutionFailure("unsupported", f"the metadata cannot be kept: {exc}")
        self.notes[uri] = op.content
        self._about[uri] = about
        return MemoryWriteResult(op.uri if uri == choices[0] else uri, len(op.content.encode()))

    def _read(self, op: MemoryOpRead) -> MemoryResult:
        uri = to_public_uri(op.uri)
        text = self.notes.get(uri)
        if text is None:
            return MemoryExecutionFailure("not_found", f"there is no note at {op.uri!r}")
        about = self._about.get(uri, _About())
        data = text.encode() if op.encoding is None else text
        until = None if about.expires_at is None else about.expires_at.timestamp()
        return MemoryReadResult(op.uri, data, op.level, about.sources, until)

    def _entries(self, uri: str, depth: int) -> Iterator[MemoryEntry]:
        above = _above(uri)
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
        where = to_public_uri(op.target_uri or MEMORY_URI_ROOT)
        hits = [
            MemoryHit(uri, float(len(wanted & set(text.casefold().split()))), text)
            for uri, text in self.notes.items()
            if uri == where or uri.startswith(_above(where))
        ]
        found = sorted((hit for hit in hits if hit.score), key=lambda hit: (-hit.score, hit.uri))
        return found[: max(0, op.top_k)]

    def _commit(self, op: MemoryOpCommit) -> MemoryResult:
        uri = f"{_session_uri(op.session_id)}/commits/{len(self.ops)}"
        if op.run is not None:
            uri = self._committed.setdefault(op.run, uri)
        self.notes.setdefault(uri, "\n".join(str(message) for message in op.messages))
        return MemoryCommitResult(None, uri, 0 if op.wait else -1)

    def _forget(self, uri: str, *, is_recursive: bool) -> MemoryResult:
        below = [note for note in self.notes if note.startswith(_above(uri))]
        if uri not in self.notes and not below:
            return MemoryExecutionFailure("not_found", f"there is nothing at {uri!r}")
        if uri not in self.notes and not is_recursive:
            text = f"{uri!r} is a directory; recursive=True forgets all that is below it"
            return MemoryExecutionFailure("unsupported", text)
        return self._drop([uri, *(below if is_recursive else ())])

    def _forget_session(self, session_id: str) -> MemoryResult:
        gone = [uri for uri in self.notes if uri.startswith(_above(_session_uri(session_id)))]
        for uri, about in list(self._about.items()):
            left = tuple(each for each in about.sources if each.session_id != session_id)
            if left != about.sources:
                self._about[uri] = _About(about.expires_at, left, about.is_remembered)
                if not left and not about.is_remembered:
                    gone.append(uri)
        return self._drop(gone)

    def _drop(self, uris: list[str]) -> MemoryForgetResult:
        there = sorted(uri for uri in uris if uri in self.notes)
        for uri in there:
            del self.notes[uri]
            self._about.pop(uri, None)
        return MemoryForgetResult(tuple(there))

    def _drop_expired(self) -> None:
        timed = [(uri, about.expires_at) for uri, about in self._about.items() if about.expires_at]
        if timed:
            now = self._clock()
            self._drop([uri for uri, expires_at in timed if expires_at <= now])


def _told(metadata: Mapping[str, str], before: _About | None) -> _About:
    """Return what is known of a note once it is written, over the same text where there was one."""
    until = metadata.get(EXPIRES_AT)
    expires_at = None if until is None else datetime.fromisoformat(until)
    if expires_at is not None and expires_at.tzinfo is None:
        raise ValueError(f"{EXPIRES_AT} {until!r} has no time zone")
    session_id = metadata.get(SESSION_ID)
    known = () if before is None else before.sources
    if session_id is not None:
        rows = tuple(int(row) for row in metadata.get(ROWS, "").split(",") if row)
        source = MemorySource(session_id, rows, metadata.get(MODEL))
        known = (*(each for each in known if each.session_id != session_id), source)
    was_remembered = before is not None and before.is_remembered
    if before is not None and expires_at is not None:
        # The longer time counts, and without one a note is kept for ever.
        expires_at = None if before.expires_at is None else max(before.expires_at, expires_at)
    return _About(expires_at, known, session_id is None or was_remembered)


def _wrong_uri(op: MemoryOp) -> str | None:
    """Return what an operation names that is no place in a memory, None where all is well."""
    match op:
        case MemoryOpWrite(uri) | MemoryOpRead(uri):
            return None if names_place(uri) else uri
        case MemoryOpForget(uri, session_id):
            named = _session_uri(str(session_id)) if uri is None else uri
            return None if names_place(named) else named
        case MemoryOpList(uri) | MemoryOpTree(uri):
            return None if is_memory_root(uri) or names_place(uri) else uri
        case MemoryOpFind(target_uri=str(uri)) | MemoryOpSearch(target_uri=str(uri)):
            return None if is_memory_root(uri) or names_place(uri) else uri
        case MemoryOpCommit(session_id):
            is_plain = "/" not in session_id and names_place(_session_uri(session_id))
            return None if is_plain else session_id
        case _:
            return None


def _session_uri(session_id: str) -> str:
    return f"memory://session/{session_id}"


def _above(uri: str) -> str:
    return MEMORY_URI_PREFIX if is_memory_root(uri) else to_public_uri(uri) + "/"


def _invalid(uri: str) -> MemoryExecutionFailure:
    return MemoryExecutionFailure("invalid_uri", f"{uri!r} is no place in a memory")
