"""Forgetting on request: notes, directories, and all that came from one session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from rath.memory.adapters.local.files.about_file import tell_about, told_about
from rath.memory.adapters.local.indexing.index import NoteIndex
from rath.memory.adapters.local.indexing.walk import BATCH, counting_as_read, update_file
from rath.memory.adapters.local.layout import (
    ABOUT_SUFFIX,
    NOTE_SUFFIX,
    InvalidUri,
    can_name_a_file,
    is_hidden,
    locate,
    note_path,
    relative_path,
    uri_of,
)
from rath.memory.adapters.local.removal.scrubbing import Trash, scrub_in_turn
from rath.memory.adapters.local.removal.sweeping import take_note
from rath.memory.adapters.local.store import LocalStore
from rath.memory.op_types import MemoryOpForget
from rath.memory.results import MemoryExecutionFailure, MemoryForgetResult, MemoryResult
from rath.memory.uri import MEMORY_SCOPES, MEMORY_URI_PREFIX, is_memory_root

_ARCHIVE_DEPTH = 4
"""Segments of "session/<sid>/commits/<stamp>"."""


def forget(store: LocalStore, op: MemoryOpForget) -> MemoryResult:
    """Remove what is asked for; nothing of it is left in any file of the store.

    In a large store that is so after about a second when something was forgotten just before; and
    while another process reads the index, once the store was closed.
    """
    if op.uri is None:
        return _forget_session(store, str(op.session_id))
    if is_memory_root(op.uri):
        return MemoryExecutionFailure(
            "invalid_uri",
            f"{op.uri!r} is the whole store, which is not forgotten at once; forget one scope "
            f"after the other, as in {MEMORY_URI_PREFIX}{MEMORY_SCOPES[0]} with recursive=True",
        )
    return _forget_uri(store, op.uri, recursive=op.recursive)


def _forget_uri(store: LocalStore, uri: str, *, recursive: bool) -> MemoryResult:
    relative = relative_path(uri)
    # A scope is a directory, and no note stands beside it.
    named = dict.fromkeys((note_path(relative), relative) if "/" in relative else (relative,))
    found = [place for each in named if (place := _standing(store.root, each)) is not None]
    files = [each for each in found if not _is_directory(store.root / each)]
    if found and not files and not recursive:
        return MemoryExecutionFailure(
            "unsupported",
            f"{uri!r} is a directory; recursive=True forgets it with all that is below it",
        )
    # Without `recursive` a note is meant, before any other file of that name.
    gone = _remove(store, found if recursive else files[:1])
    if gone is None:
        return MemoryExecutionFailure("not_found", f"there is nothing at {uri!r}")
    return MemoryForgetResult(gone)


def _forget_session(store: LocalStore, session_id: str) -> MemoryResult:
    if "/" in session_id:
        raise InvalidUri(f"{session_id!r} cannot name a session; expected one plain name")
    # The transcripts go first: notes of them are written only while they are there.
    directory = _standing(store.root, relative_path(f"{MEMORY_URI_PREFIX}session/{session_id}"))
    gone = set(_remove(store, [] if directory is None else [directory]) or ())
    places = list(_notes_of(store.root, session_id))
    if places:
        trash = Trash(store.root)
        try:
            for start in range(0, len(places), BATCH):
                batch = partial(
                    _leave_session,
                    store=store,
                    trash=trash,
                    session_id=session_id,
                    places=places[start : start + BATCH],
                )
                gone.update(store.catalog.use(batch))
            trash.empty()
        finally:
            scrub_in_turn(store)
    return MemoryForgetResult(tuple(sorted(gone)))


def _remove(store: LocalStore, targets: list[str]) -> tuple[str, ...] | None:
    """Remove files and directories, and return what was seen of them; None when nothing was."""
    if not targets:
        return None
    trash = Trash(store.root)
    try:
        gone = [
            store.catalog.use(partial(_remove_one, store=store, trash=trash, target=target))
            for target in targets
        ]
        trash.empty()
    finally:
        scrub_in_turn(store)
    if all(uris is None for uris in gone):
        return None
    return tuple(sorted({uri for uris in gone for uri in uris or ()}))


def _remove_one(
    index: NoteIndex, *, store: LocalStore, trash: Trash, target: str
) -> set[str] | None:
    path = store.root / target
    directory, _, name = target.rpartition("/")
    now = store.expiry.now()
    with index.writing(), counting_as_read(index, store.root, [directory]):
        if not _is_directory(path):
            is_there = os.path.lexists(path) and not told_about(path).about.is_expired(now)
            if name.endswith(NOTE_SUFFIX):
                take_note(index, trash, store.root, (directory, name))
            else:
                index.remove(directory, name)
                trash.take(path)
            return {_shown_as(target)} if is_there else None
        index.remove_directory(target)
        taken = trash.take(path)
    below = () if taken is None else _files_below(taken, now)
    return {_shown_as(f"{target}/{each}") for each in below}


def _leave_session(
    index: NoteIndex,
    *,
    store: LocalStore,
    trash: Trash,
    session_id: str,
    places: list[tuple[str, str]],
) -> set[str]:
    """Take a session from the sources of notes, and those away that have no other reason to be."""
    gone: set[str] = set()
    directories = (directory for directory, _ in places)
    with index.writing(), counting_as_read(index, store.root, directories):
        for directory, name in places:
            path = store.root / directory / name
            about = told_about(path).about
            left = about.without(session_id) if about.comes_from(session_id) else about
            if left is not None:
                tell_about(path, left)
                update_file(index, store.root, directory, name)
                continue
            if os.path.lexists(path) and not about.is_expired(store.expiry.now()):
                gone.add(uri_of(f"{directory}/{name}"))
            take_note(index, trash, store.root, (directory, name))
    return gone


def _notes_of(root: Path, session_id: str) -> Iterator[tuple[str, str]]:
    """Yield directory and name of the notes that a session is a source of, read from the files."""
    for scope in MEMORY_SCOPES:
        for directory, below, names in os.walk(root / scope):
            below.sort()
            place = Path(directory).relative_to(root).as_posix()
            for name in sorted(names):
                if not name.endswith(ABOUT_SUFFIX) or not can_name_a_file(f"{place}/{name}"):
                    continue
                note = name.removesuffix(ABOUT_SUFFIX) + NOTE_SUFFIX
                if told_about(root / place / note).about.comes_from(session_id):
                    yield place, note


def _files_below(directory: Path, now: float) -> Iterator[str]:
    """Yield what could be seen below a directory, relative to it."""
    for above, _, names in os.walk(directory):
        for name in names:
            path = Path(above, name)
            if not is_hidden(name) and not told_about(path).about.is_expired(now):
                yield path.relative_to(directory).as_posix()


def _shown_as(relative: str) -> str:
    """Return the URI of a note or another file; for all in a commit, that of its directory."""
    parts = relative.split("/")
    if len(parts) > _ARCHIVE_DEPTH and parts[0] == "session" and parts[2] == "commits":
        return uri_of("/".join(parts[:_ARCHIVE_DEPTH]))
    return uri_of(relative)


def _standing(root: Path, relative: str) -> str | None:
    """Return where a file, link or directory really is below the store; None when there is none.

    Raises:
        InvalidUri: A symbolic link leads out of the store, or to what the store keeps for itself.
    """
    locate(root, relative)
    above, _, name = relative.rpartition("/")
    real = locate(root, above) / name if above else root / name
    place = real.relative_to(root).as_posix()
    if place.partition("/")[0] not in MEMORY_SCOPES:
        raise InvalidUri(f"{relative!r} leads out of the scopes of the store through a link")
    if is_hidden(name) or not os.path.lexists(real):
        return None
    return place


def _is_directory(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()
