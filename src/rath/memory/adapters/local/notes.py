"""Writing, reading and listing the notes of a local store."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from rath._core.text import valid_unicode
from rath.memory.adapters.local.files.about import NOTHING_KNOWN, told_in
from rath.memory.adapters.local.files.about_file import told_about
from rath.memory.adapters.local.files.placing import NotWanted, put_note
from rath.memory.adapters.local.files.regular import MAX_FILE_BYTES, content_at
from rath.memory.adapters.local.layout import (
    NOTE_SUFFIX,
    TRANSCRIPT_NAME,
    InvalidUri,
    about_name,
    child_uri,
    is_archive,
    is_hidden,
    locate,
    note_path,
    relative_path,
)
from rath.memory.adapters.local.removal.expiry import is_expired
from rath.memory.adapters.local.removal.sweeping import sweep
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


def write(
    store: LocalStore, op: MemoryOpWrite, *, only_if: Callable[[], bool] | None = None
) -> MemoryResult:
    """Store a note; one that stands there already with this very text is left as it is.

    Args:
        store: The store.
        op: What to write.
        only_if: Asked while nobody else changes the store; False gives a failure of the kind
            "not_found", and nothing is written.
    """
    if op.mode not in _WRITE_MODES:
        return MemoryExecutionFailure(
            "unsupported", f"write mode {op.mode!r} is not known; use one of {_WRITE_MODES}"
        )
    relative = relative_path(op.uri)
    if relative.endswith(f"/{NOTE_SUFFIX}"):
        return MemoryExecutionFailure(
            "invalid_uri", f"{op.uri!r} has no name before {NOTE_SUFFIX}; expected one"
        )
    if "/" not in relative:
        return MemoryExecutionFailure(
            "invalid_uri", f"{op.uri!r} is a scope; a note has a name below it, as in {op.uri}/name"
        )
    data = valid_unicode(op.content).encode()
    if len(data) > MAX_FILE_BYTES:
        return MemoryExecutionFailure(
            "unsupported", f"a note of {len(data)} bytes; expected at most {MAX_FILE_BYTES}"
        )
    try:
        about = told_in(op.metadata or {}, now=store.expiry.now())
    except ValueError as exc:
        return MemoryExecutionFailure("unsupported", f"the metadata cannot be kept: {exc}")
    put = partial(put_note, store, data=data, wait=op.wait, about=about, only_if=only_if)
    *others, last = places(op)
    try:
        uri = next((uri for uri in others if put(uri=uri, may_replace=False)), last)
        if uri == last:
            put(uri=last, may_replace=True)
    except NotWanted:
        return MemoryExecutionFailure("not_found", "what the note was to be written for is gone")
    if store.expiry.is_due():
        sweep(store)
    return MemoryWriteResult(uri, len(data))


def read(store: LocalStore, op: MemoryOpRead) -> MemoryResult:
    """Read a note, any other file of the store by its whole name, or the messages of a commit."""
    relative = relative_path(op.uri)
    candidates = [note_path(relative), relative]
    if is_archive(relative):
        candidates.append(f"{relative}/{TRANSCRIPT_NAME}")
    for candidate in dict.fromkeys(candidates):
        path = locate(store.root, candidate)
        data = content_at(path)
        if data is None:
            continue
        about = told_about(path).about if candidate.endswith(NOTE_SUFFIX) else NOTHING_KNOWN
        if about.is_expired(store.expiry.now()):
            continue
        found = MemoryReadResult(op.uri, data, op.level, about.sources, about.expires_at)
        return found if op.encoding is None else _decoded(found, data, op.encoding)
    return MemoryExecutionFailure("not_found", f"there is no note at {op.uri!r}")


def list_entries(store: LocalStore, op: MemoryOpList) -> MemoryResult:
    """List the direct children of a directory; one that is missing has none."""
    return MemoryListResult(tuple(_entries(store, op.uri, depth=0)))


def list_tree(store: LocalStore, op: MemoryOpTree) -> MemoryResult:
    """List what is below a directory, each directory before its children."""
    return MemoryListResult(tuple(_entries(store, op.uri, depth=op.depth)))


def _decoded(found: MemoryReadResult, data: bytes, encoding: str) -> MemoryResult:
    try:
        return replace(found, data=data.decode(encoding))
    except UnicodeDecodeError as exc:
        return MemoryExecutionFailure(
            "internal", f"{found.uri!r} is not {encoding}: {exc}; encoding=None gives its bytes"
        )
    except LookupError:
        return MemoryExecutionFailure("unsupported", f"there is no encoding {encoding!r}")


def _entries(store: LocalStore, uri: str, *, depth: int) -> Iterator[MemoryEntry]:
    try:
        with os.scandir(locate(store.root, relative_path(uri))) as scan:
            names = {each.name: each for each in scan}
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in sorted(names):
        if is_hidden(name):
            continue
        # What only looks like a file, or vanishes meanwhile, hides no other.
        with suppress(OSError):
            entry = _entry(store, uri, names[name], is_told=about_name(name) in names)
            if entry is None:
                continue
            yield entry
            if entry.is_dir and depth > 0 and not names[name].is_symlink():
                yield from _entries(store, entry.uri, depth=depth - 1)


def _entry(
    store: LocalStore, uri: str, found: os.DirEntry[str], *, is_told: bool
) -> MemoryEntry | None:
    if found.is_symlink():
        try:
            locate(store.root, Path(found.path).relative_to(store.root).as_posix())
        except InvalidUri:
            return None
    if found.is_dir():
        return MemoryEntry(found.name, child_uri(uri, found.name), is_dir=True)
    if is_told and is_expired(Path(found.path), store.expiry.now()):
        return None
    name = found.name.removesuffix(NOTE_SUFFIX)
    return MemoryEntry(name, child_uri(uri, name), is_dir=False, size=found.stat().st_size)
