"""Opening the index file of a store among several processes."""

from __future__ import annotations

from pathlib import Path

from rath._core.sqlite import IndexMismatch, opening
from rath.memory.adapters.local.indexing.index import BUSY_SECONDS, NoteIndex


def open_index(path: Path, *, busy_seconds: float = BUSY_SECONDS) -> NoteIndex:
    """Open the index file, or make one; as `NoteIndex` does.

    Raises:
        sqlite3.Error: The file cannot be opened, written or believed.
        IndexMismatch: Something else stands there.
    """
    try:
        with opening(path, seconds=busy_seconds):
            return NoteIndex(path, busy_seconds=busy_seconds)
    except FileExistsError as exc:
        raise IndexMismatch(str(exc)) from exc
