"""The way of documents to their vectors: chosen, read, embedded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rath._async.runtime import runtime
from rath.memory.adapters.local.files.documents import read_document
from rath.memory.adapters.local.indexing.index import NoteIndex
from rath.memory.adapters.local.vectors import tables
from rath.memory.adapters.local.vectors.embedding import Embedding, EmbeddingFailed
from rath.memory.adapters.local.vectors.parts import digest_of, parts_of
from rath.memory.adapters.local.vectors.shelf import Shelf
from rath.memory.adapters.local.vectors.sidecars import sidecar_vector
from rath.memory.adapters.local.vectors.tables import Model, Waiting

_REFUSALS = 3
"""So many refusals in a row, without an answer, are no matter of the texts."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """Documents that get their vectors next."""

    model: Model
    documents: list[Waiting]
    seen: int
    """Up to which document all have their vectors then."""
    is_all: bool
    """Whether no others wait."""


@dataclass(frozen=True, slots=True)
class Draft:
    """Documents as they were read."""

    documents: Mapping[int, list[bytes]]
    """Digests of the texts of each."""
    texts: Mapping[bytes, str]
    """What is to be embedded, by digest."""
    vectors: Mapping[bytes, bytes | None]
    """What was found made already."""


def choose_newest(shelf: Shelf, limit: int, index: NoteIndex) -> Chosen:
    """Choose the newest documents that wait."""
    model = shelf.model(index)
    last = tables.last_document(index)
    found = tables.waiting(index, model, limit + 1, newest_first=True)
    is_all = len(found) <= limit
    return Chosen(model, found[:limit], last if is_all else model.seen, is_all)


def choose_oldest(shelf: Shelf, limit: int, index: NoteIndex) -> Chosen:
    """Choose the documents that have waited longest."""
    model = shelf.model(index)
    last = tables.last_document(index)
    found = tables.waiting(index, model, limit + 1, newest_first=False)
    is_all = len(found) <= limit
    return Chosen(model, found[:limit], last if is_all else found[limit - 1].id, is_all)


def read(
    shelf: Shelf,
    chosen: Chosen,
    *,
    root: Path,
    model_name: str,
    use: Callable[[Callable[[NoteIndex], set[bytes]]], set[bytes]],
) -> Draft:
    """Read documents and find out which of their texts have no vector; blocks.

    Args:
        shelf: Where vectors are.
        chosen: What to read.
        root: Directory of the store.
        model_name: Of the embedding model, as 1.3 wrote it.
        use: Runs a function on the index.
    """
    documents: dict[int, list[bytes]] = {}
    texts: dict[bytes, str] = {}
    notes: dict[bytes, Path] = {}
    for each in chosen.documents:
        path = root / each.directory / each.name
        document = read_document(path, each.kind)
        if document is None:
            continue
        parts = parts_of(document.texts)
        documents[each.id] = [digest_of(part) for part in parts]
        texts.update(zip(documents[each.id], parts, strict=True))
        if each.kind == "note" and len(parts) == 1:
            notes[documents[each.id][0]] = path
    known = use(lambda index: shelf.known(index, list(texts)))
    missing = {digest: text for digest, text in texts.items() if digest not in known}
    left = {digest: path for digest, path in notes.items() if digest in missing}
    vectors = _made_before(left, model_name, shelf.dimension)
    wanted = {digest: text for digest, text in missing.items() if digest not in vectors}
    return Draft(documents, wanted, vectors)


async def aembed(embedding: Embedding, texts: Sequence[str]) -> list[bytes | None]:
    """Return the vectors of texts at length 1; None for one that has no direction.

    Raises:
        EmbeddingFailed: There are none.
    """
    if not texts:
        return []
    found = await embedding.avectors(texts)
    return await runtime().call_in_worker(partial(_normalised, found))


async def aembed_all(embedding: Embedding, texts: Mapping[bytes, str]) -> dict[bytes, bytes | None]:
    """Return the vectors of texts by their digests; None for one that the model refuses.

    Raises:
        EmbeddingFailed: There are none.
    """
    try:
        found = await aembed(embedding, list(texts.values()))
        return dict(zip(texts, found, strict=True))
    except EmbeddingFailed as exc:
        if not exc.is_refusal or len(texts) == 1:
            raise
    made: dict[bytes, bytes | None] = {}
    for digest, text in texts.items():
        try:
            [made[digest]] = await aembed(embedding, [text])
        except EmbeddingFailed as alone:
            is_hopeless = len(made) + 1 == _REFUSALS and not any(made.values())
            if is_hopeless or not alone.is_refusal:
                raise
            made[digest] = None
    if not any(made.values()):
        raise EmbeddingFailed("the model refuses every text")
    return made


def of_one_length(
    made: Mapping[bytes, bytes | None], found: Mapping[bytes, bytes | None]
) -> dict[bytes, bytes | None]:
    """Return what was made now together with what was found, or alone where these do not fit.

    Raises:
        EmbeddingFailed: What was made now differs in length.
    """
    lengths = {len(vector) for vector in made.values() if vector is not None}
    if len(lengths) > 1:
        raise EmbeddingFailed("the model gave vectors of different lengths")
    others = {len(vector) for vector in found.values() if vector is not None}
    return {**found, **made} if len(lengths | others) <= 1 else dict(made)


def _normalised(found: Any) -> list[bytes | None]:
    from rath.memory.adapters.local.vectors.matrix import normalised

    try:
        return normalised(found)
    except ValueError as exc:
        raise EmbeddingFailed(str(exc)) from exc


def _made_before(
    notes: Mapping[bytes, Path], model_name: str, dimension: int | None
) -> dict[bytes, bytes | None]:
    """Return vectors that 1.3 left beside notes, all of one length."""
    made: dict[bytes, bytes | None] = {}
    for digest, path in notes.items():
        vector = sidecar_vector(path, model_name)
        if vector is None or dimension not in {None, len(vector)}:
            continue
        [unit] = _normalised([vector])
        if unit is not None:
            dimension = len(vector)
            made[digest] = unit
    return made
