"""Clauses on logs: written, read, reopened, deleted, restored, stamped and followed."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from uuid import UUID, uuid4

from rath._core.blobs import Blob
from rath.conformance.contract import Clauses, Unlike, expect, expect_equal, expect_error, shown
from rath.conformance.store.subject import FIRST, SECOND, THIRD, StoreSubject, expect_refused

__all__ = ["LOGS", "REOPENED", "RETENTION", "STAMPS"]

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
    def expect_held(is_held: bool, when: str) -> None:
        found = [store.holds(log.session) for store in subject.both]
        expect_equal(found, [is_held] * 2, f"as held by both {when}")

    with subject.writing() as log:
        expect_held(False, "before the first append")
        log.append(FIRST)
        expect_held(True, "after the first append")
        log.finish()
        expect_held(True, "once it is finished")
    subject.store.delete(log.session)
    expect_held(False, "after it was deleted")


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
def what_follows_the_kept_bytes_is_cut_off(subject: StoreSubject) -> None:
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
def a_log_that_was_cut_to_nothing_is_begun_anew(subject: StoreSubject) -> None:
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
def a_deleted_log_is_gone_and_can_be_brought_back(subject: StoreSubject) -> None:
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
def content_is_kept_by_its_digest(subject: StoreSubject) -> None:
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
def content_of_late_lines_is_kept(subject: StoreSubject) -> None:
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
    seen: list[str] = []

    def expect_new(step: str) -> None:
        stamp = subject.other.stamps().get(log.session, "")
        expect(bool(stamp), f"a stamp after {step}")
        expect(stamp not in seen, f"another stamp after {step}, got {stamp!r} again")
        seen.append(stamp)

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


@_followed
def following_gives_each_line_until_the_log_is_closed(subject: StoreSubject) -> None:
    with subject.writing() as log, _following(subject, log.session) as lines:
        for line in (FIRST, SECOND + THIRD, FIRST):
            log.append(line)
            found = next(lines, None)
            if found != line:
                raise Unlike(f"expected {shown(line)} as soon as it is there, got {found!r}")
        log.append(SECOND)
        log.finish()
        expect_equal(b"".join(lines), SECOND, "and then the end")


@_followed
def following_begins_where_it_is_told(subject: StoreSubject) -> None:
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
