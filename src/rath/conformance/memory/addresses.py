"""Addresses: what is a place in a memory, and what is none."""

from __future__ import annotations

from rath.conformance.memory.samples import samples_at
from rath.conformance.memory.subject import READ_WRITE, Check, Place, expect_text, fail, write
from rath.conformance.report import Skipped, expect
from rath.memory.op_types import MemoryOpForget, MemoryOpRead, MemoryOpWrite
from rath.memory.uri import to_wire_uri

__all__ = ["CHECKS"]

_NO_MEMORY = ("nowhere", "https://host/x", "memory://", "memory://elsewhere/x", "user/x")
_ASTRAY = ("/../x", "/./x", "//x", "/x//", "/..", "/x/..")
_OF_NOTES = (MemoryOpRead, MemoryOpWrite, MemoryOpForget)

_NAMES = ("report.v1", "report.v2", "report", "two words", "a.b.c", "MiXeD", "1-2_3", "x" * 100)
_SCRIPTS = ("笔记", "дневник", "ünïcödé", "🦆", "ملاحظات")

_DEPTH = 20


def what_is_no_memory_uri_is_a_failure(place: Place) -> None:
    for uri in _NO_MEMORY:
        _refuses(place, uri)


def what_leads_astray_is_a_failure(place: Place) -> None:
    for tail in _ASTRAY:
        _refuses(place, place.uri + tail)


def a_slash_at_the_end_names_no_note(place: Place) -> None:
    ops = [op for op in samples_at(place, f"{place.uri}/x/") if isinstance(op, _OF_NOTES)]
    if not ops:
        raise Skipped("no operation that is given a note")
    for op in ops:
        fail(place.store, op, "invalid_uri")


def a_directory_may_end_with_a_slash(place: Place) -> None:
    write(place, "x/a", "the heron", wait=True)
    ops = [
        (plain, slashed)
        for plain, slashed in zip(
            samples_at(place, f"{place.uri}/x"), samples_at(place, f"{place.uri}/x/"), strict=True
        )
        if not isinstance(plain, _OF_NOTES)
    ]
    if not ops:
        raise Skipped("no operation that is given a directory")
    for plain, slashed in ops:
        expected, found = place.store.dispatch(plain), place.store.dispatch(slashed)
        expect(found == expected, f"{expected!r} for {slashed!r}, got {found!r}")


def names_may_hold_dots_and_spaces(place: Place) -> None:
    _keeps(place, _NAMES)


def names_may_be_of_any_script(place: Place) -> None:
    _keeps(place, _SCRIPTS)


def a_deep_path_is_a_place(place: Place) -> None:
    directory = "/".join(f"level-{n}" for n in range(_DEPTH))
    _keeps(place, (f"{directory}/a", f"{directory}/b"))


def the_older_scheme_names_the_same_place(place: Place) -> None:
    uri = write(place, "a", "new")
    older = to_wire_uri(uri)
    expect_text(place.store, older, "new")
    place.store.dispatch(MemoryOpWrite(older, "newer"))
    expect_text(place.store, uri, "newer")


def _refuses(place: Place, uri: str) -> None:
    ops = samples_at(place, uri)
    if not ops:
        raise Skipped("no operation that is given a place")
    for op in ops:
        fail(place.store, op, "invalid_uri")


def _keeps(place: Place, names: tuple[str, ...]) -> None:
    uris = [write(place, name, f"the note {name}") for name in names]
    expect(len(set(uris)) == len(names), f"as many places as names, got {uris!r}")
    for uri, name in zip(uris, names, strict=True):
        expect_text(place.store, uri, f"the note {name}")


_FEATURE = "Addresses"

CHECKS = (
    Check(_FEATURE, what_is_no_memory_uri_is_a_failure),
    Check(_FEATURE, what_leads_astray_is_a_failure),
    Check(_FEATURE, a_slash_at_the_end_names_no_note),
    Check(_FEATURE, a_directory_may_end_with_a_slash, (MemoryOpWrite,)),
    Check(_FEATURE, names_may_hold_dots_and_spaces, READ_WRITE),
    Check(_FEATURE, names_may_be_of_any_script, READ_WRITE),
    Check(_FEATURE, a_deep_path_is_a_place, READ_WRITE),
    Check(_FEATURE, the_older_scheme_names_the_same_place, READ_WRITE),
)
