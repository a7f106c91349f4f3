"""Sandboxes whose files are rows of one SQLite database; written against `rath.backend` alone."""

from __future__ import annotations

import asyncio
import posixpath
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rath.backend import (
    Backend,
    BackendSandbox,
    BackendSandboxSpec,
    BackendTool,
    BackendToolFilesExists,
    BackendToolFilesList,
    BackendToolFilesRead,
    BackendToolFilesWrite,
    Blob,
    Capabilities,
    FileContent,
    FileEffect,
    FileEntries,
    FileEntry,
    FileWriteResult,
    IsolationLevel,
    SandboxIdentity,
    ToolExecutionFailure,
    ToolResult,
    note_effect,
)

__all__ = ["SqliteBackend"]

_ROOT = "/files"
_FilesTool = (
    BackendToolFilesRead | BackendToolFilesWrite | BackendToolFilesList | BackendToolFilesExists
)


@dataclass(frozen=True, slots=True)
class Database:
    """An open sandbox."""

    handle: str
    """Path of the database."""

    is_owned: bool


class SqliteBackend(Backend):
    """Keeps files in a SQLite database: `working_dir` holds it, or a new directory does."""

    name = "sqlite"

    def __init__(self) -> None:
        self._open: set[Database] = set()

    @classmethod
    def capabilities(cls) -> Capabilities:
        return Capabilities(IsolationLevel.PROCESS, False, True, False)

    @classmethod
    def supported_calls(cls) -> frozenset[type[BackendTool]]:
        return frozenset(_FilesTool.__args__)

    def sandbox_count(self) -> int:
        return len(self._open)

    def identity(self, sandbox: BackendSandbox) -> SandboxIdentity:
        return SandboxIdentity(self.name, sandbox.handle, "process", _ROOT, _ROOT)

    async def aopen(self, spec: BackendSandboxSpec | None) -> Database:
        given = spec.working_dir if spec is not None else None
        directory = given or tempfile.mkdtemp(prefix="rath-sqlite-")
        opened = Database(str(Path(directory, "files.sqlite3")), given is None)
        await asyncio.to_thread(_create, opened)
        self._open.add(opened)
        return opened

    async def aclose(self, native: Database) -> None:
        self._open.discard(native)
        if native.is_owned:
            await asyncio.to_thread(_remove, native)

    async def adispatch(self, native: Database, op: BackendTool) -> ToolResult | bool:
        assert isinstance(op, _FilesTool)
        path = posixpath.normpath(posixpath.join(_ROOT, op.path))
        if path != _ROOT and not path.startswith(_ROOT + "/"):
            return ToolExecutionFailure("path_outside_workspace", f"{op.path!r} leads out")
        return await asyncio.to_thread(_run, native, op, path)


def _create(database: Database) -> None:
    with closing(sqlite3.connect(database.handle)) as files, files:
        files.execute("CREATE TABLE IF NOT EXISTS file (path TEXT PRIMARY KEY, data BLOB)")


def _remove(database: Database) -> None:
    Path(database.handle).unlink()
    Path(database.handle).parent.rmdir()


def _run(database: Database, op: _FilesTool, path: str) -> ToolResult | bool:
    with closing(sqlite3.connect(database.handle)) as files, files:
        match op:
            case BackendToolFilesWrite():
                data = op.data.encode() if isinstance(op.data, str) else op.data
                before = _content(files, path)
                files.execute("INSERT OR REPLACE INTO file VALUES (?, ?)", (path, data))
                _tell(path, before, data)
                return FileWriteResult(len(data))
            case BackendToolFilesRead():
                return _read(files, op, path)
            case BackendToolFilesList():
                return FileEntries(tuple(_entries(files, path)))
            case BackendToolFilesExists():
                return _content(files, path) is not None or any(_entries(files, path))


def _tell(path: str, before: bytes | None, after: bytes) -> None:
    if before == after:
        return
    blob = None if before is None else Blob.from_bytes(before)
    kind: Literal["created", "changed"] = "created" if before is None else "changed"
    note_effect(FileEffect(path.removeprefix(_ROOT + "/"), kind, blob, Blob.from_bytes(after)))


def _read(files: sqlite3.Connection, op: BackendToolFilesRead, path: str) -> ToolResult:
    data = _content(files, path)
    if data is None:
        return ToolExecutionFailure("file_not_found", f"no file at {op.path!r}", op.path)
    try:
        return FileContent(data if op.encoding is None else data.decode(op.encoding))
    except UnicodeDecodeError as exc:
        return ToolExecutionFailure("decode_error", str(exc), op.encoding)


def _content(files: sqlite3.Connection, path: str) -> bytes | None:
    row = files.execute("SELECT data FROM file WHERE path = ?", (path,)).fetchone()
    return None if row is None else bytes(row[0])


def _entries(files: sqlite3.Connection, directory: str) -> Iterator[FileEntry]:
    above = directory + "/"
    paths = [str(path) for (path,) in files.execute("SELECT path FROM file")]
    below = [path.removeprefix(above) for path in paths if path.startswith(above)]
    for name in sorted({path.partition("/")[0] for path in below}):
        yield FileEntry(name, above + name, name not in below)
