"""The SQLite index of a local store: which files were seen in which state, and their terms."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rath._core.sqlite import DerivedDatabase
from rath.memory.adapters.local.files.about import NOTHING_KNOWN, NoteAbout
from rath.memory.adapters.local.indexing.vocabulary import VOCABULARY_SCHEMA, entries
from rath.memory.adapters.local.layout import Kind

INDEX_VERSION = 3
"""Counts changes of the schema and of the terms; an index of another version is built again."""

BUSY_SECONDS = 5.0
"""How long a writer waits for one in another process, unless it is told otherwise."""

_APPLICATION_ID = 0x52415448
TABLES: dict[Kind, str] = {"note": "notes", "transcript": "transcripts"}

# Ids of files are never given again (AUTOINCREMENT): vectors are made for those above the last one.
# Neither where in a note a term stands nor how long the note is: ranking reads the terms. Half of
# the time of a write among 100,000 notes.
_FTS = "terms, tokenize='ascii', detail=none, columnsize=0"
_MERGED_AT_ONCE = 8

_FEW = 200
"""More files are removed together, with one look at the whole vocabulary."""

_SCHEMA = f"""
CREATE TABLE files (
    id INTEGER PRIMARY KEY AUTOINCREMENT, directory TEXT NOT NULL, name TEXT NOT NULL,
    kind TEXT NOT NULL,
    mtime_ns INTEGER NOT NULL, size INTEGER NOT NULL, about_ns INTEGER NOT NULL,
    n_terms INTEGER NOT NULL, expires_at REAL,
    UNIQUE (directory, name));
CREATE TABLE sources (file INTEGER NOT NULL, session TEXT NOT NULL, PRIMARY KEY (session, file))
    WITHOUT ROWID;
CREATE INDEX sources_of_file ON sources (file);
CREATE INDEX files_to_expire ON files (expires_at) WHERE expires_at IS NOT NULL;
CREATE TABLE directories (path TEXT PRIMARY KEY, mtime_ns INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE totals (kind TEXT PRIMARY KEY, documents INTEGER NOT NULL, terms INTEGER NOT NULL);
INSERT INTO totals VALUES ('note', 0, 0), ('transcript', 0, 0);
CREATE VIRTUAL TABLE notes USING fts5({_FTS});
CREATE VIRTUAL TABLE transcripts USING fts5({_FTS});
{VOCABULARY_SCHEMA.strip()}
INSERT INTO notes (notes, rank) VALUES ('automerge', {_MERGED_AT_ONCE});
INSERT INTO transcripts (transcripts, rank) VALUES ('automerge', {_MERGED_AT_ONCE});
CREATE VIRTUAL TABLE notes_terms USING fts5vocab('notes', 'row');
CREATE VIRTUAL TABLE transcripts_terms USING fts5vocab('transcripts', 'row');
"""


UNREAD = 0
"""Time of change in the row of a directory that is to be read at the next occasion."""

UNSETTLED = -1
"""Size in the stamp of a file that is to be read again at the next occasion."""


class Stamp(NamedTuple):
    """The state of a file by which a change is noticed."""

    mtime_ns: int
    size: int
    about_ns: int = 0
    """Time of change of the file beside it that tells about it; 0 when there is none."""

    def is_still(self, other: Stamp) -> bool:
        """Return whether a file is as it was when this was stored, as far as one can tell."""
        return self.mtime_ns == other.mtime_ns and self.size in {other.size, UNSETTLED}


@dataclass(frozen=True, slots=True)
class Totals:
    """How much there is of one kind."""

    documents: int
    terms: int


class NoteIndex(DerivedDatabase):
    """One connection to the index of a store; see `DerivedDatabase`."""

    schema = _SCHEMA
    application_id = _APPLICATION_ID
    version = INDEX_VERSION
    # Each note changes about twelve pages; a checkpoint waits for the disk.
    checkpoint_pages = 4000

    def __init__(self, path: Path | None, *, busy_seconds: float = BUSY_SECONDS) -> None:
        super().__init__(path, busy_seconds=busy_seconds)

    @contextmanager
    def reading(self) -> Generator[None]:
        """Let several queries see one state, whatever other processes write meanwhile."""
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self.roll_back()

    def rows(self, sql: str, *values: object) -> list[tuple[object, ...]]:
        """Return the rows of a query."""
        with closing(self._connection.execute(sql, values)) as cursor:
            return cursor.fetchall()

    def run(self, sql: str, *values: object) -> None:
        """Run a statement that gives no rows."""
        self._connection.execute(sql, values)

    def put(
        self,
        directory: str,
        name: str,
        kind: Kind,
        *,
        stamp: Stamp,
        terms: list[str],
        about: NoteAbout = NOTHING_KNOWN,
    ) -> None:
        """Store the state and the terms of a file, and what is told about it, over older ones."""
        row = (directory, name, kind, *stamp, len(terms), about.expires_at)
        sql = (
            "INSERT INTO files (directory, name, kind, mtime_ns, size, about_ns, n_terms, "
            "expires_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
        )
        try:
            inserted = self._connection.execute(sql, row).lastrowid
        except sqlite3.IntegrityError:
            # Most files are new, and then there is nothing to remove.
            self.remove(directory, name)
            inserted = self._connection.execute(sql, row).lastrowid
        for session in {source.session_id for source in about.sources}:
            sql = "INSERT INTO sources (file, session) VALUES (?, ?)"
            self._connection.execute(sql, (inserted, session))
        sql = f"INSERT INTO {TABLES[kind]} (rowid, terms) VALUES (?, ?)"
        self._connection.execute(sql, (inserted, " ".join(terms)))
        sql = "INSERT OR IGNORE INTO vocabulary VALUES (?, ?, ?, ?, ?)"
        self._connection.executemany(sql, [(*word, inserted) for word in entries(terms)])
        self._count(kind, 1, len(terms))
        # Every directory with a file is known, so that the file is forgotten with it.
        if self.directory_time(directory) is None:
            self.put_directory(directory, UNREAD)

    def remove(self, directory: str, name: str) -> None:
        """Forget a file; an unknown one is fine."""
        sql = "DELETE FROM files WHERE directory = ? AND name = ? RETURNING id, kind, n_terms"
        for row, kind, n_terms in self._connection.execute(sql, (directory, name)).fetchall():
            self._forget_words(row, kind)
            self._connection.execute(f"DELETE FROM {TABLES[kind]} WHERE rowid = ?", (row,))
            self._connection.execute("DELETE FROM sources WHERE file = ?", (row,))
            self._count(kind, -1, -n_terms)

    def files_in(
        self, directory: str, *, after: str = "", limit: int | None = None
    ) -> dict[str, Stamp]:
        """Return the known files directly in a directory, by name.

        Args:
            directory: Where to look.
            after: Only those whose names come after this one.
            limit: At most so many.
        """
        sql = """SELECT name, mtime_ns, size, about_ns FROM files
                 WHERE directory = ? AND name > ? ORDER BY name LIMIT ?"""
        values = (directory, after, -1 if limit is None else limit)
        return {
            name: Stamp(mtime_ns, size, about_ns)
            for name, mtime_ns, size, about_ns in self._connection.execute(sql, values)
        }

    def directories(self, *, outside: str | None = None) -> dict[str, int]:
        """Return the known directories with the time of change that each had when it was read.

        Args:
            outside: Leaves out what is below this directory.
        """
        sql = "SELECT path, mtime_ns FROM directories"
        if outside is None:
            return dict(self._connection.execute(sql))
        sql += " WHERE path < ? UNION ALL " + sql + " WHERE path >= ?"
        return dict(self._connection.execute(sql, (f"{outside}/", f"{outside}0")))

    def directory_time(self, path: str) -> int | None:
        """Return the time of change that a directory had when it was last read."""
        sql = "SELECT mtime_ns FROM directories WHERE path = ?"
        found = self._connection.execute(sql, (path,)).fetchone()
        return None if found is None else found[0]

    def put_directory(self, path: str, mtime_ns: int) -> None:
        """Store that a directory was read in the state it had at `mtime_ns`."""
        sql = "INSERT OR REPLACE INTO directories VALUES (?, ?)"
        self._connection.execute(sql, (path, mtime_ns))

    def remove_directory(self, path: str) -> None:
        """Forget a directory and all that is below it."""
        below = f"{path}/", f"{path}0"  # "0" is the character after "/"
        inside = "directory = ? OR directory >= ? AND directory < ?"
        sql = f"SELECT directory, name FROM files WHERE {inside}"
        places = self._connection.execute(sql, (path, *below)).fetchall()
        if len(places) > _FEW:
            self._remove_many(inside, (path, *below))
        else:
            for directory, name in places:
                self.remove(directory, name)
        sql = "DELETE FROM directories WHERE path = ? OR path >= ? AND path < ?"
        self._connection.execute(sql, (path, *below))

    def files_from(self, session_id: str) -> list[tuple[str, str]]:
        """Return directory and name of the notes that come from a session."""
        sql = "SELECT directory, name FROM files JOIN sources ON file = id WHERE session = ?"
        return self._connection.execute(sql, (session_id,)).fetchall()

    def expired(self, now: float) -> frozenset[tuple[str, str]]:
        """Return directory and name of the notes that have expired, by seconds since 1970."""
        sql = "SELECT directory, name FROM files WHERE expires_at <= ?"
        return frozenset(self._connection.execute(sql, (now,)))

    def scrub(self) -> bool:
        """Leave nothing in the file of what was removed; False while somebody else reads it.

        Writes the whole file anew: 0.3 s for 50,000 notes of 30 words.
        """
        with self.writing():
            for table in TABLES.values():
                # Removed documents stay in an FTS5 table until its segments are merged.
                self._connection.execute(f"INSERT INTO {table} ({table}) VALUES ('optimize')")
        self._connection.execute("VACUUM")
        (is_blocked, _, _) = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return not is_blocked

    def count(self) -> int:
        """Return how many files and directories are known."""
        sql = "SELECT (SELECT sum(documents) FROM totals) + (SELECT count(*) FROM directories)"
        (found,) = self._connection.execute(sql).fetchone()
        return int(found)

    def totals(self, kind: Kind) -> Totals:
        """Return how many documents of a kind there are, and how many terms in all of them."""
        sql = "SELECT documents, terms FROM totals WHERE kind = ?"
        return Totals(*self._connection.execute(sql, (kind,)).fetchone())

    def _count(self, kind: Kind, documents: int, terms: int) -> None:
        sql = "UPDATE totals SET documents = documents + ?, terms = terms + ? WHERE kind = ?"
        self._connection.execute(sql, (documents, terms, kind))

    def _remove_many(self, where: str, values: tuple[str, ...]) -> None:
        """Forget the files that a condition tells, without a look at the words of each."""
        some = f"SELECT id FROM files WHERE {where}"
        sql = f"SELECT kind, count(*), sum(n_terms) FROM files WHERE {where} GROUP BY kind"
        for kind, n_documents, n_terms in self._connection.execute(sql, values).fetchall():
            table = TABLES[kind]
            self._connection.execute(f"DELETE FROM {table} WHERE rowid IN ({some})", values)
            self._count(kind, -n_documents, -n_terms)
        self._connection.execute(f"DELETE FROM sources WHERE file IN ({some})", values)
        self._connection.execute(f"DELETE FROM files WHERE {where}", values)
        sql = """SELECT initial, length, word FROM vocabulary
                 WHERE file NOT IN (SELECT id FROM files)"""
        for word in self._connection.execute(sql).fetchall():
            self._give_word_away(word)

    def _forget_words(self, row: int, kind: Kind) -> None:
        """Take out of the vocabulary what only this file has; it is still in its table."""
        stored = self.rows(f"SELECT terms FROM {TABLES[kind]} WHERE rowid = ?", row)
        sql = "SELECT 1 FROM vocabulary WHERE initial = ? AND length = ? AND word = ? AND file = ?"
        for *word, _ in entries(str(stored[0][0]).split(" ")) if stored else ():
            if self.rows(sql, *word, row):
                self._give_word_away(word, but_not_to=row)

    def _give_word_away(self, word: Sequence[object], *, but_not_to: int = 0) -> None:
        """Let a word name another file that has it, or go with the last one."""
        here = "WHERE initial = ? AND length = ? AND word = ?"
        for table in TABLES.values():
            # The newest one: files are mostly removed from the oldest on, and the next oldest
            # would have to give away each common word again.
            sql = f"""SELECT rowid FROM {table} WHERE {table} MATCH ? AND rowid <> ?
                      ORDER BY rowid DESC LIMIT 1"""
            found = self.rows(sql, f'"{word[-1]}"', but_not_to)
            if found:
                sql = f"UPDATE vocabulary SET file = ? {here}"
                self._connection.execute(sql, (found[0][0], *word))
                return
        self._connection.execute(f"DELETE FROM vocabulary {here}", tuple(word))
