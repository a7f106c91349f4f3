"""Recall on a bare SQLite FTS5 table."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path


def build(path: Path, notes: Iterable[tuple[str, str]]) -> None:
    """Write an index of (name, text) notes."""
    connection = sqlite3.connect(path)
    connection.execute("CREATE VIRTUAL TABLE notes USING fts5(name UNINDEXED, body)")
    with connection:
        connection.executemany("INSERT INTO notes VALUES (?, ?)", notes)
    connection.close()


def recall(connection: sqlite3.Connection, query: str, *, top_k: int) -> list[tuple[str, str]]:
    """The best notes that hold any word of `query`, best first."""
    words = " OR ".join(f'"{word}"' for word in query.split())
    sql = "SELECT name, body FROM notes WHERE notes MATCH ? ORDER BY rank LIMIT ?"
    return connection.execute(sql, (words, top_k)).fetchall()


def write(connection: sqlite3.Connection, folder: Path, name: str, text: str) -> None:
    """Put a note in its place, never seen half written, and into the index."""
    draft = folder / f"{name}.tmp"
    draft.write_text(text, encoding="utf-8")
    draft.replace(folder / f"{name}.md")
    connection.execute("INSERT INTO notes VALUES (?, ?)", (name, text))
