"""Many at once: threads, the runtime, several stores, several namespaces."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from uuid import uuid4

from rath._async.lanes import gather
from rath._async.runtime import runtime
from rath.conformance.memory.subject import (
    READ_WRITE,
    Check,
    Place,
    expect_kind,
    expect_text,
    find,
    is_there,
    read,
    shown,
    write,
)
from rath.conformance.report import Skipped, expect
from rath.memory.abc import MemoryStore, MemoryStoreSpec
from rath.memory.op_types import MemoryOp, MemoryOpFind, MemoryOpRead, MemoryOpWrite
from rath.memory.results import MemoryReadResult, MemoryResult, MemoryWriteResult

__all__ = ["CHECKS"]

_THREADS = 8
_WRITES = 100
_ROUNDS = 20


def many_threads_lose_nothing(place: Place) -> None:
    names = [f"{n % 10}/{n}" for n in range(_WRITES)]
    _on_threads([partial(_write_all, place, names[n::_THREADS]) for n in range(_THREADS)])
    lost = [name for name in names if read(place.store, f"{place.uri}/{name}") != name]
    expect(lost == [], f"each of {_WRITES} notes as written, lost or torn: {lost!r}")


def many_operations_lose_nothing(place: Place) -> None:
    ops = [MemoryOpWrite(f"{place.uri}/{n}", f"note {n}") for n in range(_ROUNDS)]
    for op, result in zip(ops, _on_runtime(place.store, ops), strict=True):
        expect_kind(result, op, MemoryWriteResult)
    reads = [MemoryOpRead(op.uri) for op in ops]
    for op, again, result in zip(ops, reads, _on_runtime(place.store, reads), strict=True):
        found = expect_kind(result, again, MemoryReadResult).data
        expect(found == op.content, f"{op.content!r} at {op.uri}, got {found!r}")


def a_reader_sees_a_note_whole(place: Place) -> None:
    contents = [letter * 20_000 for letter in "ab"]
    uri = write(place, "a", contents[0])

    def write_often() -> None:
        for n in range(_ROUNDS):
            write(place, "a", contents[n % 2])

    def read_often() -> None:
        for _ in range(_ROUNDS):
            found = read(place.store, uri)
            expect(found in contents, f"one text or the other, got {shown(found)}")

    _on_threads([write_often, read_often, read_often])
    expect_text(place.store, uri, contents[(_ROUNDS - 1) % 2])


def two_stores_on_one_spec_see_each_other(place: Place) -> None:
    with _another(place, place.spec) as other:
        uri = write(place, "a", "heron")
        expect_text(other.store, uri, "heron")
        write(other, "a", "walrus")
        expect_text(place.store, uri, "walrus")


def what_one_store_writes_the_other_finds(place: Place) -> None:
    with _another(place, place.spec) as other:
        uri = write(other, "a", "heron fish", wait=True)
        hits = find(place, "heron fish")
        expect(any(hit.uri == uri for hit in hits), f"{uri!r} among the hits, got {hits!r}")


def namespaces_are_apart(place: Place) -> None:
    spec = replace(place.spec or MemoryStoreSpec(), namespace=f"conformance-{uuid4().hex[:8]}")
    with _another(place, spec) as other:
        if other.store.handle == place.store.handle:
            raise Skipped("the spec names one store, whatever the namespace")
        uri = write(place, "a", "heron")
        expect(not is_there(other.store, uri), "a note not to be seen from another namespace")
        write(other, "a", "walrus")
        expect_text(place.store, uri, "heron")


def _write_all(place: Place, names: list[str]) -> None:
    for name in names:
        write(place, name, name)


def _on_threads(jobs: list[Callable[[], None]]) -> None:
    futures = [runtime().start_in_worker(job) for job in jobs]
    for future in futures:
        future.result()


def _on_runtime(store: MemoryStore, ops: Sequence[MemoryOp]) -> list[MemoryResult]:
    makes = [partial(store.adispatch, op) for op in ops]
    return runtime().run(lambda: gather(makes), label="many operations at once")


@contextmanager
def _another(place: Place, spec: MemoryStoreSpec | None) -> Generator[Place]:
    store = place.backend.open(spec)
    try:
        yield Place(store, place.uri, spec)
    finally:
        place.backend.close(store)


_FEATURE = "Many at once"
_STORES = "Several stores"

CHECKS = (
    Check(_FEATURE, many_threads_lose_nothing, READ_WRITE),
    Check(_FEATURE, many_operations_lose_nothing, READ_WRITE),
    Check(_FEATURE, a_reader_sees_a_note_whole, READ_WRITE),
    Check(_STORES, two_stores_on_one_spec_see_each_other, READ_WRITE),
    Check(_STORES, what_one_store_writes_the_other_finds, (*READ_WRITE, MemoryOpFind)),
    Check("Namespaces", namespaces_are_apart, READ_WRITE, "supports_namespaces"),
)
