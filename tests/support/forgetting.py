"""A clock to turn, and what is left in the files of a store."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rath.memory import (
    MemoryExecutionFailure,
    MemoryFindResult,
    MemoryForgetResult,
    MemoryListResult,
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
def opened(root: Path, clock: Clock) -> Generator[MemoryStore]:
    """A store on a clock of its own."""
    backend = LocalMemoryBackend(clock=clock)
    store = backend.open(MemoryStoreSpec(options={"path": str(root)}))
    try:
        yield store
    finally:
        backend.close(store)


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


def found(store: MemoryStore, query: str) -> list[str]:
    """The URIs that a query finds."""
    result = store.dispatch(MemoryOpFind(query, top_k=50))
    assert isinstance(result, MemoryFindResult), result
    return [hit.uri for hit in result.hits]


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
