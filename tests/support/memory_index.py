"""What the index of a local store knows, and what one knows that is built from its files."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from rath.memory.adapters.local.catalog import update_all
from rath.memory.adapters.local.index import NoteIndex
from rath.memory.adapters.local.layout import INDEX_NAME

Content = tuple[object, set[str]]


def content(index: NoteIndex) -> Content:
    """What an index knows, without times and row numbers; fails where it contradicts itself."""
    index.check()
    counted = index.rows(
        "SELECT kind, count(*), coalesce(sum(n_terms), 0) FROM files GROUP BY kind"
    )
    kept = index.rows("SELECT kind, documents, terms FROM totals WHERE documents > 0")
    assert set(counted) == set(kept)
    assert not index.rows("SELECT directory FROM files EXCEPT SELECT path FROM directories")
    stored = index.contents()
    assert len(index.rows("SELECT 1 FROM notes UNION ALL SELECT 1 FROM transcripts")) == len(stored)
    words = {str(word) for (word,) in index.rows("SELECT word FROM vocabulary")}
    return stored, words


def rebuilt(root: Path) -> Content:
    """What an index knows that is built from the files."""
    with closing(NoteIndex(None)) as index:
        update_all(index, root)
        return content(index)


def kept(root: Path) -> Content:
    """What the index of a store knows."""
    with closing(NoteIndex(root / INDEX_NAME)) as index:
        return content(index)
