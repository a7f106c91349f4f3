"""Leaving no trace of what was removed: not in the index, nor among vectors, drafts and the moved.

<store>/.forgotten/          there is something to scrub; it outlives a crash
<store>/.forgotten/<hex>/    what was moved out of sight at once, to be deleted
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from functools import partial
from pathlib import Path

from rath._core.retention import remove_tree
from rath._core.sqlite import IndexMismatch
from rath.memory.adapters.local.indexing.index import NoteIndex
from rath.memory.adapters.local.indexing.walk import update_all
from rath.memory.adapters.local.layout import DRAFTS_NAME, INDEX_NAME, is_draft, logger
from rath.memory.adapters.local.store import LocalStore
from rath.memory.adapters.local.vectors.shelf import erase_unused

FORGOTTEN_NAME = ".forgotten"

LARGE_STORE = 5000
"""Files and directories from which on scrubbing takes long enough to be done for several at once:
about 25 ms."""


class Trash:
    """A directory that takes what is to be deleted; what is there is neither found nor listed.

    Args:
        root: Directory of the store.

    Raises:
        OSError: It cannot be made.
    """

    def __init__(self, root: Path) -> None:
        self._place = root / FORGOTTEN_NAME / os.urandom(8).hex()
        self._make_place()
        self._n_taken = 0

    def take(self, path: Path) -> Path | None:
        """Move a file, link or directory here, at once and whole; None when it is not there.

        Returns:
            Where it is now.

        Raises:
            OSError: It cannot be moved.
        """
        self._n_taken += 1
        taken = self._place / str(self._n_taken)
        while os.path.lexists(path):
            try:
                path.rename(taken)
            except FileNotFoundError:
                # Somebody else has scrubbed meanwhile, or `path` is gone.
                self._make_place()
            else:
                return taken
        return None

    def empty(self) -> None:
        """Delete what was taken, once the index has forgotten it.

        Raises:
            OSError: Something cannot be deleted; scrubbing tries again.
        """
        remove_tree(self._place)

    def _make_place(self) -> None:
        while True:
            self._place.parent.mkdir(exist_ok=True)
            # Who scrubs removes that directory as long as it is empty.
            with suppress(FileNotFoundError):
                self._place.mkdir(exist_ok=True)
                return


def is_to_scrub(root: Path) -> bool:
    """Return whether something was removed of which there may be traces."""
    return os.path.isdir(root / FORGOTTEN_NAME)


def scrub_in_turn(store: LocalStore) -> None:
    """Scrub at once; in a large store that was just scrubbed, soon, for all that is removed then.

    Until then the directory of what was forgotten stays, so that a crash only delays it.
    """
    try:
        is_large = store.catalog.use(lambda index: index.count()) > LARGE_STORE
    except (sqlite3.Error, IndexMismatch):
        is_large = False
    if is_large:
        store.pace.ask(partial(scrub, store))
    else:
        scrub(store)


def scrub(store: LocalStore) -> bool:
    """Remove all traces of what was removed from the store; False when some are left.

    While somebody else reads the index, its log cannot be cut; then the next to close or open the
    store, or to forget something, tries again.
    """
    try:
        place = store.root / FORGOTTEN_NAME
        left = _left_in(place)
        if left and (store.root / INDEX_NAME).exists():
            # Somebody died, or is at work, between moving it away and telling the index.
            store.catalog.use(lambda index: update_all(index, store.root))
        for taken in left:
            remove_tree(taken)
        _remove_drafts(store.root)
        if not (store.root / INDEX_NAME).exists():
            _remove_if_empty(place)
        elif not store.catalog.use(lambda index: _scrub_index(index, store.root)):
            logger.info(
                "traces in the index of %s are removed later: it is read now, or out of reach",
                store.root,
            )
            return False
    except (OSError, sqlite3.Error, IndexMismatch) as exc:
        logger.warning(
            "there may be traces of what was removed from %s: %s; closing and opening it again "
            "removes them",
            store.root,
            exc,
        )
        return False
    return True


def _scrub_index(index: NoteIndex, root: Path) -> bool:
    erase_unused(index, root)
    if index.path is None:
        # The file that one in memory stands for still knows all that was removed: what is left in
        # this place makes the next one to scrub look at the files first.
        Trash(root)
        return False
    if not index.scrub():
        return False
    # Nobody in this process removes anything between both.
    _remove_if_empty(root / FORGOTTEN_NAME)
    return True


def _remove_if_empty(place: Path) -> None:
    # Somebody else may have put something there meanwhile, who scrubs too.
    with suppress(OSError):
        place.rmdir()


def _left_in(place: Path) -> list[Path]:
    try:
        return list(place.iterdir())
    except FileNotFoundError:
        return []


def _remove_drafts(root: Path) -> None:
    """Remove notes on their way; a writer whose draft is gone writes it again."""
    with suppress(FileNotFoundError), os.scandir(root / DRAFTS_NAME) as entries:
        for entry in entries:
            if is_draft(entry.name):
                with suppress(FileNotFoundError):
                    os.unlink(entry.path)
