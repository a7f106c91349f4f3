"""Transcripts of sessions."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import uuid4

from rath.conformance.memory.subject import Check, Place, fail, give, read, shown
from rath.conformance.report import expect
from rath.memory.op_types import MemoryOpCommit, MemoryOpFind, MemoryOpRead
from rath.memory.results import MemoryCommitResult, MemoryFindResult

__all__ = ["CHECKS"]

_SAID = (
    {"role": "user", "content": "Where does the heron wait?"},
    {"role": "assistant", "content": "Am Fluß, 在河边 🦆"},
)


@dataclass(frozen=True, slots=True)
class _Message:
    """A message that is no mapping."""

    role: str
    content: str


def a_transcript_is_archived(place: Place) -> None:
    done = give(place.store, MemoryOpCommit(uuid4().hex, _SAID), MemoryCommitResult)
    expect(done.extracted_count >= -1, f"a count or -1, got {done!r}")


def an_archive_can_be_read(place: Place) -> str | None:
    done = give(place.store, MemoryOpCommit(uuid4().hex, _SAID), MemoryCommitResult)
    if done.archived_uri is None:
        return "it does not say where a transcript is"
    text = read(place.store, done.archived_uri)
    expect("heron" in text, f"what was said at {done.archived_uri!r}, got {shown(text)}")
    return None


def a_transcript_may_tell_more(place: Place) -> None:
    objects = [_Message(each["role"], each["content"]) for each in _SAID]
    op = MemoryOpCommit(uuid4().hex, objects, used_uris=("memory://user/memories/a",), rows=(0, 2))
    give(place.store, op, MemoryCommitResult)


def a_session_may_be_committed_again(place: Place) -> None:
    session = uuid4().hex
    ops = (MemoryOpCommit(session, _SAID[:1]), MemoryOpCommit(session, _SAID))
    archives = [give(place.store, op, MemoryCommitResult).archived_uri for op in ops]
    known = [uri for uri in archives if uri is not None]
    expect(len(set(known)) == len(known), f"an archive for each commit, got {archives!r}")


def a_commit_names_its_session(place: Place) -> None:
    for session in ("", "a/b", ".."):
        fail(place.store, MemoryOpCommit(session, _SAID), "invalid_uri")


def what_was_said_may_be_found(place: Place) -> str:
    word = f"heron{uuid4().hex[:12]}"
    said = ({"role": "user", "content": f"Where does {word} wait?"},)
    give(place.store, MemoryOpCommit(uuid4().hex, said), MemoryCommitResult)
    op = MemoryOpFind(f"where does {word} wait", target_uri="memory://session")
    hits = give(place.store, op, MemoryFindResult).hits
    is_found = any(word in (hit.snippet or "") for hit in hits)
    return "a transcript is found at once" if is_found else "a transcript is not found at once"


_FEATURE = "Transcripts"
_NEEDS = (MemoryOpCommit,)

CHECKS = (
    Check(_FEATURE, a_transcript_is_archived, _NEEDS),
    Check(_FEATURE, an_archive_can_be_read, (MemoryOpCommit, MemoryOpRead)),
    Check(_FEATURE, a_transcript_may_tell_more, _NEEDS),
    Check(_FEATURE, a_session_may_be_committed_again, _NEEDS),
    Check(_FEATURE, a_commit_names_its_session, _NEEDS),
    Check(_FEATURE, what_was_said_may_be_found, (MemoryOpCommit, MemoryOpFind)),
)
