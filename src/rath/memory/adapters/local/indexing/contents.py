"""What an index knows of the files of a store, without the times and numbers that are its own."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple, cast

from rath.memory.adapters.local.files.about import NoteAbout
from rath.memory.adapters.local.indexing.index import NoteIndex
from rath.memory.adapters.local.indexing.vocabulary import entries
from rath.memory.adapters.local.layout import Kind

_DIGEST_BYTES = 16


class Content(NamedTuple):
    """What is known of one file."""

    kind: Kind
    n_terms: int
    digest: bytes
    """Of its terms in their order."""
    expires_at: float | None
    sessions: tuple[str, ...]


def content_of(kind: Kind, terms: list[str], about: NoteAbout) -> Content:
    """Return what an index is to know of a file with these terms."""
    sessions = tuple(sorted({source.session_id for source in about.sources}))
    return Content(kind, len(terms), _digest(" ".join(terms)), about.expires_at, sessions)


def contents(
    index: NoteIndex, *, directory: str | None = None, first: str = "", last: str = ""
) -> dict[tuple[str, str], Content]:
    """Return what is known of all files, by directory and name; equal for equal files.

    Args:
        index: What knows it.
        directory: Only the files directly in this directory,
        first: from this name
        last: to this one.
    """
    where, values = "", cast("tuple[object, ...]", ())
    if directory is not None:
        where, values = "WHERE directory = ? AND name BETWEEN ? AND ?", (directory, first, last)
    sql = f"""SELECT directory, name, kind, n_terms, expires_at,
                     coalesce(notes.terms, transcripts.terms, ''),
                     (SELECT group_concat(session, char(10)) FROM sources WHERE file = files.id)
              FROM files LEFT JOIN notes ON kind = 'note' AND notes.rowid = files.id
              LEFT JOIN transcripts ON kind = 'transcript' AND transcripts.rowid = files.id
              {where}"""
    found = cast(
        "Iterable[tuple[str, str, Kind, int, float | None, str, str | None]]",
        index.rows(sql, *values),
    )
    return {
        (place, name): Content(
            kind,
            n_terms,
            _digest(terms),
            expires_at,
            () if sessions is None else tuple(sorted(sessions.split("\n"))),
        )
        for place, name, kind, n_terms, expires_at, terms, sessions in found
    }


def check(index: NoteIndex) -> None:
    """Look whether the file of an index, and its tables of terms, are sound.

    Raises:
        sqlite3.Error: They are not, or the index is in use.
    """
    for table in ("notes", "transcripts"):
        index.run(f"INSERT INTO {table} ({table}) VALUES ('integrity-check')")


def put_sums_right(index: NoteIndex) -> None:
    """Count documents and words again; the caller is inside `index.writing()`."""
    index.run(
        "UPDATE totals SET (documents, terms) = (SELECT count(*), coalesce(sum(n_terms), 0) "
        "FROM files WHERE files.kind = totals.kind)"
    )
    used = cast(
        "list[tuple[str]]",
        index.rows("SELECT term FROM notes_terms UNION SELECT term FROM transcripts_terms"),
    )
    wanted = set(entries(term for (term,) in used))
    sql = """SELECT initial, length, word, letters FROM vocabulary
             WHERE file IN (SELECT id FROM files)"""
    known = cast("set[tuple[str, int, str, int]]", set(index.rows(sql)))
    index.run("DELETE FROM vocabulary WHERE file NOT IN (SELECT id FROM files)")
    for row in known - wanted:
        index.run("DELETE FROM vocabulary WHERE initial = ? AND length = ? AND word = ?", *row[:3])
    for initial, length, word, letters in wanted - known:
        index.run(
            "INSERT INTO vocabulary SELECT ?1, ?2, ?3, ?4, min(rowid) FROM ("
            "SELECT rowid FROM notes WHERE notes MATCH ?5 UNION ALL "
            "SELECT rowid FROM transcripts WHERE transcripts MATCH ?5)",
            *(initial, length, word, letters, f'"{word}"'),
        )


def _digest(terms: str) -> bytes:
    return blake2b(terms.encode(), digest_size=_DIGEST_BYTES).digest()
