"""Finding: which notes a text calls up."""

from __future__ import annotations

import math

from rath.conformance.memory.subject import (
    READ_WRITE,
    WRITE_FIND,
    Check,
    Place,
    find,
    found_uris,
    give,
    is_lexical,
    is_there,
    write,
)
from rath.conformance.report import Skipped, expect
from rath.memory.op_types import MemoryOpFind, MemoryOpSearch
from rath.memory.results import MemoryFindResult

__all__ = ["CHECKS"]


def a_note_is_found_by_its_words(place: Place) -> None:
    uri = write(place, "a", "The heron waits for fish", wait=True)
    write(place, "b", "Cement hardens overnight", wait=True)
    hits = find(place, "heron fish", top_k=4)
    expect(bool(hits) and hits[0].uri == uri, f"{uri!r} as the first hit, got {hits!r}")
    scores = [hit.score for hit in hits]
    order = [hit.score if hit.rank_fusion is None else hit.rank_fusion for hit in hits]
    expect(order == sorted(order, reverse=True), f"the closest first, got {order!r}")
    expect(all(map(math.isfinite, scores)), f"scores that are numbers, got {scores!r}")


def a_waited_write_is_found_at_once(place: Place) -> None:
    for name, words in (("a", "heron fish"), ("b", "walrus ice")):
        uri = write(place, name, words, wait=True)
        found = found_uris(place, words)
        expect(found[:1] == [uri], f"{uri!r} as the first hit for {words!r}, got {found!r}")


def a_note_is_found_by_what_it_says_now(place: Place) -> None:
    uri = write(place, "a", "heron fish", wait=True)
    write(place, "a", "walrus ice", wait=True)
    found = found_uris(place, "walrus ice")
    expect(uri in found, f"{uri!r} among the hits, got {found!r}")
    for hit in find(place, "heron fish"):
        is_old = hit.uri == uri and (is_lexical(place.backend) or "heron" in (hit.snippet or ""))
        expect(not is_old, f"no hit by what the note said before, got {hit!r}")


def words_that_no_note_has_find_nothing(place: Place) -> None:
    write(place, "a", "The heron waits for fish", wait=True)
    hits = find(place, "qzxjk vwpfg")
    if hits and not is_lexical(place.backend):
        raise Skipped("it finds by meaning, and then each note is more or less near")
    expect(hits == (), f"no hits, got {hits!r}")


def no_more_is_found_than_was_asked_for(place: Place) -> None:
    for name in ("a", "b", "c"):
        write(place, name, f"heron {name}", wait=True)
    for top_k in (2, 1, 0):
        hits = find(place, "heron", top_k=top_k)
        expect(len(hits) == top_k, f"{top_k} hits, got {hits!r}")


def what_is_found_can_be_read(place: Place) -> None:
    write(place, "a", "The heron waits for fish", wait=True)
    op = MemoryOpSearch("heron", target_uri=place.uri)
    hits = give(place.store, op, MemoryFindResult).hits
    expect(bool(hits), f"a hit, got {hits!r}")
    for hit in hits:
        expect(is_there(place.store, hit.uri), f"{hit.uri!r} to be there")


def a_target_bounds_the_search(place: Place) -> None:
    inside = write(place, "a/x", "heron fish", wait=True)
    for name in ("b", "ab/x"):
        write(place, name, "heron fish", wait=True)
    op = MemoryOpFind("heron fish", target_uri=f"{place.uri}/a")
    hits = give(place.store, op, MemoryFindResult).hits
    # A store may tell in short of the directory too, which is within bounds.
    found = [hit.uri for hit in hits if hit.level not in {"abstract", "overview"}]
    expect(found == [inside], f"only {inside!r}, got {found!r}")
    beyond = [hit.uri for hit in hits if not f"{hit.uri}/".startswith(f"{place.uri}/a/")]
    expect(not beyond, f"nothing outside, got {beyond!r}")
    op = MemoryOpFind("heron fish", target_uri=f"{place.uri}/nothing")
    result = place.store.dispatch(op)
    hits = result.hits if isinstance(result, MemoryFindResult) else ()
    expect(hits == (), f"nothing where nothing is, got {hits!r}")


_FEATURE = "Finding"

CHECKS = (
    Check(_FEATURE, a_note_is_found_by_its_words, WRITE_FIND),
    Check(_FEATURE, a_waited_write_is_found_at_once, WRITE_FIND),
    Check(_FEATURE, a_note_is_found_by_what_it_says_now, WRITE_FIND),
    Check(_FEATURE, words_that_no_note_has_find_nothing, WRITE_FIND),
    Check(_FEATURE, no_more_is_found_than_was_asked_for, WRITE_FIND),
    Check(_FEATURE, what_is_found_can_be_read, (*READ_WRITE, MemoryOpSearch)),
    Check(_FEATURE, a_target_bounds_the_search, WRITE_FIND),
)
