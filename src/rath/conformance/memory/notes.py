"""Notes: what is written is what is read."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import get_args

from rath.conformance.memory.subject import (
    READ_WRITE,
    Check,
    Place,
    expect_kind,
    expect_text,
    fail,
    give,
    names_in,
    read,
    shown,
    write,
)
from rath.conformance.report import expect
from rath.memory.notes import KEEP_BOTH
from rath.memory.op_types import Level, MemoryOp, MemoryOpList, MemoryOpRead, MemoryOpWrite
from rath.memory.results import (
    MemoryExecutionFailure,
    MemoryReadResult,
    MemoryResult,
    MemoryWriteResult,
)

__all__ = ["CHECKS"]

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

_LONG = 1_000_000


def a_note_comes_back_as_written(place: Place) -> None:
    uri = f"{place.uri}/a"
    written = give(place.store, MemoryOpWrite(uri, _TEXT, wait=True), MemoryWriteResult)
    expect(written.uri == uri, f"the URI of the write, got {written.uri!r}")
    expect_text(place.store, uri, _TEXT)


def a_write_tells_its_size(place: Place) -> None:
    written = give(place.store, MemoryOpWrite(f"{place.uri}/a", _TEXT), MemoryWriteResult)
    size = len(_TEXT.encode())
    expect(written.bytes_written == size, f"{size} bytes, got {written.bytes_written}")


def the_bytes_of_a_note_are_its_text_in_utf8(place: Place) -> None:
    uri = write(place, "a", _TEXT)
    found = give(place.store, MemoryOpRead(uri, encoding=None), MemoryReadResult)
    expect(found.data == _TEXT.encode(), f"{_TEXT.encode()!r}, got {found.data!r}")


def a_text_is_kept_to_the_letter(place: Place) -> None:
    for n, (name, text) in enumerate(_TEXTS.items()):
        found = read(place.store, write(place, str(n), text))
        expect(found == text, f"the text with {name} {text!r}, got {found!r}")


def a_long_note_comes_back_whole(place: Place) -> None:
    text = "heron 鷺\n" * (_LONG // len("heron 鷺\n"))
    found = read(place.store, write(place, "a", text))
    expect(found == text, f"{len(text)} characters as written, got {len(found)}: {shown(found)}")


def a_write_replaces_the_whole_note(place: Place) -> None:
    write(place, "a", "a long first content")
    expect_text(place.store, write(place, "a", "short"), "short")


def a_missing_note_is_a_failure(place: Place) -> None:
    write(place, "a/b", "a")
    for name in ("missing", "a", "a/b/c"):
        fail(place.store, MemoryOpRead(f"{place.uri}/{name}"), "not_found")


def a_note_outlives_the_store_that_wrote_it(place: Place) -> None:
    uri = write(place, "a", _TEXT, wait=True)
    place.backend.close(place.store)
    again = place.backend.open(place.spec)
    try:
        found = read(again, uri)
    finally:
        place.backend.close(again)
    expect(found == _TEXT, f"{_TEXT!r} in a store that was opened again, got {found!r}")


def every_level_answers(place: Place) -> None:
    uri = write(place, "a", _TEXT, wait=True)
    has_levels = place.backend.capabilities().supports_l0_l1_l2
    levels: tuple[Level, ...] = get_args(Level)
    for level in levels:
        op = MemoryOpRead(uri, level=level)
        result = place.store.dispatch(op)
        if has_levels and level != "detail" and isinstance(result, MemoryExecutionFailure):
            known = ("not_found", "unsupported", "extraction_failed")
            expect(result.kind in known, f"a summary or a failure of {known}, got {result!r}")
            continue
        found = expect_kind(result, op, MemoryReadResult)
        expect(found.level == level, f"level {level!r}, got {found.level!r}")
        is_whole = level == "detail" or not has_levels
        expect(found.data == _TEXT or not is_whole, f"{_TEXT!r} as {level}, got {found.data!r}")


def a_note_that_asks_for_it_replaces_no_other(place: Place) -> None:
    uri = write(place, "a", "the first")
    op = MemoryOpWrite(uri, "the second", metadata=KEEP_BOTH)
    first, again = (give(place.store, op, MemoryWriteResult).uri for _ in range(2))
    expect_text(place.store, uri, "the first")
    expect_text(place.store, first, "the second")
    expect(first == again, f"the same place for the same note, got {first!r} and {again!r}")


def the_same_note_is_one_note(place: Place) -> None:
    op = MemoryOpWrite(f"{place.uri}/a", "the same", metadata=KEEP_BOTH)
    places = {give(place.store, op, MemoryWriteResult).uri for _ in range(3)}
    expect(places == {op.uri}, f"{op.uri!r} for each of three writes, got {places!r}")
    found = names_in(place.store, place.uri)
    expect(found == ["a"], f"one note, got {found!r}")


def results_are_plain_values(place: Place) -> None:
    for op, result in _answers(place):
        expect(isinstance(result, MemoryResult), f"a MemoryResult for {op!r}, got {result!r}")
        copy = pickle.loads(pickle.dumps(result))
        expect(copy == result, f"{result!r} to be a value that can be sent, got back {copy!r}")


def _answers(place: Place) -> Iterator[tuple[MemoryOp, object]]:
    uri = f"{place.uri}/a"
    for op in (MemoryOpWrite(uri, _TEXT), MemoryOpRead(uri), MemoryOpRead(f"{uri}/missing")):
        yield op, place.store.dispatch(op)


_FEATURE = "Notes"

CHECKS = (
    Check(_FEATURE, a_note_comes_back_as_written, READ_WRITE),
    Check(_FEATURE, a_write_tells_its_size, (MemoryOpWrite,)),
    Check(_FEATURE, the_bytes_of_a_note_are_its_text_in_utf8, READ_WRITE),
    Check(_FEATURE, a_text_is_kept_to_the_letter, READ_WRITE),
    Check(_FEATURE, a_long_note_comes_back_whole, READ_WRITE),
    Check(_FEATURE, a_write_replaces_the_whole_note, READ_WRITE),
    Check(_FEATURE, a_missing_note_is_a_failure, READ_WRITE),
    Check(_FEATURE, a_note_outlives_the_store_that_wrote_it, READ_WRITE),
    Check(_FEATURE, every_level_answers, READ_WRITE),
    Check(_FEATURE, a_note_that_asks_for_it_replaces_no_other, READ_WRITE),
    Check(_FEATURE, the_same_note_is_one_note, (MemoryOpWrite, MemoryOpList)),
    Check(_FEATURE, results_are_plain_values, READ_WRITE),
)
