"""Removing the notes that have expired: at opening, at closing, and now and then with a write."""

from __future__ import annotations

import sqlite3
import time
from functools import partial
from pathlib import Path

from rath._core.sqlite import IndexMismatch
from rath.memory.adapters.local.files.about_file import about_path, told_about
from rath.memory.adapters.local.indexing.index import NoteIndex
from rath.memory.adapters.local.indexing.walk import BATCH, counting_as_read, update_file
from rath.memory.adapters.local.layout import INDEX_NAME, VECTOR_SUFFIX, logger
from rath.memory.adapters.local.removal.scrubbing import Trash, is_to_scrub, scrub
from rath.memory.adapters.local.store import LocalStore

_SECONDS = 1.0
"""How long a sweep takes at most; the next one goes on. Nobody sees what has expired."""


def sweep(store: LocalStore) -> None:
    """Remove expired notes; traces of them go when the store is closed. Best effort."""
    try:
        _remove_expired(store)
    except (OSError, sqlite3.Error, IndexMismatch) as exc:
        logger.info("expired notes in %s are removed later: %s", store.root, exc)


def sweep_and_scrub(store: LocalStore) -> LocalStore:
    """Remove expired notes, and all traces of what was removed before; returns the store."""
    if (store.root / INDEX_NAME).exists():
        sweep(store)
    if is_to_scrub(store.root):
        scrub(store)
    return store


def take_note(index: NoteIndex, trash: Trash, root: Path, place: tuple[str, str]) -> None:
    """Move a note and what belongs to it away; the caller is inside `index.writing()`.

    The note goes before what is told about it, which must not end first.

    Raises:
        OSError: It cannot be moved.
    """
    directory, name = place
    path = root / directory / name
    index.remove(directory, name)
    trash.take(path)
    trash.take(about_path(path))
    trash.take(path.with_suffix(VECTOR_SUFFIX))


def _remove_expired(store: LocalStore) -> None:
    expired = sorted(store.catalog.use(lambda index: index.expired(store.expiry.now())))
    if not expired:
        return
    trash = Trash(store.root)
    ends_at = time.monotonic() + _SECONDS
    for start in range(0, len(expired), BATCH):
        batch = expired[start : start + BATCH]
        store.catalog.use(partial(_remove_batch, trash=trash, store=store, batch=batch))
        if time.monotonic() > ends_at:
            break
    trash.empty()


def _remove_batch(
    index: NoteIndex, *, trash: Trash, store: LocalStore, batch: list[tuple[str, str]]
) -> None:
    directories = (directory for directory, _ in batch)
    with index.writing(), counting_as_read(index, store.root, directories):
        for directory, name in batch:
            # The file tells the truth: somebody may have given the note more time.
            about = told_about(store.root / directory / name).about
            if about.is_expired(store.expiry.now()):
                take_note(index, trash, store.root, (directory, name))
            else:
                update_file(index, store.root, directory, name)
