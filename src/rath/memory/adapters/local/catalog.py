"""Keeps the index of a store in step with its files, whoever changes them.

Writes through rath change the file and the index together, under the index's own lock between
processes. For changes by hand and by other programs:

- In a store of up to `SMALL_STORE` files every search sees every change that was made before it.
- In a larger one it sees at once what was added, deleted or replaced by renaming outside
  `session/`. What was edited in place, and all below `session/`, is seen by a walk over all files,
  which runs in the background at the first search after opening, and now and then later.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from rath._async.runtime import runtime
from rath._core.sqlite import IndexMismatch, identity_of, take_away
from rath.memory.adapters.local.files import mark_as_ours, remove_stale_drafts, sync_notes
from rath.memory.adapters.local.index import BUSY_SECONDS, TABLES, Content, NoteIndex
from rath.memory.adapters.local.layout import DRAFTS_NAME, INDEX_NAME, logger
from rath.memory.adapters.local.pacing import SYNC_SECONDS, DelayedWork, WalkPace
from rath.memory.adapters.local.walk import (
    BATCH,
    read_directory,
    read_entry,
    time_of,
    update_all,
    update_changed,
    update_files,
)
from rath.memory.persistence.registry import hold_store
from rath.memory.uri import MEMORY_SCOPES

T = TypeVar("T")

SMALL_STORE = 500
"""Files and directories that a search may look at one by one: about 2 ms."""

_WALK_PAUSE = 20
"""Walks over a large store pause for this many times their own duration."""

_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}


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
        syncing: DelayedWork[str] | None = None,
    ) -> None:
        self._root = root
        self._small_store = small_store
        self._busy_seconds = busy_seconds
        self._path: Path | None = root / INDEX_NAME
        self._lock = threading.RLock()
        self._open: NoteIndex | None = None
        self._of_parent: object = None
        self._opened_in = 0
        self._identity: int | None = None
        self._was_deleted = False
        self._is_replacement = False
        self._next_walk = 0.0
        self._walking: Future[None] | None = None
        self._pace = WalkPace(self._lock)
        self.n_users = 1
        """Each closes it once."""
        self.n_recoveries = 0
        """How often another index took the place of one that could not be used."""
        self.syncing = syncing or DelayedWork(partial(sync_notes, root), delay_seconds=SYNC_SECONDS)
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
            try:
                # Times of change of the directory and, where it is missing, of those above.
                before: dict[str, int | None] = {}
                above = directory
                while above and not any(before.values()):
                    before[above] = time_of(f"{self._root}/{above}")
                    above = above.rpartition("/")[0]
                result = act()
            except BaseException:
                index.roll_back()
                raise
            try:
                if index_it is not None:
                    index_it(index, result)
                else:
                    mark_as_ours(self._root / directory / name)
                    update_files(index, self._root, directory, [name], are_ours=True)
                for place, changed_at in before.items():
                    # The change of a directory is ours alone if it stood as it was last read.
                    if changed_at is None or changed_at == index.directory_time(place):
                        path = f"{self._root}/{place}"
                        ours = mark_as_ours(path) or time_of(path)
                        if ours is not None:
                            index.put_directory(place, ours)
                index.commit()
            except sqlite3.Error as exc:
                if not self._recover(exc):
                    index.roll_back()
            except BaseException:
                index.roll_back()
                raise
        return result

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
                self._walk(lambda: self._update(update_all))
            else:
                walk = partial(self._walk, self._update_apart)
                self._walking = runtime().start_in_worker(walk)

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
            logger.info("the index of %s is out of reach for now: %s", self._root, exc)
            return None

    def _update(self, update: Callable[[NoteIndex, Path], None]) -> None:
        try:
            self.use(lambda index: update(index, self._root))
        except sqlite3.OperationalError as exc:
            if exc.sqlite_errorcode & 0xFF not in _BUSY:
                raise
            logger.info("the index of %s is busy; this search uses it as it is", self._root)

    def _update_apart(self) -> None:
        # A connection of its own, so that searches go on meanwhile.
        index = NoteIndex.open(self._root / INDEX_NAME)
        try:
            update_all(index, self._root, is_stopped=self._pace.is_to_end)
        finally:
            index.close()

    def _walk(self, update: Callable[[], None]) -> None:
        started = time.monotonic()
        try:
            update()
        except (sqlite3.Error, IndexMismatch, OSError) as exc:
            logger.info("a walk over %s ended early: %s", self._root, exc)
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
            remove_stale_drafts(self._root / DRAFTS_NAME)
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
            logger.warning("the index of %s is built again: %s", self._root, error)
        else:
            logger.warning(
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
            return _rebuild(catalog, place)
        finally:
            catalog.close()
    finally:
        if use is not None:
            use.end()


def _rebuild(catalog: Catalog, root: Path) -> RebuildReport:
    n_recoveries = catalog.n_recoveries
    catalog.use(NoteIndex.check)
    n_wrong = 0
    seen: set[str] = set()
    to_do: list[str] = [*MEMORY_SCOPES]
    while to_do:
        path = to_do.pop()
        listing = read_directory(root, path)
        if listing is None:
            continue
        seen.add(path)
        to_do.extend(f"{path}/{name}" for name in listing.directories)
        known = catalog.use(partial(NoteIndex.files_in, directory=path))
        names = sorted(known.keys() | listing.files.keys())
        for start in range(0, len(names), BATCH):
            correct = partial(_correct, root=root, path=path, names=names[start : start + BATCH])
            n_wrong += catalog.use(correct)

    def finish(index: NoteIndex) -> int:
        n_gone = 0
        with index.writing():
            for path in sorted(index.directories().keys() - seen):
                if read_directory(root, path) is None:
                    n_gone += len(index.files_in(path))
                    index.remove_directory(path)
            index.recount()
        return n_gone

    n_wrong += catalog.use(finish)
    n_files = catalog.use(lambda index: sum(index.totals(kind).documents for kind in TABLES))
    return RebuildReport(n_files, n_files if catalog.n_recoveries > n_recoveries else n_wrong)


def _correct(index: NoteIndex, *, root: Path, path: str, names: list[str]) -> int:
    """Index those of some files that have a wrong entry, and return how many."""
    with index.writing():
        # Nobody changes a note through rath now, so that file and entry can be compared.
        known = index.contents(directory=path, first=names[0], last=names[-1])
        wrong: list[str] = []
        for name in names:
            entry = read_entry(root, path, name)
            wanted = None if entry is None else Content.from_entry(entry)
            if wanted != known.get((path, name)):
                wrong.append(name)
        update_files(index, root, path, wrong)
    return len(wrong)
