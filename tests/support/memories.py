"""Local memory stores in tests: a clock to turn, operations in few words, what is left in files."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rath import memory
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
def opened(
    root: Path, clock: Clock | None = None, **options: object
) -> Generator[memory.MemoryStore]:
    """A store, which is closed in the end; on a clock of its own where one is given."""
    backend = LocalMemoryBackend() if clock is None else LocalMemoryBackend(clock=clock)
    store = backend.open(memory.MemoryStoreSpec(options={"path": str(root), **options}))
    try:
        yield store
    finally:
        backend.close(store)


def failed(store: memory.MemoryStore, op: memory.MemoryOp) -> str:
    """The kind of failure that an operation gives."""
    result = store.dispatch(op)
    assert isinstance(result, memory.MemoryExecutionFailure), result
    return result.kind


def write(
    store: memory.MemoryStore,
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
    result = store.dispatch(memory.MemoryOpWrite(uri, text, metadata=metadata))
    assert isinstance(result, memory.MemoryWriteResult), result


def forget(
    store: memory.MemoryStore,
    uri: str | None = None,
    *,
    session: str | None = None,
    recursive: bool = False,
) -> tuple[str, ...] | str:
    """What was forgotten, or the kind of the failure."""
    result = store.dispatch(memory.MemoryOpForget(uri, session, recursive))
    if isinstance(result, memory.MemoryExecutionFailure):
        return result.kind
    assert isinstance(result, memory.MemoryForgetResult)
    return result.uris


def read(store: memory.MemoryStore, uri: str) -> memory.MemoryReadResult | None:
    """A note, None where none is found."""
    result = store.dispatch(memory.MemoryOpRead(uri))
    if isinstance(result, memory.MemoryReadResult):
        return result
    assert isinstance(result, memory.MemoryExecutionFailure)
    assert result.kind == "not_found", result
    return None


def text_at(store: memory.MemoryStore, uri: str) -> str | bytes:
    """The text of a note, which must be there."""
    result = read(store, uri)
    assert result is not None, uri
    return result.data


def hits(store: memory.MemoryStore, query: str, **fields: Any) -> tuple[memory.MemoryHit, ...]:
    """What a query finds."""
    result = store.dispatch(memory.MemoryOpFind(query, **fields))
    assert isinstance(result, memory.MemoryFindResult), result
    return result.hits


def found(store: memory.MemoryStore, query: str, top_k: int = 50, **fields: Any) -> list[str]:
    """The URIs that a query finds."""
    return [hit.uri for hit in hits(store, query, top_k=top_k, **fields)]


def listed(store: memory.MemoryStore, uri: str = "memory://user") -> list[str]:
    """The notes that a tree shows."""
    result = store.dispatch(memory.MemoryOpTree(uri, 9))
    assert isinstance(result, memory.MemoryListResult), result
    return [entry.uri for entry in result.entries if not entry.is_dir]


def files_with(root: Path, word: str) -> list[str]:
    """The files of a store that have a word in their bytes or their names."""
    return [
        path.relative_to(root).as_posix()
        for path in root.rglob("*")
        if word in path.name or (path.is_file() and word.encode() in path.read_bytes())
    ]
