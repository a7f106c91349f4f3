"""Local memory stores in tests: a clock to turn, operations in few words, what is left in files."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rath.memory import (
    MemoryExecutionFailure,
    MemoryFindResult,
    MemoryForgetResult,
    MemoryHit,
    MemoryListResult,
    MemoryOp,
    MemoryOpFind,
    MemoryOpForget,
    MemoryOpRead,
    MemoryOpTree,
    MemoryOpWrite,
    MemoryReadResult,
    MemoryStore,
    MemoryStoreSpec,
    MemoryWriteResult,
)
from rath.memory.adapters.local import LocalMemoryBackend
from rath.memory.notes import EXPIRES_AT, ROWS, SESSION_ID

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


@dataclass
class Clock:
    """Stands still until it is turned."""

    now: datetime = NOON

    def __call__(self) -> datetime:
        return self.now

    def turn(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def after(self, seconds: float) -> str:
        """The time in so many seconds, as metadata say it."""
        return (self.now + timedelta(seconds=seconds)).isoformat()


@contextmanager
def opened(root: Path, clock: Clock | None = None, **options: object) -> Generator[MemoryStore]:
    """A store, which is closed in the end; on a clock of its own where one is given."""
    backend = LocalMemoryBackend() if clock is None else LocalMemoryBackend(clock=clock)
    store = backend.open(MemoryStoreSpec(options={"path": str(root), **options}))
    try:
        yield store
    finally:
        backend.close(store)


def failed(store: MemoryStore, op: MemoryOp) -> str:
    """The kind of failure that an operation gives."""
    result = store.dispatch(op)
    assert isinstance(result, MemoryExecutionFailure), result
    return result.kind


def write(
    store: MemoryStore,
    uri: str,
    text: str,
    *,
    until: str | None = None,
    session: str | None = None,
    rows: Sequence[int] = (),
) -> None:
    """Write a note and what is told about it."""
    metadata: dict[str, str] = {}
    if until is not None:
        metadata[EXPIRES_AT] = until
    if session is not None:
        metadata[SESSION_ID] = session
        metadata[ROWS] = ",".join(map(str, rows))
    result = store.dispatch(MemoryOpWrite(uri, text, metadata=metadata))
    assert isinstance(result, MemoryWriteResult), result


def forget(
    store: MemoryStore,
    uri: str | None = None,
    *,
    session: str | None = None,
    recursive: bool = False,
) -> tuple[str, ...] | str:
    """What was forgotten, or the kind of the failure."""
    result = store.dispatch(MemoryOpForget(uri, session, recursive))
    if isinstance(result, MemoryExecutionFailure):
        return result.kind
    assert isinstance(result, MemoryForgetResult)
    return result.uris


def read(store: MemoryStore, uri: str) -> MemoryReadResult | None:
    """A note, None where none is found."""
    result = store.dispatch(MemoryOpRead(uri))
    if isinstance(result, MemoryReadResult):
        return result
    assert isinstance(result, MemoryExecutionFailure)
    assert result.kind == "not_found", result
    return None


def text_at(store: MemoryStore, uri: str) -> str | bytes:
    """The text of a note, which must be there."""
    result = read(store, uri)
    assert result is not None, uri
    return result.data


def hits(store: MemoryStore, query: str, **fields: Any) -> tuple[MemoryHit, ...]:
    """What a query finds."""
    result = store.dispatch(MemoryOpFind(query, **fields))
    assert isinstance(result, MemoryFindResult), result
    return result.hits


def found(store: MemoryStore, query: str, top_k: int = 50, **fields: Any) -> list[str]:
    """The URIs that a query finds."""
    return [hit.uri for hit in hits(store, query, top_k=top_k, **fields)]


def listed(store: MemoryStore, uri: str = "memory://user") -> list[str]:
    """The notes that a tree shows."""
    result = store.dispatch(MemoryOpTree(uri, 9))
    assert isinstance(result, MemoryListResult), result
    return [entry.uri for entry in result.entries if not entry.is_dir]


def files_with(root: Path, word: str) -> list[str]:
    """The files of a store that have a word in their bytes or their names."""
    return [
        path.relative_to(root).as_posix()
        for path in root.rglob("*")
        if word in path.name or (path.is_file() and word.encode() in path.read_bytes())
    ]
