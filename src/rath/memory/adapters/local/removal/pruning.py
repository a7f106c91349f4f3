"""Removing old transcripts from the local stores of a home."""

from __future__ import annotations

import logging
import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rath._core.retention import empty_trash, move_to_trash
from rath._core.sqlite import IndexMismatch
from rath._core.usage_locks import claimed, is_old, is_used, use_file
from rath.memory.adapters.local.extraction.archive import Archive
from rath.memory.adapters.local.indexing.catalog import Catalog
from rath.memory.adapters.local.layout import INDEX_NAME, TRANSCRIPT_NAME
from rath.memory.persistence.paths import local_memory_root
from rath.memory.persistence.registry import local_stores

__all__ = ["prunable_transcripts", "prune_transcripts"]

_STAMP = re.compile(r"\d{8}T\d{12}")
_STAMP_FORMAT = "%Y%m%dT%H%M%S%f"

_logger = logging.getLogger(__name__)


def prunable_transcripts(*, older_than: timedelta) -> list[Path]:
    """Return the directories that `prune_transcripts` would remove now."""
    return [
        directory
        for store in _stores()
        if not is_used(use_file(store))
        for directory in _old_transcripts(store, older_than)
    ]


def prune_transcripts(*, older_than: timedelta) -> list[Path]:
    """Remove the transcripts that were committed longer ago, and return their directories.

    The time is that of their names; the notes that were learned from them stay. Kept are those that
    a model is still to read, and those of a store that is open, in whichever process.
    """
    removed = [each for store in _stores() for each in _prune(store, older_than)]
    empty_trash(local_memory_root())
    return removed


def _stores() -> list[Path]:
    kept = local_stores()
    return [kept.path(known) for known in kept.ids()]


def _prune(store: Path, older_than: timedelta) -> list[Path]:
    used_at = local_stores().last_use(store)
    if used_at is None or not _old_transcripts(store, older_than):
        return []
    try:
        with claimed(use_file(store), used_at=used_at) as is_free:
            old = _old_transcripts(store, older_than) if is_free else []
            removed = [each for each in old if move_to_trash(each, root=store.parent) is not None]
            _forget(store, removed)
    except OSError as exc:
        _logger.warning("the transcripts in %s are kept: %s", store, exc)
        return []
    return removed


def _forget(store: Path, removed: list[Path]) -> None:
    """Let the index know nothing of what was removed, and leave no empty directories."""
    for commits in {directory.parent for directory in removed}:
        with suppress(OSError):  # there is something in one of them
            commits.rmdir()
            commits.parent.rmdir()
    if not removed or not (store / INDEX_NAME).is_file():
        return
    catalog = Catalog(store)
    try:
        for directory in removed:
            catalog.recheck(directory.relative_to(store).as_posix(), TRANSCRIPT_NAME)
    except (sqlite3.Error, IndexMismatch) as exc:
        # The next search compares the index with the files, and finds them gone.
        _logger.warning("the index of %s does not follow yet: %s", store, exc)
    finally:
        catalog.close()


def _old_transcripts(store: Path, older_than: timedelta) -> list[Path]:
    found = [
        transcript
        for session in _directories(store / "session")
        for transcript in _directories(session / "commits")
        if is_old(_committed_at(transcript.name), older_than) and not _is_pending(store, transcript)
    ]
    return sorted(found)


def _is_pending(store: Path, transcript: Path) -> bool:
    record = Archive(transcript.relative_to(store).as_posix()).record(store)
    return record is not None and record.phase == "pending"


def _directories(above: Path) -> Iterator[Path]:
    """Yield the directories in another one; nothing is reached through a symbolic link."""
    if above.is_symlink():
        return
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(above) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield Path(entry)


def _committed_at(name: str) -> float | None:
    if _STAMP.fullmatch(name) is None:
        return None
    with suppress(ValueError):
        return datetime.strptime(name, _STAMP_FORMAT).replace(tzinfo=UTC).timestamp()
    return None
