"""The contract of session stores: logs that are written, read, reopened, deleted and followed."""

from __future__ import annotations

import base64
import itertools
import json
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import IO, Literal, ParamSpec
from uuid import UUID, uuid4

from rath._core.blobs import Blob
from rath._core.dataclasses import dataclass
from rath.conformance.contract import (
    Clauses,
    Report,
    Skipped,
    Unlike,
    excerpt,
    expect,
    expect_equal,
    expect_error,
    run_clauses,
)
from rath.errors import PersistenceError
from rath.session.log.store import CompleteLog, SessionLog, SessionStore, StoredLog, stores

__all__ = ["check_store", "write_until_killed"]

P = ParamSpec("P")

StoreOpener = Callable[[], SessionStore]
"""Opens the store under its contract, the same one each time."""

FIRST = b'{"line": 1}\n'
SECOND = b'{"line": 2, "text": "\xc3\xa4\xe2\x82\xac"}\n'
THIRD = b'{"line": 3}\n'


@dataclass(frozen=True, slots=True)
class StoreSubject:
    """A store that is opened twice, as two programs would; each clause writes its own sessions."""

    store: SessionStore
    other: SessionStore
    opener: StoreOpener

    @property
    def both(self) -> tuple[SessionStore, SessionStore]:
        """The store, opened by one program and by the other."""
        return self.store, self.other

    @contextmanager
    def writing(self, session: UUID | None = None) -> Generator[SessionLog]:
        """Create a log, and close it in the end whatever happens."""
        with _closing(self.store.create(session or uuid4())) as log:
            yield log

    @contextmanager
    def reopening(
        self, session: UUID, keep: int, *, size: int | None = None
    ) -> Generator[SessionLog]:
        """Reopen a log, and close it in the end whatever happens."""
        with _closing(self.store.reopen(session, keep, size=size)) as log:
            yield log

    def write(self, *lines: bytes, session: UUID | None = None, is_finished: bool = True) -> UUID:
        """Write a log, finished or cut off, and return its session."""
        with self.writing(session) as log:
            for line in lines or (FIRST,):
                log.append(line)
            if is_finished:
                log.finish()
            return log.session

    def stored(self, session: UUID) -> StoredLog:
        """Return the log of a session, which both programs must read alike."""
        found, again = (store.read(session) for store in (self.other, self.store))
        if found is None or again is None:
            raise Unlike(f"expected the log of session {session} to be there, read gave None")
        expect_equal(again.data, found.data, "as in the store that was opened again")
        return found

    def expect_data(self, session: UUID, data: bytes, place: str = "in the log") -> None:
        """Read a log, which must hold that."""
        expect_equal(self.stored(session).data, data, place)

    def expect_log(self, session: UUID, data: bytes, *, is_finished: bool) -> None:
        """Read a log, which must hold that and be finished or not."""
        found = self.stored(session)
        expect_equal(found.session, session, "as session")
        expect_equal(found.data, data, "in the log")
        expect_equal(found.is_finished, is_finished, "as is_finished")


@contextmanager
def _closing(log: SessionLog) -> Generator[SessionLog]:
    try:
        yield log
    finally:
        log.abandon()


def expect_refused(
    request: str, ask: Callable[P, object], *args: P.args, **kwargs: P.kwargs
) -> None:
    """Make a call that must be a PersistenceError with a text."""
    try:
        result = ask(*args, **kwargs)
    except PersistenceError as exc:
        expect(bool(str(exc)), f"an error with a text for {request}")
        return
    if isinstance(result, SessionLog):
        result.abandon()
    raise Unlike(f"expected a PersistenceError for {request}, got {result!r}")


LOGS = Clauses[StoreSubject]()
REOPENED = Clauses[StoreSubject]()
RETENTION = Clauses[StoreSubject]()
STAMPS = Clauses[StoreSubject]()

_written = LOGS.add("Writing and reading logs")
_LARGE = 3 << 20


@_written
def what_is_appended_is_read_by_others_at_once(subject: StoreSubject) -> None:
    with subject.writing() as log:
        written = b""
        for line, durable in ((FIRST, False), (SECOND, True), (THIRD, False)):
            log.append(line, durable=durable)
            written += line
            subject.expect_log(log.session, written, is_finished=False)


@_written
def every_byte_comes_back(subject: StoreSubject) -> None:
    lines = (bytes(range(256)) + b"\n", b"\n", b"", b"x" * _LARGE + b"\n", b"\\x00\\\\'\n")
    subject.expect_log(subject.write(*lines), b"".join(lines), is_finished=True)


@_written
def several_lines_are_one_append(subject: StoreSubject) -> None:
    session = subject.write(FIRST + SECOND, THIRD, is_finished=False)
    subject.expect_log(session, FIRST + SECOND + THIRD, is_finished=False)


@_written
def a_log_is_there_from_its_first_append_on(subject: StoreSubject) -> None:
    for end in ("finish", "abandon"):
        with subject.writing() as log:
            expect_equal(subject.store.read(log.session), None, "before the first append")
            expect(log.session not in subject.store.stamps(), "no stamp before the first append")
            getattr(log, end)()
        expect_equal(subject.store.read(log.session), None, f"after {end} without an append")
        subject.write(session=log.session)


@_written
def a_session_without_a_log_has_none(subject: StoreSubject) -> None:
    expect_equal(subject.store.read(uuid4()), None, "for a session that nobody wrote")


@_written
def a_store_tells_whether_it_holds_a_log(subject: StoreSubject) -> None:
    def expect_holds(expected: bool, when: str) -> None:
        found = [store.holds(log.session) for store in subject.both]
        expect_equal(found, [expected] * 2, f"as held by both {when}")

    with subject.writing() as log:
        expect_holds(False, "before the first append")
        log.append(FIRST)
        expect_holds(True, "after the first append")
        log.finish()
        expect_holds(True, "once it is finished")
    subject.store.delete(log.session)
    expect_holds(False, "after it was deleted")


@_written
def a_log_is_finished_when_its_writer_says_so(subject: StoreSubject) -> None:
    for is_finished in (True, False):
        session = subject.write(FIRST, is_finished=is_finished)
        subject.expect_log(session, FIRST, is_finished=is_finished)


@_written
def ending_twice_is_ending_once(subject: StoreSubject) -> None:
    for first, others in (("finish", ("finish", "abandon")), ("abandon", ("abandon", "finish"))):
        with subject.writing() as log:
            log.append(FIRST)
            expect(not log.closed, f"an open log before {first}")
            getattr(log, first)()
            expect(log.closed, f"a closed log after {first}")
            for end in others:
                getattr(log, end)()
        subject.expect_log(log.session, FIRST, is_finished=first == "finish")


@_written
def a_closed_log_refuses_more(subject: StoreSubject) -> None:
    for end in ("finish", "abandon"):
        with subject.writing() as log:
            log.append(FIRST)
            getattr(log, end)()
            expect_error(RuntimeError, f"an append after {end}", log.append, SECOND)
        subject.expect_data(log.session, FIRST, f"and nothing more after {end}")


@_written
def a_store_says_where_it_is(subject: StoreSubject) -> None:
    expect(bool(subject.store.name), "a name")
    expect(bool(subject.store.where), "a place")
    expect_equal(subject.other.where, subject.store.where, "as the place of the same store")
    with subject.writing() as log:
        log.append(FIRST)
        expect(bool(log.where), "a place of the log that is written")
    expect(bool(subject.stored(log.session).where), "a place of the log that is read")


@_written
def a_closed_store_can_be_used_again(subject: StoreSubject) -> None:
    session = subject.write()
    subject.other.close()
    subject.other.close()
    subject.expect_log(session, FIRST, is_finished=True)
    subject.write()


@_written
def many_complete_logs_are_stored_together(subject: StoreSubject) -> None:
    existing, new, blob = subject.write(FIRST), [uuid4(), uuid4()], Blob.from_bytes(uuid4().bytes)
    with subject.writing() as open_log:
        logs = [
            CompleteLog(new[0], FIRST + SECOND),
            CompleteLog(new[1], _naming(blob), (blob,)),
            CompleteLog(existing, THIRD),
            CompleteLog(open_log.session, THIRD),
        ]
        expect_equal(subject.store.create_many(logs), set(new), "as those that were stored")
        open_log.append(SECOND)
    subject.expect_log(new[0], FIRST + SECOND, is_finished=True)
    subject.expect_log(new[1], _naming(blob), is_finished=True)
    subject.expect_log(existing, FIRST, is_finished=True)
    subject.expect_data(open_log.session, SECOND)
    expect(subject.other.blob(blob.digest) == blob.data, "the content that a line names")
    for session in new:
        expect(not subject.store.is_being_written(session), "no lock left on a complete log")
    expect_equal(subject.store.create_many([]), set[UUID](), "of none")


# ---------------------------------------------------------------- reopened and late lines

_reopened = REOPENED.add("Going on with logs")
_late = REOPENED.add("Late lines")


@_reopened
def a_log_that_was_cut_off_goes_on(subject: StoreSubject) -> None:
    session = subject.write(FIRST, is_finished=False)
    with subject.reopening(session, len(FIRST), size=len(FIRST)) as log:
        expect_equal(log.session, session, "as session")
        subject.expect_log(session, FIRST, is_finished=False)
        log.append(SECOND)
        log.finish()
    subject.expect_log(session, FIRST + SECOND, is_finished=True)


@_reopened
def reopening_cuts_what_follows_its_bytes(subject: StoreSubject) -> None:
    for keep in (0, len(FIRST) - 3, len(FIRST), len(FIRST) + 1):
        session = subject.write(FIRST, SECOND, THIRD, is_finished=False)
        with subject.reopening(session, keep) as log:
            log.append(THIRD)
        subject.expect_log(session, (FIRST + SECOND)[:keep] + THIRD, is_finished=False)


@_reopened
def a_finished_log_that_goes_on_is_unfinished(subject: StoreSubject) -> None:
    session = subject.write(FIRST)
    with subject.reopening(session, len(FIRST)) as log:
        subject.expect_log(session, FIRST, is_finished=False)
        log.append(SECOND)
    subject.expect_log(session, FIRST + SECOND, is_finished=False)


@_reopened
def an_empty_log_can_be_created_again(subject: StoreSubject) -> None:
    session = subject.write(FIRST)
    with subject.reopening(session, 0):
        pass
    expect_equal(subject.store.read(session), None, "where none of its bytes is left")
    expect(session not in subject.store.stamps(), "no stamp of it")
    subject.write(SECOND, session=session)
    subject.expect_log(session, SECOND, is_finished=True)


@_reopened
def a_log_that_was_changed_meanwhile_is_not_cut(subject: StoreSubject) -> None:
    size, reopen = len(FIRST + SECOND), subject.store.reopen
    for is_finished in (True, False):
        session = subject.write(FIRST, SECOND, is_finished=is_finished)
        for other in (size - 1, size + 1):
            expect_refused("reopen with another size", reopen, session, len(FIRST), size=other)
        expect_refused("reopen past the end", reopen, session, size + 1)
        subject.expect_log(session, FIRST + SECOND, is_finished=is_finished)
        expect(not subject.store.is_being_written(session), "no lock left by who was refused")


@_reopened
def a_log_may_be_written_anew_at_once(subject: StoreSubject) -> None:
    rewrite, size, anew = subject.store.rewrite, len(FIRST + SECOND), THIRD + FIRST + FIRST
    for is_finished in (True, False):
        session = subject.write(FIRST, SECOND, is_finished=is_finished)
        stamp = subject.store.stamps()[session]
        subject.other.rewrite(session, anew, size=size)
        subject.expect_log(session, anew, is_finished=is_finished)
        expect(subject.store.stamps()[session] != stamp, "another stamp of a log written anew")
        expect(not subject.store.is_being_written(session), "no lock left by who wrote it anew")
        expect_refused("other lines than were read", rewrite, session, THIRD, size=1)
        subject.expect_log(session, anew, is_finished=is_finished)
    expect_refused("writing nothing anew", rewrite, uuid4(), THIRD, size=0)
    with subject.writing() as log:
        log.append(FIRST)
        anew_by_other = subject.other.rewrite
        expect_refused("two writers", anew_by_other, log.session, THIRD, size=len(FIRST))
        log.append(SECOND)
    subject.expect_data(log.session, FIRST + SECOND)


@_reopened
def the_first_lines_of_another_log_take_the_place_of_a_finished_one(subject: StoreSubject) -> None:
    session, size = subject.write(FIRST, SECOND), len(FIRST + SECOND)
    restart = subject.store.restart
    expect_refused("a restart with another size", restart, session, THIRD, size=size - 1)
    subject.expect_log(session, FIRST + SECOND, is_finished=True)
    log = restart(session, THIRD, size=size)
    try:
        subject.expect_log(session, THIRD, is_finished=False)
        log.append(FIRST)
        log.finish()
    finally:
        log.abandon()
    subject.expect_log(session, THIRD + FIRST, is_finished=True)


@_reopened
def what_is_not_there_does_not_go_on(subject: StoreSubject) -> None:
    session = uuid4()
    expect_refused("reopen of nothing", subject.store.reopen, session, 0)
    expect_equal(subject.store.read(session), None, "still")
    subject.write(session=session)


@_late
def late_lines_are_added_to_a_finished_log(subject: StoreSubject) -> None:
    session, size = subject.write(FIRST), len(FIRST + SECOND)
    is_added = subject.other.append_to_finished(session, len(FIRST), SECOND)
    expect(is_added, "True for a log of that size")
    subject.expect_log(session, FIRST + SECOND, is_finished=True)
    for other in (len(FIRST), size + 1):
        is_added = subject.store.append_to_finished(session, other, THIRD)
        expect(not is_added, f"False for {other} bytes where it has {size}")
    subject.expect_log(session, FIRST + SECOND, is_finished=True)


@_late
def late_lines_need_a_finished_log(subject: StoreSubject) -> None:
    def expect_no_lines(session: UUID, size: int) -> None:
        append = subject.store.append_to_finished
        expect_refused("late lines of an unfinished log", append, session, size, SECOND)

    expect_no_lines(uuid4(), 0)
    expect_no_lines(subject.write(FIRST, is_finished=False), len(FIRST))
    with subject.writing() as log:
        log.append(FIRST)
        expect_no_lines(log.session, len(FIRST))
    subject.expect_data(log.session, FIRST)


# ---------------------------------------------------------------- deleted logs and content

_deleted = RETENTION.add("Deleting and bringing back")
_content = RETENTION.add("Content by digest")


@_deleted
def a_deleted_log_is_removed_and_can_be_restored(subject: StoreSubject) -> None:
    for is_finished in (True, False):
        session = subject.write(FIRST, SECOND, is_finished=is_finished)
        expect(subject.other.delete(session), "True for a log that is deleted")
        expect_equal(subject.store.read(session), None, "after it was deleted")
        expect(session not in subject.store.stamps(), "no stamp after it was deleted")
        expect(not subject.store.delete(session), "False where there is no log")
        expect(subject.store.restore(session), "True for a log that is brought back")
        subject.expect_log(session, FIRST + SECOND, is_finished=is_finished)
        expect(not subject.store.restore(session), "False where nothing is in the trash")


@_deleted
def a_log_that_is_written_is_not_deleted(subject: StoreSubject) -> None:
    with subject.writing() as log:
        log.append(FIRST)
        for store in subject.both:
            expect_refused("delete of a log that is written", store.delete, log.session)
        log.append(SECOND)
        log.finish()
    subject.expect_log(log.session, FIRST + SECOND, is_finished=True)


@_deleted
def what_was_deleted_last_comes_back_first(subject: StoreSubject) -> None:
    session = subject.write(FIRST)
    subject.store.delete(session)
    subject.write(SECOND, session=session)
    expect_refused("restore over a log that is there", subject.store.restore, session)
    subject.expect_log(session, SECOND, is_finished=True)
    subject.store.delete(session)
    expect(subject.store.restore(session), "True for what was deleted last")
    subject.expect_log(session, SECOND, is_finished=True)


@_deleted
def an_emptied_trash_gives_nothing_back(subject: StoreSubject) -> None:
    session, other = subject.write(), subject.write()
    subject.store.empty_trash()
    subject.store.delete(session)
    expect_equal(subject.other.empty_trash(), 1, "as the number of removed logs")
    expect(not subject.store.restore(session), "False where the trash was emptied")
    expect(subject.store.read(other) is not None, "other logs to stay")
    subject.write(session=session)


def _naming(*blobs: Blob) -> bytes:
    named = ", ".join(f'"sha256:{blob.digest}"' for blob in blobs)
    return f'{{"text": "é", "blobs": [{named}]}}\n'.encode()


@_content
def content_is_stored_by_its_digest(subject: StoreSubject) -> None:
    blob, lost = Blob.from_bytes(uuid4().bytes * 5000), Blob("0" * 64, 3)
    with subject.writing() as log:
        log.append(_naming(blob, lost), blobs=(blob, lost))
        expect(subject.other.blob(blob.digest) == blob.data, "content as soon as it is named")
        log.append(_naming(blob), blobs=(blob,), durable=True)
        log.finish()
    expect(subject.store.blob(blob.digest) == blob.data, "the content by its digest")
    for unknown in (lost.digest, "1" * 64, "", "../x", blob.digest.upper()):
        expect_equal(subject.store.blob(unknown), None, f"for {unknown!r}")


@_content
def content_of_late_lines_is_stored(subject: StoreSubject) -> None:
    blob, session = Blob.from_bytes(uuid4().bytes), subject.write()
    size = len(subject.stored(session).data)
    subject.store.append_to_finished(session, size, _naming(blob), blobs=(blob,))
    subject.other.empty_trash()
    expect(subject.other.blob(blob.digest) == blob.data, "the content that a late line names")


@_content
def content_stays_as_long_as_a_log_names_it(subject: StoreSubject) -> None:
    shared, own = Blob.from_bytes(uuid4().bytes), Blob.from_bytes(uuid4().bytes)
    store, sessions = subject.store, list[UUID]()
    for blobs in ((shared, own), (shared,)):
        with subject.writing() as log:
            log.append(_naming(*blobs), blobs=blobs)
            sessions.append(log.session)
    store.delete(sessions[0])
    expect(store.blob(own.digest) == own.data, "content of a log in the trash")
    store.restore(sessions[0])
    store.empty_trash()
    expect(store.blob(own.digest) == own.data, "content of a log that was brought back")
    store.delete(sessions[0])
    store.empty_trash()
    expect(store.blob(own.digest) is None, "no content that no log names")
    expect(store.blob(shared.digest) == shared.data, "content that another log names")


# ---------------------------------------------------------------- stamps and following

_stamped = STAMPS.add("Stamps")
_followed = STAMPS.add("Following")


@_stamped
def a_stamp_changes_with_its_log(subject: StoreSubject) -> None:
    earlier: list[str] = []

    def expect_new(step: str) -> None:
        stamp = subject.other.stamps().get(log.session, "")
        expect(bool(stamp), f"a stamp after {step}")
        expect(stamp not in earlier, f"another stamp after {step}, got {stamp!r} again")
        earlier.append(stamp)

    with subject.writing() as log:
        log.append(FIRST)
        expect_new("an append")
        log.append(SECOND)
        expect_new("another append")
        log.finish()
        expect_new("finish")
    subject.store.append_to_finished(log.session, len(FIRST + SECOND), THIRD)
    expect_new("a late line")
    with subject.reopening(log.session, len(FIRST)) as again:
        expect_new("a cut")
        again.append(SECOND + THIRD)
        expect_new("an append as long as what was cut off")


@_stamped
def a_stamp_stays_as_long_as_its_log_does(subject: StoreSubject) -> None:
    sessions = [subject.write(is_finished=is_finished) for is_finished in (True, False)]
    before = subject.store.stamps()
    subject.write()
    subject.store.read(sessions[0])
    subject.store.is_being_written(sessions[0])
    after = subject.other.stamps()
    for each in sessions:
        expect_equal(after.get(each), before.get(each), "as stamp of a log that did not change")


@_stamped
def shared_facts_are_those_of_a_state_of_a_log(subject: StoreSubject) -> None:
    store, session, unknown = subject.store, subject.write(FIRST), uuid4()
    stamp = store.stamps()[session]
    store.share_facts("a", {session: (stamp, FIRST), unknown: ("1", FIRST)})
    asked = {session: stamp, unknown: "1"}
    expected = {session: FIRST} if store.shares_facts else {}
    expect_equal(dict(subject.other.shared_facts("a", asked)), expected, "as shared facts")
    expect_equal(dict(store.shared_facts("b", asked)), {}, "of another kind")
    expect_equal(dict(store.shared_facts("a", {session: f"{stamp}x"})), {}, "in another state")
    store.share_facts("a", {session: (f"{stamp}x", SECOND)})
    expect_equal(dict(store.shared_facts("a", asked)), {}, "of the state before")
    store.delete(session)
    expect_equal(dict(store.shared_facts("a", {session: f"{stamp}x"})), {}, "of a deleted log")


@_followed
def following_gives_each_line_until_the_log_is_closed(subject: StoreSubject) -> None:
    with subject.writing() as log, _following(subject, log.session) as lines:
        for line in (FIRST, SECOND + THIRD, FIRST):
            log.append(line)
            found = next(lines, None)
            if found != line:
                raise Unlike(f"expected {excerpt(line)} as soon as it is there, got {found!r}")
        log.append(SECOND)
        log.finish()
        expect_equal(b"".join(lines), SECOND, "and then the end")


@_followed
def following_begins_at_its_offset(subject: StoreSubject) -> None:
    data = FIRST + SECOND + THIRD
    for is_finished in (True, False):
        session = subject.write(FIRST, SECOND, THIRD, is_finished=is_finished)
        for start in (0, 3, len(FIRST), len(FIRST) + 2, len(data)):
            found = b"".join(subject.other.follow(session, start))
            expect_equal(found, data[start:], f"from {start} on")
    expect_equal(list(subject.store.follow(uuid4(), 0)), [], "of a session without a log")


@contextmanager
def _following(subject: StoreSubject, session: UUID) -> Generator[Iterator[bytes]]:
    lines = subject.other.follow(session, 0)
    try:
        yield lines
    finally:
        if isinstance(lines, Generator):
            lines.close()


WRITERS = Clauses[StoreSubject]()

_writer = WRITERS.add("One writer for each log")

_CHILD = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from rath.conformance.store import write_until_killed
write_until_killed(*sys.argv[2:])
"""
_SECONDS = 60.0
_N_LINES = 20
_MAX_LINES = 100_000

_LOCK_SECONDS = 10.0
"""How long the lock of a killed process may outlive it; a guess for a busy machine."""
_N_RACERS = 8
_N_LOGS = 120  # more than the connections that a database server offers


@_writer
def a_second_writer_is_refused(subject: StoreSubject) -> None:
    with subject.writing() as log:
        for _ in range(2):
            for store in subject.both:
                expect_refused("a second writer", store.create, log.session)
                expect_refused("a second writer", store.reopen, log.session, 0)
            log.append(FIRST)
    subject.expect_data(log.session, FIRST * 2)


@_writer
def a_writer_is_visible_as_long_as_it_has_the_log(subject: StoreSubject) -> None:
    for end in ("finish", "abandon"):
        with subject.writing() as log:
            log.append(FIRST)
            answers = [store.is_being_written(log.session) for store in subject.both]
            expect(all(answers), "a writer to be seen")
            getattr(log, end)()
            answers = [store.is_being_written(log.session) for store in subject.both]
            expect(not any(answers), f"none after {end}")
    with subject.reopening(log.session, 0):
        expect(subject.other.is_being_written(log.session), "a writer that goes on to be seen")
    expect(not subject.store.is_being_written(uuid4()), "none of a session without a log")


@_writer
def an_existing_log_is_not_created_again(subject: StoreSubject) -> None:
    for is_finished in (True, False):
        session = subject.write(is_finished=is_finished)
        expect_refused("create of a log that is there", subject.other.create, session)
        subject.expect_data(session, FIRST)
        expect(not subject.store.is_being_written(session), "no lock left by who was refused")


@_writer
def of_many_that_begin_a_log_one_does(subject: StoreSubject) -> None:
    session = uuid4()
    gate, done = threading.Barrier(_N_RACERS), threading.Barrier(_N_RACERS)

    def race(store: SessionStore) -> bool:
        gate.wait(_SECONDS)
        try:
            log = store.create(session)
        except PersistenceError:
            done.wait(_SECONDS)
            return False
        done.wait(_SECONDS)
        try:
            log.append(FIRST)
        finally:
            log.abandon()
        return True

    with ThreadPoolExecutor(_N_RACERS) as pool:
        n_won = sum(pool.map(race, subject.both * (_N_RACERS // 2)))
    expect_equal(n_won, 1, f"writer of {_N_RACERS} to begin the log")
    subject.expect_data(session, FIRST)


@_writer
def many_logs_are_open_side_by_side(subject: StoreSubject) -> None:
    logs: list[SessionLog] = []
    try:
        for _ in range(_N_LOGS):
            logs.append(subject.store.create(uuid4()))
        for log in logs:
            log.append(log.session.hex.encode() + b"\n")
        for log in logs:
            log.append(SECOND)
            log.finish()
    finally:
        for log in logs:
            log.abandon()
    for log in logs:
        subject.expect_data(log.session, log.session.hex.encode() + b"\n" + SECOND)


@_writer
def a_writer_in_another_process_locks_the_log(subject: StoreSubject) -> None:
    session, store = uuid4(), subject.store
    with _child(subject, session, "hold") as output:
        expect(output.readline() == "1\n", "a writer in another process to write")
        expect(store.is_being_written(session), "the writer in another process to be seen")
        for name in ("create", "delete"):
            expect_refused(f"{name} beside it", getattr(store, name), session)
        expect_refused("reopen beside it", store.reopen, session, 0)


@_writer
def a_killed_writer_leaves_complete_lines_and_no_lock(subject: StoreSubject) -> None:
    session = uuid4()
    with _child(subject, session, "append") as output:
        n_durable = [int(output.readline()) for _ in range(_N_LINES)][-1]
    found = subject.stored(session)
    n_lines = found.data.count(b"\n")
    expected = b"".join(b"%d\n" % number for number in range(1, n_lines + 2))
    expect(expected.startswith(found.data), f"a prefix of what it wrote, got {excerpt(found.data)}")
    expect(n_lines >= n_durable, f"at least the {n_durable} durable lines, got {n_lines}")
    expect(not found.is_finished, "an unfinished log")
    # A server may learn of the end of a process a moment after it.
    deadline = time.monotonic() + _LOCK_SECONDS
    while subject.store.is_being_written(session) and time.monotonic() < deadline:
        time.sleep(0.01)
    expect(not subject.store.is_being_written(session), "no lock after the end of its process")
    keep = found.data.rfind(b"\n") + 1
    with subject.reopening(session, keep, size=len(found.data)) as log:
        log.append(FIRST)
    subject.expect_data(session, found.data[:keep] + FIRST)


def write_until_killed(session: str, work: str) -> None:
    """Write one durable line and wait, or write one after the other."""
    # From our parent, and nobody else.
    opener: StoreOpener = pickle.loads(base64.b64decode(sys.stdin.readline()))
    log = opener().create(UUID(session))
    for number in itertools.count(1):
        log.append(b"%d\n" % number, durable=True)
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()
        if work == "hold" or number == _MAX_LINES:
            break
    sys.stdin.read()


@contextmanager
def _child(
    subject: StoreSubject, session: UUID, work: Literal["hold", "append"]
) -> Generator[IO[str]]:
    """Let another process write a log, and kill it in the end; give its output."""
    try:
        opener = base64.b64encode(pickle.dumps(subject.opener)).decode()
    except (pickle.PicklingError, AttributeError, TypeError) as exc:
        raise Skipped(f"what opens it cannot be pickled for another process: {exc}") from exc
    process = subprocess.Popen(
        [sys.executable, "-c", _CHILD, json.dumps(sys.path), str(session), work],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    guard = threading.Timer(_SECONDS, process.kill)
    guard.start()
    try:
        process.stdin.write(f"{opener}\n")
        process.stdin.flush()
        yield process.stdout
        process.kill()
        process.wait()
    except ValueError as exc:
        raise Unlike(f"expected another process to open the store and write: {exc}") from exc
    finally:
        guard.cancel()
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


CLAUSES = (*LOGS, *WRITERS, *REOPENED, *RETENTION, *STAMPS)


def check_store(store: StoreOpener | str) -> Report:
    """Run the contract of session stores against one and return what was found.

    Sessions of its own are written to it, and its trash is emptied: give it a store without any.

    Args:
        store: Its URL, or what opens it: called several times, each time for the same store, and
            pickled for another process. What cannot be pickled skips the checks that need one.

    Raises:
        AssertionError: Some checks failed; the text is the whole report.
        StoreNotFound: No store has the scheme of that URL.
    """
    opener = partial(_open_anew, store) if isinstance(store, str) else store
    subject = StoreSubject(opener(), opener(), opener)
    title = f"{type(subject.store).__name__} {subject.store.name!r}"
    try:
        return run_clauses(title, CLAUSES, lambda: nullcontext(subject))
    finally:
        subject.store.close()
        subject.other.close()


def _open_anew(url: str) -> SessionStore:
    # Not by `open_store`, which gives one process one instance.
    return stores.get(url.partition("://")[0])(url)
