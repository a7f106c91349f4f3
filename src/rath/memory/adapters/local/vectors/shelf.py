"""The vectors of one model in one store: the file that holds them and the tables in the index.

Both change under the index's lock between processes: records first, then what points to them, so
that whatever is killed leaves at most records that do not count. A file that is not the one the
index knows, after either was deleted, is read again for what it holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rath.memory.adapters.local.indexing.index import NoteIndex
from rath.memory.adapters.local.vectors import tables
from rath.memory.adapters.local.vectors.record_file import RecordFile
from rath.memory.adapters.local.vectors.tables import NO_VECTOR, Model

if TYPE_CHECKING:
    from rath.memory.adapters.local.vectors.matrix import Floats

_SUFFIX = ".f32"
_NEW_SUFFIX = ".f32.new"
_COMPACT_FROM = 1024
"""Smaller files stay as they are."""

_COPIED = 512


@dataclass(frozen=True, slots=True)
class View:
    """The vectors of a model as they are now."""

    model: Model
    matrix: Floats
    """Rows of length 1; those that no place points to may be anything finite."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Documents and the vectors of their texts, on their way into the store."""

    model: Model
    """As it was when the documents were chosen."""
    documents: Mapping[int, Sequence[bytes]]
    """Digests of the texts of each document."""
    vectors: Mapping[bytes, bytes | None]
    """Vectors of length 1 that were made; None for a text that has none."""
    seen: int
    """Up to which document all have their vectors then."""


class Shelf:
    """Keeps the file of a model in step with the index; callers hold the catalog's lock.

    Args:
        root: Directory of the store.
        identity: Of the embedding model.
        compact_from: From how many records on a file is made anew when half of them are unused.
    """

    def __init__(self, root: Path, identity: str, *, compact_from: int = _COMPACT_FROM) -> None:
        self.path = root / f"vectors-{identity}{_SUFFIX}"
        self._identity = identity
        self._compact_from = compact_from
        self._checked_rows = 0
        self.is_used = False
        """Whether a file may be open."""
        self._file: RecordFile | None = None
        self._is_unseen = False
        self._mapped: tuple[bytes, Floats] | None = None

    def close(self) -> None:
        """Close the file; views of it go on."""
        if self._file is not None:
            self._file.close()
        self._file = self._mapped = None

    def model(self, index: NoteIndex) -> Model:
        """Return what the index knows about the model, once that agrees with the file."""
        self.is_used = True
        known = tables.model(index, self._identity)
        if not self._agrees(index, known):
            with index.writing():
                known = self._settled(index)
        return known

    def view(self, index: NoteIndex) -> View | None:
        """Return the vectors; None where there are none."""
        from rath.memory.adapters.local.vectors.matrix import mapped

        known = self.model(index)
        file = self._file
        if file is None or known.n_rows == 0:
            return None
        if (
            self._mapped is None
            or self._mapped[0] != file.token
            or (len(self._mapped[1]) < known.n_rows)
        ):
            self._mapped = file.token, mapped(file)
        return View(known, self._mapped[1][: known.n_rows])

    def known(self, index: NoteIndex, digests: Sequence[bytes]) -> set[bytes]:
        """Return those texts that need no vector: they have one, or never will."""
        return set(self._slots(index, self.model(index), digests))

    @property
    def dimension(self) -> int | None:
        """Length of the vectors; None where there are none."""
        return None if self._file is None else self._file.dimension

    def add(self, index: NoteIndex, batch: Batch) -> bool:
        """Store vectors and what they belong to; return whether that is all of the batch."""
        self.model(index)
        with index.writing():
            before = self._settled(index)
            known = self._with_dimension(index, before, batch.vectors)
            wanted = {digest for digests in batch.documents.values() for digest in digests}
            slots = self._slots(index, known, wanted)
            self._append(index, known, slots, batch.vectors)
            # Those of another length were dropped, and wait again.
            is_all = known.token == before.token
            for document, digests in batch.documents.items():
                if all(digest in slots for digest in digests):
                    tables.place(index, known, document, [slots[digest] for digest in digests])
                else:
                    is_all = False
            if is_all and batch.model.token in {None, known.token}:
                tables.set_seen(index, batch.model, batch.seen)
        return is_all

    def reset(self, index: NoteIndex) -> None:
        """Forget all vectors: the model gives others now."""
        self.model(index)
        with index.writing():
            self._drop(index, self._settled(index))

    def compact(self, index: NoteIndex) -> bool:
        """Make the file anew without what no document has, if that is most of it."""
        known = self.model(index)
        grown = known.n_rows - self._checked_rows
        if known.n_rows < self._compact_from or grown < known.n_rows // 4:
            return False
        with index.writing():
            known = self._settled(index)
            self._checked_rows = known.n_rows
            unused = {digest for digest, slot in tables.unused(index, known) if slot >= 0}
            kept = [each for each in tables.used(index, known) if each[0] not in unused]
            if 2 * len(kept) >= known.n_rows:
                return False
            for digest in unused:
                tables.drop(index, known, digest)
            self._copy(index, known, kept)
        self._checked_rows = len(kept)
        return True

    def erase_unused(self, index: NoteIndex) -> bool:
        """Overwrite the vectors that no document has any more; False when the file is unknown."""
        known = tables.model(index, self._identity)
        if not self._agrees(index, known) or self._file is None:
            return False
        with index.writing():
            known = tables.model(index, self._identity)
            if not self._agrees(index, known):
                return False
            unused = tables.unused(index, known)
            self._file.erase([slot for _, slot in unused if slot >= 0], n_rows=known.n_rows)
            for digest, _ in unused:
                tables.drop(index, known, digest)
        return True

    def _agrees(self, index: NoteIndex, known: Model) -> bool:
        """Return whether the index speaks of the file that is there, which is open then."""
        if self._is_unseen or index.path is None:
            is_there = self._is_unseen and index.path is None
            return is_there and self._is_of(known)
        if self._is_of(known) and self._file is not None and self._file.stands_at(self.path):
            return True
        self.close()
        self._file = RecordFile.open(self.path)
        return known.token is None if self._file is None else self._is_of(known)

    def _is_of(self, known: Model) -> bool:
        file = self._file
        if file is None:
            return known.token is None
        return file.token == known.token and file.capacity() >= known.n_rows

    def _settled(self, index: NoteIndex) -> Model:
        """Let the index agree with the file; inside `index.writing()`."""
        known = tables.model(index, self._identity)
        if self._agrees(index, known):
            return known
        self._reopen(index)
        file = self._file
        tables.forget(index, known, token=None)
        if file is not None:
            n_rows = 0
            for slot, digest in file.iter_whole():
                tables.put_slot(index, known, digest, slot)
                n_rows = slot + 1
            tables.set_rows(index, known, file.token, n_rows)
        return tables.model(index, self._identity)

    def _reopen(self, index: NoteIndex) -> None:
        """Open the file that is there; beside an index in memory, a copy of it in memory."""
        if index.path is not None:
            if self._is_unseen:
                self.close()
                self._is_unseen = False
                self._file = RecordFile.open(self.path)
            return
        if self._is_unseen:
            return
        self.close()
        self._is_unseen = True
        there = RecordFile.open(self.path, may_write=False)
        if there is not None:
            self._file = RecordFile.create(None, there.dimension)
            for slot, digest in there.iter_whole():
                self._file.write(slot, [(digest, there.read(slot))])
            there.close()

    def _with_dimension(
        self, index: NoteIndex, known: Model, vectors: Mapping[bytes, bytes | None]
    ) -> Model:
        """Return a model without vectors of another length than the new ones."""
        lengths = {len(vector) // 4 for vector in vectors.values() if vector is not None}
        if not lengths or self._file is None or lengths == {self._file.dimension}:
            return known
        return self._drop(index, known)

    def _drop(self, index: NoteIndex, known: Model) -> Model:
        tables.forget(index, known, token=None)
        self.close()
        if not self._is_unseen:
            self.path.unlink(missing_ok=True)
        return tables.model(index, self._identity)

    def _slots(
        self, index: NoteIndex, known: Model, digests: Sequence[bytes] | set[bytes]
    ) -> dict[bytes, int]:
        file = self._file
        return {
            digest: slot
            for digest, slot in tables.slots_of(index, known, digests).items()
            # One that was being erased when the process ended is not there any more.
            if slot == NO_VECTOR or (file is not None and file.holds(slot, digest))
        }

    def _append(
        self,
        index: NoteIndex,
        known: Model,
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
            tables.put_slot(index, known, digest, slots[digest])
        if not records:
            return
        if self._file is None:
            path = None if self._is_unseen else self.path
            self._file = RecordFile.create(path, len(records[0][1]) // 4)
        self._file.write(known.n_rows, records)
        self._file.sync()
        tables.set_rows(index, known, self._file.token, known.n_rows + len(records))

    def _copy(self, index: NoteIndex, known: Model, kept: list[tuple[bytes, int]]) -> None:
        old = self._file
        assert old is not None
        draft = None if self._is_unseen else self.path.with_suffix(_NEW_SUFFIX)
        new = RecordFile.create(draft, old.dimension)
        for first in range(0, len(kept), _COPIED):
            part = kept[first : first + _COPIED]
            new.write(first, [(digest, old.read(slot)) for digest, slot in part])
        new.sync()
        for slot, (digest, before) in enumerate(kept):
            tables.move(index, known, digest, old=before, new=slot)
        tables.set_rows(index, known, new.token, len(kept))
        if draft is not None:
            draft.replace(self.path)
        self.close()
        self._file = new


def erase_unused(index: NoteIndex, root: Path) -> None:
    """Overwrite the vectors of all texts that no document of a store has any more.

    Works without numpy and without a model. A file of vectors that the index does not know is
    deleted: nothing tells which of them belong to what.

    Args:
        index: From which the documents have been removed already.
        root: Directory of the store.
    """
    known = set(tables.identities(index))
    for path in root.glob(f"vectors-*{_NEW_SUFFIX}"):
        path.unlink(missing_ok=True)
    for path in root.glob(f"vectors-*{_SUFFIX}"):
        identity = path.name.removesuffix(_SUFFIX).removeprefix("vectors-")
        shelf = Shelf(root, identity)
        try:
            if identity not in known or not shelf.erase_unused(index):
                path.unlink(missing_ok=True)
        finally:
            shelf.close()
