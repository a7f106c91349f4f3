"""The contract of memory backends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar
from uuid import uuid4

from rath.conformance.report import Finding, Report, Unlike, expect
from rath.errors import MemoryStoreClosed, UnsupportedMemoryOp
from rath.memory import registry
from rath.memory.abc import MemoryBackend, MemoryStore, MemoryStoreSpec
from rath.memory.op_types import (
    MemoryOp,
    MemoryOpCommit,
    MemoryOpFind,
    MemoryOpList,
    MemoryOpRead,
    MemoryOpResource,
    MemoryOpSearch,
    MemoryOpTree,
    MemoryOpWrite,
)
from rath.memory.results import (
    MemoryCommitResult,
    MemoryExecutionFailure,
    MemoryFindResult,
    MemoryListResult,
    MemoryReadResult,
    MemoryWriteResult,
)

__all__ = ["check_memory"]

R = TypeVar("R")

_TEXT = "The heron waits.\n二羽の鷺 — Straße\n"


def check_memory(backend: MemoryBackend | str, *, spec: MemoryStoreSpec | None = None) -> Report:
    """Run the contract of a memory backend against it and return what was found.

    Every check opens a store and closes it, and works below a new directory of that store. What
    `supported_ops` leaves out is skipped.

    Args:
        backend: An instance, or the name under which it is registered.
        spec: Which store to open; it is written to.

    Raises:
        AssertionError: Some checks failed; the text is the whole report.
        MemoryBackendNotFound: No backend has that name.
    """
    subject = registry.get(backend) if isinstance(backend, str) else backend
    findings = tuple(_run(check, subject, spec) for check in _CHECKS)
    report = Report(f"{type(subject).__name__} {subject.name!r}", findings)
    if report.failed:
        raise AssertionError(str(report))
    return report


@dataclass(frozen=True, slots=True)
class _Place:
    """An open store, and a directory of it that nobody else uses."""

    store: MemoryStore
    uri: str
    spec: MemoryStoreSpec | None


@dataclass(frozen=True, slots=True)
class _Check:
    run: Callable[[_Place], None]
    needs: Sequence[type[MemoryOp]] = ()


def _run(check: _Check, backend: MemoryBackend, spec: MemoryStoreSpec | None) -> Finding:
    name = check.run.__name__.strip("_")
    missing = [each.__name__ for each in check.needs if each not in backend.supported_ops()]
    if missing:
        return Finding(name, "skipped", f"no {', '.join(missing)}")
    try:
        store = backend.open(spec)
        try:
            check.run(_Place(store, f"memory://agent/conformance/{uuid4().hex}", spec))
        finally:
            backend.close(store)
    except Exception as exc:  # noqa: BLE001  # whatever the subject raises is the finding
        return Finding(name, "failed", str(exc) if isinstance(exc, Unlike) else repr(exc))
    return Finding(name, "passed")


def _give(store: MemoryStore, op: MemoryOp, kind: type[R]) -> R:
    result = store.dispatch(op)
    if not isinstance(result, kind):
        raise Unlike(f"expected {kind.__name__} for {op!r}, got {result!r}")
    return result


def _fail(store: MemoryStore, op: MemoryOp, kind: str) -> None:
    failure = _give(store, op, MemoryExecutionFailure)
    expect(failure.kind == kind, f"a failure of kind {kind!r} for {op!r}, got {failure!r}")
    expect(bool(failure.message), f"a failure with a message for {op!r}")


def _write(place: _Place, name: str, content: str) -> str:
    uri = f"{place.uri}/{name}"
    _give(place.store, MemoryOpWrite(uri, content, wait=True), MemoryWriteResult)
    return uri


def _an_open_store_has_a_handle_and_no_holder(place: _Place) -> None:
    expect(bool(place.store.handle), "a handle that is not empty")
    expect(not place.store.closed, "an open store")
    expect(place.store.refcount == 0, f"refcount 0, got {place.store.refcount}")
    expect(place.store.backend.store_count() >= 1, "store_count to count it")


def _closing_twice_is_closing_once(place: _Place) -> None:
    place.store.backend.close(place.store)
    place.store.backend.close(place.store)
    expect(place.store.closed, "a closed store")


def _a_closed_store_refuses_work(place: _Place) -> None:
    place.store.backend.close(place.store)
    try:
        place.store.dispatch(MemoryOpFind("x"))
    except MemoryStoreClosed:
        return
    raise Unlike("expected store.dispatch to raise MemoryStoreClosed")


def _the_last_holder_closes(place: _Place) -> None:
    with place.store as store, store:
        expect(store.refcount == 2, f"refcount 2, got {store.refcount}")
    # A blocking `close` of a backend runs soon after; closing again waits for it.
    place.store.backend.close(place.store)
    expect(place.store.closed, "a closed store after the last release")


def _capabilities_and_supported_ops_agree(place: _Place) -> None:
    offers, ops = place.store.backend.capabilities(), place.store.backend.supported_ops()
    for flag, op in (
        (offers.supports_write, MemoryOpWrite),
        (offers.supports_read, MemoryOpRead),
        (offers.supports_list, MemoryOpList),
        (offers.supports_tree, MemoryOpTree),
        (offers.supports_resource_ingest, MemoryOpResource),
        (offers.supports_session_commit, MemoryOpCommit),
    ):
        expect(flag == (op in ops), f"the flag of {op.__name__} to say whether it is supported")


def _an_unknown_operation_raises(place: _Place) -> None:
    class Unknown(MemoryOp):
        pass

    try:
        result = place.store.dispatch(Unknown())
    except UnsupportedMemoryOp:
        return
    raise Unlike(f"expected UnsupportedMemoryOp, got {result!r}")


def _a_note_comes_back_as_written(place: _Place) -> None:
    uri = f"{place.uri}/a"
    written = _give(place.store, MemoryOpWrite(uri, _TEXT, wait=True), MemoryWriteResult)
    expect(written.uri == uri, f"the URI of the write, got {written.uri!r}")
    read = _give(place.store, MemoryOpRead(uri), MemoryReadResult)
    expect(read.data == _TEXT, f"{_TEXT!r}, got {read.data!r}")


def _the_bytes_of_a_note_are_its_text_in_utf8(place: _Place) -> None:
    uri = _write(place, "a", _TEXT)
    read = _give(place.store, MemoryOpRead(uri, encoding=None), MemoryReadResult)
    expect(read.data == _TEXT.encode(), f"{_TEXT.encode()!r}, got {read.data!r}")


def _a_write_replaces_the_whole_note(place: _Place) -> None:
    _write(place, "a", "a long first content")
    uri = _write(place, "a", "short")
    read = _give(place.store, MemoryOpRead(uri), MemoryReadResult)
    expect(read.data == "short", f"'short', got {read.data!r}")


def _a_missing_note_is_a_failure(place: _Place) -> None:
    _fail(place.store, MemoryOpRead(f"{place.uri}/missing"), "not_found")


def _what_is_no_memory_uri_is_a_failure(place: _Place) -> None:
    for uri in ("nowhere", "https://host/x", "memory://elsewhere/x"):
        _fail(place.store, MemoryOpWrite(uri, "x"), "invalid_uri")


def _a_note_outlives_the_store_that_wrote_it(place: _Place) -> None:
    uri = _write(place, "a", _TEXT)
    backend = place.store.backend
    backend.close(place.store)
    again = backend.open(place.spec)
    try:
        read = _give(again, MemoryOpRead(uri), MemoryReadResult)
    finally:
        backend.close(again)
    expect(read.data == _TEXT, f"{_TEXT!r} in a store that was opened again, got {read.data!r}")


def _a_listing_is_sorted_and_tells_directories(place: _Place) -> None:
    for name in ("b", "a", "c/d"):
        _write(place, name, name)
    found = _give(place.store, MemoryOpList(place.uri), MemoryListResult).entries
    names = [(each.name, each.is_dir) for each in found]
    expected = [("a", False), ("b", False), ("c", True)]
    expect(names == expected, f"{expected!r}, got {names!r}")
    read = _give(place.store, MemoryOpRead(found[0].uri), MemoryReadResult)
    expect(read.data == "a", f"the entry's URI to lead to it, got {read.data!r}")


def _a_tree_has_parents_before_their_children(place: _Place) -> None:
    for name in ("a/b/c/d", "a/x"):
        _write(place, name, name)
    found = _give(place.store, MemoryOpTree(place.uri, depth=1), MemoryListResult).entries
    below = [each.uri.removeprefix(place.uri) for each in found]
    expect(below == ["/a", "/a/b", "/a/x"], f"/a, /a/b and /a/x, got {below!r}")


def _a_note_is_found_by_its_words(place: _Place) -> None:
    uri = _write(place, "a", "The heron waits for fish")
    _write(place, "b", "Cement hardens overnight")
    op = MemoryOpFind("heron fish", target_uri=place.uri, top_k=4)
    hits = _give(place.store, op, MemoryFindResult).hits
    expect(bool(hits) and hits[0].uri == uri, f"{uri!r} as the first hit, got {hits!r}")
    scores = [hit.score for hit in hits]
    expect(scores == sorted(scores, reverse=True), f"the highest score first, got {scores!r}")


def _no_more_is_found_than_was_asked_for(place: _Place) -> None:
    for name in ("a", "b", "c"):
        _write(place, name, f"heron {name}")
    op = MemoryOpFind("heron", target_uri=place.uri, top_k=2)
    hits = _give(place.store, op, MemoryFindResult).hits
    expect(len(hits) == 2, f"2 hits, got {hits!r}")


def _what_is_found_can_be_read(place: _Place) -> None:
    _write(place, "a", "The heron waits for fish")
    op = MemoryOpSearch("heron", target_uri=place.uri)
    for hit in _give(place.store, op, MemoryFindResult).hits:
        _give(place.store, MemoryOpRead(hit.uri), MemoryReadResult)


def _a_transcript_is_archived(place: _Place) -> None:
    messages = ({"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"})
    op = MemoryOpCommit(uuid4().hex, messages)
    done = _give(place.store, op, MemoryCommitResult)
    expect(done.extracted_count >= -1, f"a count or -1, got {done!r}")


def _a_commit_names_its_session(place: _Place) -> None:
    _fail(place.store, MemoryOpCommit("", ()), "invalid_uri")


_READ_WRITE = (MemoryOpRead, MemoryOpWrite)

_CHECKS = (
    _Check(_an_open_store_has_a_handle_and_no_holder),
    _Check(_closing_twice_is_closing_once),
    _Check(_a_closed_store_refuses_work),
    _Check(_the_last_holder_closes),
    _Check(_capabilities_and_supported_ops_agree),
    _Check(_an_unknown_operation_raises),
    _Check(_a_note_comes_back_as_written, _READ_WRITE),
    _Check(_the_bytes_of_a_note_are_its_text_in_utf8, _READ_WRITE),
    _Check(_a_write_replaces_the_whole_note, _READ_WRITE),
    _Check(_a_missing_note_is_a_failure, (MemoryOpRead,)),
    _Check(_what_is_no_memory_uri_is_a_failure, (MemoryOpWrite,)),
    _Check(_a_note_outlives_the_store_that_wrote_it, _READ_WRITE),
    _Check(_a_listing_is_sorted_and_tells_directories, (*_READ_WRITE, MemoryOpList)),
    _Check(_a_tree_has_parents_before_their_children, (MemoryOpWrite, MemoryOpTree)),
    _Check(_a_note_is_found_by_its_words, (MemoryOpWrite, MemoryOpFind)),
    _Check(_no_more_is_found_than_was_asked_for, (MemoryOpWrite, MemoryOpFind)),
    _Check(_what_is_found_can_be_read, (*_READ_WRITE, MemoryOpSearch)),
    _Check(_a_transcript_is_archived, (MemoryOpCommit,)),
    _Check(_a_commit_names_its_session, (MemoryOpCommit,)),
)
