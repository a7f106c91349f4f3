"""A local store in a directory of its own, for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rath.memory import MemoryFindResult, MemoryOpFind, MemoryStore, MemoryStoreSpec
from rath.memory.adapters.local import LocalMemoryBackend

Find = Callable[..., list[str]]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Directory of the store."""
    return tmp_path.resolve() / "store"


@pytest.fixture
def store(root: Path) -> Iterator[MemoryStore]:
    """An open store."""
    backend = LocalMemoryBackend()
    opened = backend.open(MemoryStoreSpec(options={"path": str(root)}))
    yield opened
    backend.close(opened)


@pytest.fixture
def find(store: MemoryStore) -> Find:
    """Gives the URIs that a query finds in the store."""

    def found(query: str, target_uri: str | None = None, top_k: int = 8) -> list[str]:
        result = store.dispatch(MemoryOpFind(query, target_uri, top_k))
        assert isinstance(result, MemoryFindResult)
        return [hit.uri for hit in result.hits]

    return found
