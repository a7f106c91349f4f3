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
from functools import partial
from pathlib import Path
from typing import TypeVar

from rath._async.runtime import runtime
from rath._core.sqlite import IndexMismatch, identity_of, take_away
from rath.memory.adapters.local.files.drafts import mark_as_ours, remove_stale_drafts
from rath.memory.adapters.local.files.syncing import Syncing
from rath.memory.adapters.local.finding.ranking import Ranked, Ranking
from rath.memory.adapters.local.indexing.forking import hold_at_fork
from rath.memory.adapters.local.indexing.index import BUSY_SECONDS, NoteIndex
from rath.memory.adapters.local.indexing.opening import open_index
from rath.memory.adapters.local.indexing.walk import (
    time_of,
    update_all,
    update_changed,
    update_file,
)
from rath.memory.adapters.local.indexing.walk_pace import WalkPace
from rath.memory.adapters.local.layout import DRAFTS_NAME, INDEX_NAME, Kind, logger

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
        syncing: What forces new notes to disk.
    """

    def __init__(
        self,
        root: Path,
        *,
        small_store: int = SMALL_STORE,
        busy_seconds: float = BUSY_SECONDS,
        syncing: Syncing | None = None,
    ) -> None:
        self._root = root
        self._small_store = small_store
        self._busy_seconds = busy_seconds
        self._path: Path | None = root / INDEX_NAME
        self._lock = threading.RLock()
        self._open: tuple[NoteIndex, Ranking] | None = None
        self._of_parent: object = None
        self._opened_in = 0
        self._identity: int | None = None
        self._was_deleted = False
        self._is_replacement = False
        self._next_walk = 0.0
        self._walking: Future[None] | None = None
        self._pace = WalkPace(self._lock)
        self._n_users = 1
        self.n_recoveries = 0
        """How often another index took the place of one that could not be used."""
        self.syncing = syncing or Syncing(root)
        """What forces new notes to disk."""

    def close(self) -> None:
        """Wait until all notes are on disk; the last user closes the index.

        Raises:
            OSError: Some notes may not be on disk.
        """
        with _sharing:
            self._n_users -= 1
            is_last = self._n_users == 0
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

    def share(self) -> None:
        """Count one more user, who closes it too."""
        self._n_users += 1

    def hold(self) -> None:
        """Wait until no thread uses the index, and keep others out."""
        self._lock.acquire()
        self.syncing.hold()

    def let_go(self) -> None:
        """End what `hold` began."""
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
            index_it: Puts the file into the index, given what `act` returned; by default it is
                read for that.
        """

        def put(index: NoteIndex, result: T) -> None:
            if index_it is not None:
                index_it(index, result)
                return
            mark_as_ours(self._root / directory / name)
            update_file(index, self._root, directory, name, is_ours=True)

        with self._lock:
            index = self._begin()
            if index is None:
                return act()
            try:
                before = self._times_above(directory)
                result = act()
            except BaseException:
                index.roll_back()
                raise
            self._finish(index, before, lambda: put(index, result))
        return result

    def best(
        self,
        kind: Kind,
        terms: list[str],
        limit: int,
        *,
        below: str | None = None,
        now: float | None = None,
    ) -> list[Ranked]:
        """Return the documents that fit the terms best, as `Ranking.best` does."""

        def rank(index: NoteIndex, ranking: Ranking) -> list[Ranked]:
            with index.reading():
                return ranking.best(kind, terms, limit, below=below, now=now)

        with self._lock:
            return self._use(rank)

    def use(self, act: Callable[[NoteIndex], T]) -> T:
        """Run `act` on the index, alone among the threads of this process."""
        with self._lock:
            return self._use(lambda index, _: act(index))

    def catch_up(self) -> None:
        """See what has changed among the files."""
        with self._lock:
            n_files = self._use(lambda index, _: index.count())
            if n_files <= self._small_store:
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
                update_file(index, root, directory, name)

        with self._lock:
            self._update(again)

    def _begin(self) -> NoteIndex | None:
        def begin(index: NoteIndex, _: Ranking) -> NoteIndex:
            index.begin()
            return index

        try:
            return self._use(begin)
        except sqlite3.Error as exc:
            logger.info("the index of %s is out of reach for now: %s", self._root, exc)
            return None

    def _times_above(self, directory: str) -> dict[str, int | None]:
        """Return the times of change of a directory and, where it is missing, of those above."""
        times: dict[str, int | None] = {}
        while directory and not any(times.values()):
            times[directory] = time_of(f"{self._root}/{directory}")
            directory = directory.rpartition("/")[0]
        return times

    def _finish(
        self, index: NoteIndex, before: dict[str, int | None], put: Callable[[], None]
    ) -> None:
        try:
            put()
            for directory, changed_at in before.items():
                # The change of a directory is ours alone if it stood as it was last read.
                if changed_at is None or changed_at == index.directory_time(directory):
                    place = f"{self._root}/{directory}"
                    ours = mark_as_ours(place) or time_of(place)
                    if ours is not None:
                        index.put_directory(directory, ours)
            index.commit()
        except sqlite3.Error as exc:
            if not self._recover(exc):
                index.roll_back()
        except BaseException:
            index.roll_back()
            raise

    def _update(self, update: Callable[[NoteIndex, Path], None]) -> None:
        try:
            self._use(lambda index, _: update(index, self._root))
        except sqlite3.OperationalError as exc:
            if exc.sqlite_errorcode & 0xFF not in _BUSY:
                raise
            logger.info("the index of %s is busy; this search uses it as it is", self._root)

    def _update_apart(self) -> None:
        # A connection of its own, so that searches go on meanwhile.
        index = open_index(self._root / INDEX_NAME)
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

    def _use(self, use: Callable[[NoteIndex, Ranking], T]) -> T:
        """Run `use` on the index; once more after a repair, and then on an index in memory."""
        while True:
            try:
                return use(*self._opened())
            except (sqlite3.Error, IndexMismatch) as exc:
                if not self._recover(exc):
                    raise

    def _opened(self) -> tuple[NoteIndex, Ranking]:
        # SQLite's connections must not be used in a forked child, not even to close them; and what
        # another process took away for being damaged is not the index any more.
        if self._opened_in != os.getpid():
            self._of_parent, self._open = self._open, None
            self._opened_in = os.getpid()
        elif self._open is not None and self._is_elsewhere():
            self._drop()
            self._is_replacement = True
        if self._open is None:
            self._open = self._open_anew()
        if self._is_replacement:
            update_all(self._open[0], self._root)
            self._is_replacement = False
        return self._open

    def _is_elsewhere(self) -> bool:
        return self._path is not None and identity_of(self._path) != self._identity

    def _open_anew(self) -> tuple[NoteIndex, Ranking]:
        remove_stale_drafts(self._root / DRAFTS_NAME)
        if self._path is None:
            index = NoteIndex(None)
        else:
            self._identity = identity_of(self._path)
            index = open_index(self._path, busy_seconds=self._busy_seconds)
            self._identity = identity_of(self._path)
        return index, Ranking(index)

    def _drop(self) -> None:
        if self._open is not None:
            self._open[0].close()
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
        if code & 0xFF in _DAMAGE and self._delete(self._path):
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

    def _delete(self, path: Path) -> bool:
        """Delete the index file, once: a second damage would not be the file's fault."""
        if self._was_deleted:
            return False
        self._was_deleted = True
        return take_away(path, self._identity, seconds=self._busy_seconds)


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
            catalog.share()
        return catalog


hold_at_fork(_sharing, _shared)
