"""A store of vectors without files of notes: an index, a shelf, and what a test puts there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from rath.memory.adapters.local.catalog import Catalog
from rath.memory.adapters.local.files import Stamp
from rath.memory.adapters.local.index import IndexEntry, NoteIndex
from rath.memory.adapters.local.layout import Kind
from rath.memory.adapters.local.matrix import normalised
from rath.memory.adapters.local.vectors import VectorBatch, VectorStore, digest_of, find_pending

IDENTITY = "0123456789abcdef"
DIMENSION = 4


def vector_of(text: str, dimension: int = DIMENSION) -> bytes:
    """A vector of length 1 that belongs to a text."""
    seed = int.from_bytes(digest_of(text)[:8], "big")
    numbers = np.random.default_rng(seed).standard_normal(dimension)
    [unit] = normalised([numbers])
    assert unit is not None
    return unit


class Shelved:
    """A catalog and the vectors of one model in it."""

    def __init__(self, root: Path) -> None:
        root.mkdir(exist_ok=True)
        self.root = root
        self.catalog = Catalog(root)
        self.shelf = VectorStore(root, IDENTITY, compact_from=8)

    def note(self, name: str, *, kind: Kind = "note") -> int:
        """Put a note without words into the index, and return its number."""

        def put(index: NoteIndex) -> int:
            directory, _, leaf = f"user/{name}.md".rpartition("/")
            with index.writing():
                index.put([IndexEntry(directory, leaf, kind, Stamp(1, 1), [])])
            return index.last_id()

        return self.catalog.use(put)

    def remove(self, name: str) -> None:
        """Take a note out of the index."""
        directory, _, leaf = f"user/{name}.md".rpartition("/")

        def act(index: NoteIndex) -> None:
            with index.writing():
                index.remove(directory, leaf)

        self.catalog.use(act)

    def add(self, texts: Mapping[int, Sequence[str]], *, dimension: int = DIMENSION) -> bool:
        """Store the vectors of documents; those of texts that have one are not made again."""
        model = self.catalog.use(self.shelf.model)
        documents = {id: [digest_of(text) for text in found] for id, found in texts.items()}
        known = self.known(*(text for found in texts.values() for text in found))
        vectors = {
            digest_of(text): vector_of(text, dimension)
            for found in texts.values()
            for text in found
            if text not in known
        }
        batch = VectorBatch(model, documents, vectors, max(texts))
        return self.catalog.use(lambda index: self.shelf.add(index, batch))

    def known(self, *texts: str) -> set[str]:
        """Return those texts that have a vector."""
        by_digest = {digest_of(text): text for text in texts}
        found = self.catalog.use(lambda index: self.shelf.known(index, list(by_digest)))
        return {by_digest[digest] for digest in found}

    def waiting(self) -> set[int]:
        """Return the documents that have no vectors yet."""

        def act(index: NoteIndex) -> set[int]:
            model = self.shelf.model(index)
            return {each.id for each in find_pending(index, model, 1000, newest_first=True)}

        return self.catalog.use(act)

    def reopened(self) -> Shelved:
        """Close both, and open them as another process would."""
        self.close()
        return Shelved(self.root)

    def close(self) -> None:
        """Close both."""
        self.shelf.close()
        self.catalog.close()


@pytest.fixture
def shelved(tmp_path: Path) -> Iterator[Shelved]:
    """An empty index with a shelf."""
    made = Shelved(tmp_path / "store")
    yield made
    made.close()
