"""Clauses on notes: written and read, named, listed, and written by many at once."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import get_args
from uuid import uuid4

from rath._async.lanes import gather
from rath._async.runtime import runtime
from rath.conformance.contract import Clauses, Skipped, excerpt, expect, expect_equal, expect_kind
from rath.conformance.memory.subject import READ_WRITE, MemorySubject
from rath.memory import op_types as ops
from rath.memory import results as res
from rath.memory.abc import MemoryStoreSpec
from rath.memory.notes import KEEP_BOTH
from rath.memory.uri import to_wire_uri

__all__ = ["ADDRESSES", "CONCURRENCY", "LISTINGS", "NOTES"]

NOTES = Clauses[MemorySubject]()
ADDRESSES = Clauses[MemorySubject]()
LISTINGS = Clauses[MemorySubject]()
CONCURRENCY = Clauses[MemorySubject]()

_TEXT = "The heron waits.\n二羽の鷺 — Straße\n"

_TEXTS = {
    "Chinese": "今天下雨，记得带伞。",
    "Russian": "Ёжик в тумане",
    "Hebrew": "שלום עולם",
    "emoji": "👩‍👩‍👧‍👦 🏳️‍🌈 🦆",
    "combining": "e\N{COMBINING ACUTE ACCENT} \N{LATIN SMALL LETTER E WITH ACUTE}",
    "line ends": "  first\r\nsecond\rthird\n\n\tlast without an end  ",
    "markup": "# Title\n---\nkey: value\n---\n```sh\necho hi\n```\n<b>&amp;</b>",
}

_LONG = "heron 鷺\n" * 125_000


@NOTES.add("Notes", *READ_WRITE)
def a_note_comes_back_as_written(memory: MemorySubject) -> None:
    uri = memory.at("a")
    written = memory.ask(ops.MemoryOpWrite(uri, _TEXT, wait=True), res.MemoryWriteResult)
    expect_equal(written.uri, uri, "as the URI of the write")
    memory.expect_text(uri, _TEXT)


@NOTES.add("Notes", ops.MemoryOpWrite)
def a_write_tells_its_size(memory: MemorySubject) -> None:
    written = memory.ask(ops.MemoryOpWrite(memory.at("a"), _TEXT), res.MemoryWriteResult)
    expect_equal(written.bytes_written, len(_TEXT.encode()), "bytes")


@NOTES.add("Notes", *READ_WRITE)
def the_bytes_of_a_note_are_its_text_in_utf8(memory: MemorySubject) -> None:
    op = ops.MemoryOpRead(memory.write("a", _TEXT), encoding=None)
    expect_equal(memory.ask(op, res.MemoryReadResult).data, _TEXT.encode())


@NOTES.add("Notes", *READ_WRITE)
def a_text_is_unchanged(memory: MemorySubject) -> None:
    for n, (name, text) in enumerate(_TEXTS.items()):
        expect_equal(memory.read(memory.write(str(n), text)), text, f"as the text with {name}")


@NOTES.add("Notes", *READ_WRITE)
def a_long_note_comes_back_as_written(memory: MemorySubject) -> None:
    memory.expect_text(memory.write("a", _LONG), _LONG)


@NOTES.add("Notes", *READ_WRITE)
def a_write_replaces_the_note(memory: MemorySubject) -> None:
    memory.write("a", "a long first content")
    memory.expect_text(memory.write("a", "short"), "short")


@NOTES.add("Notes", *READ_WRITE)
def a_missing_note_is_a_failure(memory: MemorySubject) -> None:
    memory.write("a/b", "a")
    requests = (ops.MemoryOpRead(memory.at(name)) for name in ("missing", "a", "a/b/c"))
    memory.expect_refusal("not_found", *requests)


@NOTES.add("Notes", *READ_WRITE)
def a_note_outlives_the_store_that_wrote_it(memory: MemorySubject) -> None:
    uri = memory.write("a", _TEXT, wait=True)
    memory.backend.close(memory.store)
    with memory.another(memory.spec) as again:
        again.expect_text(uri, _TEXT)


@NOTES.add("Notes", *READ_WRITE)
def every_level_answers(memory: MemorySubject) -> None:
    uri = memory.write("a", _TEXT, wait=True)
    has_levels = memory.backend.capabilities().supports_l0_l1_l2
    levels: tuple[ops.Level, ...] = get_args(ops.Level)
    for level in levels:
        op = ops.MemoryOpRead(uri, level=level)
        result = memory.store.dispatch(op)
        if has_levels and level != "detail" and isinstance(result, res.MemoryExecutionFailure):
            known = ("not_found", "unsupported", "extraction_failed")
            expect(result.kind in known, f"a summary or a failure of {known}, got {result!r}")
            continue
        found = expect_kind(result, res.MemoryReadResult, op)
        expect_equal(found.level, level, "as level")
        if level == "detail" or not has_levels:
            expect_equal(found.data, _TEXT, f"as {level}")


@NOTES.add("Notes", *READ_WRITE)
def a_note_that_asks_for_it_replaces_no_other(memory: MemorySubject) -> None:
    uri = memory.write("a", "the first")
    op = ops.MemoryOpWrite(uri, "the second", metadata=KEEP_BOTH)
    first, again = (memory.ask(op, res.MemoryWriteResult).uri for _ in range(2))
    memory.expect_text(uri, "the first")
    memory.expect_text(first, "the second")
    expect(first == again, f"the same place for the same note, got {first!r} and {again!r}")


@NOTES.add("Notes", ops.MemoryOpWrite, ops.MemoryOpList)
def the_same_note_is_one_note(memory: MemorySubject) -> None:
    op = ops.MemoryOpWrite(memory.at("a"), "the same", metadata=KEEP_BOTH)
    found = {memory.ask(op, res.MemoryWriteResult).uri for _ in range(3)}
    expect_equal(found, {op.uri}, "for each of three writes")
    expect_equal(memory.names_in(memory.uri), ["a"], "in the directory")


@NOTES.add("Notes", *READ_WRITE)
def results_are_plain_values(memory: MemorySubject) -> None:
    uri = memory.at("a")
    for op in (
        ops.MemoryOpWrite(uri, _TEXT),
        ops.MemoryOpRead(uri),
        ops.MemoryOpRead(f"{uri}/missing"),
    ):
        result = memory.ask(op, res.MemoryResult)
        expect_equal(pickle.loads(pickle.dumps(result)), result, "to be a value that can be sent")


# ---------------------------------------------------------------- addresses

_NO_MEMORY = ("nowhere", "https://host/x", "memory://", "memory://elsewhere/x", "user/x")
_ASTRAY = ("/../x", "/./x", "//x", "/x//", "/..", "/x/..")
_NAMES = ("report.v1", "report.v2", "report", "two words", "a.b.c", "MiXeD", "1-2_3", "x" * 100)
_SCRIPTS = ("笔记", "дневник", "ünïcödé", "🦆", "ملاحظات")
_DIRECTORY = "/".join(f"level-{n}" for n in range(20))
_NOTE_OPS = (ops.MemoryOpRead, ops.MemoryOpWrite, ops.MemoryOpForget)


@ADDRESSES.add("Addresses")
def what_is_no_memory_uri_is_a_failure(memory: MemorySubject) -> None:
    for uri in _NO_MEMORY:
        _expect_no_uri(memory, uri)


@ADDRESSES.add("Addresses")
def what_leads_astray_is_a_failure(memory: MemorySubject) -> None:
    for tail in _ASTRAY:
        _expect_no_uri(memory, memory.uri + tail)


@ADDRESSES.add("Addresses")
def a_slash_at_the_end_names_no_note(memory: MemorySubject) -> None:
    requests = [op for op in memory.samples_at(memory.at("x/")) if isinstance(op, _NOTE_OPS)]
    if not requests:
        raise Skipped("no operation that is given a note")
    memory.expect_refusal("invalid_uri", *requests)


@ADDRESSES.add("Addresses", ops.MemoryOpWrite)
def a_directory_may_end_with_a_slash(memory: MemorySubject) -> None:
    memory.write("x/a", "the heron", wait=True)
    plain_ops, slashed_ops = (memory.samples_at(memory.at(name)) for name in ("x", "x/"))
    both = zip(plain_ops, slashed_ops, strict=True)
    pairs = [pair for pair in both if not isinstance(pair[0], _NOTE_OPS)]
    if not pairs:
        raise Skipped("no operation that is given a directory")
    for plain, slashed in pairs:
        expected, found = memory.store.dispatch(plain), memory.store.dispatch(slashed)
        expect_equal(found, expected, f"for {slashed!r}")


@ADDRESSES.add("Addresses", *READ_WRITE)
def names_may_hold_dots_and_spaces(memory: MemorySubject) -> None:
    _expect_names(memory, *_NAMES)


@ADDRESSES.add("Addresses", *READ_WRITE)
def names_may_be_of_any_script(memory: MemorySubject) -> None:
    _expect_names(memory, *_SCRIPTS)


@ADDRESSES.add("Addresses", *READ_WRITE)
def a_deep_path_is_a_place(memory: MemorySubject) -> None:
    _expect_names(memory, f"{_DIRECTORY}/a", f"{_DIRECTORY}/b")


@ADDRESSES.add("Addresses", *READ_WRITE)
def the_older_scheme_names_the_same_place(memory: MemorySubject) -> None:
    uri = memory.write("a", "new")
    older = to_wire_uri(uri)
    memory.expect_text(older, "new")
    memory.store.dispatch(ops.MemoryOpWrite(older, "newer"))
    memory.expect_text(uri, "newer")


def _expect_no_uri(memory: MemorySubject, uri: str) -> None:
    requests = memory.samples_at(uri)
    if not requests:
        raise Skipped("no operation that is given a place")
    memory.expect_refusal("invalid_uri", *requests)


def _expect_names(memory: MemorySubject, *names: str) -> None:
    uris = [memory.write(name, f"the note {name}") for name in names]
    for uri, name in zip(uris, names, strict=True):
        memory.expect_text(uri, f"the note {name}")


# ---------------------------------------------------------------- listings


@LISTINGS.add("Listings", ops.MemoryOpWrite, ops.MemoryOpList)
def a_listing_is_sorted_and_tells_directories(memory: MemorySubject) -> None:
    for name in ("b", "a", "c/d"):
        memory.write(name)
    entries = memory.ask(ops.MemoryOpList(memory.uri), res.MemoryListResult).entries
    found = [(each.name, each.is_dir) for each in entries]
    expect_equal(found, [("a", False), ("b", False), ("c", True)], "as entries")


@LISTINGS.add("Listings", *READ_WRITE, ops.MemoryOpList)
def an_entry_leads_to_its_note(memory: MemorySubject) -> None:
    for name in ("a", "report.v1", "two words", "笔记"):
        memory.write(name, f"the note {name}")
    found = memory.ask(ops.MemoryOpList(memory.uri), res.MemoryListResult).entries
    expect(len(found) == 4, f"four notes, got {found!r}")
    for entry in found:
        text = f"the note {entry.name}"
        memory.expect_text(entry.uri, text)
        size = len(text.encode())
        expect(entry.size in {None, size}, f"size {size} or None, got {entry!r}")


@LISTINGS.add("Listings", ops.MemoryOpList)
def where_nothing_is_a_listing_is_empty(memory: MemorySubject) -> None:
    expect_equal(memory.names_in(memory.at("nothing")), [], "or a failure of kind 'not_found'")


@LISTINGS.add("Listings", ops.MemoryOpWrite, ops.MemoryOpTree)
def a_tree_has_parents_before_their_children(memory: MemorySubject) -> None:
    for name in ("a/b/c/d", "a/x"):
        memory.write(name)
    for depth, expected in ((0, ["/a"]), (1, ["/a", "/a/b", "/a/x"])):
        entries = memory.ask(
            ops.MemoryOpTree(memory.uri, depth=depth), res.MemoryListResult
        ).entries
        found = [each.uri.removeprefix(memory.uri) for each in entries]
        expect_equal(found, expected, f"at depth {depth}")


# ---------------------------------------------------------------- concurrency

_THREADS = 8
_WRITES = 100
_ROUNDS = 20


@CONCURRENCY.add("Many at once", *READ_WRITE)
def many_threads_lose_nothing(memory: MemorySubject) -> None:
    def write_all(names: list[str]) -> None:
        for name in names:
            memory.write(name, name)

    names = [f"{n % 10}/{n}" for n in range(_WRITES)]
    _on_threads([partial(write_all, names[n::_THREADS]) for n in range(_THREADS)])
    lost = [name for name in names if memory.read(memory.at(name)) != name]
    expect_equal(lost, [], f"lost or torn of {_WRITES} notes")


@CONCURRENCY.add("Many at once", *READ_WRITE)
def many_operations_lose_nothing(memory: MemorySubject) -> None:
    requests = [ops.MemoryOpWrite(memory.at(str(n)), f"note {n}") for n in range(_ROUNDS)]
    for op, result in zip(requests, _on_runtime(memory, requests), strict=True):
        expect_kind(result, res.MemoryWriteResult, op)
    reads = [ops.MemoryOpRead(op.uri) for op in requests]
    for op, again, result in zip(requests, reads, _on_runtime(memory, reads), strict=True):
        found = expect_kind(result, res.MemoryReadResult, again)
        expect_equal(found.data, op.content, f"at {op.uri}")


@CONCURRENCY.add("Many at once", *READ_WRITE)
def a_reader_sees_one_text_or_the_other(memory: MemorySubject) -> None:
    contents = [letter * 20_000 for letter in "ab"]
    uri = memory.write("a", contents[0])

    def write_often() -> None:
        for n in range(_ROUNDS):
            memory.write("a", contents[n % 2])

    def read_often() -> None:
        for _ in range(_ROUNDS):
            found = memory.read(uri)
            expect(found in contents, f"one text or the other, got {excerpt(found)}")

    _on_threads([write_often, read_often, read_often])
    memory.expect_text(uri, contents[(_ROUNDS - 1) % 2])


@CONCURRENCY.add("Several stores", *READ_WRITE)
def two_stores_on_one_spec_see_each_other(memory: MemorySubject) -> None:
    with memory.another(memory.spec) as other:
        uri = memory.write("a", "heron")
        other.expect_text(uri, "heron")
        other.write("a", "walrus")
        memory.expect_text(uri, "walrus")


@CONCURRENCY.add("Several stores", *READ_WRITE, ops.MemoryOpFind)
def what_one_store_writes_the_other_finds(memory: MemorySubject) -> None:
    with memory.another(memory.spec) as other:
        uri = other.write("a", wait=True)
        hits = memory.find("heron fish")
        expect(any(hit.uri == uri for hit in hits), f"{uri!r} among the hits, got {hits!r}")


@CONCURRENCY.add("Namespaces", *READ_WRITE, offer="supports_namespaces")
def namespaces_are_apart(memory: MemorySubject) -> None:
    spec = replace(memory.spec or MemoryStoreSpec(), namespace=f"conformance-{uuid4().hex[:8]}")
    with memory.another(spec) as other:
        if other.store.handle == memory.store.handle:
            raise Skipped("the spec names one store, whatever the namespace")
        uri = memory.write("a", "heron")
        expect(not other.has(uri), "a note not to be seen from another namespace")
        other.write("a", "walrus")
        memory.expect_text(uri, "heron")


def _on_threads(jobs: list[Callable[[], None]]) -> None:
    for future in [runtime().start_in_worker(job) for job in jobs]:
        future.result()


def _on_runtime(memory: MemorySubject, requests: Sequence[ops.MemoryOp]) -> list[res.MemoryResult]:
    makes = [partial(memory.store.adispatch, op) for op in requests]
    return runtime().run(lambda: gather(makes), label="many operations at once")
