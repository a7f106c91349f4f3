"""The vectors of a store: a file that several processes read in place, and tables in its index.

    header   64 bytes: "rathvec1", 16 random bytes, dimension as uint32, zeros
    record   12 bytes digest of the text, CRC-32 of the vector, the vector as float32
    ...      records of zeros are unused; the file is longer than what is used

Numbers are in the byte order of the machine. Which records count is told by the index; where
the index is new, the records with a right check sum do. Its tables, made on first use:

    vector_models   for each embedding model its file, and up to which document it has come
    vector_slots    where in that file the vector of a text is
    vector_places   which texts a document has, as their slots

Both change under the index's lock between processes: records first, then the rows that point to
them, so that a killed process leaves at most records that do not count. A file that is not the one
the index knows, after either was deleted, is read again for its records.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, Self

import msgspec

from rath._core.dataclasses import dataclass
from rath._core.text import valid_unicode
from rath.memory.adapters.local.files import Stamp
from rath.memory.adapters.local.index import NoteIndex, scope_condition
from rath.memory.adapters.local.layout import VECTOR_SUFFIX, Kind

if TYPE_CHECKING:
    from rath.memory.adapters.local.matrix import Floats

PART_CHARS = 1000
"""Characters of a part; in English these are about the 256 tokens that small models read."""

MAX_PARTS = 8
"""The rest of a document is found by its words only."""

HEADER_BYTES = 64
KEY_BYTES = 16

NO_VECTOR = -1
"""Stands for a slot where a text has no vector, and will have none."""

_MAGIC = b"rathvec1"
_HEADER = struct.Struct("=8s16sI")
_CRC = struct.Struct("=I")
_FIRST_ROWS = 256
_READ_BYTES = 1_048_576
_DIGEST_BYTES = 12
_MAX_SIDECAR_BYTES = 1_048_576

_SUFFIX = ".f32"
_NEW_SUFFIX = ".f32.new"
_COMPACT_FROM = 1024
"""Smaller files stay as they are."""

_COPIED = 512

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


def parts_of(texts: Sequence[str]) -> list[str]:
    """Return the parts of a document that are embedded: its beginning, in parts that models read.

    Texts that follow each other stand together where they fit.

    Args:
        texts: The text of a note, or the messages of a transcript.
    """
    parts: list[str] = []
    for piece in _pieces(texts):
        if parts and len(parts[-1]) + len(piece) < PART_CHARS:
            parts[-1] += f"\n{piece}"
        elif len(parts) < MAX_PARTS:
            parts.append(piece)
        else:
            break
    return [valid_unicode(part) for part in parts]


def _pieces(texts: Sequence[str]) -> Iterator[str]:
    for text in texts:
        rest = text.strip()
        while rest:
            end = len(rest)
            if end > PART_CHARS:
                # At a line or word in the second half, if there is one.
                ends = (
                    rest.rfind(each, PART_CHARS // 2, PART_CHARS) for each in ("\n\n", "\n", " ")
                )
                end = next((found for found in ends if found > 0), PART_CHARS)
            yield rest[:end].rstrip()
            rest = rest[end:].lstrip()


def digest_of(part: str) -> bytes:
    """Return the name of a text among vectors: equal texts have one vector."""
    return hashlib.blake2b(part.encode(), digest_size=_DIGEST_BYTES).digest()


class _Sidecar(msgspec.Struct):
    model: str
    vector: Annotated[list[float], msgspec.Meta(min_length=1)]


_decode_sidecar = msgspec.json.Decoder(_Sidecar).decode


def sidecar_vector(note: Path, model: str) -> list[float] | None:
    """Return the vector of a whole note that OpenRath 1.3 left in `<leaf>.vec` beside it.

    None where a model of another name made it, or the note is younger.
    """
    path = note.with_suffix(VECTOR_SUFFIX)
    try:
        status = path.stat()
        if status.st_mtime_ns < note.stat().st_mtime_ns or status.st_size > _MAX_SIDECAR_BYTES:
            return None
        sidecar = _decode_sidecar(path.read_bytes())
    except (OSError, ValueError, RecursionError, msgspec.DecodeError):
        return None
    return sidecar.vector if sidecar.model == model else None


class RecordFile:
    """An open file of vectors; made by `create` or `open`.

    Args:
        fd: The descriptor, which is closed with this object.
        token: Tells this file from every other one.
        dimension: Numbers of a vector.
    """

    def __init__(self, fd: int, token: bytes, dimension: int) -> None:
        self.fd = fd
        self.token = token
        self.dimension = dimension
        self.record_bytes: int = KEY_BYTES + 4 * dimension

    @classmethod
    def create(cls, path: Path | None, dimension: int) -> Self:
        """Make an empty file over whatever stands there; None keeps it where nobody sees it."""
        token = os.urandom(16)
        header = _HEADER.pack(_MAGIC, token, dimension).ljust(HEADER_BYTES, b"\0")
        if path is None:
            with tempfile.TemporaryFile() as unseen:
                fd = os.dup(unseen.fileno())
            os.pwrite(fd, header, 0)
            return cls(fd, token, dimension)
        draft = path.with_name(f".atomic_{os.urandom(8).hex()}.tmp")
        fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            os.pwrite(fd, header, 0)
            draft.replace(path)
        except BaseException:
            os.close(fd)
            draft.unlink(missing_ok=True)
            raise
        return cls(fd, token, dimension)

    @classmethod
    def open(cls, path: Path, *, may_write: bool = True) -> Self | None:
        """Open a file; None when there is none, or something else."""
        try:
            fd = os.open(path, os.O_RDWR if may_write else os.O_RDONLY)
        except (FileNotFoundError, IsADirectoryError):
            return None
        header = os.pread(fd, _HEADER.size, 0)
        if len(header) == _HEADER.size:
            magic, token, dimension = _HEADER.unpack(header)
            if magic == _MAGIC and 0 < dimension < 1_000_000:
                return cls(fd, token, dimension)
        os.close(fd)
        return None

    def close(self) -> None:
        """Close the descriptor; mapped memory stays."""
        os.close(self.fd)

    def stands_at(self, path: Path) -> bool:
        """Return whether this file is the one at a path."""
        try:
            return os.path.samestat(path.stat(), os.fstat(self.fd))
        except OSError:
            return False

    def capacity(self) -> int:
        """Return for how many records there is room."""
        return max(0, os.fstat(self.fd).st_size - HEADER_BYTES) // self.record_bytes

    def write(self, slot: int, records: Sequence[tuple[bytes, bytes]]) -> None:
        """Write digests with their vectors from a slot on."""
        end = slot + len(records)
        if end > self.capacity():
            # Room for more, so that readers map the file again only now and then.
            rows = max(_FIRST_ROWS, end + end // 2)
            os.ftruncate(self.fd, self._offset(rows))
        data = b"".join(
            digest + _CRC.pack(zlib.crc32(vector)) + vector for digest, vector in records
        )
        self._write_at(slot, data)

    def sync(self) -> None:
        """Force all records to disk."""
        os.fsync(self.fd)

    def holds(self, slot: int, digest: bytes) -> bool:
        """Return whether the vector of a text is in a slot."""
        return os.pread(self.fd, len(digest), self._offset(slot)) == digest

    def read(self, slot: int) -> bytes:
        """Return the vector in a slot."""
        return os.pread(self.fd, 4 * self.dimension, self._offset(slot) + KEY_BYTES)

    def erase(self, slots: Iterable[int], *, n_rows: int) -> None:
        """Fill slots, and all from `n_rows` on, with zeros, and force that to disk."""
        for slot in slots:
            self._write_at(slot, bytes(self.record_bytes))
        size = os.fstat(self.fd).st_size
        os.ftruncate(self.fd, self._offset(n_rows))
        os.ftruncate(self.fd, size)
        self.sync()

    def iter_records(self) -> Iterator[tuple[int, bytes]]:
        """Give slot and digest of every record that is used and whole."""
        size = self.record_bytes
        step = max(1, _READ_BYTES // size)
        for first in range(0, self.capacity(), step):
            block = os.pread(self.fd, step * size, self._offset(first))
            for start in range(0, len(block) - size + 1, size):
                record = block[start : start + size]
                digest, vector = record[:_DIGEST_BYTES], record[KEY_BYTES:]
                crc = record[_DIGEST_BYTES:KEY_BYTES]
                if any(digest) and _CRC.pack(zlib.crc32(vector)) == crc:
                    yield first + start // size, digest

    def _offset(self, slot: int) -> int:
        return HEADER_BYTES + slot * self.record_bytes

    def _write_at(self, slot: int, data: bytes) -> None:
        rest, offset = memoryview(data), self._offset(slot)
        while rest:
            n_written = os.pwrite(self.fd, rest, offset)
            rest, offset = rest[n_written:], offset + n_written


class VectorModel(NamedTuple):
    """An embedding model as the index knows it."""

    id: int
    token: bytes | None
    """Of its file; None where there is none yet."""
    n_rows: int
    """Records of the file that count."""
    seen: int
    """Documents up to this number have their vectors."""


class PendingDocument(NamedTuple):
    """A document whose texts have no vectors yet."""

    id: int
    directory: str
    name: str
    kind: Kind


class DocumentPart(NamedTuple):
    """A document that has the text of a slot."""

    slot: int
    part: int
    directory: str
    name: str
    kind: Kind
    stamp: Stamp


@dataclass(frozen=True, slots=True)
class VectorView:
    """The vectors of a model as they are now."""

    model: VectorModel
    matrix: Floats
    """Rows of length 1; those that no place points to may be anything finite."""


@dataclass(frozen=True, slots=True)
class VectorBatch:
    """Documents and the vectors of their texts, on their way into the store."""

    model: VectorModel
    """As it was when the documents were chosen."""
    documents: Mapping[int, Sequence[bytes]]
    """Digests of the texts of each document."""
    vectors: Mapping[bytes, bytes | None]
    """New vectors of length 1; None for a text that has none."""
    seen: int
    """Up to which document all have their vectors then."""


def find_pending(
    index: NoteIndex, model: VectorModel, limit: int, *, newest_first: bool
) -> list[PendingDocument]:
    """Return documents that the model has not seen, at most `limit`."""
    sql = f"""SELECT id, directory, name, kind FROM files WHERE id > ? AND NOT EXISTS (
                  SELECT 1 FROM vector_places AS p WHERE p.file = files.id AND p.model = ?)
              ORDER BY id {"DESC" if newest_first else "ASC"} LIMIT ?"""
    return [PendingDocument(*row) for row in index.rows(sql, model.seen, model.id, limit)]


def find_parts(
    index: NoteIndex,
    model: VectorModel,
    *,
    slots: Iterable[int] | None = None,
    below: str | None = None,
    limit: int = -1,
) -> list[DocumentPart]:
    """Return the documents that have the texts of some slots, or of a part of the store.

    Args:
        index: Where they are stored.
        model: The model that the slots belong to.
        slots: Where their vectors are; all by default.
        below: Directory to look in, or the path of one note without suffix.
        limit: At most so many, by default all.
    """
    scope, values = ("1", ()) if below is None else scope_condition(below)
    # CROSS JOIN keeps the order: the planner would look at all places for each slot.
    if slots is None:
        tables = """files AS f CROSS JOIN vector_places AS p
                    ON p.file = f.id AND p.model = ? AND +p.slot >= 0"""
        wanted: tuple[str, ...] = ()
    else:
        tables = """json_each(?) AS wanted
                    CROSS JOIN vector_places AS p ON p.model = ? AND p.slot = wanted.value
                    CROSS JOIN files AS f ON f.id = p.file"""
        wanted = (json.dumps(list(slots)),)
    sql = f"""SELECT p.slot, p.part, f.directory, f.name, f.kind, f.mtime_ns, f.size
              FROM {tables} WHERE {scope} LIMIT ?"""
    found = index.rows(sql, *wanted, model.id, *values, limit)
    return [
        DocumentPart(slot, part, directory, name, kind, Stamp(*stamp))
        for slot, part, directory, name, kind, *stamp in found
    ]


class VectorStore:
    """Keeps the file of a model in step with the index; callers hold the catalog's lock.

    Args:
        root: Directory of the store.
        identity: Of the embedding model.
        compact_from: From how many records on a file is made anew when half of them are unused.
    """

    def __init__(self, root: Path, identity: str, *, compact_from: int = _COMPACT_FROM) -> None:
        self.path: Path = root / f"vectors-{identity}{_SUFFIX}"
        self._identity = identity
        self._compact_from = compact_from
        self._checked_rows = 0
        self.is_used: bool = False
        """Whether a file may be open."""
        self._file: RecordFile | None = None
        self._is_copy = False
        self._mapped: tuple[bytes, Floats] | None = None

    def close(self) -> None:
        """Close the file; views of it go on."""
        if self._file is not None:
            self._file.close()
        self._file = self._mapped = None

    def model(self, index: NoteIndex) -> VectorModel:
        """Return the model as the index knows it, once that agrees with the file."""
        self.is_used = True
        known = self._model_row(index)
        if not self._agrees(index, known):
            with index.writing():
                known = self._settle(index)
        return known

    def view(self, index: NoteIndex) -> VectorView | None:
        """Return the vectors; None where there are none."""
        from rath.memory.adapters.local.matrix import mapped

        known = self.model(index)
        file = self._file
        if file is None or known.n_rows == 0:
            return None
        found = self._mapped
        if found is None or found[0] != file.token or len(found[1]) < known.n_rows:
            found = self._mapped = file.token, mapped(file)
        return VectorView(known, found[1][: known.n_rows])

    def known(self, index: NoteIndex, digests: Iterable[bytes]) -> set[bytes]:
        """Return those texts that need no vector: they have one, or never will."""
        return set(self._slots(index, self.model(index), digests))

    @property
    def dimension(self) -> int | None:
        """Length of the vectors; None where there are none."""
        return None if self._file is None else self._file.dimension

    def add(self, index: NoteIndex, batch: VectorBatch) -> bool:
        """Store vectors and the documents they belong to; return whether that is all of them."""
        self.model(index)
        place = """INSERT OR IGNORE INTO vector_places (model, slot, file, part)
                   SELECT ?, ?, id, ? FROM files WHERE id = ?"""
        with index.writing():
            before = known = self._settle(index)
            lengths = {len(vector) // 4 for vector in batch.vectors.values() if vector is not None}
            if lengths and self._file is not None and lengths != {self._file.dimension}:
                known = self._drop(index, known)
            wanted = {digest for digests in batch.documents.values() for digest in digests}
            slots = self._slots(index, known, wanted)
            self._append(index, known, slots, batch.vectors)
            # Those of another length were dropped, and wait again.
            is_all = known.token == before.token
            for document, digests in batch.documents.items():
                if not all(digest in slots for digest in digests):
                    is_all = False
                    continue
                # A document that was removed meanwhile has no place.
                for part, slot in enumerate([slots[each] for each in digests] or [NO_VECTOR]):
                    index.run(place, known.id, slot, part, document)
            if is_all and batch.model.token in {None, known.token}:
                # Unless somebody else changed that since.
                sql = "UPDATE vector_models SET seen = ? WHERE id = ? AND seen = ?"
                index.run(sql, batch.seen, batch.model.id, batch.model.seen)
        return is_all

    def reset(self, index: NoteIndex) -> None:
        """Forget all vectors: the model gives others now."""
        self.model(index)
        with index.writing():
            self._drop(index, self._settle(index))

    def compact(self, index: NoteIndex) -> bool:
        """Make the file anew without the vectors that no document has, if these are most of it."""
        known = self.model(index)
        grown = known.n_rows - self._checked_rows
        if known.n_rows < self._compact_from or grown < known.n_rows // 4:
            return False
        with index.writing():
            known = self._settle(index)
            self._checked_rows = known.n_rows
            unused = {digest for digest, slot in self._unused(index, known) if slot >= 0}
            sql = (
                "SELECT digest, slot FROM vector_slots WHERE model = ? AND slot >= 0 ORDER BY slot"
            )
            used = [each for each in index.rows(sql, known.id) if each[0] not in unused]
            if 2 * len(used) >= known.n_rows:
                return False
            for digest in unused:
                self._remove(index, known, digest)
            old = self._file
            assert old is not None
            draft = None if self._is_copy else self.path.with_suffix(_NEW_SUFFIX)
            new = RecordFile.create(draft, old.dimension)
            for first in range(0, len(used), _COPIED):
                part = used[first : first + _COPIED]
                new.write(first, [(digest, old.read(slot)) for digest, slot in part])
            new.sync()
            sql = "UPDATE vector_places SET slot = ? WHERE model = ? AND slot = ?"
            for slot, (digest, before) in enumerate(used):
                self._put_slot(index, known, digest, slot)
                index.run(sql, slot, known.id, before)
            self._set_rows(index, known, new.token, len(used))
            if draft is not None:
                draft.replace(self.path)
            self.close()
            self._file = new
        self._checked_rows = len(used)
        return True

    def erase_unused(self, index: NoteIndex) -> bool:
        """Overwrite the vectors that no document has any more; False when the file is unknown."""
        with index.writing():
            known = self._model_row(index)
            if not self._agrees(index, known) or self._file is None:
                return False
            unused = self._unused(index, known)
            self._file.erase([slot for _, slot in unused if slot >= 0], n_rows=known.n_rows)
            for digest, _ in unused:
                self._remove(index, known, digest)
        return True

    def _agrees(self, index: NoteIndex, known: VectorModel) -> bool:
        """Return whether the index speaks of the file that is there, which is open then."""
        if index.path is None:
            if not self._is_copy:
                return False
        elif not (self._is_of(known) and self._file and self._file.stands_at(self.path)):
            self.close()
            self._file = RecordFile.open(self.path)
        return self._is_of(known)

    def _is_of(self, known: VectorModel) -> bool:
        file = self._file
        if file is None:
            return known.token is None
        return file.token == known.token and file.capacity() >= known.n_rows

    def _settle(self, index: NoteIndex) -> VectorModel:
        """Let the index agree with the file; inside `index.writing()`."""
        known = self._model_row(index)
        if self._agrees(index, known):
            return known
        if index.path is None and not self._is_copy:
            # Beside an index in memory, a copy in memory.
            self.close()
            self._is_copy = True
            there = RecordFile.open(self.path, may_write=False)
            if there is not None:
                self._file = RecordFile.create(None, there.dimension)
                for slot, digest in there.iter_records():
                    self._file.write(slot, [(digest, there.read(slot))])
                there.close()
        self._forget_rows(index, known)
        if self._file is not None:
            n_rows = 0
            for slot, digest in self._file.iter_records():
                self._put_slot(index, known, digest, slot)
                n_rows = slot + 1
            self._set_rows(index, known, self._file.token, n_rows)
        return self._model_row(index)

    def _drop(self, index: NoteIndex, known: VectorModel) -> VectorModel:
        self._forget_rows(index, known)
        self.close()
        if not self._is_copy:
            self.path.unlink(missing_ok=True)
        return self._model_row(index)

    def _append(
        self,
        index: NoteIndex,
        known: VectorModel,
        slots: dict[bytes, int],
        vectors: Mapping[bytes, bytes | None],
    ) -> None:
        """Store new vectors, and add their slots."""
        records: list[tuple[bytes, bytes]] = []
        for digest, vector in vectors.items():
            if digest in slots:
                continue
            slots[digest] = NO_VECTOR if vector is None else known.n_rows + len(records)
            if vector is not None:
                records.append((digest, vector))
            self._put_slot(index, known, digest, slots[digest])
        if not records:
            return
        if self._file is None:
            path = None if self._is_copy else self.path
            self._file = RecordFile.create(path, len(records[0][1]) // 4)
        self._file.write(known.n_rows, records)
        self._file.sync()
        self._set_rows(index, known, self._file.token, known.n_rows + len(records))

    def _model_row(self, index: NoteIndex) -> VectorModel:
        """Return the row of the model, which is there from now on."""
        sql = "SELECT id, token, n_rows, seen FROM vector_models WHERE identity = ?"
        found = index.rows(sql, self._identity) if _has_tables(index) else []
        if not found:
            with index.writing():
                for statement in _SCHEMA:
                    index.run(statement)
                insert = "INSERT OR IGNORE INTO vector_models (identity) VALUES (?)"
                index.run(insert, self._identity)
            found = index.rows(sql, self._identity)
        return VectorModel(*found[0])

    def _slots(
        self, index: NoteIndex, known: VectorModel, digests: Iterable[bytes]
    ) -> dict[bytes, int]:
        """Return the slots of those texts that have one, or are known to have no vector."""
        sql = "SELECT slot FROM vector_slots WHERE model = ? AND digest = ?"
        slots: dict[bytes, int] = {}
        for digest in digests:
            for (slot,) in index.rows(sql, known.id, digest):
                # One that was being erased when the process ended is not there any more.
                if slot == NO_VECTOR or (self._file and self._file.holds(slot, digest)):
                    slots[digest] = slot
        return slots

    @staticmethod
    def _unused(index: NoteIndex, known: VectorModel) -> list[tuple[bytes, int]]:
        """Return the texts that no document has any more, with their slots; looks at all."""
        sql = """SELECT digest, slot FROM vector_slots AS s WHERE model = ? AND NOT EXISTS (
                     SELECT 1 FROM vector_places AS p
                     WHERE p.model = s.model AND p.slot = s.slot)"""
        return index.rows(sql, known.id)

    @staticmethod
    def _put_slot(index: NoteIndex, known: VectorModel, digest: bytes, slot: int) -> None:
        sql = "INSERT OR REPLACE INTO vector_slots (model, digest, slot) VALUES (?, ?, ?)"
        index.run(sql, known.id, digest, slot)

    @staticmethod
    def _remove(index: NoteIndex, known: VectorModel, digest: bytes) -> None:
        index.run("DELETE FROM vector_slots WHERE model = ? AND digest = ?", known.id, digest)

    @staticmethod
    def _set_rows(index: NoteIndex, known: VectorModel, token: bytes, n_rows: int) -> None:
        sql = "UPDATE vector_models SET token = ?, n_rows = ? WHERE id = ?"
        index.run(sql, token, n_rows, known.id)

    @staticmethod
    def _forget_rows(index: NoteIndex, known: VectorModel) -> None:
        """Let the model start afresh."""
        index.run("DELETE FROM vector_slots WHERE model = ?", known.id)
        index.run("DELETE FROM vector_places WHERE model = ?", known.id)
        sql = "UPDATE vector_models SET token = NULL, n_rows = 0, seen = 0 WHERE id = ?"
        index.run(sql, known.id)


def _has_tables(index: NoteIndex) -> bool:
    return bool(index.rows("SELECT 1 FROM sqlite_schema WHERE name = 'vector_places_leave'"))


def erase_unused(index: NoteIndex, root: Path) -> None:
    """Overwrite the vectors of all texts that no document of a store has any more.

    Works without numpy and without a model. A file of vectors that the index does not know is
    deleted: nothing tells which of them belong to what.

    Args:
        index: From which the documents have been removed already.
        root: Directory of the store.
    """
    sql = "SELECT identity FROM vector_models"
    known = {identity for (identity,) in index.rows(sql)} if _has_tables(index) else set[str]()
    for path in root.glob(f"vectors-*{_NEW_SUFFIX}"):
        path.unlink(missing_ok=True)
    for path in root.glob(f"vectors-*{_SUFFIX}"):
        identity = path.name.removesuffix(_SUFFIX).removeprefix("vectors-")
        store = VectorStore(root, identity)
        try:
            if identity not in known or not store.erase_unused(index):
                path.unlink(missing_ok=True)
        finally:
            store.close()
