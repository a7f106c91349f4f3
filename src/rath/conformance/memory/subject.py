"""A memory under its contract: what a check is, and how it asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from rath.conformance.report import Unlike, expect
from rath.memory.abc import MemoryBackend, MemoryStore, MemoryStoreSpec
from rath.memory.op_types import (
    MemoryOp,
    MemoryOpFind,
    MemoryOpList,
    MemoryOpRead,
    MemoryOpWrite,
)
from rath.memory.results import (
    MemoryExecutionFailure,
    MemoryFindResult,
    MemoryHit,
    MemoryListResult,
    MemoryReadResult,
    MemoryResult,
    MemoryWriteResult,
)

R = TypeVar("R")

Offer = Literal["supports_namespaces"]

READ_WRITE = (MemoryOpRead, MemoryOpWrite)
WRITE_FIND = (MemoryOpWrite, MemoryOpFind)


@dataclass(frozen=True, slots=True)
class Place:
    """An open store, and a directory of it that nobody else uses."""

    store: MemoryStore
    uri: str
    spec: MemoryStoreSpec | None

    @property
    def backend(self) -> MemoryBackend:
        """The backend under its contract."""
        return self.store.backend


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that a memory must do, asked of an open store and an empty directory of it."""

    feature: str
    """The row of the capability table that it belongs to."""

    run: Callable[[Place], str | None]
    """May return what was seen besides, for the report."""

    needs: Sequence[type[MemoryOp]] = ()
    offer: Offer | None = None
    """What `capabilities()` must say for the check to be asked."""

    @property
    def name(self) -> str:
        """What is checked, in words joined by underscores."""
        return self.run.__name__

    def missing(self, backend: MemoryBackend) -> str | None:
        """Return why it cannot be asked of `backend`, None if it can."""
        ops = backend.supported_ops()
        names = [each.__name__ for each in self.needs if each not in ops]
        if names:
            return f"no {', '.join(names)}"
        if self.offer is not None and not getattr(backend.capabilities(), self.offer):
            return f"capabilities say {self.offer}=False"
        return None


def give(store: MemoryStore, op: MemoryOp, kind: type[R]) -> R:
    """Return the result of an operation, which must be of that kind."""
    return expect_kind(store.dispatch(op), op, kind)


def expect_kind(result: MemoryResult, op: MemoryOp, kind: type[R]) -> R:
    """Return a result, which must be of that kind."""
    if not isinstance(result, kind):
        raise Unlike(f"expected {kind.__name__} for {shown(op)}, got {result!r}")
    return result


def fail(store: MemoryStore, op: MemoryOp, kind: str) -> MemoryExecutionFailure:
    """Return the failure of an operation, which must be of that kind."""
    failure = give(store, op, MemoryExecutionFailure)
    expect(failure.kind == kind, f"a failure of kind {kind!r} for {shown(op)}, got {failure!r}")
    expect(bool(failure.message), f"a failure with a message for {shown(op)}")
    return failure


def write(place: Place, name: str, content: str, *, wait: bool = False) -> str:
    """Write a note below the place and return its URI."""
    uri = f"{place.uri}/{name}"
    give(place.store, MemoryOpWrite(uri, content, wait=wait), MemoryWriteResult)
    return uri


def read(store: MemoryStore, uri: str) -> str:
    """Return the text of a note, which must be there."""
    return str(give(store, MemoryOpRead(uri), MemoryReadResult).data)


def expect_text(store: MemoryStore, uri: str, text: str) -> None:
    """Read a note, which must hold that text."""
    found = read(store, uri)
    expect(found == text, f"{shown(text)} at {uri}, got {shown(found)}")


def is_there(store: MemoryStore, uri: str) -> bool:
    """Tell whether a note can be read; any failure but `not_found` is unlike the contract."""
    result = store.dispatch(MemoryOpRead(uri))
    if isinstance(result, MemoryReadResult):
        return True
    failure = expect_kind(result, MemoryOpRead(uri), MemoryExecutionFailure)
    expect(failure.kind == "not_found", f"{uri} to be there or not_found, got {failure!r}")
    return False


def find(place: Place, query: str, *, top_k: int = 8) -> tuple[MemoryHit, ...]:
    """Return the hits below the place."""
    op = MemoryOpFind(query, target_uri=place.uri, top_k=top_k)
    return give(place.store, op, MemoryFindResult).hits


def found_uris(place: Place, query: str) -> list[str]:
    """Return the URIs of the hits below the place, the closest first."""
    return [hit.uri for hit in find(place, query)]


def names_in(store: MemoryStore, uri: str) -> list[str]:
    """Return the names in a directory; none where a store says that it is not there."""
    result = store.dispatch(MemoryOpList(uri))
    if isinstance(result, MemoryExecutionFailure) and result.kind == "not_found":
        return []
    listed = expect_kind(result, MemoryOpList(uri), MemoryListResult)
    return [entry.name for entry in listed.entries]


def is_lexical(backend: MemoryBackend) -> bool:
    """Tell whether a memory finds by words alone: then a note without any of them is no hit."""
    offers = backend.capabilities()
    return not (offers.supports_vector_search or offers.supports_intent_search)


def shown(value: object) -> str:
    """Return the begin of what a long value looks like."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
