"""The tables in the index that say which vector belongs to which document.

    models   for each embedding model its file of vectors, and up to which document it has come
    slots    where in that file the vector of a text is
    places   which texts a document has, as their slots

They are made on first use: an index without vectors has none of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple, cast

from rath.memory.adapters.local.indexing.index import NoteIndex, Stamp
from rath.memory.adapters.local.layout import Kind, note_path

NO_VECTOR = -1
"""Stands for a slot where a text has no vector, and will have none."""

_SCHEMA = (
    """CREATE TABLE IF NOT EXISTS vector_models (
           id INTEGER PRIMARY KEY, identity TEXT NOT NULL UNIQUE, token BLOB,
           n_rows INTEGER NOT NULL DEFAULT 0, seen INTEGER NOT NULL DEFAULT 0)""",
    """CREATE TABLE IF NOT EXISTS vector_slots (
           model INTEGER NOT NULL, digest BLOB NOT NULL, slot INTEGER NOT NULL,
           PRIMARY KEY (model, digest)) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS vector_places (
           model INTEGER NOT NULL, slot INTEGER NOT NULL, file INTEGER NOT NULL,
           part INTEGER NOT NULL, PRIMARY KEY (model, slot, file, part)) WITHOUT ROWID""",
    "CREATE INDEX IF NOT EXISTS vector_places_of_file ON vector_places (file, model)",
    """CREATE TRIGGER IF NOT EXISTS vector_places_leave AFTER DELETE ON files
           BEGIN DELETE FROM vector_places WHERE file = old.id; END""",
)


class Model(NamedTuple):
    """A model as the index knows it."""

    id: int
    token: bytes | None
    """Of its file; None where there is none yet."""
    n_rows: int
    """Records of the file that count."""
    seen: int
    """Documents up to this number have their vectors."""


class Waiting(NamedTuple):
    """A document whose texts have no vectors yet."""

    id: int
    directory: str
    name: str
    kind: Kind


class Placed(NamedTuple):
    """A document that has the text of a slot."""

    slot: int
    part: int
    directory: str
    name: str
    kind: Kind
    stamp: Stamp


def exist(index: NoteIndex) -> bool:
    """Return whether the index has these tables."""
    return bool(index.rows("SELECT 1 FROM sqlite_schema WHERE name = 'vector_places_leave'"))


def model(index: NoteIndex, identity: str) -> Model:
    """Return what is known about a model, which is known from now on."""
    sql = "SELECT id, token, n_rows, seen FROM vector_models WHERE identity = ?"
    found = index.rows(sql, identity) if exist(index) else []
    if not found:
        with index.writing():
            for statement in _SCHEMA:
                index.rows(statement)
            index.rows("INSERT OR IGNORE INTO vector_models (identity) VALUES (?)", identity)
        found = index.rows(sql, identity)
    return Model(*cast("list[tuple[int, bytes | None, int, int]]", found)[0])


def identities(index: NoteIndex) -> list[str]:
    """Return the models that are known."""
    found = index.rows("SELECT identity FROM vector_models") if exist(index) else []
    return [cast("str", identity) for (identity,) in found]


def forget(index: NoteIndex, known: Model, *, token: bytes | None) -> None:
    """Let a model start afresh with another file, or none."""
    index.rows("DELETE FROM vector_slots WHERE model = ?", known.id)
    index.rows("DELETE FROM vector_places WHERE model = ?", known.id)
    sql = "UPDATE vector_models SET token = ?, n_rows = 0, seen = 0 WHERE id = ?"
    index.rows(sql, token, known.id)


def set_rows(index: NoteIndex, known: Model, token: bytes, n_rows: int) -> None:
    """Store which file a model has, and how many of its records count."""
    sql = "UPDATE vector_models SET token = ?, n_rows = ? WHERE id = ?"
    index.rows(sql, token, n_rows, known.id)


def set_seen(index: NoteIndex, known: Model, seen: int) -> None:
    """Store how far a model has come, unless somebody else changed that since `known` was read."""
    sql = "UPDATE vector_models SET seen = ? WHERE id = ? AND seen = ?"
    index.rows(sql, seen, known.id, known.seen)


def last_document(index: NoteIndex) -> int:
    """Return the number of the newest document; 0 where there is none."""
    return cast("int", index.rows("SELECT coalesce(max(id), 0) FROM files")[0][0])


def waiting(index: NoteIndex, known: Model, limit: int, *, newest_first: bool) -> list[Waiting]:
    """Return documents that the model has not seen, at most `limit`."""
    sql = f"""SELECT id, directory, name, kind FROM files WHERE id > ? AND NOT EXISTS (
                  SELECT 1 FROM vector_places AS p WHERE p.file = files.id AND p.model = ?)
              ORDER BY id {"DESC" if newest_first else "ASC"} LIMIT ?"""
    found = index.rows(sql, known.seen, known.id, limit)
    return [Waiting(*row) for row in cast("list[tuple[int, str, str, Kind]]", found)]


def slots_of(index: NoteIndex, known: Model, digests: Iterable[bytes]) -> dict[bytes, int]:
    """Return the slots of those texts that have one, or are known to have no vector."""
    sql = "SELECT slot FROM vector_slots WHERE model = ? AND digest = ?"
    found = {digest: index.rows(sql, known.id, digest) for digest in digests}
    return {digest: cast("int", rows[0][0]) for digest, rows in found.items() if rows}


def put_slot(index: NoteIndex, known: Model, digest: bytes, slot: int) -> None:
    """Store where the vector of a text is."""
    sql = "INSERT OR REPLACE INTO vector_slots (model, digest, slot) VALUES (?, ?, ?)"
    index.rows(sql, known.id, digest, slot)


def place(index: NoteIndex, known: Model, document: int, slots: Sequence[int]) -> None:
    """Store the texts of a document; one that was removed meanwhile has no place."""
    sql = """INSERT OR IGNORE INTO vector_places (model, slot, file, part)
             SELECT ?, ?, id, ? FROM files WHERE id = ?"""
    for part, slot in enumerate(slots or (NO_VECTOR,)):
        index.rows(sql, known.id, slot, part, document)


def placed(
    index: NoteIndex, known: Model, slots: Iterable[int], *, below: str | None
) -> list[Placed]:
    """Return the documents that have the texts of some slots.

    Args:
        index: Where they are stored.
        known: The model that the slots belong to.
        slots: Where their vectors are.
        below: Directory to look in, or the path of one note without suffix.
    """
    scope, values = _scope(below)
    sql = f"""SELECT p.slot, p.part, f.directory, f.name, f.kind, f.mtime_ns, f.size
              FROM json_each(?) AS wanted
              CROSS JOIN vector_places AS p ON p.model = ? AND p.slot = wanted.value
              CROSS JOIN files AS f ON f.id = p.file WHERE 1 {scope}"""
    # CROSS JOIN keeps the order: the planner would look at all places for each slot.
    wanted = json.dumps(list(slots))
    return _placed(index.rows(sql, wanted, known.id, *values))


def placed_below(index: NoteIndex, known: Model, below: str, limit: int) -> list[Placed]:
    """Return texts of documents in a part of the store, at most `limit`."""
    scope, values = _scope(below)
    sql = f"""SELECT p.slot, p.part, f.directory, f.name, f.kind, f.mtime_ns, f.size
              FROM files AS f CROSS JOIN vector_places AS p ON p.file = f.id AND p.model = ?
              WHERE +p.slot >= 0 {scope} LIMIT ?"""
    return _placed(index.rows(sql, known.id, *values, limit))


def unused(index: NoteIndex, known: Model) -> list[tuple[bytes, int]]:
    """Return the texts that no document has any more, with their slots; looks at all of them."""
    sql = """SELECT digest, slot FROM vector_slots AS s WHERE model = ? AND NOT EXISTS (
                 SELECT 1 FROM vector_places AS p WHERE p.model = s.model AND p.slot = s.slot)"""
    return cast("list[tuple[bytes, int]]", index.rows(sql, known.id))


def used(index: NoteIndex, known: Model) -> list[tuple[bytes, int]]:
    """Return the texts that have a vector, with their slots in order."""
    sql = "SELECT digest, slot FROM vector_slots WHERE model = ? AND slot >= 0 ORDER BY slot"
    return cast("list[tuple[bytes, int]]", index.rows(sql, known.id))


def drop(index: NoteIndex, known: Model, digest: bytes) -> None:
    """Forget a text."""
    index.rows("DELETE FROM vector_slots WHERE model = ? AND digest = ?", known.id, digest)


def move(index: NoteIndex, known: Model, digest: bytes, *, old: int, new: int) -> None:
    """Store that the vector of a text is in another slot, which must be free."""
    put_slot(index, known, digest, new)
    sql = "UPDATE vector_places SET slot = ? WHERE model = ? AND slot = ?"
    index.rows(sql, new, known.id, old)


def _placed(rows: list[tuple[object, ...]]) -> list[Placed]:
    known = cast("list[tuple[int, int, str, str, Kind, int, int]]", rows)
    return [
        Placed(slot, part, directory, name, kind, Stamp(mtime_ns, size))
        for slot, part, directory, name, kind, mtime_ns, size in known
    ]


def _scope(below: str | None) -> tuple[str, tuple[str, ...]]:
    if below is None:
        return "", ()
    parent, _, name = note_path(below).rpartition("/")
    sql = """AND (f.directory = ? OR f.directory >= ? AND f.directory < ?
                  OR f.directory = ? AND f.name = ?)"""
    return sql, (below, f"{below}/", f"{below}0", parent, name)
