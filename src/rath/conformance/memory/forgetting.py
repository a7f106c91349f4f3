"""Forgetting: what is forgotten is gone, and nothing else is."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from rath.conformance.memory.subject import (
    READ_WRITE,
    Check,
    Place,
    expect_kind,
    expect_text,
    fail,
    find,
    give,
    is_there,
    names_in,
    write,
)
from rath.conformance.report import Skipped, Unlike, expect
from rath.memory.notes import EXPIRES_AT, ROWS, SESSION_ID
from rath.memory.op_types import (
    MemoryOpCommit,
    MemoryOpFind,
    MemoryOpForget,
    MemoryOpList,
    MemoryOpWrite,
)
from rath.memory.results import (
    MemoryCommitResult,
    MemoryExecutionFailure,
    MemoryForgetResult,
    MemoryWriteResult,
)

__all__ = ["CHECKS"]

_HOUR = timedelta(hours=1)


def a_forgotten_note_is_gone(place: Place) -> None:
    uri, other = (write(place, name, f"heron {name}", wait=True) for name in ("a", "b"))
    done = give(place.store, MemoryOpForget(uri), MemoryForgetResult)
    expect(done.uris == (uri,), f"{uri!r} as what was removed, got {done!r}")
    fail(place.store, MemoryOpForget(uri), "not_found")
    expect(not is_there(place.store, uri), "the note not to be read any more")
    expect_text(place.store, other, "heron b")


def a_forgotten_note_is_not_found(place: Place) -> None:
    uri = write(place, "a", "heron fish", wait=True)
    give(place.store, MemoryOpForget(uri), MemoryForgetResult)
    hits = find(place, "heron fish")
    expect(all(hit.uri != uri for hit in hits), f"no hit on what was forgotten, got {hits!r}")


def a_forgotten_note_is_not_listed(place: Place) -> None:
    uri = write(place, "a/b", "heron")
    give(place.store, MemoryOpForget(uri), MemoryForgetResult)
    names = names_in(place.store, f"{place.uri}/a")
    expect(names == [], f"an empty listing, got {names!r}")


def what_is_not_there_cannot_be_forgotten(place: Place) -> None:
    write(place, "a", "heron")
    for name in ("missing", "a/b"):
        fail(place.store, MemoryOpForget(f"{place.uri}/{name}"), "not_found")
        fail(place.store, MemoryOpForget(f"{place.uri}/{name}", recursive=True), "not_found")


def a_directory_is_forgotten_only_when_that_is_meant(place: Place) -> None:
    uri = write(place, "a/b", "heron")
    op = MemoryOpForget(f"{place.uri}/a")
    give(place.store, op, MemoryExecutionFailure)
    expect_text(place.store, uri, "heron")


def a_directory_is_forgotten_with_all_below_and_nothing_beside(place: Place) -> None:
    below = [write(place, name, "heron") for name in ("a/x", "a/y/z")]
    beside = [write(place, name, "heron") for name in ("ab", "b/a")]
    op = MemoryOpForget(f"{place.uri}/a", recursive=True)
    done = give(place.store, op, MemoryForgetResult)
    expect(set(below) <= set(done.uris), f"{below!r} among what was removed, got {done!r}")
    expect(list(done.uris) == sorted(done.uris), f"what was removed sorted, got {done!r}")
    left = [uri for uri in below if is_there(place.store, uri)]
    expect(left == [], f"nothing left, got {left!r}")
    for uri in beside:
        expect_text(place.store, uri, "heron")


def a_place_may_be_taken_again(place: Place) -> None:
    uri = write(place, "a", "heron")
    give(place.store, MemoryOpForget(uri), MemoryForgetResult)
    expect_text(place.store, write(place, "a", "walrus"), "walrus")


def a_note_that_has_expired_is_gone(place: Place) -> None:
    uri = f"{place.uri}/a"
    _write_or_skip(place, uri, {EXPIRES_AT: (datetime.now(UTC) - _HOUR).isoformat()})
    expect(not is_there(place.store, uri), "a note that has expired not to be read")
    names = names_in(place.store, place.uri)
    expect(names == [], f"a note that has expired not to be listed, got {names!r}")
    hits = find(place, "heron fish")
    expect(hits == (), f"a note that has expired not to be found, got {hits!r}")


def a_note_that_expires_later_is_there(place: Place) -> None:
    uri = f"{place.uri}/a"
    _write_or_skip(place, uri, {EXPIRES_AT: (datetime.now(UTC) + _HOUR).isoformat()})
    expect_text(place.store, uri, "heron fish")


def a_note_that_is_written_again_is_kept_for_the_longer_time(place: Place) -> None:
    past, future = ({EXPIRES_AT: (datetime.now(UTC) + by).isoformat()} for by in (-_HOUR, _HOUR))
    for name, first, then in (("later", future, past), ("for-ever", {}, past)):
        for told in (first, then):
            _write_or_skip(place, f"{place.uri}/{name}", told)
        expect_text(place.store, f"{place.uri}/{name}", "heron fish")


def the_transcripts_of_a_session_are_erased(place: Place) -> None:
    sessions = [uuid4().hex for _ in range(2)]
    archives = [_committed(place, session) for session in sessions]
    done = _forget_session(place, sessions[0])
    expect(bool(done.uris), f"what was removed, got {done!r}")
    one, other = archives
    if one is not None and other is not None:
        left = names_in(place.store, one.rpartition("/")[0])
        expect(left == [], f"no transcript left of the session, got {left!r}")
        kept = names_in(place.store, other.rpartition("/")[0])
        expect(kept != [], "the transcript of another session to stay")


def the_notes_of_a_session_alone_go_with_it(place: Place) -> None:
    session, other = uuid4().hex, uuid4().hex
    known = [{SESSION_ID: each, ROWS: "0"} for each in (session, other)]
    _write_or_skip(place, f"{place.uri}/own", known[0])
    for told in known:
        _write_or_skip(place, f"{place.uri}/shared", told)
    free = write(place, "free", "heron fish")
    _forget_session(place, session)
    left = [name for name in ("own", "shared") if is_there(place.store, f"{place.uri}/{name}")]
    expect(left == ["shared"], f"only the note that another session gave too, got {left!r}")
    expect_text(place.store, free, "heron fish")


def a_session_that_is_unknown_takes_nothing(place: Place) -> None:
    uri = write(place, "a", "heron")
    result = place.store.dispatch(MemoryOpForget(session_id=uuid4().hex))
    if isinstance(result, MemoryExecutionFailure):
        known = ("not_found", "unsupported")
        expect(result.kind in known, f"nothing removed or a failure of {known}, got {result!r}")
    else:
        expect(result == MemoryForgetResult(()), f"nothing to be removed, got {result!r}")
    expect_text(place.store, uri, "heron")


def _write_or_skip(place: Place, uri: str, metadata: Mapping[str, str]) -> None:
    op = MemoryOpWrite(uri, "heron fish", metadata=metadata)
    result = place.store.dispatch(op)
    if isinstance(result, MemoryExecutionFailure) and result.kind == "unsupported":
        raise Skipped(f"it refuses what it cannot keep: {result.message}")
    expect_kind(result, op, MemoryWriteResult)


def _committed(place: Place, session: str) -> str | None:
    op = MemoryOpCommit(session, ({"role": "user", "content": "where is the heron?"},))
    return give(place.store, op, MemoryCommitResult).archived_uri


def _forget_session(place: Place, session: str) -> MemoryForgetResult:
    result = place.store.dispatch(MemoryOpForget(session_id=session))
    match result:
        case MemoryForgetResult():
            return result
        case MemoryExecutionFailure("unsupported", message):
            raise Skipped(f"it forgets no sessions: {message}")
        case _:
            raise Unlike(f"expected MemoryForgetResult for a session, got {result!r}")


_FEATURE = "Forgetting"
_NEEDS = (*READ_WRITE, MemoryOpForget)
_EXPIRY = "Notes that expire"
_SESSIONS = "Forgetting a session"

CHECKS = (
    Check(_FEATURE, a_forgotten_note_is_gone, _NEEDS),
    Check(_FEATURE, a_forgotten_note_is_not_found, (*_NEEDS, MemoryOpFind)),
    Check(_FEATURE, a_forgotten_note_is_not_listed, (*_NEEDS, MemoryOpList)),
    Check(_FEATURE, what_is_not_there_cannot_be_forgotten, _NEEDS),
    Check(_FEATURE, a_directory_is_forgotten_only_when_that_is_meant, _NEEDS),
    Check(_FEATURE, a_directory_is_forgotten_with_all_below_and_nothing_beside, _NEEDS),
    Check(_FEATURE, a_place_may_be_taken_again, _NEEDS),
    Check(_EXPIRY, a_note_that_has_expired_is_gone, (*_NEEDS, MemoryOpFind, MemoryOpList)),
    Check(_EXPIRY, a_note_that_expires_later_is_there, _NEEDS),
    Check(_EXPIRY, a_note_that_is_written_again_is_kept_for_the_longer_time, _NEEDS),
    Check(
        _SESSIONS,
        the_transcripts_of_a_session_are_erased,
        (MemoryOpForget, MemoryOpCommit, MemoryOpList),
    ),
    Check(_SESSIONS, the_notes_of_a_session_alone_go_with_it, _NEEDS),
    Check(_SESSIONS, a_session_that_is_unknown_takes_nothing, _NEEDS),
)
