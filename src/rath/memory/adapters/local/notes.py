"""Notes of a local store: write, read and list them, and take in files and web pages."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from hashlib import sha256
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from urllib import request as web
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit

from rath._core.files import atomic_write_bytes, sync_directory
from rath._core.text import valid_unicode
from rath.memory import results
from rath.memory.adapters.local import files, layout
from rath.memory.adapters.local.catalog import update_files
from rath.memory.adapters.local.forgetting import sweep
from rath.memory.adapters.local.index import IndexEntry, NoteIndex
from rath.memory.adapters.local.metadata import read_metadata, replacing_text, write_metadata
from rath.memory.adapters.local.store import LocalStore
from rath.memory.adapters.local.terms import index_terms
from rath.memory.driver import InvalidUri, OperationFailed, decoded, file_of
from rath.memory.notes import NO_METADATA, Metadata, places
from rath.memory.op_types import (
    MemoryOpList,
    MemoryOpRead,
    MemoryOpResource,
    MemoryOpTree,
    MemoryOpWrite,
)
from rath.memory.uri import to_public_uri

_WRITE_MODES = ("replace", "write")


def write(
    store: LocalStore, op: MemoryOpWrite, *, only_if: Callable[[], bool] | None = None
) -> results.MemoryResult:
    """Store a note; one that stands there already with this very text is left as it is.

    Args:
        store: The store.
        op: What to write.
        only_if: Asked while nobody else changes the store; False gives a failure of the kind
            "not_found", and nothing is written.
    """
    if op.mode not in _WRITE_MODES:
        raise OperationFailed(
            "unsupported",
            f"write mode {op.mode!r} is not known; use one of {', '.join(_WRITE_MODES)}",
        )
    relative = layout.relative_path(op.uri)
    if relative.endswith(f"/{layout.NOTE_SUFFIX}"):
        raise InvalidUri(f"{op.uri!r} has no name before {layout.NOTE_SUFFIX}; expected one")
    if "/" not in relative:
        raise InvalidUri(f"{op.uri!r} is a scope; a note has a name below it, as in {op.uri}/name")
    data = valid_unicode(op.content).encode()
    if len(data) > files.MAX_FILE_BYTES:
        raise OperationFailed(
            "unsupported", f"a note of {len(data)} bytes; expected at most {files.MAX_FILE_BYTES}"
        )
    try:
        metadata = Metadata.from_write(op.metadata or {}, now=store.expiry.now())
    except ValueError as exc:
        raise OperationFailed("unsupported", f"the metadata cannot be kept: {exc}") from exc
    candidates = list(places(op))
    uri = last = candidates[-1]
    for uri in candidates:
        path = layout.locate(store.root, layout.note_path(layout.relative_path(uri)))
        if _NotePut(store, path, data, metadata, uri == last, only_if).run(wait=op.wait):
            break
    if store.expiry.is_due():
        sweep(store)
    return results.MemoryWriteResult(uri, len(data))


class _NotePut(NamedTuple):
    """A note on its way to its place: whole or not at all, on disk when it has to be, and indexed.

    An expired note in that place counts as none.
    """

    store: LocalStore
    path: Path
    data: bytes
    metadata: Metadata
    """United with those of the note if it stands there already."""
    may_replace: bool
    """Whether another note there may be replaced."""
    only_if: Callable[[], bool] | None
    """Asked while nobody else changes the store."""

    def run(self, *, wait: bool) -> bool:
        """Put the note in its place; False where other content stands and stays.

        Args:
            wait: Whether it must be on disk when this returns; a note that replaces another always
                is.

        Raises:
            OperationFailed: `only_if` gave False; nothing was written.
        """
        store, path = self.store, self.path
        syncing = store.catalog.syncing
        present = self._present()
        if present is not None and self.only_if is None:
            # What is written again mostly needs neither a draft nor the lock.
            outcome = self._outcome(present, read_metadata(path).metadata)
            if isinstance(outcome, bool):
                if outcome and wait:
                    syncing.run(str(path))
                return outcome
        directory, name = os.path.split(path)
        directory = directory[len(str(store.root)) + 1 :].replace(os.sep, "/")
        terms = index_terms(files.note_text(self.data))

        def index_it(index: NoteIndex, result: files.Stamp | Metadata | bool) -> None:
            if isinstance(result, files.Stamp):
                index.put([IndexEntry(directory, name, "note", result, terms)])
            elif isinstance(result, Metadata):
                update_files(index, store.root, directory, [name])

        with files.Draft(
            store.root, self.data, mode=None if present is None else present[0]
        ) as draft:
            if wait or present is not None:
                draft.force_to_disk()
            put = partial(self._put, draft)
            if store.catalog.change(directory, name, put, index_it=index_it) is False:
                return False
        if wait:
            syncing.run(str(path))
        elif present is None:
            syncing.add(str(path))
        else:
            sync_directory(path.parent)
        return True

    def _present(self) -> tuple[int, bool] | None:
        """Return the permission bits of the note in that place, and whether it is this very one."""
        found = files.read_file(self.path, len(self.data) + 1)
        if found is None:
            return None
        return stat.S_IMODE(found[1].st_mode), found[0] == self.data

    def _outcome(self, present: tuple[int, bool], known: Metadata) -> Metadata | bool:
        """Return the metadata that the note is to have; a bool where nothing is to change."""
        is_gone = known.is_expired(self.store.expiry.now())
        if not present[1]:
            return self.metadata if self.may_replace or is_gone else False
        union = self.metadata if is_gone else known.union(self.metadata)
        return True if union == known else union

    def _put(self, draft: files.Draft) -> files.Stamp | Metadata | bool:
        """Return the state of a note without metadata, else the metadata; or a bool."""
        if self.only_if is not None and not self.only_if():
            raise OperationFailed("not_found", "what the note was to be written for is gone")
        path = self.path
        present, there = self._present(), read_metadata(path)
        if present is None:
            if not os.path.isdir(path.parent):
                os.makedirs(path.parent, exist_ok=True)
            if there.mtime_ns or self.metadata != NO_METADATA:
                write_metadata(path, self.metadata)
            stamp = draft.place(path)
        else:
            outcome = self._outcome(present, there.metadata)
            if isinstance(outcome, bool):
                return outcome
            if present[1]:
                write_metadata(path, outcome)
                return outcome
            # It may have come just now.
            draft.force_to_disk()
            draft.set_mode(present[0])
            # Vectors that an older version made of the old text.
            path.with_suffix(layout.VECTOR_SUFFIX).unlink(missing_ok=True)
            with replacing_text(path, self.data, self.metadata):
                stamp = draft.place(path)
        return stamp if self.metadata == NO_METADATA else self.metadata


def read(store: LocalStore, op: MemoryOpRead) -> results.MemoryResult:
    """Read a note, any other file of the store by its whole name, or the messages of a commit."""
    relative = layout.relative_path(op.uri)
    candidates = [layout.note_path(relative), relative]
    if layout.is_archive(relative):
        candidates.append(f"{relative}/{layout.TRANSCRIPT_NAME}")
    for candidate in dict.fromkeys(candidates):
        path = layout.locate(store.root, candidate)
        data = files.read_content(path)
        if data is None:
            continue
        is_note = candidate.endswith(layout.NOTE_SUFFIX)
        metadata = read_metadata(path).metadata if is_note else NO_METADATA
        if metadata.is_expired(store.expiry.now()):
            continue
        about = metadata.sources, metadata.expires_at
        return decoded(op, results.MemoryReadResult(op.uri, data, op.level, *about))
    raise OperationFailed("not_found", f"there is no note at {op.uri!r}")


def list_entries(store: LocalStore, op: MemoryOpList | MemoryOpTree) -> results.MemoryResult:
    """List the direct children of a directory, or all below it, each directory before its own.

    A directory that is missing has none.
    """
    depth = op.depth if isinstance(op, MemoryOpTree) else 0
    return results.MemoryListResult(tuple(_entries(store, op.uri, depth=depth)))


def _entries(store: LocalStore, uri: str, *, depth: int) -> Iterator[results.MemoryEntry]:
    try:
        with os.scandir(layout.locate(store.root, layout.relative_path(uri))) as scan:
            names = {each.name: each for each in scan}
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in sorted(names):
        if layout.is_hidden(name):
            continue
        # What only looks like a file, or vanishes meanwhile, hides no other.
        with suppress(OSError):
            found = names[name]
            if found.is_symlink():
                try:
                    layout.locate(store.root, Path(found.path).relative_to(store.root).as_posix())
                except InvalidUri:
                    continue
            if found.is_dir():
                directory = results.MemoryEntry(name, layout.child_uri(uri, name), is_dir=True)
                yield directory
                if depth > 0 and not found.is_symlink():
                    yield from _entries(store, directory.uri, depth=depth - 1)
            elif layout.metadata_name(name) not in names or not read_metadata(
                found.path
            ).metadata.is_expired(store.expiry.now()):
                leaf = name.removesuffix(layout.NOTE_SUFFIX)
                size = found.stat().st_size
                yield results.MemoryEntry(
                    leaf, layout.child_uri(uri, leaf), is_dir=False, size=size
                )


MAX_RESOURCE_BYTES = 104_857_600
"""Larger files and pages are refused."""

FETCH_SECONDS = 30.0
"""How long fetching a page may take unless the operation says otherwise."""

_DEFAULT_TARGET = "memory://resources"
_DEFAULT_SUFFIX = ".bin"
_SUFFIX = re.compile(r"\.\w{1,16}")
_DESCRIPTION_NAME = "meta.md"
_CHUNK_BYTES = 65_536


def ingest(store: LocalStore, op: MemoryOpResource) -> results.MemoryResult:
    """Keep a copy of a file or web page under a name made of its content.

    Text is found by its words, whatever its suffix; of binary data only the description is.
    """
    target = to_public_uri(op.target_uri or _DEFAULT_TARGET)
    layout.relative_path(target)
    path = file_of(op.source)
    name, data = _fetch(op) if path is None else (path.name, _read(path))
    if len(data) > MAX_RESOURCE_BYTES:
        raise OperationFailed(
            "unsupported",
            f"{op.source!r} has more than {MAX_RESOURCE_BYTES} bytes; give a part of it",
        )
    uri = f"{target}/{sha256(data).hexdigest()[:16]}"
    directory = layout.relative_path(uri)
    place = layout.locate(store.root, directory)
    suffix = PurePosixPath(name).suffix
    if not _SUFFIX.fullmatch(suffix):
        suffix = _DEFAULT_SUFFIX
    source = layout.locate(store.root, f"{directory}/source{suffix}")
    is_there = False
    with suppress(OSError):
        is_there = source.stat().st_size == len(data)
    if not (is_there and (place / _DESCRIPTION_NAME).is_file()):
        description = _description(op, name, len(data)).encode()

        def put() -> None:
            place.mkdir(parents=True, exist_ok=True)
            atomic_write_bytes(source, data)
            atomic_write_bytes(place / _DESCRIPTION_NAME, description)

        store.catalog.change(directory, _DESCRIPTION_NAME, put)
        store.catalog.recheck(directory, source.name)
        if files.is_binary(data):
            layout.logger.warning(
                "%r is binary: it is kept as %s/%s, but only its description %s/meta can be "
                "found; write what it says into a note to find it by that",
                op.source, uri, source.name, uri,
            )  # fmt: skip
    return results.MemoryWriteResult(uri, len(data))


def _description(op: MemoryOpResource, name: str, n_bytes: int) -> str:
    lines = [
        f"- source: {op.source}",
        f"- original_name: {name}",
        f"- bytes: {n_bytes}",
    ]
    for title, text in (("Reason", op.reason), ("Instruction", op.instruction)):
        if text:
            lines += ["", f"## {title}", "", text]
    return valid_unicode("\n".join(lines) + "\n")


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_RESOURCE_BYTES + 1)


def _fetch(op: MemoryOpResource) -> tuple[str, bytes]:
    seconds = FETCH_SECONDS if op.timeout_seconds is None else op.timeout_seconds
    deadline = time.monotonic() + seconds
    data = bytearray()
    # Only http and https, also after a redirect: the default opener would follow to ftp.
    opener = web.OpenerDirector()
    handlers = (web.HTTPHandler, web.HTTPSHandler, web.HTTPDefaultErrorHandler)
    for handler in (web.ProxyHandler, *handlers, web.HTTPRedirectHandler, web.HTTPErrorProcessor):
        opener.add_handler(handler())
    try:
        with opener.open(web.Request(op.source), timeout=seconds) as response:
            while len(data) <= MAX_RESOURCE_BYTES and (chunk := response.read1(_CHUNK_BYTES)):
                data += chunk
                if time.monotonic() > deadline:
                    raise TimeoutError(f"not complete after {seconds:g} s")
    except TimeoutError as exc:
        raise OperationFailed("timeout", f"{op.source!r} did not answer in time: {exc}") from exc
    except HTTPError as exc:
        exc.close()
        raise OperationFailed(
            "transport", f"{op.source!r} answered {exc.code} {exc.reason}"
        ) from exc
    except URLError as exc:
        kind: results.FailureKind = (
            "timeout" if isinstance(exc.reason, TimeoutError) else "transport"
        )
        raise OperationFailed(kind, f"{op.source!r} cannot be fetched: {exc.reason}") from exc
    except (OSError, HTTPException, ValueError) as exc:
        raise OperationFailed("transport", f"{op.source!r} cannot be fetched: {exc}") from exc
    return PurePosixPath(unquote(urlsplit(op.source).path)).name, bytes(data)
