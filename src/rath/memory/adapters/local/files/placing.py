"""Putting a note in its place: whole or not at all, on disk when it has to be, and indexed."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rath._core.files import sync_directory
from rath.memory.adapters.local.files.about import NOTHING_KNOWN, NoteAbout, united
from rath.memory.adapters.local.files.about_file import tell_about, telling_of_next, told_about
from rath.memory.adapters.local.files.documents import note_text
from rath.memory.adapters.local.files.drafts import Draft
from rath.memory.adapters.local.files.regular import opened
from rath.memory.adapters.local.finding.terms import index_terms
from rath.memory.adapters.local.indexing.index import NoteIndex, Stamp
from rath.memory.adapters.local.indexing.walk import update_file
from rath.memory.adapters.local.layout import VECTOR_SUFFIX, locate, note_path, relative_path
from rath.memory.adapters.local.store import LocalStore


@dataclass(frozen=True, slots=True)
class _Standing:
    """What stands where a note is to be put."""

    mode: int
    is_same: bool


class NotWanted(Exception):
    """What a note was to be written for is gone."""


def put_note(
    store: LocalStore,
    uri: str,
    data: bytes,
    *,
    may_replace: bool,
    wait: bool,
    about: NoteAbout = NOTHING_KNOWN,
    only_if: Callable[[], bool] | None = None,
) -> bool:
    """Let `data` stand at a place, and return False where other content stands and stays.

    An expired note counts as none.

    Args:
        store: The store.
        uri: The place.
        data: The note.
        may_replace: Whether another note there may be replaced.
        wait: Whether it must be on disk when this returns; a note that replaces another always is.
        about: What is told about the note; united with what is known if it stands there already.
        only_if: Asked while nobody else changes the store.

    Raises:
        NotWanted: `only_if` gave False; nothing was written.
    """
    path = locate(store.root, note_path(relative_path(uri)))
    syncing = store.catalog.syncing
    standing = _standing_at(path, data)
    if only_if is None and standing is not None and (standing.is_same or not may_replace):
        known = told_about(path).about
        if not known.is_expired(store.expiry.now()):
            if not standing.is_same:
                return False
            if united(known, about) == known:
                if wait:
                    syncing.force(path)
                return True
    mode = None if standing is None else standing.mode
    with Draft(store.root, data, mode=mode) as draft:
        if wait or standing is not None:
            draft.force_to_disk()
        placing = _Placing(store, path, data, about, may_replace)
        if not placing.run(draft, only_if):
            return False
    if wait:
        syncing.force(path)
    elif standing is None:
        syncing.add(path)
    else:
        sync_directory(path.parent)
    return True


@dataclass(frozen=True, slots=True)
class _Placing:
    """A note on its way to its place, which is its alone meanwhile."""

    store: LocalStore
    path: Path
    data: bytes
    about: NoteAbout
    may_replace: bool

    def run(self, draft: Draft, only_if: Callable[[], bool] | None) -> bool:
        """Put the note in its place and into the index; False where another stands and stays."""
        place, name = os.path.split(self.path)
        root = self.store.root
        directory = place[len(str(root)) + 1 :].replace(os.sep, "/")
        terms = index_terms(note_text(self.data))

        def put() -> Stamp | NoteAbout | bool:
            if only_if is not None and not only_if():
                raise NotWanted
            return self._put(draft)

        def index_it(index: NoteIndex, placed: Stamp | NoteAbout | bool) -> None:
            if isinstance(placed, Stamp):
                index.put(directory, name, "note", stamp=placed, terms=terms)
            elif isinstance(placed, NoteAbout):
                update_file(index, root, directory, name)

        return self.store.catalog.change(directory, name, put, index_it=index_it) is not False

    def _put(self, draft: Draft) -> Stamp | NoteAbout | bool:
        """Return the state of a note of which nothing is told, else what is told; or a bool."""
        path = self.path
        standing = _standing_at(path, self.data)
        told = told_about(path)
        known = told.about
        is_gone = known.is_expired(self.store.expiry.now())
        if standing is not None:
            if standing.is_same:
                about = self.about if is_gone else united(known, self.about)
                if about == known:
                    return True
                tell_about(path, about)
                return about
            if not self.may_replace and not is_gone:
                return False
            # It may have come just now.
            draft.force_to_disk()
            draft.set_mode(standing.mode)
            # Vectors that an older version made of the old text.
            path.with_suffix(VECTOR_SUFFIX).unlink(missing_ok=True)
        if not os.path.isdir(path.parent):
            os.makedirs(path.parent, exist_ok=True)
        if standing is None:
            if told.mtime_ns or self.about != NOTHING_KNOWN:
                tell_about(path, self.about)
            stamp = draft.place(path)
        else:
            with telling_of_next(path, self.data, self.about):
                stamp = draft.place(path)
        return stamp if self.about == NOTHING_KNOWN else self.about


def _standing_at(path: Path, data: bytes) -> _Standing | None:
    """Return what stands at a place; None where a note can be put without replacing one."""
    with opened(path) as file:
        if file is None:
            return None
        status = os.fstat(file.fileno())
        is_same = status.st_size == len(data) and file.read(len(data) + 1) == data
        return _Standing(stat.S_IMODE(status.st_mode), is_same)
