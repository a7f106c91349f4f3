"""A memory whose notes are rows of one SQLite database; written against `rath.memory` alone."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import cast
from uuid import uuid4

from rath.config import resolve_config_dir
from rath.memory import (
    MemoryBackend,
    MemoryCapabilities,
    MemoryCommitResult,
    MemoryEntry,
    MemoryExecutionFailure,
    MemoryFindResult,
    MemoryForgetResult,
    MemoryHit,
    MemoryListResult,
    MemoryOp,
    MemoryOpCommit,
    MemoryOpFind,
    MemoryOpForget,
    MemoryOpList,
    MemoryOpRead,
    MemoryOpSearch,
    MemoryOpTree,
    MemoryOpWrite,
    MemoryReadResult,
    MemoryResult,
    MemoryStore,
    MemoryStoreSpec,
    MemoryWriteResult,
    ScopeModel,
    UnsupportedMemoryOp,
)
from rath.memory.notes import EXPIRES_AT, SESSION_ID, places
from rath.memory.uri import MEMORY_URI_PREFIX, is_memory_root, names_place, to_public_uri

__all__ = ["BlockingShelfMemory", "ShelfMemory"]

_ShelfOp = (
    MemoryOpWrite
    | MemoryOpRead
    | MemoryOpList
    | MemoryOpTree
    | MemoryOpFind
    | MemoryOpSearch
    | MemoryOpCommit
    | MemoryOpForget
)

_OPERATIONS: frozenset[type[MemoryOp]] = frozenset(_ShelfOp.__args__)

_SCHEMA = """
PRAGMA journal_mode = WAL;
CREATE TABLE IF NOT EXISTS note (
    uri TEXT PRIMARY KEY, text TEXT NOT NULL, expires_at REAL, is_free INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS source (uri TEXT, session TEXT, PRIMARY KEY (uri, session));
"""


class _Refused(Exception):
    """An operation cannot be done; it carries the answer."""

    def __init__(self, failure: MemoryExecutionFailure) -> None:
        self.failure = failure
        super().__init__(failure.message)


@dataclass(frozen=True, slots=True)
class Shelf:
    """An open store."""

    handle: str
    """Path of the database."""

    def run(self, op: MemoryOp) -> MemoryResult:
        """Run one operation in a transaction of its own; blocks."""
        assert isinstance(op, _ShelfOp)
        # The runtime may ask from several threads: each operation has its own connection.
        with closing(sqlite3.connect(self.handle, timeout=30, isolation_level=None)) as database:
            database.execute("PRAGMA synchronous = NORMAL")
            database.execute("BEGIN IMMEDIATE")
            try:
                _forget_expired(database)
                result = _answer(database, op)
            except _Refused as exc:
                database.execute("ROLLBACK")
                return exc.failure
            database.execute("COMMIT")
            return result


class ShelfMemory(MemoryBackend):
    """Keeps notes in `options.path`, or in the home; each namespace is a database of its own."""

    name = "shelf"

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
            supports_namespaces=True,
        )

    @classmethod
    def supported_ops(cls) -> frozenset[type[MemoryOp]]:
        return _OPERATIONS

    async def aopen(self, spec: MemoryStoreSpec | None) -> Shelf:
        return await asyncio.to_thread(_shelf_of, spec or MemoryStoreSpec())

    async def aclose(self, native: Shelf) -> None:
        """Do nothing: a shelf holds nothing open between two operations."""

    async def adispatch(self, native: Shelf, op: MemoryOp) -> MemoryResult:
        if type(op) not in _OPERATIONS:
            raise UnsupportedMemoryOp(type(op), self.name)
        return await asyncio.to_thread(native.run, op)


class BlockingShelfMemory(MemoryBackend):
    """The same in the form that OpenRath 1.3 asked for: methods that block, stores made by hand."""

    name = "blocking-shelf"

    def __init__(self) -> None:
        self._shelves: dict[MemoryStore, Shelf] = {}
        self._lock = threading.Lock()

    @classmethod
    def is_available(cls) -> bool:
        return True

    @classmethod
    def capabilities(cls) -> MemoryCapabilities:
        return ShelfMemory.capabilities()

    @classmethod
    def supported_ops(cls) -> frozenset[type[MemoryOp]]:
        return _OPERATIONS

    def store_count(self) -> int:
        return len(self._shelves)

    def open(self, spec: MemoryStoreSpec | None = None) -> MemoryStore:
        shelf = _shelf_of(spec or MemoryStoreSpec())
        store = MemoryStore(backend=self, handle=shelf.handle, spec=spec)
        with self._lock:
            self._shelves[store] = shelf
        return store

    def close(self, store: MemoryStore) -> None:
        if store.closed:
            return
        store.closed = True
        with self._lock:
            self._shelves.pop(store, None)

    def dispatch(self, store: MemoryStore, op: MemoryOp) -> MemoryResult:
        if store.closed:
            return MemoryExecutionFailure("store_closed", f"{store.handle} is closed")
        if type(op) not in _OPERATIONS:
            raise UnsupportedMemoryOp(type(op), self.name)
        return self._shelves[store].run(op)


def _shelf_of(spec: MemoryStoreSpec) -> Shelf:
    """Return the shelf that a spec names; makes it where there is none."""
    given = (spec.options or {}).get("path")
    directory = Path(given) if given is not None else resolve_config_dir() / "shelves"
    directory.mkdir(parents=True, exist_ok=True)
    name = "shelf" if spec.namespace is None else f"shelf-{spec.namespace.encode().hex()}"
    path = directory / f"{name}.sqlite3"
    with closing(sqlite3.connect(path, timeout=30)) as database:
        database.executescript(_SCHEMA)
    return Shelf(str(path))


def _answer(database: sqlite3.Connection, op: _ShelfOp) -> MemoryResult:
    match op:
        case MemoryOpWrite():
            return _write(database, op)
        case MemoryOpRead():
            return _read(database, op)
        case MemoryOpList(uri):
            return MemoryListResult(tuple(_entries(database, _checked(uri), 0)))
        case MemoryOpTree(uri, depth):
            return MemoryListResult(tuple(_entries(database, _checked(uri), depth)))
        case MemoryOpFind() | MemoryOpSearch():
            return _find(database, op)
        case MemoryOpCommit():
            return _commit(database, op)
        case MemoryOpForget(uri):
            if uri is None:
                return _forget_session(database, str(op.session_id))
            return _forget(database, _checked(uri), is_recursive=op.recursive)


def _write(database: sqlite3.Connection, op: MemoryOpWrite) -> MemoryResult:
    _checked(op.uri)
    metadata = op.metadata or {}
    until, session = metadata.get(EXPIRES_AT), metadata.get(SESSION_ID)
    expires_at = None if until is None else datetime.fromisoformat(until).timestamp()
    *others, last = [to_public_uri(uri) for uri in places(op)]
    free = (uri for uri in others if _text(database, uri) in {None, op.content})
    uri = next(free, last)
    is_free = session is None
    if _text(database, uri) == op.content:
        sql = "SELECT is_free, expires_at FROM note WHERE uri = ?"
        was_free, until_then = cast(
            "tuple[int, float | None]", database.execute(sql, (uri,)).fetchone()
        )
        is_free = is_free or bool(was_free)
        if until_then is None or expires_at is None:
            expires_at = None
        else:
            expires_at = max(until_then, expires_at)
    else:
        database.execute("DELETE FROM source WHERE uri = ?", (uri,))
    row = (uri, op.content, expires_at, is_free)
    database.execute("INSERT OR REPLACE INTO note VALUES (?, ?, ?, ?)", row)
    if session is not None:
        database.execute("INSERT OR IGNORE INTO source VALUES (?, ?)", (uri, session))
    is_first = uri == to_public_uri(op.uri)
    return MemoryWriteResult(op.uri if is_first else uri, len(op.content.encode()))


def _read(database: sqlite3.Connection, op: MemoryOpRead) -> MemoryResult:
    text = _text(database, _checked(op.uri))
    if text is None:
        raise _Refused(MemoryExecutionFailure("not_found", f"no note at {op.uri!r}"))
    return MemoryReadResult(op.uri, text.encode() if op.encoding is None else text, op.level)


def _entries(database: sqlite3.Connection, uri: str, depth: int) -> Iterator[MemoryEntry]:
    above = _above(uri)
    sizes = {path.removeprefix(above): len(text.encode()) for path, text in _below(database, uri)}
    for name in sorted({path.partition("/")[0] for path in sizes}):
        if name in sizes:
            yield MemoryEntry(name, above + name, is_dir=False, size=sizes[name])
        if any(path.startswith(name + "/") for path in sizes):
            yield MemoryEntry(name, above + name, is_dir=True)
            if depth > 0:
                yield from _entries(database, above + name, depth - 1)


def _find(database: sqlite3.Connection, op: MemoryOpFind | MemoryOpSearch) -> MemoryResult:
    target = MEMORY_URI_PREFIX if op.target_uri is None else _checked(op.target_uri)
    wanted = set(op.query.casefold().split())
    hits: list[MemoryHit] = []
    for uri, text in _below(database, target):
        n_shared = len(wanted & set(text.casefold().split()))
        if n_shared:
            hits.append(MemoryHit(uri, float(n_shared), text[:200]))
    hits.sort(key=lambda hit: (-hit.score, hit.uri))
    return MemoryFindResult(tuple(hits[: max(0, op.top_k)]))


def _commit(database: sqlite3.Connection, op: MemoryOpCommit) -> MemoryResult:
    session = _session_uri(op.session_id)
    uri = f"{session}/commits/{time.time_ns()}-{uuid4().hex[:4]}"
    said = "\n".join(str(message) for message in op.messages)
    database.execute("INSERT INTO note VALUES (?, ?, NULL, 1)", (uri, said))
    return MemoryCommitResult(None, uri, 0)


def _forget(database: sqlite3.Connection, uri: str, *, is_recursive: bool) -> MemoryResult:
    is_note = _text(database, uri) is not None
    below = [path for path, _ in _below(database, uri)]
    if not is_note and not below:
        raise _Refused(MemoryExecutionFailure("not_found", f"nothing at {uri!r}"))
    if not is_note and not is_recursive:
        text = f"{uri!r} is a directory; recursive=True forgets all that is below it"
        raise _Refused(MemoryExecutionFailure("unsupported", text))
    return _drop(database, [*([uri] if is_note else ()), *(below if is_recursive else ())])


def _forget_session(database: sqlite3.Connection, session: str) -> MemoryResult:
    gone = [path for path, _ in _below(database, _session_uri(session))]
    database.execute("DELETE FROM source WHERE session = ?", (session,))
    sql = "SELECT uri FROM note WHERE NOT is_free AND uri NOT IN (SELECT uri FROM source)"
    return _drop(database, [*gone, *(uri for (uri,) in database.execute(sql).fetchall())])


def _forget_expired(database: sqlite3.Connection) -> None:
    sql = "SELECT uri FROM note WHERE expires_at <= ?"
    _drop(database, [uri for (uri,) in database.execute(sql, (time.time(),)).fetchall()])


def _drop(database: sqlite3.Connection, uris: list[str]) -> MemoryForgetResult:
    for table in ("note", "source"):
        database.executemany(f"DELETE FROM {table} WHERE uri = ?", [(uri,) for uri in uris])
    return MemoryForgetResult(tuple(sorted(uris)))


def _text(database: sqlite3.Connection, uri: str) -> str | None:
    row = database.execute("SELECT text FROM note WHERE uri = ?", (uri,)).fetchone()
    return None if row is None else str(row[0])


def _below(database: sqlite3.Connection, uri: str) -> list[tuple[str, str]]:
    above = _above(uri)
    sql = "SELECT uri, text FROM note WHERE substr(uri, 1, ?) = ? ORDER BY uri"
    return database.execute(sql, (len(above), above)).fetchall()


def _above(uri: str) -> str:
    return MEMORY_URI_PREFIX if uri == MEMORY_URI_PREFIX else f"{uri}/"


def _checked(uri: str) -> str:
    """Return a URI in its public form, a root as the prefix of all."""
    if is_memory_root(uri):
        return MEMORY_URI_PREFIX
    if not names_place(uri):
        raise _Refused(MemoryExecutionFailure("invalid_uri", f"{uri!r} is no place in a memory"))
    return to_public_uri(uri)


def _session_uri(session: str) -> str:
    uri = f"{MEMORY_URI_PREFIX}session/{session}"
    if "/" in session or not names_place(uri):
        raise _Refused(MemoryExecutionFailure("invalid_uri", f"{session!r} names no session"))
    return uri
