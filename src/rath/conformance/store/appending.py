"""Logs that are written, finished or cut off, and read."""

from __future__ import annotations

from uuid import uuid4

from rath.conformance.report import Unlike, expect
from rath.conformance.store.subject import (
    FIRST,
    SECOND,
    THIRD,
    Check,
    Subject,
    cut_off,
    expect_log,
    finished,
    stored,
    writing,
)

__all__ = ["CHECKS"]

_LARGE = 3 << 20


def what_is_appended_is_read_by_others_at_once(subject: Subject) -> None:
    with writing(subject.store) as log:
        written = b""
        for line, durable in ((FIRST, False), (SECOND, True), (THIRD, False)):
            log.append(line, durable=durable)
            written += line
            expect_log(subject.other, log.session, written, is_finished=False)


def every_byte_comes_back(subject: Subject) -> None:
    lines = (bytes(range(256)) + b"\n", b"\n", b"", b"x" * _LARGE + b"\n", b"\\x00\\\\'\n")
    session = finished(subject.store, *lines)
    expect_log(subject.other, session, b"".join(lines), is_finished=True)


def several_lines_are_one_append(subject: Subject) -> None:
    session = cut_off(subject.store, FIRST + SECOND, THIRD)
    expect_log(subject.other, session, FIRST + SECOND + THIRD, is_finished=False)


def a_log_is_there_from_its_first_append_on(subject: Subject) -> None:
    for end in ("finish", "abandon"):
        with writing(subject.store) as log:
            expect(subject.store.read(log.session) is None, "no log before the first append")
            expect(log.session not in subject.store.stamps(), "no stamp before the first append")
            getattr(log, end)()
        expect(
            subject.store.read(log.session) is None,
            f"no log after {end} where nothing was appended",
        )
        finished(subject.store, session=log.session)


def a_session_without_a_log_has_none(subject: Subject) -> None:
    expect(subject.store.read(uuid4()) is None, "None for a session that nobody wrote")


def a_store_tells_whether_it_holds_a_log(subject: Subject) -> None:
    with writing(subject.store) as log:
        both = (subject.store, subject.other)
        expect(not any(s.holds(log.session) for s in both), "no log before the first append")
        log.append(FIRST)
        expect(all(s.holds(log.session) for s in both), "a log after the first append")
        log.finish()
        expect(all(s.holds(log.session) for s in both), "a log that is finished")
    subject.store.delete(log.session)
    expect(not any(s.holds(log.session) for s in both), "no log after it was deleted")


def a_log_is_finished_when_its_writer_says_so(subject: Subject) -> None:
    with writing(subject.store) as log:
        log.append(FIRST)
        log.finish()
    expect_log(subject.store, log.session, FIRST, is_finished=True)
    expect_log(subject.store, cut_off(subject.store), FIRST, is_finished=False)


def ending_twice_is_ending_once(subject: Subject) -> None:
    with writing(subject.store) as log:
        log.append(FIRST)
        expect(not log.closed, "an open log before it is finished")
        log.finish()
        expect(log.closed, "a closed log after finish")
        log.finish()
        log.abandon()
    expect_log(subject.store, log.session, FIRST, is_finished=True)
    with writing(subject.store) as log:
        log.append(FIRST)
        log.abandon()
        expect(log.closed, "a closed log after abandon")
        log.abandon()
        log.finish()
    expect_log(subject.store, log.session, FIRST, is_finished=False)


def a_closed_log_refuses_more(subject: Subject) -> None:
    for end in ("finish", "abandon"):
        with writing(subject.store) as log:
            log.append(FIRST)
            getattr(log, end)()
            try:
                log.append(SECOND)
            except RuntimeError:
                pass
            else:
                raise Unlike(f"expected RuntimeError for an append after {end}")
        expect(stored(subject.store, log.session).data == FIRST, f"nothing more after {end}")


def a_store_says_where_it_is(subject: Subject) -> None:
    expect(bool(subject.store.name), "a name")
    expect(bool(subject.store.where), "a place")
    expect(
        subject.store.where == subject.other.where, "the same place each time the store is opened"
    )
    with writing(subject.store) as log:
        log.append(FIRST)
        expect(bool(log.where), "a place of the log that is written")
    expect(bool(stored(subject.store, log.session).where), "a place of the log that is read")


def a_closed_store_can_be_used_again(subject: Subject) -> None:
    session = finished(subject.other)
    subject.other.close()
    subject.other.close()
    expect_log(subject.other, session, FIRST, is_finished=True)
    finished(subject.other)


_FEATURE = "Writing and reading logs"

CHECKS = (
    Check(_FEATURE, what_is_appended_is_read_by_others_at_once),
    Check(_FEATURE, every_byte_comes_back),
    Check(_FEATURE, several_lines_are_one_append),
    Check(_FEATURE, a_log_is_there_from_its_first_append_on),
    Check(_FEATURE, a_session_without_a_log_has_none),
    Check(_FEATURE, a_store_tells_whether_it_holds_a_log),
    Check(_FEATURE, a_log_is_finished_when_its_writer_says_so),
    Check(_FEATURE, ending_twice_is_ending_once),
    Check(_FEATURE, a_closed_log_refuses_more),
    Check(_FEATURE, a_store_says_where_it_is),
    Check(_FEATURE, a_closed_store_can_be_used_again),
)
