"""Writing, reading and listing the notes of a local store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from rath._core.files import atomic_write_bytes
from rath._core.text import valid_unicode
from rath.memory.adapters.local.layout import (
    NOTE_SUFFIX,
    child_uri,
    is_hidden,
    locate,
    note_path,
    relative_path,
)
from rath.memory.adapters.local.store import LocalStore
from rath.memory.notes import places
from rath.memory.op_types import MemoryOpList, MemoryOpRead, MemoryOpTree, MemoryOpWrite
from rath.memory.results import (
    MemoryEntry,
    MemoryExecutionFailure,
    MemoryListResult,
    MemoryReadResult,
    MemoryResult,
    MemoryWriteResult,
)

_WRITE_MODES = ("replace", "write")
_VECTOR_SUFFIX = ".vec"


def write(store: LocalStore, op: MemoryOpWrite) -> MemoryResult:
    """Store a note; one that stands there already with this very text is left as it is."""
    if op.mode not in _WRITE_MODES:
        return MemoryExecutionFailure(
            "unsupported", f"write mode {op.mode!r} is not known; use one of {_WRITE_MODES}"
        )
    data = valid_unicode(op.content).encode()
    *others, last = places(op)
    uri = next((uri for uri in others if _write_at(store, uri, data, may_replace=False)), last)
    if uri == last:
        _write_at(store, uri, data, may_replace=True)
    return MemoryWriteResult(uri, len(data))


def read(store: LocalStore, op: MemoryOpRead) -> MemoryResult:
    """Read a note, or any other file of the store by its whole name."""
    relative = relative_path(op.uri)
    for candidate in dict.fromkeys((note_path(relative), relative)):
        data = _bytes_at(locate(store.root, candidate))
        if data is None:
            continue
        if op.encoding is None:
            return MemoryReadResult(op.uri, data, op.level)
        return _decoded(op, data, op.encoding)
    return MemoryExecutionFailure("not_found", f"there is no note at {op.uri!r}")


def list_entries(store: LocalStore, op: MemoryOpList) -> MemoryResult:
    """List the direct children of a directory; one that is missing has none."""
    return MemoryListResult(tuple(_entries(store.root, op.uri, depth=0)))


def list_tree(store: LocalStore, op: MemoryOpTree) -> MemoryResult:
    """List what is below a directory, each directory before its children."""
    return MemoryListResult(tuple(_entries(store.root, op.uri, depth=op.depth)))


def _write_at(store: LocalStore, uri: str, data: bytes, *, may_replace: bool) -> bool:
    """Let `data` stand at a place, and return False where other content stands and stays."""
    relative = note_path(relative_path(uri))
    directory, _, name = relative.rpartition("/")
    path = locate(store.root, relative)

    def put() -> bool:
        old = _bytes_at(path)
        if old is not None and old != data and not may_replace:
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write_bytes(path, data)
        # Vectors that an older version made of the old text.
        path.with_suffix(_VECTOR_SUFFIX).unlink(missing_ok=True)
        return True

    return _bytes_at(path) == data or store.catalog.change(directory, name, put)


def _bytes_at(path: Path) -> bytes | None:
    with suppress(FileNotFoundError, NotADirectoryError):
        return path.read_bytes() if path.is_file() else None
    return None


def _decoded(op: MemoryOpRead, data: bytes, encoding: str) -> MemoryResult:
    try:
        return MemoryReadResult(op.uri, data.decode(encoding), op.level)
    except UnicodeDecodeError as exc:
        return MemoryExecutionFailure(
            "internal", f"{op.uri!r} is not {encoding}: {exc}; encoding=None gives its bytes"
        )
    except LookupError:
        return MemoryExecutionFailure("unsupported", f"there is no encoding {encoding!r}")


def _entries(root: Path, uri: str, *, depth: int) -> Iterator[MemoryEntry]:
    try:
        with os.scandir(locate(root, relative_path(uri))) as scan:
            found = sorted((each for each in scan if not is_hidden(each.name)), key=_name)
    except (FileNotFoundError, NotADirectoryError):
        return
    for each in found:
        if each.is_dir():
            below = child_uri(uri, each.name)
            yield MemoryEntry(each.name, below, is_dir=True)
            if depth > 0:
                yield from _entries(root, below, depth=depth - 1)
        else:
            name = each.name.removesuffix(NOTE_SUFFIX)
            with suppress(FileNotFoundError):
                size = each.stat().st_size
                yield MemoryEntry(name, child_uri(uri, name), is_dir=False, size=size)


def _name(entry: os.DirEntry[str]) -> str:
    return entry.name
