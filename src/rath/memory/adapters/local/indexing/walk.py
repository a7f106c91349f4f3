"""Brings an index up to date with the files of a store.

Times of change move in ticks, of milliseconds in most file systems and of 2 s in the coarsest. A
second change within the tick of the first would go unseen, so a young state is not relied on
later. What rath writes, and each directory that it is about to list, gets a time between the
ticks, which no later change has by chance.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISDIR, S_ISREG

from rath.memory.adapters.local.files.about import NoteAbout
from rath.memory.adapters.local.files.about_file import NOTHING_TOLD, told_about
from rath.memory.adapters.local.files.documents import read_document
from rath.memory.adapters.local.files.drafts import mark_as_ours, remove_stale_drafts
from rath.memory.adapters.local.indexing.index import UNREAD, UNSETTLED, NoteIndex, Stamp
from rath.memory.adapters.local.layout import (
    ABOUT_SUFFIX,
    NOTE_SUFFIX,
    Kind,
    can_name_a_file,
    is_draft,
    kind_of,
    logger,
)
from rath.memory.uri import MEMORY_SCOPES

BATCH = 200
"""Files that are indexed in one transaction; other writers wait about 20 ms for it."""

_CHUNK = 200
"""Files that are looked at before a walk asks whether it is to stop: about 1 ms."""

_ATTEMPTS = 3
"""How often a directory is read before it is left for the next occasion."""

_FILE_SETTLES_NS = 50_000_000
_DIRECTORY_SETTLES_NS = 2_000_000_000
_ARCHIVE = "session"


@dataclass(frozen=True, slots=True)
class Entry:
    """A file as the index is to know it."""

    stamp: Stamp
    terms: list[str]
    about: NoteAbout


@dataclass(frozen=True, slots=True)
class Listing:
    """A directory as it was read."""

    time: int
    files: dict[str, Stamp]
    directories: list[str]


def update_file(
    index: NoteIndex, root: Path, directory: str, name: str, *, is_ours: bool = False
) -> None:
    """Index one file as it is now; the caller is inside `index.writing()`."""
    kind = kind_of(directory, name)
    if kind is None:
        return
    found = read_entry(root, directory, name, kind)
    if found is None:
        index.remove(directory, name)
        return
    stamp = found.stamp
    if not is_ours and _is_young(stamp.mtime_ns, _FILE_SETTLES_NS):
        stamp = stamp._replace(size=UNSETTLED)
    index.put(directory, name, kind, stamp=stamp, terms=found.terms, about=found.about)


def read_entry(root: Path, directory: str, name: str, kind: Kind) -> Entry | None:
    """Return what the index is to know of a file, as it is now; None when it is gone."""
    path = root / directory / name
    document = read_document(path, kind)
    if document is None:
        return None
    told = told_about(path) if kind == "note" else NOTHING_TOLD
    if told.problem is not None:
        logger.info("%s", told.problem)
    stamp = document.stamp._replace(about_ns=told.mtime_ns)
    return Entry(stamp, document.terms(), told.about)


def update_changed(index: NoteIndex, root: Path) -> None:
    """Index what changed in the directories whose time of change is another; skips archives."""
    known = index.directories(outside=_ARCHIVE)
    for path in {*known, *MEMORY_SCOPES}:
        if path != _ARCHIVE and time_of(root / path) != known.get(path):
            _update_new(index, root, path, known=known)


def update_all(
    index: NoteIndex, root: Path, *, is_stopped: Callable[[], bool] = lambda: False
) -> None:
    """Look at every file and index what changed.

    Args:
        index: What to bring up to date.
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
        _update_files(index, root, path, changed, is_stopped=is_stopped)
        if not is_stopped():
            _settle(index, path, listing.time, known_time=known.get(path))
        to_do.extend(f"{path}/{name}" for name in listing.directories)
    if not is_stopped():
        _forget(index, known.keys() - seen)


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


def time_of(path: Path | str) -> int | None:
    """Return the time of change in nanoseconds, None when there is no directory."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_mtime_ns if S_ISDIR(status.st_mode) else None


def read_directory(
    root: Path, path: str, *, is_stopped: Callable[[], bool] = lambda: False
) -> Listing | None:
    """Return what a directory of the store holds; None where there is none that can be read.

    A link is none, and drafts that were left behind are removed on the way.
    """
    # The time is read first: what changes while the listing is made will look like a change.
    changed_at = time_of(root / path)
    if changed_at is None:
        return None
    listing = Listing(changed_at, {}, [])
    others: list[os.DirEntry[str]] = []
    try:
        with os.scandir(root / path) as entries:
            for number, entry in enumerate(entries, 1):
                if number % _CHUNK == 0 and is_stopped():
                    return None
                # For each file of a small store, at each search: nothing slow belongs in here.
                if entry.name.endswith(NOTE_SUFFIX) or entry.is_dir(follow_symlinks=False):
                    _add(listing, entry)
                else:
                    others.append(entry)
    except OSError:
        return None
    _add_others(listing, path, others)
    if any(is_draft(entry.name) for entry in others):
        remove_stale_drafts(root / path)
    return listing


def _add(listing: Listing, entry: os.DirEntry[str]) -> None:
    name = entry.name
    if not (name.isascii() or can_name_a_file(name)):
        return
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:
        return
    if S_ISREG(status.st_mode):
        listing.files[name] = Stamp(status.st_mtime_ns, status.st_size)
    elif S_ISDIR(status.st_mode):
        listing.directories.append(name)


def _add_others(listing: Listing, path: str, others: list[os.DirEntry[str]]) -> None:
    for entry in others:
        if entry.name.endswith(ABOUT_SUFFIX):
            note = entry.name.removesuffix(ABOUT_SUFFIX) + NOTE_SUFFIX
            if note in listing.files:
                with suppress(OSError):
                    about_ns = entry.stat(follow_symlinks=False).st_mtime_ns
                    listing.files[note] = listing.files[note]._replace(about_ns=about_ns)
        elif kind_of(path, entry.name):
            _add(listing, entry)


def _update_new(index: NoteIndex, root: Path, top: str, *, known: dict[str, int]) -> None:
    """Index a directory that changed, and those below it that are unknown."""
    to_do = [top]
    while to_do:
        path = to_do.pop()
        listing = _update_directory(index, root, path)
        below = () if listing is None else (f"{path}/{name}" for name in listing.directories)
        to_do.extend(child for child in below if child not in known)


def _update_directory(index: NoteIndex, root: Path, path: str) -> Listing | None:
    """Index what changed in one directory, which from then on counts as read."""
    listing: Listing | None = None
    for _ in range(_ATTEMPTS):
        with index.writing():
            # No writer of ours is at work now, and what others change after the mark will be
            # seen by the time of the directory.
            is_exact = _mark_if_young(root / path)
            listing = read_directory(root, path)
            if listing is None:
                index.remove_directory(path)
                return None
            changed = _changed(index, path, listing)
            if len(changed) <= BATCH:
                for name in changed:
                    update_file(index, root, path, name)
                index.put_directory(path, listing.time if is_exact else UNREAD)
                return listing
        _update_files(index, root, path, changed, is_stopped=lambda: False)
    return listing


def _changed(
    index: NoteIndex,
    path: str,
    listing: Listing,
    *,
    is_stopped: Callable[[], bool] = lambda: False,
) -> list[str]:
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
    return [*changed, *unknown]


def _update_files(
    index: NoteIndex, root: Path, path: str, changed: list[str], *, is_stopped: Callable[[], bool]
) -> None:
    for start in range(0, len(changed), BATCH):
        if is_stopped():
            return
        with index.writing():
            for name in changed[start : start + BATCH]:
                update_file(index, root, path, name)


def _settle(index: NoteIndex, path: str, time_ns: int, *, known_time: int | None) -> None:
    """Store that a directory was read in a state that will look different after a change."""
    if time_ns == known_time:
        return
    young = _is_young(time_ns, _DIRECTORY_SETTLES_NS)
    settled = UNREAD if young else time_ns
    if settled != known_time:
        with index.writing():
            index.put_directory(path, settled)


def _mark_if_young(place: Path) -> bool:
    """Return whether every later change of a directory will show in its time."""
    changed_at = time_of(place)
    if changed_at is None or not _is_young(changed_at, _DIRECTORY_SETTLES_NS):
        return True
    return mark_as_ours(place) is not None


def _forget(index: NoteIndex, paths: set[str]) -> None:
    for path in sorted(paths):
        with index.writing():
            index.remove_directory(path)


def _is_young(mtime_ns: int, settles_ns: int) -> bool:
    return time.time_ns() - mtime_ns < settles_ns
