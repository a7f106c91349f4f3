"""Brings an index up to date with the files of a store.

Times of change move in ticks, of milliseconds in most file systems and of 2 s in the coarsest. A
second change within the tick of the first would go unseen, so a young state is not relied on
later. A file that rath writes, and each directory that it is about to list, gets a time between the
ticks, which no later change has by chance.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISDIR, S_ISREG

from rath._core.files import StrPath
from rath.memory.adapters.local import layout
from rath.memory.adapters.local.files import (
    UNSETTLED,
    Stamp,
    mark_as_ours,
    read_document,
    remove_stale_drafts,
)
from rath.memory.adapters.local.index import UNREAD, IndexEntry, NoteIndex
from rath.memory.adapters.local.metadata import NO_METADATA_FILE, read_metadata
from rath.memory.uri import MEMORY_SCOPES

BATCH = 500
"""Files that are indexed in one transaction; other writers wait about 25 ms for it."""

_CHUNK = 200
"""Files that are looked at before a walk asks whether it is to stop: about 1 ms."""

_ATTEMPTS = 3
"""How often a directory is read before it is left for the next occasion."""

_FILE_SETTLES_NS = 50_000_000
_DIRECTORY_SETTLES_NS = 2_000_000_000
_ARCHIVE = "session"

StopCheck = Callable[[], bool]


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class DirectoryListing:
    """A directory as it was read."""

    time: int
    files: dict[str, Stamp]
    directories: list[str]


def update_files(
    index: NoteIndex, root: Path, directory: str, names: Sequence[str], *, are_ours: bool = False
) -> None:
    """Index files as they are now; the caller is inside `index.writing()`."""
    entries: list[IndexEntry] = []
    settled = time.time_ns() - _FILE_SETTLES_NS
    for name in names:
        entry = read_entry(root, directory, name)
        if entry is None:
            index.remove(directory, name)
        elif are_ours or entry.stamp.mtime_ns <= settled:
            entries.append(entry)
        else:
            entries.append(entry._replace(stamp=entry.stamp._replace(size=UNSETTLED)))
    index.put(entries)


def read_entry(root: Path, directory: str, name: str) -> IndexEntry | None:
    """Return a file as the index is to know it now; None when it is gone, or not to be found."""
    kind = layout.kind_of(directory, name)
    if kind is None:
        return None
    path = f"{root}/{directory}/{name}"
    document = read_document(path, kind)
    if document is None:
        return None
    found = read_metadata(path) if kind == "note" else NO_METADATA_FILE
    if found.problem is not None:
        layout.logger.info("%s", found.problem)
    stamp = document.stamp._replace(about_ns=found.mtime_ns)
    return IndexEntry(directory, name, kind, stamp, document.terms(), found.metadata)


def update_changed(index: NoteIndex, root: Path) -> None:
    """Index what changed in the directories whose time of change is another; skips archives."""
    known = index.directories(outside=_ARCHIVE)
    for top in {*known, *MEMORY_SCOPES}:
        if top == _ARCHIVE or time_of(f"{root}/{top}") == known.get(top):
            continue
        to_do = [top]
        while to_do:
            path = to_do.pop()
            listing = _update_directory(index, root, path)
            below = () if listing is None else (f"{path}/{name}" for name in listing.directories)
            to_do.extend(child for child in below if child not in known)


def update_all(index: NoteIndex, root: Path, *, is_stopped: StopCheck = _never) -> None:
    """Look at every file and index what changed.

    Args:
        index: The index to bring up to date.
        root: Directory of the store.
        is_stopped: Asked now and then; True ends the walk early.
    """
    known = index.directories()
    seen: set[str] = set()
    to_do: list[str] = [*MEMORY_SCOPES]
    while to_do and not is_stopped():
        path = to_do.pop()
        listing = read_directory(root, path, is_stopped=is_stopped)
        if listing is None:
            continue
        seen.add(path)
        changed = _changed(index, path, listing, is_stopped=is_stopped)
        _update_in_batches(index, root, path, changed, is_stopped=is_stopped)
        # A directory counts as read in a state that will look different after a change.
        is_young = time.time_ns() - listing.time < _DIRECTORY_SETTLES_NS
        settled = UNREAD if is_young else listing.time
        if not is_stopped() and known.get(path) not in {listing.time, settled}:
            with index.writing():
                index.put_directory(path, settled)
        to_do.extend(f"{path}/{name}" for name in listing.directories)
    if not is_stopped():
        for path in sorted(known.keys() - seen):
            with index.writing():
                index.remove_directory(path)


@contextmanager
def counting_as_read(index: NoteIndex, root: Path, directories: Iterable[str]) -> Generator[None]:
    """Let directories that count as read do so after what is removed from them in the block.

    The caller is inside `index.writing()`.
    """
    read = [
        each
        for each in set(directories)
        if (changed_at := time_of(root / each)) is not None
        and changed_at == index.directory_time(each)
    ]
    yield
    for directory in read:
        marked = mark_as_ours(root / directory)
        if marked is not None:
            index.put_directory(directory, marked)


def time_of(path: StrPath) -> int | None:
    """Return the time of change in nanoseconds, None when there is no directory."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_mtime_ns if S_ISDIR(status.st_mode) else None


def read_directory(
    root: Path, path: str, *, is_stopped: StopCheck = _never
) -> DirectoryListing | None:
    """Return the entries of a directory of the store; None where there is none that can be read.

    A link is none, and drafts that were left behind are removed on the way.
    """
    # The time is read first: what changes while the listing is made will look like a change.
    changed_at = time_of(root / path)
    if changed_at is None:
        return None
    listing = DirectoryListing(changed_at, {}, [])
    others: list[os.DirEntry[str]] = []
    try:
        with os.scandir(root / path) as entries:
            for number, entry in enumerate(entries, 1):
                if number % _CHUNK == 0 and is_stopped():
                    return None
                # For each file of a small store, at each search: nothing slow belongs in here.
                if entry.name.endswith(layout.NOTE_SUFFIX) or entry.is_dir(follow_symlinks=False):
                    _add(listing, entry)
                else:
                    others.append(entry)
    except OSError:
        return None
    for entry in others:
        if entry.name.endswith(layout.METADATA_SUFFIX):
            note = entry.name.removesuffix(layout.METADATA_SUFFIX) + layout.NOTE_SUFFIX
            if note in listing.files:
                with suppress(OSError):
                    about_ns = entry.stat(follow_symlinks=False).st_mtime_ns
                    listing.files[note] = listing.files[note]._replace(about_ns=about_ns)
        elif layout.kind_of(path, entry.name):
            _add(listing, entry)
    if any(layout.is_draft(entry.name) for entry in others):
        remove_stale_drafts(root / path)
    return listing


def _add(listing: DirectoryListing, entry: os.DirEntry[str]) -> None:
    name = entry.name
    if not (name.isascii() or layout.can_name_a_file(name)):
        return
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:
        return
    if S_ISREG(status.st_mode):
        listing.files[name] = Stamp(status.st_mtime_ns, status.st_size)
    elif S_ISDIR(status.st_mode):
        listing.directories.append(name)


def _update_directory(index: NoteIndex, root: Path, path: str) -> DirectoryListing | None:
    """Index what changed in one directory, which from then on counts as read."""
    listing: DirectoryListing | None = None
    is_exact = False
    for _ in range(_ATTEMPTS):
        with index.writing():
            # No writer of ours is at work now.
            changed_at = time_of(root / path)
            if listing is not None and is_exact and changed_at == listing.time:
                # Nor did anybody add or remove a file while they were indexed in batches.
                index.put_directory(path, listing.time)
                return listing
            # Later changes of others will show in the time of the directory if it is old, or ours.
            is_exact = (
                changed_at is None
                or time.time_ns() - changed_at >= _DIRECTORY_SETTLES_NS
                or mark_as_ours(root / path) is not None
            )
            listing = read_directory(root, path)
            if listing is None:
                index.remove_directory(path)
                return None
            changed = _changed(index, path, listing)
            if len(changed) <= BATCH:
                update_files(index, root, path, changed)
                index.put_directory(path, listing.time if is_exact else UNREAD)
                return listing
        _update_in_batches(index, root, path, changed)
    return listing


def _changed(
    index: NoteIndex, path: str, listing: DirectoryListing, *, is_stopped: StopCheck = _never
) -> list[str]:
    """Return the names of the files that the index knows in another state, or not at all."""
    changed: list[str] = []
    unknown = dict(listing.files)
    last = ""
    while known := index.files_in(path, after=last, limit=_CHUNK):
        for name, stamp in known.items():
            if unknown.pop(name, None) != stamp:
                changed.append(name)
            last = name
        if is_stopped():
            return []
    # In the order of the index, which grows at its end then.
    return [*changed, *sorted(unknown)]


def _update_in_batches(
    index: NoteIndex, root: Path, path: str, changed: list[str], *, is_stopped: StopCheck = _never
) -> None:
    for start in range(0, len(changed), BATCH):
        if is_stopped():
            return
        with index.writing():
            update_files(index, root, path, changed[start : start + BATCH])
