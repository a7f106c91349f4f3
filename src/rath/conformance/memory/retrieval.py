"""Clauses on what a memory gives back and gives up: found, forgotten, expired, archived."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from rath._core.dataclasses import dataclass
from rath.conformance.contract import Clauses, Skipped, excerpt, expect, expect_equal, expect_kind
from rath.conformance.memory.subject import READ_WRITE, MemorySubject
from rath.memory import op_types as ops
from rath.memory import results as res
from rath.memory.notes import EXPIRES_AT, ROWS, SESSION_ID

__all__ = ["FINDING", "FORGETTING", "TRANSCRIPTS"]

FINDING = Clauses[MemorySubject]()
FORGETTING = Clauses[MemorySubject]()
TRANSCRIPTS = Clauses[MemorySubject]()

_finding = FINDING.add("Finding", ops.MemoryOpWrite, ops.MemoryOpFind)


@_finding
def words_find_a_note(memory: MemorySubject) -> None:
    uri = memory.write("a", "The heron waits for fish", wait=True)
    memory.write("b", "Cement hardens overnight", wait=True)
    hits = memory.find("heron fish", top_k=4)
    expect(bool(hits) and hits[0].uri == uri, f"{uri!r} as the first hit, got {hits!r}")
    order = [hit.score if hit.rank_fusion is None else hit.rank_fusion for hit in hits]
    expect(order == sorted(order, reverse=True), f"the closest first, got {order!r}")
    scores = [hit.score for hit in hits]
    expect(all(map(math.isfinite, scores)), f"scores that are numbers, got {scores!r}")


@_finding
def find_returns_a_waited_write_at_once(memory: MemorySubject) -> None:
    for name, words in (("a", "heron fish"), ("b", "walrus ice")):
        uri = memory.write(name, words, wait=True)
        found = [hit.uri for hit in memory.find(words)]
        expect(found[:1] == [uri], f"{uri!r} as the first hit for {words!r}, got {found!r}")


@_finding
def find_goes_by_the_current_text(memory: MemorySubject) -> None:
    uri = memory.write("a", wait=True)
    memory.write("a", "walrus ice", wait=True)
    hits = memory.find("walrus ice")
    expect(any(hit.uri == uri for hit in hits), f"{uri!r} among the hits, got {hits!r}")
    for hit in memory.find("heron fish"):
        is_old = hit.uri == uri and (_finds_words_only(memory) or "heron" in (hit.snippet or ""))
        expect(not is_old, f"no hit by what the note said before, got {hit!r}")


@_finding
def words_that_no_note_has_find_nothing(memory: MemorySubject) -> None:
    memory.write("a", "The heron waits for fish", wait=True)
    hits = memory.find("qzxjk vwpfg")
    if hits and not _finds_words_only(memory):
        raise Skipped("it finds by meaning, and then each note is more or less near")
    expect_equal(hits, (), "as hits")


@_finding
def find_returns_at_most_top_k(memory: MemorySubject) -> None:
    for name in ("a", "b", "c"):
        memory.write(name, f"heron {name}", wait=True)
    for top_k in (2, 1, 0):
        hits = memory.find("heron", top_k=top_k)
        expect(len(hits) == top_k, f"{top_k} hits, got {hits!r}")


@FINDING.add("Finding", *READ_WRITE, ops.MemoryOpSearch)
def hits_can_be_read(memory: MemorySubject) -> None:
    memory.write("a", "The heron waits for fish", wait=True)
    op = ops.MemoryOpSearch("heron", target_uri=memory.uri)
    hits = memory.ask(op, res.MemoryFindResult).hits
    expect(bool(hits), f"a hit, got {hits!r}")
    for hit in hits:
        expect(memory.has(hit.uri), f"{hit.uri!r} to be there")


@_finding
def a_target_bounds_the_search(memory: MemorySubject) -> None:
    inside = memory.write("a/x", wait=True)
    for name in ("b", "ab/x"):
        memory.write(name, wait=True)
    op = ops.MemoryOpFind("heron fish", target_uri=memory.at("a"))
    hits = memory.ask(op, res.MemoryFindResult).hits
    # A store may give the directory in short too, which is within bounds.
    found = [hit.uri for hit in hits if hit.level not in {"abstract", "overview"}]
    expect_equal(found, [inside], "alone")
    beyond = [hit.uri for hit in hits if not f"{hit.uri}/".startswith(memory.at("a/"))]
    expect_equal(beyond, [], "outside")
    result = memory.store.dispatch(ops.MemoryOpFind("heron fish", target_uri=memory.at("nothing")))
    hits = result.hits if isinstance(result, res.MemoryFindResult) else ()
    expect_equal(hits, (), "where nothing is")


def _finds_words_only(memory: MemorySubject) -> bool:
    """Return whether it finds by words alone: then a note without any of them is no hit."""
    offers = memory.backend.capabilities()
    return not (offers.supports_vector_search or offers.supports_intent_search)


# ---------------------------------------------------------------- forgetting

_NEEDS = (*READ_WRITE, ops.MemoryOpForget)
_forgetting = FORGETTING.add("Forgetting", *_NEEDS)
_expiring = FORGETTING.add("Notes that expire", *_NEEDS)
_HOUR = timedelta(hours=1)


def _forget(memory: MemorySubject, uri: str, *, recursive: bool = False) -> res.MemoryForgetResult:
    return memory.ask(ops.MemoryOpForget(uri, recursive=recursive), res.MemoryForgetResult)


@_forgetting
def a_forgotten_note_is_removed(memory: MemorySubject) -> None:
    uri, other = (memory.write(name, f"heron {name}", wait=True) for name in ("a", "b"))
    expect_equal(_forget(memory, uri).uris, (uri,), "as the removed notes")
    memory.expect_refusal("not_found", ops.MemoryOpForget(uri))
    expect(not memory.has(uri), "the note not to be read any more")
    memory.expect_text(other, "heron b")


@FORGETTING.add("Forgetting", *_NEEDS, ops.MemoryOpFind)
def find_returns_no_forgotten_note(memory: MemorySubject) -> None:
    uri = memory.write("a", wait=True)
    _forget(memory, uri)
    hits = memory.find("heron fish")
    expect(all(hit.uri != uri for hit in hits), f"no hit on what was forgotten, got {hits!r}")


@FORGETTING.add("Forgetting", *_NEEDS, ops.MemoryOpList)
def a_forgotten_note_is_not_listed(memory: MemorySubject) -> None:
    _forget(memory, memory.write("a/b"))
    expect_equal(memory.names_in(memory.at("a")), [], "in the directory")


@_forgetting
def what_is_not_there_cannot_be_forgotten(memory: MemorySubject) -> None:
    memory.write("a")
    for uri in (memory.at("missing"), memory.at("a/b")):
        requests = (ops.MemoryOpForget(uri), ops.MemoryOpForget(uri, recursive=True))
        memory.expect_refusal("not_found", *requests)


@_forgetting
def a_directory_is_forgotten_only_when_that_is_meant(memory: MemorySubject) -> None:
    uri = memory.write("a/b", "heron")
    memory.ask(ops.MemoryOpForget(memory.at("a")), res.MemoryExecutionFailure)
    memory.expect_text(uri, "heron")


@_forgetting
def forgetting_a_directory_removes_all_below_and_nothing_else(memory: MemorySubject) -> None:
    below = [memory.write(name, "heron") for name in ("a/x", "a/y/z")]
    outside = [memory.write(name, "heron") for name in ("ab", "b/a")]
    found = _forget(memory, memory.at("a"), recursive=True).uris
    expect(set(below) <= set(found), f"{below!r} among the removed notes, got {found!r}")
    expect_equal(list(found), sorted(found), "as the removed notes")
    expect_equal([uri for uri in below if memory.has(uri)], [], "left")
    for uri in outside:
        memory.expect_text(uri, "heron")


@_forgetting
def a_forgotten_place_can_be_written_again(memory: MemorySubject) -> None:
    _forget(memory, memory.write("a", "heron"))
    memory.expect_text(memory.write("a", "walrus"), "walrus")


def _expiry(after: timedelta) -> dict[str, str]:
    return {EXPIRES_AT: (datetime.now(UTC) + after).isoformat()}


@FORGETTING.add("Notes that expire", *_NEEDS, ops.MemoryOpFind, ops.MemoryOpList)
def an_expired_note_is_removed(memory: MemorySubject) -> None:
    uri = memory.write("a", metadata=_expiry(-_HOUR))
    expect(not memory.has(uri), "a note that has expired not to be read")
    expect_equal(memory.names_in(memory.uri), [], "listed of a note that has expired")
    expect_equal(memory.find("heron fish"), (), "found of a note that has expired")


@_expiring
def a_note_that_expires_later_is_there(memory: MemorySubject) -> None:
    memory.expect_text(memory.write("a", metadata=_expiry(_HOUR)), "heron fish")


@_expiring
def a_note_that_is_written_again_has_the_later_end(memory: MemorySubject) -> None:
    for name, first in (("later", _expiry(_HOUR)), ("for-ever", {})):
        memory.write(name, metadata=first)
        memory.expect_text(memory.write(name, metadata=_expiry(-_HOUR)), "heron fish")


@FORGETTING.add("Forgetting a session", ops.MemoryOpForget, ops.MemoryOpCommit, ops.MemoryOpList)
def the_transcripts_of_a_session_are_erased(memory: MemorySubject) -> None:
    sessions = [uuid4().hex for _ in range(2)]
    message = {"role": "user", "content": "where is the heron?"}
    one, other = (memory.commit(each, message).archived_uri for each in sessions)
    found = _forget_session(memory, sessions[0])
    expect(bool(found.uris), f"the removed notes, got {found!r}")
    if one is not None and other is not None:
        rest, others = (memory.names_in(uri.rpartition("/")[0]) for uri in (one, other))
        expect_equal(rest, [], "left of the session's transcripts")
        expect(others != [], "the transcript of another session to stay")


@FORGETTING.add("Forgetting a session", *_NEEDS)
def the_notes_of_a_session_alone_go_with_it(memory: MemorySubject) -> None:
    session = uuid4().hex
    own, foreign = ({SESSION_ID: each, ROWS: "0"} for each in (session, uuid4().hex))
    for name, metadata in (("own", own), ("shared", own), ("shared", foreign)):
        memory.write(name, metadata=metadata)
    free = memory.write("free")
    _forget_session(memory, session)
    rest = [name for name in ("own", "shared") if memory.has(memory.at(name))]
    expect_equal(rest, ["shared"], "left, which another session gave too")
    memory.expect_text(free, "heron fish")


@FORGETTING.add("Forgetting a session", *_NEEDS)
def a_session_that_is_unknown_takes_nothing(memory: MemorySubject) -> None:
    uri = memory.write("a", "heron")
    result = memory.store.dispatch(ops.MemoryOpForget(session_id=uuid4().hex))
    if isinstance(result, res.MemoryExecutionFailure):
        known = ("not_found", "unsupported")
        expect(result.kind in known, f"nothing removed or a failure of {known}, got {result!r}")
    else:
        expect_equal(result, res.MemoryForgetResult(()))
    memory.expect_text(uri, "heron")


def _forget_session(memory: MemorySubject, session: str) -> res.MemoryForgetResult:
    op = ops.MemoryOpForget(session_id=session)
    result = memory.store.dispatch(op)
    if isinstance(result, res.MemoryExecutionFailure) and result.kind == "unsupported":
        raise Skipped(f"it forgets no sessions: {result.message}")
    return expect_kind(result, res.MemoryForgetResult, op)


# ---------------------------------------------------------------- transcripts

_transcript = TRANSCRIPTS.add("Transcripts", ops.MemoryOpCommit)
_MESSAGES = (
    {"role": "user", "content": "Where does the heron wait?"},
    {"role": "assistant", "content": "Am Fluß, 在河边 🦆"},
)


@dataclass(frozen=True, slots=True)
class _MessageObject:
    """A message that is no mapping."""

    role: str
    content: str


@_transcript
def a_transcript_is_archived(memory: MemorySubject) -> None:
    found = memory.commit(uuid4().hex, *_MESSAGES)
    expect(found.extracted_count >= -1, f"a count or -1, got {found!r}")


@TRANSCRIPTS.add("Transcripts", ops.MemoryOpCommit, ops.MemoryOpRead)
def an_archive_can_be_read(memory: MemorySubject) -> str | None:
    uri = memory.commit(uuid4().hex, *_MESSAGES).archived_uri
    if uri is None:
        return "it does not say where a transcript is"
    text = memory.read(uri)
    expect("heron" in text, f"what was said at {uri!r}, got {excerpt(text)}")
    return None


@_transcript
def a_transcript_may_tell_more(memory: MemorySubject) -> None:
    objects = [_MessageObject(**each) for each in _MESSAGES]
    op = ops.MemoryOpCommit(
        uuid4().hex, objects, used_uris=("memory://user/memories/a",), rows=(0, 2)
    )
    memory.ask(op, res.MemoryCommitResult)


@_transcript
def a_session_may_be_committed_again(memory: MemorySubject) -> None:
    session = uuid4().hex
    archives = [memory.commit(session, *_MESSAGES[:n]).archived_uri for n in (1, 2)]
    known = [uri for uri in archives if uri is not None]
    expect(len(set(known)) == len(known), f"an archive for each commit, got {archives!r}")


@_transcript
def a_commit_names_its_session(memory: MemorySubject) -> None:
    requests = (ops.MemoryOpCommit(session, _MESSAGES) for session in ("", "a/b", ".."))
    memory.expect_refusal("invalid_uri", *requests)


@TRANSCRIPTS.add("Transcripts", ops.MemoryOpCommit, ops.MemoryOpFind)
def find_may_return_transcripts(memory: MemorySubject) -> str:
    word = f"heron{uuid4().hex[:12]}"
    memory.commit(uuid4().hex, {"role": "user", "content": f"Where does {word} wait?"})
    op = ops.MemoryOpFind(f"where does {word} wait", target_uri="memory://session")
    hits = memory.ask(op, res.MemoryFindResult).hits
    is_found = any(word in (hit.snippet or "") for hit in hits)
    return f"a transcript is {'' if is_found else 'not '}found at once"
