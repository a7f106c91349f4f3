"""Brings an index up to date with the files of a store.

Times of change move in ticks, of milliseconds in most file systems and of 2 s in the coarsest. A
second change within the tick of the first would go unseen, so a young state is not relied on
later; what rath writes gets a time between the ticks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rath.memory.adapters.local.documents import read_document
from rath.memory.adapters.local.index import UNREAD, UNSETTLED, NoteIndex, Stamp
from rath.memory.adapters.local.layout import can_name_a_file, kind_of
from rath.memory.uri import MEMORY_SCOPES

_BATCH = 200
"""Files that are indexed in one transaction; other writers wait about 20 ms for it."""

_FILE_SETTLES_NS = 50_000_000
_DIRECTORY_SETTLES_NS = 2_000_000_000
_ARCHIVE = "session/"


@dataclass(frozen=True, slots=True)
class _Listing:
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
    document = read_document(root / directory / name, kind)
    if document is None:
        index.remove(directory, name)
        return
    stamp = document.stamp
    if not is_ours and _is_young(stamp.mtime_ns, _FILE_SETTLES_NS):
        stamp = Stamp(stamp.mtime_ns, UNSETTLED)
    index.put(directory, name, kind, stamp=stamp, terms=document.terms())


def update_changed(index: NoteIndex, root: Path) -> None:
    """Index what changed in the directories whose time of change is another; skips archives."""
    known = index.directories()
    for path in {*known, *MEMORY_SCOPES}:
        if not path.startswith(_ARCHIVE) and time_of(root / path) != known.get(path):
            _update_tree(index, root, path, known=known, deep=False)


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
    for scope in MEMORY_SCOPES:
        seen |= _update_tree(index, root, scope, known=known, deep=True, is_stopped=is_stopped)
        if is_stopped():
            return
    _forget(index, known.keys() - seen)


def time_of(path: Path) -> int | None:
    """Return the time of change in nanoseconds, None when there is nothing."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def mark_as_ours(path: Path) -> None:
    """Give what rath just changed a time of change that no later change has by chance."""
    now = time.time_ns()
    with suppress(OSError):
        os.utime(path, ns=(now, now))


def _update_tree(
    index: NoteIndex,
    root: Path,
    top: str,
    *,
    known: dict[str, int],
    deep: bool,
    is_stopped: Callable[[], bool] = lambda: False,
) -> set[str]:
    """Index a directory and those below, only the unknown ones unless `deep`; return them all."""
    seen: set[str] = set()
    to_do = [top]
    while to_do and not is_stopped():
        path = to_do.pop()
        listing = _read_directory(root, path)
        if listing is None:
            _forget(index, {path} & known.keys())
            continue
        seen.add(path)
        _update_files(index, root, path, listing=listing, is_stopped=is_stopped)
        if not is_stopped():
            _settle(index, path, listing.time, known_time=known.get(path))
        below = (f"{path}/{name}" for name in listing.directories)
        to_do.extend(child for child in below if deep or child not in known)
    return seen


def _update_files(
    index: NoteIndex, root: Path, path: str, *, listing: _Listing, is_stopped: Callable[[], bool]
) -> None:
    known = index.files_in(path)
    changed = [name for name, stamp in listing.files.items() if known.get(name) != stamp]
    changed += known.keys() - listing.files.keys()
    for start in range(0, len(changed), _BATCH):
        if is_stopped():
            return
        with index.writing():
            for name in changed[start : start + _BATCH]:
                update_file(index, root, path, name)


def _settle(index: NoteIndex, path: str, time_ns: int, *, known_time: int | None) -> None:
    """Store that a directory was read in a state that will look different after a change."""
    young = _is_young(time_ns, _DIRECTORY_SETTLES_NS)
    settled = UNREAD if young else time_ns
    if settled != known_time:
        with index.writing():
            index.put_directory(path, settled)


def _read_directory(root: Path, path: str) -> _Listing | None:
    files: dict[str, Stamp] = {}
    directories: list[str] = []
    # The time is read first: what changes while the listing is made will look like a change.
    changed_at = time_of(root / path)
    try:
        with os.scandir(root / path) as entries:
            for entry in entries:
                if not can_name_a_file(entry.name):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    directories.append(entry.name)
                elif kind_of(path, entry.name) and entry.is_file(follow_symlinks=False):
                    with suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        files[entry.name] = Stamp(status.st_mtime_ns, status.st_size)
    except OSError:
        return None
    return None if changed_at is None else _Listing(changed_at, files, directories)


def _forget(index: NoteIndex, paths: set[str]) -> None:
    for path in sorted(paths):
        with index.writing():
            index.remove_directory(path)


def _is_young(mtime_ns: int, settles_ns: int) -> bool:
    return time.time_ns() - mtime_ns < settles_ns
