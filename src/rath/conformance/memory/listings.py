"""Listings and trees."""

from __future__ import annotations

from rath.conformance.memory.subject import (
    READ_WRITE,
    Check,
    Place,
    expect_text,
    give,
    names_in,
    write,
)
from rath.conformance.report import expect
from rath.memory.op_types import MemoryOpList, MemoryOpTree, MemoryOpWrite
from rath.memory.results import MemoryListResult

__all__ = ["CHECKS"]


def a_listing_is_sorted_and_tells_directories(place: Place) -> None:
    for name in ("b", "a", "c/d"):
        write(place, name, name)
    found = give(place.store, MemoryOpList(place.uri), MemoryListResult).entries
    names = [(each.name, each.is_dir) for each in found]
    expected = [("a", False), ("b", False), ("c", True)]
    expect(names == expected, f"{expected!r}, got {names!r}")


def an_entry_leads_to_its_note(place: Place) -> None:
    for name in ("a", "report.v1", "two words", "笔记"):
        write(place, name, f"the note {name}")
    found = give(place.store, MemoryOpList(place.uri), MemoryListResult).entries
    expect(len(found) == 4, f"four notes, got {found!r}")
    for entry in found:
        expect_text(place.store, entry.uri, f"the note {entry.name}")
        size = len(f"the note {entry.name}".encode())
        expect(entry.size in {None, size}, f"size {size} or None, got {entry!r}")


def where_nothing_is_a_listing_is_empty(place: Place) -> None:
    found = names_in(place.store, f"{place.uri}/nothing")
    expect(found == [], f"nothing, or a failure of kind 'not_found', got {found!r}")


def a_tree_has_parents_before_their_children(place: Place) -> None:
    for name in ("a/b/c/d", "a/x"):
        write(place, name, name)
    for depth, expected in ((0, ["/a"]), (1, ["/a", "/a/b", "/a/x"])):
        op = MemoryOpTree(place.uri, depth=depth)
        found = give(place.store, op, MemoryListResult).entries
        below = [each.uri.removeprefix(place.uri) for each in found]
        expect(below == expected, f"{expected!r} at depth {depth}, got {below!r}")


_FEATURE = "Listings"

CHECKS = (
    Check(_FEATURE, a_listing_is_sorted_and_tells_directories, (MemoryOpWrite, MemoryOpList)),
    Check(_FEATURE, an_entry_leads_to_its_note, (*READ_WRITE, MemoryOpList)),
    Check(_FEATURE, where_nothing_is_a_listing_is_empty, (MemoryOpList,)),
    Check(_FEATURE, a_tree_has_parents_before_their_children, (MemoryOpWrite, MemoryOpTree)),
)
