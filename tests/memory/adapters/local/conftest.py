"""A local store in a directory of its own, for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rath.memory import MemoryFindResult, MemoryOpFind, MemoryStore
from tests.support.memories import Clock, opened

Find = Callable[..., list[str]]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Directory of the store."""
    return tmp_path.resolve() / "store"


@pytest.fixture
def clock() -> Clock:
    """A clock to turn."""
    return Clock()


@pytest.fixture
def store(root: Path, clock: Clock) -> Iterator[MemoryStore]:
    """An open store on that clock."""
    with opened(root, clock) as made:
        yield made


@pytest.fixture
def find(store: MemoryStore) -> Find:
    """Gives the URIs that a query finds in the store."""

    def found(query: str, target_uri: str | None = None, top_k: int = 8) -> list[str]:
        result = store.dispatch(MemoryOpFind(query, target_uri, top_k))
        assert isinstance(result, MemoryFindResult)
        return [hit.uri for hit in result.hits]

    return found
