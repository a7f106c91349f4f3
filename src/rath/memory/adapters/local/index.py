"""The SQLite index of a local store: which files were seen in which state, and their terms."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Iterable
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rath.memory.adapters.local.about import NOTHING_KNOWN, NoteAbout
from rath.memory.adapters.local.layout import Kind

INDEX_VERSION = 2
"""Counts changes of the schema and of the terms; an index of another version is built again."""

BUSY_SECONDS = 5.0
"""How long a writer waits for one in another process, unless it is told otherwise."""

_APPLICATION_ID = 0x52415448
TABLES: dict[Kind, str] = {"note": "notes", "transcript": "transcripts"}

_SCHEMA = f"""
CREATE TABLE files (
    id INTEGER PRIMARY KEY, directory TEXT NOT NULL, name TEXT NOT NULL, kind TEXT NOT NULL,
    mtime_ns INTEGER NOT NULL, size INTEGER NOT NULL, n_terms INTEGER NOT NULL, expires_at REAL,
    UNIQUE (directory, name));
CREATE TABLE sources (file INTEGER NOT NULL, session TEXT NOT NULL, PRIMARY KEY (session, file))
    WITHOUT ROWID;
CREATE INDEX sources_of_file ON sources (file);
CREATE TABLE directories (path TEXT PRIMARY KEY, mtime_ns INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE totals (kind TEXT PRIMARY KEY, documents INTEGER NOT NULL, terms INTEGER NOT NULL);
INSERT INTO totals VALUES ('note', 0, 0), ('transcript', 0, 0);
CREATE VIRTUAL TABLE notes USING fts5(terms, tokenize='ascii');
CREATE VIRTUAL TABLE transcripts USING fts5(terms, tokenize='ascii');
CREATE VIRTUAL TABLE notes_terms USING fts5vocab('notes', 'row');
CREATE VIRTUAL TABLE transcripts_terms USING fts5vocab('transcripts', 'row');
PRAGMA application_id = {_APPLICATION_ID};
PRAGMA user_version = {INDEX_VERSION};
"""


UNREAD = 0
"""Time of change in the row of a directory that is to be read at the next occasion."""

UNSETTLED = -1
"""Size in the stamp of a file that is to be read again at the next occasion."""


class Stamp(NamedTuple):
    """The state of a file by which a change is noticed."""

    mtime_ns: int
    size: int

    def is_still(self, other: Stamp) -> bool:
        """Return whether a file is as it was when this was stored, as far as one can tell."""
        return self.mtime_ns == other.mtime_ns and self.size in {other.size, UNSETTLED}


@dataclass(frozen=True, slots=True)
class Totals:
    """How much there is of one kind."""

    documents: int
    terms: int


class IndexMismatch(Exception):
    """An index file is of another version, or not an index of ours."""


class NoteIndex:
    """One connection to an index; callers see to it that one thread uses it at a time.

    Args:
        path: The file, created when it is missing; None keeps the index in memory.
        busy_seconds: How long to wait for a writer in another process.

    Raises:
        sqlite3.Error: The file cannot be opened, written or believed.
        IndexMismatch: The file holds something else.
    """

    def __init__(self, path: Path | None, *, busy_seconds: float = BUSY_SECONDS) -> None:
        self.path = path
        self._connection = sqlite3.connect(
            ":memory:" if path is None else path,
            timeout=busy_seconds,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            self._set_up()
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    @contextmanager
    def writing(self) -> Generator[None]:
        """Hold the index for one writer among all threads and processes; all or nothing."""
        self.begin()
        try:
            yield
        except BaseException:
            self.roll_back()
            raise
        self.commit()

    def begin(self) -> None:
        """Wait for other writers, at most `busy_seconds`, and keep them out until the end."""
        self._connection.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """End what `begin` began, with its changes."""
        self._connection.execute("COMMIT")

    def roll_back(self) -> None:
        """End what `begin` began, without its changes."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def rows(self, sql: str, *values: object) -> list[tuple[object, ...]]:
        """Return the rows of a query."""
        with closing(self._connection.execute(sql, values)) as cursor:
            return cursor.fetchall()

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
        self.remove(directory, name)
        row = (directory, name, kind, *stamp, len(terms), about.expires_at)
        sql = (
            "INSERT INTO files (directory, name, kind, mtime_ns, size, n_terms, expires_at) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)"
        )
        inserted = self._connection.execute(sql, row).lastrowid
        for session in {source.session_id for source in about.sources}:
            sql = "INSERT INTO sources (file, session) VALUES (?, ?)"
            self._connection.execute(sql, (inserted, session))
        sql = f"INSERT INTO {TABLES[kind]} (rowid, terms) VALUES (?, ?)"
        self._connection.execute(sql, (inserted, " ".join(terms)))
        self._count(kind, 1, len(terms))
        # Every directory with a file is known, so that the file is forgotten with it.
        sql = "INSERT OR IGNORE INTO directories VALUES (?, ?)"
        self._connection.execute(sql, (directory, UNREAD))

    def remove(self, directory: str, name: str) -> None:
        """Forget a file; an unknown one is fine."""
        sql = "DELETE FROM files WHERE directory = ? AND name = ? RETURNING id, kind, n_terms"
        for row, kind, n_terms in self._connection.execute(sql, (directory, name)).fetchall():
            self._connection.execute(f"DELETE FROM {TABLES[kind]} WHERE rowid = ?", (row,))
            self._connection.execute("DELETE FROM sources WHERE file = ?", (row,))
            self._count(kind, -1, -n_terms)

    def files_in(self, directory: str) -> dict[str, Stamp]:
        """Return the known files directly in a directory."""
        sql = "SELECT name, mtime_ns, size FROM files WHERE directory = ?"
        return {
            name: Stamp(mtime_ns, size)
            for name, mtime_ns, size in self._connection.execute(sql, (directory,))
        }

    def directories(self) -> dict[str, int]:
        """Return the known directories with the time of change that each had when it was read."""
        return dict(self._connection.execute("SELECT path, mtime_ns FROM directories"))

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
        sql = (
            "SELECT directory, name FROM files "
            "WHERE directory = ? OR directory >= ? AND directory < ?"
        )
        for directory, name in self._connection.execute(sql, (path, *below)).fetchall():
            self.remove(directory, name)
        sql = "DELETE FROM directories WHERE path = ? OR path >= ? AND path < ?"
        self._connection.execute(sql, (path, *below))

    def files_from(self, session_id: str) -> list[tuple[str, str]]:
        """Return directory and name of the notes that come from a session."""
        sql = "SELECT directory, name FROM files JOIN sources ON file = id WHERE session = ?"
        return self._connection.execute(sql, (session_id,)).fetchall()

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

    def _set_up(self) -> None:
        # The busy timeout also covers the change to WAL and the schema, where processes meet that
        # open a new store at the same time.
        self._connection.execute("PRAGMA journal_mode = WAL")
        # The files are the truth; what a power cut takes from the index is read again from them.
        self._connection.execute("PRAGMA synchronous = NORMAL")
        if self._identity() == (0, 0):
            with self.writing():
                if self._identity() == (0, 0):
                    self._create()
        if self._identity() != (_APPLICATION_ID, INDEX_VERSION):
            raise IndexMismatch(f"{self.path} is no index of version {INDEX_VERSION}")

    def _create(self) -> None:
        if self.rows("SELECT 1 FROM sqlite_schema"):
            raise IndexMismatch(f"{self.path} is no index")
        for statement in _statements(_SCHEMA):
            self._connection.execute(statement)

    def _identity(self) -> tuple[int, int]:
        (application,) = self._connection.execute("PRAGMA application_id").fetchone()
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        return application, version


def _statements(script: str) -> Iterable[str]:
    # `executescript` would commit the open transaction first.
    return (statement for statement in script.split(";") if statement.strip())
