"""Forgetting: on request, when notes expire, and when transcripts are old; it leaves no trace.

<store>/.forgotten/          there is something to scrub; it outlives a crash
<store>/.forgotten/<hex>/    moved out of sight at once, to be deleted

Scrubbing leaves nothing of what was removed in the index, among vectors and drafts, nor among the
moved.
"""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from rath._core.retention import empty_trash, move_to_trash, remove_tree
from rath._core.sqlite import IndexMismatch
from rath._core.usage_locks import claimed, is_old, is_used, use_file
from rath.memory.adapters.local import layout
from rath.memory.adapters.local.catalog import Catalog, own_changes, update_all, update_files
from rath.memory.adapters.local.index import NoteIndex
from rath.memory.adapters.local.metadata import metadata_path, read_metadata, write_metadata
from rath.memory.adapters.local.store import LocalStore
from rath.memory.adapters.local.transcripts import STAMP_FORMAT, archives
from rath.memory.adapters.local.vectors import erase_unused
from rath.memory.driver import InvalidUri
from rath.memory.op_types import MemoryOpForget
from rath.memory.persistence.paths import local_memory_root
from rath.memory.persistence.registry import local_stores
from rath.memory.results import MemoryExecutionFailure, MemoryForgetResult, MemoryResult
from rath.memory.uri import MEMORY_SCOPES, MEMORY_URI_PREFIX, is_memory_root

BATCH = 200
"""Notes that are removed in one transaction; other writers wait about 20 ms for it."""

LARGE_STORE = 5000
"""Files and directories from which on scrubbing takes long enough to be done for several at once:
about 25 ms."""

_ARCHIVE_DEPTH = 4
"""Segments of "session/<sid>/commits/<stamp>"."""

_SWEEP_SECONDS = 1.0
"""How long a sweep takes at most; the next one goes on. Nobody sees what has expired."""

_STAMP = re.compile(r"\d{8}T\d{12}")

Place = tuple[str, str]
"""Directory and name of a note."""


class ForgottenFiles:
    """A directory that takes files to be deleted; what is there is neither found nor listed.

    Args:
        root: Directory of the store.

    Raises:
        OSError: It cannot be made.
    """

    def __init__(self, root: Path) -> None:
        self._place = root / layout.FORGOTTEN_NAME / os.urandom(8).hex()
        self._make_place()
        self._n_files = 0

    def take(self, path: Path) -> Path | None:
        """Move a file, link or directory here, at once and whole; None when it is not there.

        Returns:
            Where it is now.

        Raises:
            OSError: It cannot be moved.
        """
        self._n_files += 1
        target = self._place / str(self._n_files)
        while os.path.lexists(path):
            try:
                path.rename(target)
            except FileNotFoundError:
                # Somebody else has scrubbed meanwhile, or `path` is gone.
                self._make_place()
            else:
                return target
        return None

    def take_note(self, index: NoteIndex, root: Path, place: Place) -> None:
        """Move a note and its other files here; the caller is inside `index.writing()`.

        The note goes before its metadata, which must not end first.

        Raises:
            OSError: It cannot be moved.
        """
        path = root.joinpath(*place)
        index.remove(*place)
        self.take(path)
        self.take(Path(metadata_path(path)))
        self.take(path.with_suffix(layout.VECTOR_SUFFIX))

    def empty(self) -> None:
        """Delete all files here, once the index has forgotten them.

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


def forget(store: LocalStore, op: MemoryOpForget) -> MemoryResult:
    """Remove a note, a directory or a session; nothing of it is left in any file of the store.

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
    relative = layout.relative_path(op.uri)
    # A scope is a directory, and no note stands beside it.
    named = dict.fromkeys(
        (layout.note_path(relative), relative) if "/" in relative else (relative,)
    )
    found = [place for each in named if (place := _real_place(store.root, each)) is not None]
    files = [each for each in found if not _is_directory(store.root / each)]
    if found and not files and not op.recursive:
        return MemoryExecutionFailure(
            "unsupported",
            f"{op.uri!r} is a directory; recursive=True forgets it with all that is below it",
        )
    # Without `recursive` a note is meant, before any other file of that name.
    gone = _remove(store, found if op.recursive else files[:1])
    if gone is None:
        return MemoryExecutionFailure("not_found", f"there is nothing at {op.uri!r}")
    return MemoryForgetResult(tuple(sorted(gone)))


def _forget_session(store: LocalStore, session_id: str) -> MemoryResult:
    if "/" in session_id:
        raise InvalidUri(f"{session_id!r} cannot name a session; expected one plain name")
    # The transcripts go first: notes of them are written only while they are there.
    directory = _real_place(
        store.root, layout.relative_path(f"{MEMORY_URI_PREFIX}session/{session_id}")
    )
    gone = _remove(store, [] if directory is None else [directory]) or set()
    # Read from the files: the notes that the session is a source of.
    notes: list[Place] = []
    for scope in MEMORY_SCOPES:
        for above, below, names in os.walk(store.root / scope):
            below.sort()
            place = Path(above).relative_to(store.root).as_posix()
            for name in sorted(names):
                if name.endswith(layout.METADATA_SUFFIX) and layout.can_name_a_file(
                    f"{place}/{name}"
                ):
                    note = name.removesuffix(layout.METADATA_SUFFIX) + layout.NOTE_SUFFIX
                    if read_metadata(f"{above}/{note}").metadata.comes_from(session_id):
                        notes.append((place, note))
    if notes:

        def leave(trash: ForgottenFiles, index: NoteIndex, place: Place) -> None:
            """Remove the session from the sources of a note, or a note without another source."""
            path = store.root.joinpath(*place)
            metadata = read_metadata(path).metadata
            is_source = metadata.comes_from(session_id)
            rest = metadata.without(session_id) if is_source else metadata
            if rest is not None:
                write_metadata(path, rest)
                update_files(index, store.root, place[0], [place[1]])
                return
            if os.path.lexists(path) and not metadata.is_expired(store.expiry.now()):
                gone.add(layout.uri_of("/".join(place)))
            trash.take_note(index, store.root, place)

        with _removal(store) as trash:
            _change_notes(store, notes, partial(leave, trash))
    return MemoryForgetResult(tuple(sorted(gone)))


def _change_notes(
    store: LocalStore,
    places: list[Place],
    change: Callable[[NoteIndex, Place], None],
    *,
    seconds: float = float("inf"),
) -> None:
    """Change notes in batches, each in one transaction; no new batch after some seconds."""
    ends_at = time.monotonic() + seconds
    for start in range(0, len(places), BATCH):
        batch = places[start : start + BATCH]

        def change_batch(index: NoteIndex, batch: list[Place] = batch) -> None:
            directories = {directory for directory, _ in batch}
            with index.writing(), own_changes(index, store.root, directories):
                for place in batch:
                    change(index, place)

        store.catalog.use(change_batch)
        if time.monotonic() > ends_at:
            break


def _remove(store: LocalStore, targets: list[str]) -> set[str] | None:
    """Remove files and directories, and return the URIs in them; None when nothing was there."""
    if not targets:
        return None
    with _removal(store) as trash:
        gone = [
            store.catalog.use(partial(_remove_one, store=store, trash=trash, target=target))
            for target in targets
        ]
    if all(uris is None for uris in gone):
        return None
    return {uri for uris in gone for uri in uris or ()}


def _remove_one(
    index: NoteIndex, *, store: LocalStore, trash: ForgottenFiles, target: str
) -> set[str] | None:
    path = store.root / target
    directory, _, name = target.rpartition("/")
    now = store.expiry.now()
    with index.writing(), own_changes(index, store.root, [directory]):
        if not _is_directory(path):
            is_there = os.path.lexists(path) and not read_metadata(path).metadata.is_expired(now)
            if name.endswith(layout.NOTE_SUFFIX):
                trash.take_note(index, store.root, (directory, name))
            else:
                index.remove(directory, name)
                trash.take(path)
            return {_public_uri(target)} if is_there else None
        index.remove_directory(target)
        moved = trash.take(path)
    if moved is None:
        return set()
    return {
        _public_uri(f"{target}/{Path(above, name).relative_to(moved).as_posix()}")
        for above, _, names in os.walk(moved)
        for name in names
        if not layout.is_hidden(name)
        and not read_metadata(f"{above}/{name}").metadata.is_expired(now)
    }


def _public_uri(relative: str) -> str:
    """Return the URI of a note or another file; for all in a commit, that of its directory."""
    parts = relative.split("/")
    if len(parts) > _ARCHIVE_DEPTH and parts[0] == "session" and parts[2] == "commits":
        return layout.uri_of("/".join(parts[:_ARCHIVE_DEPTH]))
    return layout.uri_of(relative)


def _real_place(root: Path, relative: str) -> str | None:
    """Return where a file, link or directory really is below the store; None when there is none.

    Raises:
        InvalidUri: A symbolic link leads out of the store, or to its own files.
    """
    layout.locate(root, relative)
    above, _, name = relative.rpartition("/")
    real = layout.locate(root, above) / name if above else root / name
    place = real.relative_to(root).as_posix()
    if place.partition("/")[0] not in MEMORY_SCOPES:
        raise InvalidUri(f"{relative!r} leads out of the scopes of the store through a link")
    if layout.is_hidden(name) or not os.path.lexists(real):
        return None
    return place


def _is_directory(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def sweep(store: LocalStore) -> None:
    """Remove expired notes; traces of them go when the store is closed. Best effort."""
    try:
        expired = sorted(store.catalog.use(lambda index: index.expired(store.expiry.now())))
        if not expired:
            return
        trash = ForgottenFiles(store.root)

        def remove(index: NoteIndex, place: Place) -> None:
            # The file tells the truth: somebody may have given the note more time.
            metadata = read_metadata(store.root.joinpath(*place)).metadata
            if metadata.is_expired(store.expiry.now()):
                trash.take_note(index, store.root, place)
            else:
                update_files(index, store.root, place[0], [place[1]])

        _change_notes(store, expired, remove, seconds=_SWEEP_SECONDS)
        trash.empty()
    except (OSError, sqlite3.Error, IndexMismatch) as exc:
        layout.logger.info("expired notes in %s are removed later: %s", store.root, exc)


def sweep_and_scrub(store: LocalStore) -> LocalStore:
    """Remove expired notes, and all traces of earlier removals; returns the store."""
    if (store.root / layout.INDEX_NAME).exists():
        sweep(store)
    if os.path.isdir(store.root / layout.FORGOTTEN_NAME):
        scrub(store)
    return store


@contextmanager
def _removal(store: LocalStore) -> Generator[ForgottenFiles]:
    """Delete what is moved away in the block, and scrub the store.

    At once; in a large store that was just scrubbed, soon, for all that is removed then. Until then
    the directory of forgotten files stays, so that a crash only delays it.
    """
    trash = ForgottenFiles(store.root)
    try:
        yield trash
        trash.empty()
    finally:
        is_large = False
        with suppress(sqlite3.Error, IndexMismatch):
            is_large = store.catalog.use(NoteIndex.count) > LARGE_STORE
        if is_large:
            store.scrubbing.add(partial(scrub, store))
        else:
            scrub(store)


def scrub(store: LocalStore) -> bool:
    """Remove all traces of removals from the store; False when some are left.

    While somebody else reads the index, its log cannot be cut; then the next to close or open the
    store, or to forget something, tries again.
    """
    root, place = store.root, store.root / layout.FORGOTTEN_NAME
    try:
        rest: list[Path] = []
        with suppress(FileNotFoundError):  # somebody else may just have emptied it
            rest = list(place.iterdir())
        if rest and (root / layout.INDEX_NAME).exists():
            # Somebody died, or is at work, between moving it away and telling the index.
            store.catalog.use(lambda index: update_all(index, root))
        for each in rest:
            remove_tree(each)
        # A writer whose draft is gone writes it again.
        with suppress(FileNotFoundError), os.scandir(root / layout.DRAFTS_NAME) as entries:
            for entry in entries:
                if layout.is_draft(entry.name):
                    with suppress(FileNotFoundError):
                        os.unlink(entry.path)
        if not (root / layout.INDEX_NAME).exists():
            _remove_if_empty(place)
        elif not store.catalog.use(partial(_scrub_index, root=root)):
            layout.logger.info(
                "traces in the index of %s are removed later: it is read now, or out of reach", root
            )
            return False
    except (OSError, sqlite3.Error, IndexMismatch) as exc:
        layout.logger.warning(
            "there may be traces of what was removed from %s: %s; closing and opening it again "
            "removes them",
            root,
            exc,
        )
        return False
    return True


def _scrub_index(index: NoteIndex, *, root: Path) -> bool:
    erase_unused(index, root)
    if index.path is None:
        # The file that one in memory stands for still knows all removals: a new directory in this
        # place makes the next one to scrub look at the files first.
        ForgottenFiles(root)
        return False
    if not index.scrub():
        return False
    # Nobody in this process removes anything between both.
    _remove_if_empty(root / layout.FORGOTTEN_NAME)
    return True


def _remove_if_empty(place: Path) -> None:
    # Somebody else may have put something there meanwhile, who scrubs too.
    with suppress(OSError):
        place.rmdir()


def prunable_transcripts(*, older_than: timedelta) -> list[Path]:
    """Return the directories that `prune_transcripts` would remove now."""
    stores = local_stores()
    return [
        directory
        for store in map(stores.path, stores.ids())
        if not is_used(use_file(store))
        for directory in _old_transcripts(store, older_than)
    ]


def prune_transcripts(*, older_than: timedelta) -> list[Path]:
    """Remove the transcripts that were committed longer ago, and return their directories.

    The time is that of their names; the notes that were learned from them stay. Transcripts that a
    model is still to read stay, and those of a store that is open, in whichever process.
    """
    stores = local_stores()
    removed = [each for known in stores.ids() for each in _prune(stores.path(known), older_than)]
    empty_trash(local_memory_root())
    return removed


def _prune(store: Path, older_than: timedelta) -> list[Path]:
    used_at = local_stores().last_use(store)
    if used_at is None or not _old_transcripts(store, older_than):
        return []
    try:
        with claimed(use_file(store), used_at=used_at) as is_free:
            old = _old_transcripts(store, older_than) if is_free else []
            removed = [each for each in old if move_to_trash(each, root=store.parent) is not None]
            for commits in {directory.parent for directory in removed}:
                with suppress(OSError):  # there is something in one of them
                    commits.rmdir()
                    commits.parent.rmdir()
            if removed and (store / layout.INDEX_NAME).is_file():
                _follow(store, removed)
    except OSError as exc:
        layout.logger.warning("the transcripts in %s are kept: %s", store, exc)
        return []
    return removed


def _follow(store: Path, removed: list[Path]) -> None:
    """Let the index know nothing of removed transcripts."""
    catalog = Catalog(store)
    try:
        for directory in removed:
            catalog.recheck(directory.relative_to(store).as_posix(), layout.TRANSCRIPT_NAME)
    except (sqlite3.Error, IndexMismatch) as exc:
        # The next search compares the index with the files, and finds them gone.
        layout.logger.warning("the index of %s does not follow yet: %s", store, exc)
    finally:
        catalog.close()


def _old_transcripts(store: Path, older_than: timedelta) -> list[Path]:
    return sorted(
        store / archive.directory
        for archive in archives(store)
        if is_old(_committed_at(archive.directory.rpartition("/")[2]), older_than)
        and ((record := archive.record(store)) is None or record.phase != "pending")
    )


def _committed_at(name: str) -> float | None:
    if _STAMP.fullmatch(name) is None:
        return None
    with suppress(ValueError):
        return datetime.strptime(name, STAMP_FORMAT).replace(tzinfo=UTC).timestamp()
    return None
