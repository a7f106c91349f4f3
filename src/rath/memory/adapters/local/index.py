"""The SQLite index of a local store: which files were seen in which state, their terms and words.

The table `vocabulary` has each word of all documents: with which letter it begins, how long it is
and which letters it has, so that a misspelled word is a range of rows, of which few pass a test of
bits. It also names one file that has the word, so that few words need a look when a file is
forgotten.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from rath._core.sqlite import DerivedDatabase, IndexMismatch, opening
from rath.memory.adapters.local.files import Stamp
from rath.memory.adapters.local.layout import Kind, note_path
from rath.memory.adapters.local.terms import is_word
from rath.memory.notes import NO_METADATA, Metadata

INDEX_VERSION = 4
"""Counts changes of the schema and of the terms; an index of another version is built again."""

BUSY_SECONDS = 5.0
"""How long a writer waits for one in another process, unless it is told otherwise."""

TABLES: dict[Kind, str] = {"note": "notes", "transcript": "transcripts"}

MIN_WORD_CHARS = 3
MAX_WORD_CHARS = 32
"""Shorter and longer terms are no words of the vocabulary."""

UNREAD = 0
"""Time of change in the row of a directory that is to be read at the next occasion."""

_APPLICATION_ID = 0x52415448

# Neither where in a note a term stands nor how long the note is: ranking reads the terms. Half of
# the time of a write among 100,000 notes.
_FTS = "terms, tokenize='ascii', detail=none, columnsize=0"
_MERGED_AT_ONCE = 8

_FEW = 200
"""More files are removed together, with one look at the whole vocabulary."""

_MAX_CACHED_TERMS = 200_000
_MAX_FOUND = 64
_LAST = "\U0010ffff"
# Letters share a bit where their code points are equal modulo this; those of one script do not.
_N_BITS = 61

# Ids of files are never given again (AUTOINCREMENT): vectors are made for those above the last one.
_SCHEMA = f"""
CREATE TABLE files (
    id INTEGER PRIMARY KEY AUTOINCREMENT, directory TEXT NOT NULL, name TEXT NOT NULL,
    kind TEXT NOT NULL,
    mtime_ns INTEGER NOT NULL, size INTEGER NOT NULL, about_ns INTEGER NOT NULL,
    n_terms INTEGER NOT NULL, expires_at REAL,
    UNIQUE (directory, name));
CREATE INDEX files_to_expire ON files (expires_at) WHERE expires_at IS NOT NULL;
CREATE TABLE directories (path TEXT PRIMARY KEY, mtime_ns INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE totals (kind TEXT PRIMARY KEY, documents INTEGER NOT NULL, terms INTEGER NOT NULL);
INSERT INTO totals VALUES ('note', 0, 0), ('transcript', 0, 0);
CREATE VIRTUAL TABLE notes USING fts5({_FTS});
CREATE VIRTUAL TABLE transcripts USING fts5({_FTS});
CREATE TABLE vocabulary (
    initial TEXT NOT NULL, length INTEGER NOT NULL, word TEXT NOT NULL, letters INTEGER NOT NULL,
    file INTEGER NOT NULL, PRIMARY KEY (initial, length, word)) WITHOUT ROWID;
INSERT INTO notes (notes, rank) VALUES ('automerge', {_MERGED_AT_ONCE});
INSERT INTO transcripts (transcripts, rank) VALUES ('automerge', {_MERGED_AT_ONCE});
CREATE VIRTUAL TABLE notes_terms USING fts5vocab('notes', 'row');
CREATE VIRTUAL TABLE transcripts_terms USING fts5vocab('transcripts', 'row');
"""


class IndexEntry(NamedTuple):
    """A file as the index is to know it."""

    directory: str
    name: str
    kind: Kind
    stamp: Stamp
    terms: list[str]
    metadata: Metadata = NO_METADATA


class Totals(NamedTuple):
    """How much there is of one kind."""

    documents: int
    terms: int


class Match(NamedTuple):
    """A document that fits a query."""

    directory: str
    name: str
    stamp: Stamp
    score: float
    """By its words BM25, by its vectors the cosine; above 0, higher is closer."""
    part: int | None = None
    """The one of its texts that is closest; None where its words count."""
    rank_fusion: float | None = None
    """Orders it among the others, where that is not its score."""

    @property
    def place(self) -> tuple[str, str]:
        """Directory and name."""
        return self.directory, self.name


class Content(NamedTuple):
    """The knowledge about one file without times and numbers; equal for equal files."""

    kind: Kind
    n_terms: int
    digest: bytes
    """Of its terms in their order."""
    expires_at: float | None

    @classmethod
    def from_entry(cls, entry: IndexEntry) -> Content:
        """Return the knowledge of an index with this entry."""
        digest = _digest(" ".join(entry.terms))
        return cls(entry.kind, len(entry.terms), digest, entry.metadata.expires_at)


class NoteIndex(DerivedDatabase):
    """One connection to the index of a store; see `DerivedDatabase`."""

    schema = _SCHEMA
    application_id = _APPLICATION_ID
    version = INDEX_VERSION
    # Each note changes about twelve pages; a checkpoint waits for the disk.
    checkpoint_pages = 4000

    def __init__(self, path: Path | None, *, busy_seconds: float = BUSY_SECONDS) -> None:
        self.frequent: dict[tuple[Kind, str], tuple[int, int]] = {}
        """How many documents had a frequent term, among how many."""
        self._cached: set[str] = set()
        """Terms that need no row in the vocabulary, or have one as long as nobody else writes."""
        self._data_version = -1
        super().__init__(path, busy_seconds=busy_seconds)

    @classmethod
    def open(cls, path: Path, *, busy_seconds: float = BUSY_SECONDS) -> NoteIndex:
        """Open the index file, or make one, among several processes.

        Raises:
            sqlite3.Error: The file cannot be opened, written or believed.
            IndexMismatch: Something else stands there.
        """
        try:
            with opening(path, seconds=busy_seconds):
                return cls(path, busy_seconds=busy_seconds)
        except FileExistsError as exc:
            raise IndexMismatch(str(exc)) from exc

    def begin(self) -> None:
        super().begin()
        ((version,),) = self.rows("PRAGMA data_version")
        if version != self._data_version or len(self._cached) > _MAX_CACHED_TERMS:
            self._cached.clear()
            self._data_version = version

    def roll_back(self) -> None:
        self._cached.clear()
        super().roll_back()

    @contextmanager
    def reading(self) -> Generator[None]:
        """Let several queries see one state, whatever other processes write meanwhile."""
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            super().roll_back()

    def rows(self, sql: str, *values: object) -> list[Any]:
        """Return the rows of a query."""
        with closing(self._connection.execute(sql, values)) as cursor:
            return cursor.fetchall()

    def run(self, sql: str, *values: object) -> None:
        """Run a statement that gives no rows."""
        self._connection.execute(sql, values)

    def put(self, entries: Sequence[IndexEntry]) -> None:
        """Store the state, the terms and the metadata of files, each once, over older ones.

        The caller is inside `writing()`.
        """
        first = self.last_id() + 1
        ids = range(first, first + len(entries))
        rows = [
            (id_, *each[:3], *each.stamp, len(each.terms), each.metadata.expires_at)
            for id_, each in zip(ids, entries, strict=True)
        ]
        sql = "INSERT OR IGNORE INTO files VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
        many = self._connection.executemany
        if many(sql, rows).rowcount < len(rows):
            # Most files are new, and then there is nothing to remove.
            new = {id_ for (id_,) in self.rows("SELECT id FROM files WHERE id >= ?", first)}
            old = [row for row in rows if row[0] not in new]
            for row in old:
                self.remove(row[1], row[2])
            many(sql, old)
        for kind, table in TABLES.items():
            texts = [
                (id_, " ".join(each.terms))
                for id_, each in zip(ids, entries, strict=True)
                if each.kind == kind
            ]
            if texts:
                many(f"INSERT INTO {table} (rowid, terms) VALUES (?, ?)", texts)
                n_terms = sum(len(each.terms) for each in entries if each.kind == kind)
                self._count(kind, len(texts), n_terms)
        fresh: dict[str, int] = {}
        for id_, each in zip(ids, entries, strict=True):
            for term in set(each.terms).difference(self._cached):
                fresh.setdefault(term, id_)
        words = sorted((*word, fresh[word[2]]) for word in vocabulary_rows(fresh))
        many("INSERT OR IGNORE INTO vocabulary VALUES (?, ?, ?, ?, ?)", words)
        self._cached.update(fresh)
        # Every directory with a file is known, so that the file is forgotten with it.
        directories = {(each.directory, UNREAD) for each in entries}
        many("INSERT OR IGNORE INTO directories VALUES (?, ?)", directories)

    def remove(self, directory: str, name: str) -> None:
        """Forget a file; an unknown one is fine."""
        sql = "DELETE FROM files WHERE directory = ? AND name = ? RETURNING id, kind, n_terms"
        for row, kind, n_terms in self.rows(sql, directory, name):
            # Words that only this file has leave the vocabulary; they are still in its table.
            stored = self.rows(f"SELECT terms FROM {TABLES[kind]} WHERE rowid = ?", row)
            sql = """SELECT 1 FROM vocabulary
                     WHERE initial = ? AND length = ? AND word = ? AND file = ?"""
            for *word, _ in vocabulary_rows(stored[0][0].split(" ")) if stored else ():
                if self.rows(sql, *word, row):
                    self._reassign_word(word, but_not_to=row)
            self.run(f"DELETE FROM {TABLES[kind]} WHERE rowid = ?", row)
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
        found = self.rows(sql, directory, after, -1 if limit is None else limit)
        return {name: Stamp(*stamp) for name, *stamp in found}

    def iter_terms(self, kind: Kind, ids: Sequence[int]) -> Iterator[tuple[str, str, Stamp, str]]:
        """Yield directory, name, state and terms, with blanks between, of files in their order."""
        # CROSS JOIN keeps the order, and reads each file when it is asked for.
        sql = f"""SELECT directory, name, mtime_ns, size, terms FROM json_each(?) AS wanted
                  CROSS JOIN files AS f ON f.id = wanted.value
                  CROSS JOIN {TABLES[kind]} AS stored ON stored.rowid = f.id"""
        with closing(self._connection.execute(sql, (json.dumps(ids),))) as found:
            for directory, name, mtime_ns, size, terms in found:
                yield directory, name, Stamp(mtime_ns, size), terms

    def directories(self, *, outside: str | None = None) -> dict[str, int]:
        """Return the known directories with the time of change that each had when it was read.

        Args:
            outside: Leaves out all below this directory.
        """
        sql = "SELECT path, mtime_ns FROM directories"
        if outside is None:
            return dict(self.rows(sql))
        sql += " WHERE path < ? UNION ALL " + sql + " WHERE path >= ?"
        return dict(self.rows(sql, f"{outside}/", f"{outside}0"))

    def directory_time(self, path: str) -> int | None:
        """Return the time of change that a directory had when it was last read."""
        found = self.rows("SELECT mtime_ns FROM directories WHERE path = ?", path)
        return found[0][0] if found else None

    def put_directory(self, path: str, mtime_ns: int) -> None:
        """Store that a directory was read in the state it had at `mtime_ns`."""
        self.run("INSERT OR REPLACE INTO directories VALUES (?, ?)", path, mtime_ns)

    def remove_directory(self, path: str) -> None:
        """Forget a directory and all that is below it."""
        values = below = path, f"{path}/", f"{path}0"  # "0" is the character after "/"
        inside = "directory = ? OR directory >= ? AND directory < ?"
        places = self.rows(f"SELECT directory, name FROM files WHERE {inside}", *values)
        if len(places) <= _FEW:
            for directory, name in places:
                self.remove(directory, name)
        else:
            some = f"SELECT id FROM files WHERE {inside}"
            sql = f"SELECT kind, count(*), sum(n_terms) FROM files WHERE {inside} GROUP BY kind"
            for kind, n_documents, n_terms in self.rows(sql, *values):
                self.run(f"DELETE FROM {TABLES[kind]} WHERE rowid IN ({some})", *values)
                self._count(kind, -n_documents, -n_terms)
            self.run(f"DELETE FROM files WHERE {inside}", *values)
            sql = """SELECT initial, length, word FROM vocabulary
                     WHERE file NOT IN (SELECT id FROM files)"""
            for word in self.rows(sql):
                self._reassign_word(word)
        self.run("DELETE FROM directories WHERE path = ? OR path >= ? AND path < ?", *below)

    def expired(self, now: float) -> frozenset[tuple[str, str]]:
        """Return directory and name of the notes that have expired, by seconds since 1970."""
        return frozenset(self.rows("SELECT directory, name FROM files WHERE expires_at <= ?", now))

    def last_id(self) -> int:
        """Return the number of the newest file that was ever known; 0 where there was none."""
        found = self.rows("SELECT seq FROM sqlite_sequence WHERE name = 'files'")
        return found[0][0] if found else 0

    def count(self) -> int:
        """Return how many files and directories are known."""
        sql = "SELECT (SELECT sum(documents) FROM totals) + (SELECT count(*) FROM directories)"
        return int(self.rows(sql)[0][0])

    def totals(self, kind: Kind) -> Totals:
        """Return how many documents of a kind there are, and how many terms in all of them."""
        return Totals(*self.rows("SELECT documents, terms FROM totals WHERE kind = ?", kind)[0])

    def scrub(self) -> bool:
        """Leave nothing in the file of what was removed; False while somebody else reads it.

        Writes the whole file anew: 0.3 s for 50,000 notes of 30 words.
        """
        with self.writing():
            for table in TABLES.values():
                # Removed documents stay in an FTS5 table until its segments are merged.
                self.run(f"INSERT INTO {table} ({table}) VALUES ('optimize')")
        self.run("VACUUM")
        ((is_blocked, _, _),) = self.rows("PRAGMA wal_checkpoint(TRUNCATE)")
        return not is_blocked

    def check(self) -> None:
        """Look whether the file and its tables of terms are sound.

        Raises:
            sqlite3.Error: They are not, or the index is in use.
        """
        for table in TABLES.values():
            self.run(f"INSERT INTO {table} ({table}) VALUES ('integrity-check')")

    def contents(
        self, *, directory: str | None = None, first: str = "", last: str = ""
    ) -> dict[tuple[str, str], Content]:
        """Return the knowledge about all files, by directory and name.

        Args:
            directory: Only the files directly in this directory,
            first: from this name
            last: to this one.
        """
        where = "" if directory is None else "WHERE directory = ? AND name BETWEEN ? AND ?"
        sql = f"""SELECT directory, name, kind, n_terms,
                         coalesce(notes.terms, transcripts.terms, ''), expires_at
                  FROM files LEFT JOIN notes ON kind = 'note' AND notes.rowid = files.id
                  LEFT JOIN transcripts ON kind = 'transcript' AND transcripts.rowid = files.id
                  {where}"""
        found = self.rows(sql, *(() if directory is None else (directory, first, last)))
        return {
            (place, name): Content(kind, n_terms, _digest(terms), expires_at)
            for place, name, kind, n_terms, terms, expires_at in found
        }

    def recount(self) -> None:
        """Count documents and words again; the caller is inside `writing()`."""
        self._cached.clear()
        self.run(
            "UPDATE totals SET (documents, terms) = (SELECT count(*), coalesce(sum(n_terms), 0) "
            "FROM files WHERE files.kind = totals.kind)"
        )
        used = self.rows("SELECT term FROM notes_terms UNION SELECT term FROM transcripts_terms")
        wanted = set(vocabulary_rows(term for (term,) in used))
        sql = """SELECT initial, length, word, letters FROM vocabulary
                 WHERE file IN (SELECT id FROM files)"""
        known = set(self.rows(sql))
        self.run("DELETE FROM vocabulary WHERE file NOT IN (SELECT id FROM files)")
        for *word, _ in known - wanted:
            self.run("DELETE FROM vocabulary WHERE initial = ? AND length = ? AND word = ?", *word)
        for row in wanted - known:
            self.run(
                "INSERT INTO vocabulary SELECT ?1, ?2, ?3, ?4, min(rowid) FROM ("
                "SELECT rowid FROM notes WHERE notes MATCH ?5 UNION ALL "
                "SELECT rowid FROM transcripts WHERE transcripts MATCH ?5)",
                *(*row, f'"{row[2]}"'),
            )

    def words_beginning_with(self, prefix: str, *, shortest: int, longest: int) -> list[str]:
        """Return words of the vocabulary that begin so, the shortest first; at most 64."""
        lengths = range(max(shortest, MIN_WORD_CHARS), min(longest, MAX_WORD_CHARS) + 1)
        sql = f"""SELECT word FROM vocabulary WHERE initial = ? AND word >= ? AND word < ?
                  AND length IN ({", ".join(map(str, lengths))}) LIMIT {_MAX_FOUND}"""
        return [word for (word,) in self.rows(sql, prefix[0], prefix, prefix + _LAST)]

    def words_in_vocabulary(self, words: Iterable[str]) -> set[str]:
        """Return those words that are in the vocabulary."""
        sql = "SELECT 1 FROM vocabulary WHERE initial = ? AND length = ? AND word = ?"
        return {word for word in words if self.rows(sql, word[0], len(word), word)}

    def words_with_letters_of(self, word: str, *, initials: Iterable[str], edits: int) -> list[str]:
        """Return all words of the vocabulary that may become `word` by so many edits, and others.

        Args:
            word: The word to come near to.
            initials: Letters that they begin with.
            edits: At most this many letters are inserted, left out, changed or swapped.
        """
        # An edit adds one letter at most, and removes one at most.
        added, removed = "letters & ~?4", "?4 & ~letters"
        for _ in range(edits):
            added, removed = (f"({bits}) & (({bits}) - 1)" for bits in (added, removed))
        sql = f"""SELECT word FROM vocabulary WHERE initial = ?1 AND length BETWEEN ?2 AND ?3
                  AND ({added}) = 0 AND ({removed}) = 0"""
        values = (len(word) - edits, len(word) + edits, _letter_bits(word))
        found = (self.rows(sql, initial, *values) for initial in dict.fromkeys(initials))
        return [other for rows in found for (other,) in rows]

    def _count(self, kind: Kind, documents: int, terms: int) -> None:
        sql = "UPDATE totals SET documents = documents + ?, terms = terms + ? WHERE kind = ?"
        self.run(sql, documents, terms, kind)

    def _reassign_word(self, word: Sequence[Any], *, but_not_to: int = 0) -> None:
        """Let a word name another file that has it, or go with the last one."""
        here = "WHERE initial = ? AND length = ? AND word = ?"
        for table in TABLES.values():
            # The newest one: files are mostly removed from the oldest on, and the next oldest
            # would have to give away each common word again.
            sql = f"""SELECT rowid FROM {table} WHERE {table} MATCH ? AND rowid <> ?
                      ORDER BY rowid DESC LIMIT 1"""
            found = self.rows(sql, f'"{word[-1]}"', but_not_to)
            if found:
                self.run(f"UPDATE vocabulary SET file = ? {here}", found[0][0], *word)
                return
        self._cached.discard(word[-1])
        self.run(f"DELETE FROM vocabulary {here}", *word)


def vocabulary_rows(terms: Iterable[str]) -> list[tuple[str, int, str, int]]:
    """Return the rows, without their file, for the words among some terms."""
    return [row for term in set(terms) if (row := _vocabulary_row(term)) is not None]


def scope_condition(below: str) -> tuple[str, tuple[str, ...]]:
    """Return a condition on `files AS f` for a part of the store, and its values.

    Args:
        below: Directory, or the path of one note without suffix.
    """
    parent, _, name = note_path(below).rpartition("/")
    sql = """(f.directory = ? OR f.directory >= ? AND f.directory < ?
              OR f.directory = ? AND f.name = ?)"""
    return sql, (below, f"{below}/", f"{below}0", parent, name)


@lru_cache(8192)
def _vocabulary_row(term: str) -> tuple[str, int, str, int] | None:
    if not MIN_WORD_CHARS <= len(term) <= MAX_WORD_CHARS or not is_word(term):
        return None
    return term[0], len(term), term, _letter_bits(term)


def _letter_bits(word: str) -> int:
    """Return a number with a bit for each letter that a word has."""
    bits = 0
    for char in word:
        bits |= 1 << ord(char) % _N_BITS
    return bits


def _digest(terms: str) -> bytes:
    return blake2b(terms.encode(), digest_size=16).digest()
