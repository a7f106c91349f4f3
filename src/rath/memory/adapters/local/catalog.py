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
from rath.memory.adapters.local.index import BUSY_SECONDS, IndexMismatch, NoteIndex
from rath.memory.adapters.local.layout import INDEX_NAME, Kind, logger
from rath.memory.adapters.local.ranking import Ranked, Ranking
from rath.memory.adapters.local.walk import (
    mark_as_ours,
    time_of,
    update_all,
    update_changed,
    update_file,
)

T = TypeVar("T")

SMALL_STORE = 2000
"""Files and directories that a search may look at one by one: about 5 ms."""

_WALK_PAUSE = 20
"""Walks over a large store pause for this many times their own duration."""

_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


class Catalog:
    """The index of a store, opened on first use and built again when it is damaged.

    An index that cannot be written is replaced by one in memory, so that it never hides a note.

    Args:
        root: Directory of the store, resolved.
        small_store: Up to how many files and directories a search looks at one by one.
        busy_seconds: How long to wait for a writer in another process.
    """

    def __init__(
        self, root: Path, *, small_store: int = SMALL_STORE, busy_seconds: float = BUSY_SECONDS
    ) -> None:
        self._root = root
        self._small_store = small_store
        self._busy_seconds = busy_seconds
        self._path: Path | None = root / INDEX_NAME
        self._lock = threading.RLock()
        self._open: tuple[NoteIndex, Ranking] | None = None
        self._opened_in = 0
        self._was_deleted = False
        self._is_replacement = False
        self._next_walk = 0.0
        self._walking: Future[None] | None = None
        self._is_closed = False

    def close(self) -> None:
        """End a walk in the background and close the index."""
        self._is_closed = True
        self.wait_for_walk()
        with self._lock:
            self._drop()

    def wait_for_walk(self) -> None:
        """Wait until the walk in the background has ended, if there is one."""
        if self._walking is not None:
            self._walking.result()

    def change(self, directory: str, name: str, act: Callable[[], T]) -> T:
        """Change one file by `act()`, alone among all threads and processes, and index it.

        An index that cannot be had now does not keep the file from being changed; a later search
        sees it in its directory.
        """
        with self._lock:
            index = self._begin()
            try:
                before = time_of(self._root / directory)
                result = act()
            except BaseException:
                if index is not None:
                    index.roll_back()
                raise
            if index is not None:
                self._finish(index, directory, name, before=before)
        return result

    def best(
        self, kind: Kind, terms: list[str], limit: int, *, below: str | None = None
    ) -> list[Ranked]:
        """Return the documents that fit the terms best, as `Ranking.best` does."""
        with self._lock:
            return self._use(lambda _, ranking: ranking.best(kind, terms, limit, below=below))

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

    def _finish(self, index: NoteIndex, directory: str, name: str, *, before: int | None) -> None:
        place = self._root / directory
        try:
            mark_as_ours(place / name)
            update_file(index, self._root, directory, name, is_ours=True)
            # The change of the directory is ours alone if it stood as it was last read.
            if before is None or before == index.directory_time(directory):
                mark_as_ours(place)
                index.put_directory(directory, time_of(place) or 0)
            index.commit()
        except sqlite3.Error as exc:
            self._recover(exc)

    def _update(self, update: Callable[[NoteIndex, Path], None]) -> None:
        try:
            self._use(lambda index, _: update(index, self._root))
        except sqlite3.OperationalError as exc:
            if exc.sqlite_errorcode not in _BUSY:
                raise
            logger.info("the index of %s is busy; this search uses it as it is", self._root)

    def _update_apart(self) -> None:
        # A connection of its own, so that searches go on meanwhile.
        index = NoteIndex(self._root / INDEX_NAME)
        try:
            update_all(index, self._root, is_stopped=lambda: self._is_closed)
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
        # SQLite's connections must not be used in a forked child.
        if self._open is None or self._opened_in != os.getpid():
            index = NoteIndex(self._path, busy_seconds=self._busy_seconds)
            self._open = index, Ranking(index)
            self._opened_in = os.getpid()
        if self._is_replacement:
            update_all(self._open[0], self._root)
            self._is_replacement = False
        return self._open

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
        self._drop()
        self._is_replacement = True
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
        try:
            for suffix in ("", "-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
        except OSError:
            return False
        return True
