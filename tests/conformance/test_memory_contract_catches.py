"""The contract of memories, run against faulty ones: each fails the one check that it must fail."""

from __future__ import annotations

import asyncio
import math
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Self

import pytest

from rath.conformance.memory import CLAUSES
from rath.memory import (
    MemoryCapabilities,
    MemoryCommitResult,
    MemoryEntry,
    MemoryExecutionFailure,
    MemoryFindResult,
    MemoryForgetResult,
    MemoryHit,
    MemoryListResult,
    MemoryOp,
    MemoryOpCommit,
    MemoryOpFind,
    MemoryOpForget,
    MemoryOpList,
    MemoryOpRead,
    MemoryOpSearch,
    MemoryOpTree,
    MemoryOpWrite,
    MemoryReadResult,
    MemoryResult,
    MemoryStore,
    MemoryStoreSpec,
    MemoryWriteResult,
)
from rath.memory.notes import EXPIRES_AT, KEEP_BOTH
from rath.memory.uri import names_place, to_public_uri, to_wire_uri
from rath.testing import FakeMemory
from rath.testing.memory import FakeStore
from tests.support.twisted_memory import Rest, Twist, Twisted, failures, words

Make = Callable[[], FakeMemory]

FAULTY: dict[str, Make] = {}
"""A faulty memory for each check, by the name of the check."""


def breaks(check: str) -> Callable[[Twist], Twist]:
    """Register a twist as what only that check must find."""

    def add(twist: Twist) -> Twist:
        FAULTY[check] = lambda: Twisted(twist)
        return twist

    return add


def breaks_whole(check: str) -> Callable[[type[FakeMemory]], type[FakeMemory]]:
    """Register a class as what only that check must find."""

    def add(cls: type[FakeMemory]) -> type[FakeMemory]:
        FAULTY[check] = cls
        return cls

    return add


def refusal(kind: Any = "internal") -> MemoryExecutionFailure:
    return MemoryExecutionFailure(kind, "no")


@pytest.mark.parametrize("check", [each.name for each in CLAUSES])
def test_a_fault_is_found_by_its_check_alone(check: str) -> None:
    assert list(failures(FAULTY[check]())) == [check]


# ---------------------------------------------------------------- opening, counting, closing


@breaks_whole("an_open_store_has_a_handle_and_no_holder")
class CountsOneLess(FakeMemory):
    def store_count(self) -> int:
        return super().store_count() - 1


@breaks_whole("a_lazy_store_opens_on_first_use")
class OpensAtOnce(FakeMemory):
    def lazy(self, spec: MemoryStoreSpec | None = None) -> MemoryStore:
        return super().lazy(spec).ensure_open()


@breaks_whole("closing_twice_is_closing_once")
class NeverForgets(FakeMemory):
    def count_stores(self, change: int) -> None:
        super().count_stores(max(0, change))


class Undead(MemoryStore):
    def dispatch(self, op: MemoryOp) -> MemoryResult:
        return MemoryFindResult(()) if self.closed else super().dispatch(op)


@breaks_whole("a_closed_store_refuses_work")
class AnswersForEver(FakeMemory):
    def lazy(self, spec: MemoryStoreSpec | None = None) -> MemoryStore:
        return Undead(self, "", spec)


class CountsTwice(MemoryStore):
    def acquire(self) -> Self:
        super().acquire()
        return super().acquire()


@breaks_whole("the_last_holder_closes")
class Held(FakeMemory):
    def lazy(self, spec: MemoryStoreSpec | None = None) -> MemoryStore:
        return CountsTwice(self, "", spec)


@breaks_whole("capabilities_and_supported_ops_agree")
class Modest(FakeMemory):
    @classmethod
    def capabilities(cls) -> MemoryCapabilities:
        return replace(super().capabilities(), supports_forget=False)


@breaks("an_unknown_operation_raises")
async def shrugs(memory: Twisted, op: MemoryOp, rest: Rest) -> MemoryResult:
    return await rest(op) if type(op) in memory.supported_ops() else refusal("unsupported")


# ---------------------------------------------------------------- notes


@breaks("a_note_comes_back_as_written")
async def names_it_otherwise(memory: Twisted, op: MemoryOp, rest: Rest) -> MemoryResult:
    result = await rest(op)
    if isinstance(result, MemoryWriteResult) and isinstance(op, MemoryOpWrite) and op.wait:
        return replace(result, uri=to_wire_uri(result.uri))
    return result


@breaks("a_write_tells_its_size")
async def counts_characters(memory: Twisted, op: MemoryOp, rest: Rest) -> MemoryResult:
    result = await rest(op)
    if isinstance(result, MemoryWriteResult) and isinstance(op, MemoryOpWrite):
        return replace(result, bytes_written=len(op.content))
    return result


@breaks("the_bytes_of_a_note_are_its_text_in_utf8")
async def gives_other_bytes(memory: Twisted, op: MemoryOp, rest: Rest) -> MemoryResult:
    result = await rest(op)
    if isinstance(result, MemoryReadResult) and isinstance(result.data, bytes):
        return replace(result, data=result.data.decode().encode("utf-16"))
    return result


def read_as(change: Callable[[str], str]) -> Twist:
    async def twist(memory: Twisted, op: MemoryOp, rest: Rest) -> MemoryResult:
        result = await rest(op)
        if isinstance(result, MemoryReadResult) and isinstance(result.data, str):
            return replace(result, data=change(result.data))
        return result

    return twist


breaks("a_text_is_unchanged")(read_as(lambda text: unicodedata.normalize("NFC", text)))
breaks("a_long_note_comes_back_as_written")(read_as(lambda text: text[:100_000]))


@breaks("a_write_replaces_the_note")
async def leaves_the_tail(memory: Twisted, op: MemoryOp, rest: Rest) -> MemoryResult:
    if isinstance(op, MemoryOpWrite) and op.metadata is None:
        tail = memory.notes.get(op.uri, "")[len(op.content) :]
        return await rest(replace(op, content=op.content + tail))
    return await rest(op)


@breaks("a_missing_note_is_a_failure")
async def reads_directories(memory: Twisted, op: MemoryOp, rest: Rest) -> MemoryResult:
    result = await rest(op)
    if isinstance(op, MemoryOpRead) and memory.below(op.uri) and op.uri not in memory.notes:
        return MemoryReadResult(op.uri, "", op.level)
    return result


@breaks_whole("a_note_outlives_the_store_that_wrote_it")
class Volatile(FakeMemory):
    async def aclose(self, native: FakeStore) -> None:
        self.notes.clear()


@breaks("every_level_answers")
async def knows_one_level(memory: Twisted, op: MemoryOp, rest: Rest) -> MemoryResult:
    if isinstance(op, MemoryOpRead):
        return await rest(replace(op, level="detail"))
    return await rest(op)


@breaks("a_note_that_asks_for_it_replaces_no_other")
async def replaces_all(memory: Twisted, op: MemoryOp, rest: Rest) -> MemoryResult:
    if isinstance(op, MemoryOpWrite) and op.metadata == KEEP_BOTH:
        return await rest(replace(op, metadata=None))
    return await rest(op)


@breaks("the_same_note_is_one_note")
async def keeps_copies(memory: Twisted, op: MemoryOp, rest: Rest) -> MemoryResult:
    if isinstance(op, MemoryOpWrite) and op.metadata == KEEP_BOTH:
        is_there = memory.notes.get(op.uri) == op.content
        return await rest(replace(op, uri=f"{op.uri}-2") if is_there else op)
    return await rest(op)


@breaks("results_are_plain_values")
async def tells_by_an_object(memory: Twisted, op: MemoryOp, rest: Rest) -> MemoryResult:
    result = await rest(op)
    if isinstance(result, MemoryExecutionFailure) and result.kind == "not_found":
        unsendable: Any = lambda: None  # noqa: E731  # what cannot be pickled
        return replace(result, detail=unsendable)
    return result


# ---------------------------------------------------------------- addresses


@breaks("what_is_no_memory_uri_is_a_failure")
async def looks_anywhere(memory: Twisted, op: MemoryOp, rest: Rest) -> MemoryResult:
    is_elsewhere = isinstance(op, MemoryOpFind) and (op.target_uri or "").startswith("https:")
    return MemoryFindResult(()) if is_elsewhere else await rest(op)


@breaks("what_leads_astray_is_a_failure")
async def takes_dots(memory: Twisted, op: MemoryOp, rest: Rest) -> MemoryResult:
    is_odd = isinstance(op, MemoryOpTree) and "/./" in op.uri
    return MemoryListResult(()) if is_odd else await rest(op)


@breaks("a_slash_at_the_end_names_no_note")
async def takes_a_slash(memory: Twisted, op: MemoryOp, rest: Rest) -> MemoryResult:
    is_odd = isinstance(op, MemoryOpRead) and op.uri.endswith("/x/")
    return MemoryReadResult("", "", "detail") if is_odd else await rest(op)


@breaks_whole("a_directory_may_end_with_a_slash")
class RefusesASlash(FakeMemory):
    def lazy(self, spec: MemoryStoreSpec | None = None) -> MemoryStore:
        return StrictStore(self, "", spec)


class StrictStore(MemoryStore):
    async def adispatch(self, op: MemoryOp) -> MemoryResult:
        is_odd = isinstance(op, MemoryOpTree) and op.uri.endswith("/x/")
        return refusal() if is_odd else await super().adispatch(op)


def refuses(is_refused: Callable[[str], bool]) -> Twist:
    async def twist(memory: Twisted, op: MemoryOp, rest: Rest) -> MemoryResult:
        if isinstance(op, MemoryOpWrite) and is_refused(op.uri):
            return refusal()
        return await rest(op)

    return twist


breaks("names_may_hold_dots_and_spaces")(refuses(lambda uri: uri.endswith("a.b.c")))
breaks("names_may_be_of_any_script")(refuses(lambda uri: uri.endswith("🦆")))
breaks("a_deep_path_is_a_place")(refuses(lambda uri: uri.count("/") > 15))
breaks("the_older_scheme_names_the_same_place")(refuses(lambda uri: uri.startswith("viking:")))


# ---------------------------------------------------------------- listings


def lists(kind: type[MemoryOp], change: Callable[[list[MemoryEntry]], list[MemoryEntry]]) -> Twist:
    async def twist(memory: Twisted, op: MemoryOp, rest: Rest) -> MemoryResult:
        result = await rest(op)
        if isinstance(op, kind) and isinstance(result, MemoryListResult):
            return MemoryListResult(tuple(change(list(result.entries))))
        return result

    return twist


def backwards(entries: list[MemoryEntry]) -> list[MemoryEntry]:
    return entries[::-1]


def quoted(entries: list[MemoryEntry]) -> list[MemoryEntry]:
    return [replace(entry, uri=entry.uri.replace(" ", "%20")) for entry in entries]


breaks("a_listing_is_sorted_and_tells_directories")(lists(MemoryOpList, backwards))
breaks("an_entry_leads_to_its_note")(lists(MemoryOpList, quoted))
breaks("a_tree_has_parents_before_their_children")(lists(MemoryOpTree, backwards))


@breaks("where_nothing_is_a_listing_is_empty")
async def fails_where_nothing_was(memory: Twisted, op: MemoryOp, rest: Rest) -> MemoryResult:
    if isinstance(op, MemoryOpList) and op.uri.startswith("memory://agent"):
        was_there = any(write.uri.startswith(op.uri) for write in memory.written())
        return refusal() if names_place(op.uri) and not was_there else await rest(op)
    return await rest(op)


# ---------------------------------------------------------------- finding


def finds(change: Callable[[Twisted, MemoryOpFind, list[MemoryHit]], list[MemoryHit]]) -> Twist:
    async def twist(memory: Twisted, op: MemoryOp, rest: Rest) -> MemoryResult:
        result = await rest(op)
        if isinstance(op, MemoryOpFind) and isinstance(result, MemoryFindResult):
            return MemoryFindResult(tuple(change(memory, op, list(result.hits))))
        return result

    return twist


def without_number(memory: Twisted, op: MemoryOpFind, hits: list[MemoryHit]) -> list[MemoryHit]:
    return [replace(hit, score=math.nan) for hit in hits]


def as_of_the_last_search(
    memory: Twisted, op: MemoryOpFind, hits: list[MemoryHit]
) -> list[MemoryHit]:
    target = str(op.target_uri)
    before, memory.seen[target] = memory.seen.get(target), set(memory.notes)
    return [hit for hit in hits if before is None or hit.uri in before]


def by_older_texts(memory: Twisted, op: MemoryOpFind, hits: list[MemoryHit]) -> list[MemoryHit]:
    older = [
        MemoryHit(write.uri, 0.5, write.content)
        for write in memory.written()
        if write.uri in memory.below(str(op.target_uri)) and words(op.query) & words(write.content)
    ]
    known = {hit.uri for hit in hits}
    return [*hits, *(hit for hit in older if hit.uri not in known)][: op.top_k]


def all_where_none(memory: Twisted, op: MemoryOpFind, hits: list[MemoryHit]) -> list[MemoryHit]:
    is_known = any(words(op.query) & words(write.content) for write in memory.written())
    return hits if is_known else [MemoryHit(uri, 0.0) for uri in memory.below(str(op.target_uri))]


def what_was_forgotten(memory: Twisted, op: MemoryOpFind, hits: list[MemoryHit]) -> list[MemoryHit]:
    gone = {forget.uri for forget in memory.ops_of(MemoryOpForget)}
    old = [write for write in memory.written() if write.uri in gone]
    return [*hits, *(MemoryHit(each.uri, 0.1) for each in old if str(op.target_uri) in each.uri)]


def of_this_store(memory: Twisted, op: MemoryOpFind, hits: list[MemoryHit]) -> list[MemoryHit]:
    own = memory.seen.get(memory.native.handle, set())
    return [hit for hit in hits if hit.uri in own or not hit.uri.startswith("memory://agent")]


breaks("words_find_a_note")(finds(without_number))
breaks("find_returns_a_waited_write_at_once")(finds(as_of_the_last_search))
breaks("find_goes_by_the_current_text")(finds(by_older_texts))
breaks("words_that_no_note_has_find_nothing")(finds(all_where_none))
breaks("find_returns_no_forgotten_note")(finds(what_was_forgotten))


@breaks("find_returns_at_most_top_k")
async def takes_none_for_all(memory: Twisted, op: MemoryOp, rest: Rest) -> MemoryResult:
    if isinstance(op, MemoryOpFind) and op.top_k == 0:
        return await rest(replace(op, top_k=8))
    return await rest(op)


@breaks("hits_can_be_read")
async def finds_files(memory: Twisted, op: MemoryOp, rest: Rest) -> MemoryResult:
    result = await rest(op)
    if isinstance(op, MemoryOpSearch) and isinstance(result, MemoryFindResult):
        return MemoryFindResult(tuple(replace(hit, uri=f"{hit.uri}.md") for hit in result.hits))
    return result


@breaks("a_target_bounds_the_search")
async def bounds_by_letters(memory: Twisted, op: MemoryOp, rest: Rest) -> MemoryResult:
    result = await rest(op)
    if not isinstance(op, MemoryOpFind) or not isinstance(result, MemoryFindResult):
        return result
    if op.target_uri is None or op.target_uri == "memory://session":
        return result
    whole = await rest(replace(op, target_uri=None, top_k=1000))
    assert isinstance(whole, MemoryFindResult)
    hits = [hit for hit in whole.hits if hit.uri.startswith(op.target_uri)]
    return MemoryFindResult(tuple(hits[: op.top_k]))


# ---------------------------------------------------------------- forgetting


@breaks("a_forgotten_note_is_removed")
async def does_not_say_what(memory: Twisted, op: MemoryOp, rest: Rest) -> MemoryResult:
    result = await rest(op)
    is_one = isinstance(op, MemoryOpForget) and op.uri is not None and not op.recursive
    return MemoryForgetResult(()) if is_one and isinstance(result, MemoryForgetResult) else result


@breaks("a_forgotten_note_is_not_listed")
async def lists_what_was(memory: Twisted, op: MemoryOp, rest: Rest) -> MemoryResult:
    result = await rest(op)
    if isinstance(op, MemoryOpList) and result == MemoryListResult(()):
        gone = [str(each.uri) for each in memory.ops_of(MemoryOpForget) if each.uri is not None]
        left = [uri for uri in gone if uri.startswith(f"{op.uri}/")]
        return MemoryListResult(tuple(MemoryEntry("b", uri, is_dir=False) for uri in left))
    return result


@breaks("what_is_not_there_cannot_be_forgotten")
async def forgets_below_notes(memory: Twisted, op: MemoryOp, rest: Rest) -> MemoryResult:
    if isinstance(op, MemoryOpForget) and str(op.uri).rpartition("/")[0] in memory.notes:
        return MemoryForgetResult(())
    return await rest(op)


@breaks("a_directory_is_forgotten_only_when_that_is_meant")
async def forgets_all(memory: Twisted, op: MemoryOp, rest: Rest) -> MemoryResult:
    if isinstance(op, MemoryOpForget):
        return await rest(replace(op, recursive=True))
    return await rest(op)


@breaks("forgetting_a_directory_removes_all_below_and_nothing_else")
async def forgets_by_letters(memory: Twisted, op: MemoryOp, rest: Rest) -> MemoryResult:
    result = await rest(op)
    if isinstance(op, MemoryOpForget) and op.recursive:
        for uri in [note for note in memory.notes if note.startswith(str(op.uri))]:
            del memory.notes[uri]
    return result


@breaks("a_forgotten_place_can_be_written_again")
async def never_again(memory: Twisted, op: MemoryOp, rest: Rest) -> MemoryResult:
    gone = {each.uri for each in memory.ops_of(MemoryOpForget)}
    is_again = isinstance(op, MemoryOpWrite) and op.uri in gone
    return refusal() if is_again else await rest(op)


@breaks("an_expired_note_is_removed")
async def keeps_for_ever(memory: Twisted, op: MemoryOp, rest: Rest) -> MemoryResult:
    if isinstance(op, MemoryOpWrite) and EXPIRES_AT in (op.metadata or {}):
        return await rest(replace(op, metadata=None))
    return await rest(op)


@breaks("a_note_that_expires_later_is_there")
async def expires_at_once(memory: Twisted, op: MemoryOp, rest: Rest) -> MemoryResult:
    if (
        isinstance(op, MemoryOpWrite)
        and op.uri.endswith("/a")
        and EXPIRES_AT in (op.metadata or {})
    ):
        return await rest(replace(op, metadata={EXPIRES_AT: "2001-01-01T00:00:00+00:00"}))
    return await rest(op)


@breaks("a_note_that_is_written_again_has_the_later_end")
async def believes_the_last_time(memory: Twisted, op: MemoryOp, rest: Rest) -> MemoryResult:
    if isinstance(op, MemoryOpWrite) and EXPIRES_AT in (op.metadata or {}):
        await rest(MemoryOpForget(op.uri))
    return await rest(op)


def forgets_sessions(is_kept: Callable[[str], bool]) -> Twist:
    async def twist(memory: Twisted, op: MemoryOp, rest: Rest) -> MemoryResult:
        before = dict(memory.notes)
        result = await rest(op)
        if isinstance(op, MemoryOpForget) and op.session_id is not None:
            kept = {uri: text for uri, text in before.items() if is_kept(uri)}
            memory.notes.update(kept)
        return result

    return twist


def is_transcript(uri: str) -> bool:
    return uri.startswith("memory://session/")


breaks("the_transcripts_of_a_session_are_erased")(forgets_sessions(is_transcript))
breaks("the_notes_of_a_session_alone_go_with_it")(
    forgets_sessions(lambda uri: not is_transcript(uri))
)


@breaks("a_session_that_is_unknown_takes_nothing")
async def forgets_the_unknown(memory: Twisted, op: MemoryOp, rest: Rest) -> MemoryResult:
    result = await rest(op)
    return MemoryForgetResult(("x",)) if result == MemoryForgetResult(()) else result


# ---------------------------------------------------------------- transcripts


def commits(change: Callable[[Twisted, MemoryOpCommit], MemoryOp | MemoryResult]) -> Twist:
    async def twist(memory: Twisted, op: MemoryOp, rest: Rest) -> MemoryResult:
        changed = change(memory, op) if isinstance(op, MemoryOpCommit) else op
        return changed if isinstance(changed, MemoryResult) else await rest(changed)

    return twist


def takes_mappings_only(memory: Twisted, op: MemoryOpCommit) -> MemoryOp | MemoryResult:
    return op if all(isinstance(each, Mapping) for each in op.messages) else refusal()


def takes_any_name(memory: Twisted, op: MemoryOpCommit) -> MemoryOp | MemoryResult:
    return replace(op, session_id=op.session_id.replace("/", "-"))


breaks("a_transcript_may_tell_more")(commits(takes_mappings_only))
breaks("a_commit_names_its_session")(commits(takes_any_name))


@breaks("a_transcript_is_archived")
async def counts_below_nothing(memory: Twisted, op: MemoryOp, rest: Rest) -> MemoryResult:
    result = await rest(op)
    if isinstance(result, MemoryCommitResult):
        return replace(result, extracted_count=-2)
    return result


@breaks("an_archive_can_be_read")
async def reads_empty_archives(memory: Twisted, op: MemoryOp, rest: Rest) -> MemoryResult:
    result = await rest(op)
    if isinstance(result, MemoryReadResult) and "/commits/" in result.uri:
        return replace(result, data="")
    return result


@breaks("a_session_may_be_committed_again")
async def keeps_the_latest(memory: Twisted, op: MemoryOp, rest: Rest) -> MemoryResult:
    result = await rest(op)
    if isinstance(result, MemoryCommitResult) and isinstance(op, MemoryOpCommit):
        latest = f"memory://session/{op.session_id}/commits/latest"
        memory.notes[latest] = memory.notes.pop(str(result.archived_uri))
        return replace(result, archived_uri=latest)
    return result


@breaks("find_may_return_transcripts")
async def hides_sessions(memory: Twisted, op: MemoryOp, rest: Rest) -> MemoryResult:
    is_there = isinstance(op, MemoryOpFind) and op.target_uri == "memory://session"
    return refusal() if is_there else await rest(op)


# ---------------------------------------------------------------- many at once


@breaks("many_threads_lose_nothing")
async def has_room_for_fifty(memory: Twisted, op: MemoryOp, rest: Rest) -> MemoryResult:
    if isinstance(op, MemoryOpWrite):
        beside = memory.below("/".join(op.uri.split("/")[:5]))
        if len(beside) >= 50:
            del memory.notes[beside[0]]
    return await rest(op)


@breaks("many_operations_lose_nothing")
async def drops_when_busy(memory: Twisted, op: MemoryOp, rest: Rest) -> MemoryResult:
    memory.n_in_flight += 1
    try:
        await asyncio.sleep(0)
        if isinstance(op, MemoryOpWrite) and memory.n_in_flight > 12:
            return MemoryWriteResult(op.uri, 0)
        return await rest(op)
    finally:
        memory.n_in_flight -= 1


@breaks("a_reader_sees_one_text_or_the_other")
async def tears(memory: Twisted, op: MemoryOp, rest: Rest) -> MemoryResult:
    if isinstance(op, MemoryOpWrite) and len(op.content) == 20_000 and op.uri in memory.notes:
        memory.texts[op.uri] = memory.notes[op.uri][:10_000] + op.content[10_000:]
    if isinstance(op, MemoryOpRead) and op.uri in memory.texts:
        return MemoryReadResult(op.uri, memory.texts.pop(op.uri), op.level)
    return await rest(op)


@breaks("two_stores_on_one_spec_see_each_other")
async def reads_its_own(memory: Twisted, op: MemoryOp, rest: Rest) -> MemoryResult:
    handle, result = memory.native.handle, await rest(op)
    if isinstance(op, MemoryOpWrite) and isinstance(result, MemoryWriteResult):
        memory.texts[f"{handle} {to_public_uri(result.uri)}"] = op.content
    if isinstance(result, MemoryReadResult) and isinstance(result.data, str):
        own = memory.texts.get(f"{handle} {to_public_uri(result.uri)}")
        return result if own is None else replace(result, data=own)
    return result


@breaks("what_one_store_writes_the_other_finds")
async def finds_its_own(memory: Twisted, op: MemoryOp, rest: Rest) -> MemoryResult:
    if isinstance(op, MemoryOpWrite):
        memory.seen.setdefault(memory.native.handle, set()).add(op.uri)
    return await finds(of_this_store)(memory, op, rest)


@breaks_whole("namespaces_are_apart")
class Boasts(FakeMemory):
    @classmethod
    def capabilities(cls) -> MemoryCapabilities:
        return replace(super().capabilities(), supports_namespaces=True)
