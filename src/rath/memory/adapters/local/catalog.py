"""Keeps the index of a store in step with its files, whoever changes them.

Writes through rath change the file and the index together, under the index's own lock between
processes. For changes by hand and by other programs:

- In a store of up to `SMALL_STORE` files every search sees every change that was made before it.
- In a larger one it sees at once what was added, deleted or replaced by renaming outside
  `session/`. What was edited in place, and all below `session/`, is seen by a walk over all files,
  which runs in the background at the first search after opening, and now and then later.

Times of change move in ticks, of milliseconds in most file systems and of 2 s in the coarsest. A
second change within the tick of the first would go unseen, so a young state is not relied on
later. A file that rath writes, and each directory that it is about to list, gets a time between the
ticks, which no later change has by chance.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import TypeVar

from rath._async.runtime import runtime
from rath._core.dataclasses import dataclass
from rath._core.files import StrPath
from rath._core.sqlite import IndexMismatch, identity_of, take_away
from rath.memory.adapters.local import layout, pacing
from rath.memory.adapters.local.files import (
    UNSETTLED,
    Stamp,
    mark_as_ours,
    read_document,
    remove_stale_drafts,
    sync_notes,
)
from rath.memory.adapters.local.index import (
    BUSY_SECONDS,
    TABLES,
    UNREAD,
    Content,
    IndexEntry,
    NoteIndex,
)
from rath.memory.adapters.local.metadata import NO_METADATA_FILE, read_metadata
from rath.memory.persistence.registry import hold_store
from rath.memory.uri import MEMORY_SCOPES

T = TypeVar("T")

SMALL_STORE = 500
"""Files and directories that a search may look at one by one: about 2 ms."""

BATCH = 500
"""Files that are indexed in one transaction; other writers wait about 25 ms for it."""

_CHUNK = 200
"""Files that are looked at before a walk breathes: about 1 ms."""

_ATTEMPTS = 3
"""How often a directory is read before it is left for the next occasion."""

_WALK_PAUSE = 20
"""Walks over a large store pause for this many times their own duration."""

_FILE_SETTLES_NS = 50_000_000
_DIRECTORY_SETTLES_NS = 2_000_000_000
_ARCHIVE = "session"

_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}


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


def update_all(
    index: NoteIndex,
    root: Path,
    *,
    breathe: Callable[[], object] = pacing.no_pause,
    is_thorough: bool = False,
) -> int:
    """Look at every file and index what changed; return how many entries that were.

    Args:
        index: The index to bring up to date.
        root: Directory of the store.
        breathe: Called now and then while nothing is locked; may raise to end the walk.
        is_thorough: Whether files are read again that look as they did, and only those count that
            the index has wrong.
    """
    known = index.directories()
    seen: set[str] = set()
    n_changed = 0
    to_do: list[str] = [*MEMORY_SCOPES]
    while to_do:
        breathe()
        path = to_do.pop()
        listing = read_directory(root, path, breathe=breathe)
        if listing is None:
            continue
        seen.add(path)
        if is_thorough:
            names = sorted(index.files_in(path).keys() | listing.files.keys())
        else:
            names = _changed(index, path, listing, breathe=breathe)
        for start in range(0, len(names), BATCH):
            breathe()
            with index.writing():
                batch = names[start : start + BATCH]
                if is_thorough:
                    batch = _wrong(index, root, path, batch)
                update_files(index, root, path, batch)
                n_changed += len(batch)
        # A directory counts as read in a state that will look different after a change.
        is_young = time.time_ns() - listing.time < _DIRECTORY_SETTLES_NS
        settled = UNREAD if is_young else listing.time
        if known.get(path) not in {listing.time, settled}:
            with index.writing():
                index.put_directory(path, settled)
        to_do.extend(f"{path}/{name}" for name in listing.directories)
    for path in sorted(known.keys() - seen, reverse=True):
        with index.writing():
            # Others may have made it since its parent was read.
            if not _is_inside(root, path) or read_directory(root, path) is None:
                n_changed += len(index.files_in(path))
                index.remove_directory(path)
    return n_changed


def _wrong(index: NoteIndex, root: Path, path: str, names: list[str]) -> list[str]:
    """Return those of some files, in their order, that have a wrong entry."""
    known = index.contents(directory=path, first=names[0], last=names[-1])
    wrong: list[str] = []
    for name in names:
        entry = read_entry(root, path, name)
        if (None if entry is None else Content.from_entry(entry)) != known.get((path, name)):
            wrong.append(name)
    return wrong


@contextmanager
def own_changes(index: NoteIndex, root: Path, directories: Iterable[str]) -> Generator[None]:
    """Let directories that count as read do so after what rath changes in them in the block.

    The caller has begun to write to the index. A directory that is missing is one of ours then.
    """
    before = {each: time_of(root / each) for each in directories}
    yield
    for directory, changed_at in before.items():
        # The change of a directory is ours alone if it stood as it was last read.
        if changed_at is None or changed_at == index.directory_time(directory):
            path = root / directory
            ours = mark_as_ours(path) or time_of(path)
            if ours is not None:
                index.put_directory(directory, ours)


def _is_inside(root: Path, path: str) -> bool:
    """Return whether each name on the way to a directory is one, and not a link to elsewhere."""
    names = path.split("/")
    return all(time_of(root.joinpath(*names[:end])) is not None for end in range(1, len(names)))


def time_of(path: StrPath) -> int | None:
    """Return the time of change in nanoseconds, None when there is no directory."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_mtime_ns if S_ISDIR(status.st_mode) else None


def read_directory(
    root: Path, path: str, *, breathe: Callable[[], object] = pacing.no_pause
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
                if number % _CHUNK == 0:
                    breathe()
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
            listing = read_directory(root, path) if _is_inside(root, path) else None
            if listing is None:
                index.remove_directory(path)
                return None
            changed = _changed(index, path, listing)
            if len(changed) <= BATCH:
                update_files(index, root, path, changed)
                index.put_directory(path, listing.time if is_exact else UNREAD)
                return listing
        for start in range(0, len(changed), BATCH):
            with index.writing():
                update_files(index, root, path, changed[start : start + BATCH])
    return listing


def _changed(
    index: NoteIndex,
    path: str,
    listing: DirectoryListing,
    *,
    breathe: Callable[[], object] = pacing.no_pause,
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
        breathe()
    # In the order of the index, which grows at its end then.
    return [*changed, *sorted(unknown)]


class Catalog:
    """The index of a store, opened on first use and built again when it is damaged.

    An index that cannot be written is replaced by one in memory, so that it never hides a note.

    Args:
        root: Directory of the store, resolved.
        small_store: Up to how many files and directories a search looks at one by one.
        busy_seconds: How long to wait for a writer in another process.
        syncing: Forces new notes to disk.
    """

    def __init__(
        self,
        root: Path,
        *,
        small_store: int = SMALL_STORE,
        busy_seconds: float = BUSY_SECONDS,
        syncing: pacing.DelayedWork[str] | None = None,
    ) -> None:
        self._root = root
        self._small_store = small_store
        self._busy_seconds = busy_seconds
        self._path: Path | None = root / layout.INDEX_NAME
        self._lock = threading.RLock()
        self._open: NoteIndex | None = None
        self._of_parent: object = None
        self._opened_in = 0
        self._identity: int | None = None
        self._was_deleted = False
        self._is_replacement = False
        self._next_walk = 0.0
        self._walking: Future[None] | None = None
        self._pace = pacing.WalkPace(self._lock)
        self.n_users: int = 1
        """Each closes it once."""
        self.n_recoveries: int = 0
        """How often another index took the place of one that could not be used."""
        self.syncing: pacing.DelayedWork[str] = syncing or pacing.DelayedWork(
            partial(sync_notes, root), delay_seconds=pacing.SYNC_SECONDS
        )
        """Forces new notes to disk."""

    def close(self) -> None:
        """Wait until all notes are on disk; the last user closes the index.

        Raises:
            OSError: Some notes may not be on disk.
        """
        with _sharing:
            self.n_users -= 1
            is_last = self.n_users == 0
            if is_last and _shared.get(self._root) is self:
                del _shared[self._root]
        try:
            if is_last:
                self._pace.close()
                self.wait_for_walk()
        finally:
            if is_last:
                with self._lock:
                    self._drop()
            self.syncing.flush()

    def hold(self) -> None:
        """Wait until no thread uses the index, and keep others out until `let_go`."""
        self._lock.acquire()
        self.syncing.hold()

    def let_go(self) -> None:
        """Let other threads use the index again."""
        self.syncing.let_go()
        self._lock.release()

    def wait_for_walk(self) -> None:
        """Wait until the walk in the background has ended, if there is one."""
        if self._walking is not None:
            self._walking.result()

    def change(
        self,
        directory: str,
        name: str,
        act: Callable[[], T],
        *,
        index_it: Callable[[NoteIndex, T], None] | None = None,
    ) -> T:
        """Change one file by `act()`, alone among all threads and processes, and index it.

        An index that cannot be had now does not keep the file from being changed; a later search
        sees it in its directory.

        Args:
            directory: Where the file is, below the store; `act` may make it.
            name: Name of the file.
            act: Changes the file, and what belongs to it.
            index_it: Puts the file into the index, given the result of `act`; by default it is
                read for that.
        """
        with self._lock:
            index = self._begin()
            if index is None:
                return act()
            # With those above that `act` will make, and the one that it makes them in.
            parents = [directory]
            while (above := parents[-1].rpartition("/")[0]) and not os.path.isdir(
                f"{self._root}/{parents[-1]}"
            ):
                parents.append(above)
            results: list[T] = []
            try:
                with own_changes(index, self._root, parents):
                    results.append(act())
                    if index_it is not None:
                        index_it(index, results[0])
                    else:
                        mark_as_ours(self._root / directory / name)
                        update_files(index, self._root, directory, [name], are_ours=True)
                index.commit()
            except BaseException as exc:
                is_indexed = isinstance(exc, sqlite3.Error) and self._recover(exc)
                if not is_indexed:
                    index.roll_back()
                if not (results and isinstance(exc, sqlite3.Error)):
                    raise
        return results[0]

    def use(self, act: Callable[[NoteIndex], T]) -> T:
        """Run `act` on the index, alone among the threads of this process.

        Once more after a repair, and then on an index in memory.
        """
        with self._lock:
            while True:
                try:
                    return act(self._opened())
                except (sqlite3.Error, IndexMismatch) as exc:
                    if not self._recover(exc):
                        raise

    def catch_up(self) -> None:
        """See what has changed among the files."""
        with self._lock:
            self._pace.note_search()
            if self.use(NoteIndex.count) <= self._small_store:
                self._update(update_all)
                return
            self._update(update_changed)
            is_walking = self._walking is not None and not self._walking.done()
            if is_walking or time.monotonic() < self._next_walk:
                return
            if self._path is None:
                self._walk()
            else:
                self._walking = runtime().start_in_worker(self._walk)

    def recheck(self, directory: str, name: str) -> None:
        """See what has changed in one file."""

        def again(index: NoteIndex, root: Path) -> None:
            with index.writing():
                update_files(index, root, directory, [name])

        with self._lock:
            self._update(again)

    def _begin(self) -> NoteIndex | None:
        def begin(index: NoteIndex) -> NoteIndex:
            index.begin()
            return index

        try:
            return self.use(begin)
        except sqlite3.Error as exc:
            layout.logger.info("the index of %s is out of reach for now: %s", self._root, exc)
            return None

    def _update(self, update: Callable[[NoteIndex, Path], object]) -> None:
        try:
            self.use(lambda index: update(index, self._root))
        except sqlite3.OperationalError as exc:
            if exc.sqlite_errorcode & 0xFF not in _BUSY:
                raise
            layout.logger.info("the index of %s is busy; this search uses it as it is", self._root)

    def use_apart(self, act: Callable[[NoteIndex], T]) -> T:
        """Run `act` on a connection of its own, so that searches go on meanwhile.

        An index in memory has one connection only, and after a repair the shared one is used.
        """
        if self._path is not None:
            try:
                with closing(NoteIndex.open(self._path)) as index:
                    return act(index)
            except (sqlite3.Error, IndexMismatch) as exc:
                with self._lock:
                    if not self._recover(exc):
                        raise
        return self.use(act)

    def _walk(self) -> None:
        started = time.monotonic()
        try:
            self.use_apart(partial(update_all, root=self._root, breathe=self._pace.breathe))
        except (sqlite3.Error, IndexMismatch, OSError, pacing.WalkOver) as exc:
            layout.logger.info("a walk over %s ended early: %s", self._root, exc)
        finally:
            now = time.monotonic()
            self._next_walk = now + _WALK_PAUSE * (now - started)

    def _opened(self) -> NoteIndex:
        # SQLite's connections must not be used in a forked child, not even to close them; and a
        # file that another process took away for being damaged is not the index any more.
        if self._opened_in != os.getpid():
            self._of_parent, self._open = self._open, None
            self._opened_in = os.getpid()
        elif self._open is not None and self._is_elsewhere():
            self._drop()
            self._is_replacement = True
        if self._open is None:
            remove_stale_drafts(self._root / layout.DRAFTS_NAME)
            if self._path is None:
                self._open = NoteIndex(None)
            else:
                self._identity = identity_of(self._path)
                self._open = NoteIndex.open(self._path, busy_seconds=self._busy_seconds)
                self._identity = identity_of(self._path)
        if self._is_replacement:
            update_all(self._open, self._root)
            self._is_replacement = False
        return self._open

    def _is_elsewhere(self) -> bool:
        return self._path is not None and identity_of(self._path) != self._identity

    def _drop(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def _recover(self, error: sqlite3.Error | IndexMismatch) -> bool:
        """Make another index usable; False when that would not help."""
        damaged = isinstance(error, IndexMismatch)
        code = sqlite3.SQLITE_NOTADB if damaged else getattr(error, "sqlite_errorcode", None)
        if self._path is None or code is None or code & 0xFF in _BUSY:
            return False
        was_replaced = self._open is not None and self._is_elsewhere()
        self._drop()
        self._is_replacement = True
        self.n_recoveries += 1
        if was_replaced:
            return True
        # Deleted once only: a second damage would not be the file's fault.
        may_delete = code & 0xFF in _DAMAGE and not self._was_deleted
        self._was_deleted |= may_delete
        if may_delete and take_away(self._path, self._identity, seconds=self._busy_seconds):
            layout.logger.warning("the index of %s is built again: %s", self._root, error)
        else:
            layout.logger.warning(
                "the index of %s cannot be used (%s); one in memory takes its place, which is "
                "built at each start",
                self._root,
                error,
            )
            self._path = None
        return True


_shared: dict[Path, Catalog] = {}
_sharing = threading.Lock()


def shared_catalog(root: Path) -> Catalog:
    """Return the one catalog of a store in this process, so that its users do not lock each other.

    Each closes it once.
    """
    with _sharing:
        catalog = _shared.get(root)
        if catalog is None:
            catalog = _shared[root] = Catalog(root)
        else:
            catalog.n_users += 1
        return catalog


# SQLite remembers the locks of its connections in the memory of the process. A child that is forked
# in a transaction of its parent would count those as its own: it would wait for them, or read
# without one. So a fork waits for all catalogs, and a child starts without any.
def _hold_all() -> None:
    _sharing.acquire()
    for catalog in _shared.values():
        catalog.hold()


def _let_go_all() -> None:
    for catalog in _shared.values():
        catalog.let_go()
    _sharing.release()


def _forget_all() -> None:
    _let_go_all()
    _shared.clear()


if hasattr(os, "register_at_fork"):  # pragma: no branch  # Windows has no fork
    os.register_at_fork(before=_hold_all, after_in_parent=_let_go_all, after_in_child=_forget_all)


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """The outcome of a rebuild of an index."""

    n_files: int
    """How many notes and transcripts the index knows now."""
    n_wrong: int
    """How many entries were missing, did not say what their files say, or had no file."""


def rebuild(root: Path) -> RebuildReport:
    """Read every file of the store at `root` again and put right what its index has wrong.

    Others may use the store meanwhile, in this process and in others. Takes about 0.2 ms a file.

    Raises:
        OSError: New notes may not be on disk.
        MemoryBackendError: The store is being removed.
        sqlite3.Error: Somebody uses the index and does not let go of it.
    """
    place = root.resolve()
    use = hold_store(place)
    try:
        catalog = shared_catalog(place)
        try:
            n_recoveries = catalog.n_recoveries
            catalog.use(NoteIndex.check)
            n_wrong = catalog.use_apart(partial(update_all, root=place, is_thorough=True))

            def finish(index: NoteIndex) -> int:
                with index.writing():
                    index.recount()
                return sum(index.totals(kind).documents for kind in TABLES)

            n_files = catalog.use(finish)
            is_new = catalog.n_recoveries > n_recoveries
            return RebuildReport(n_files, n_files if is_new else n_wrong)
        finally:
            catalog.close()
    finally:
        if use is not None:
            use.end()
