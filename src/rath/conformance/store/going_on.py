"""Logs that are gone on with, and late lines of finished ones."""

from __future__ import annotations

from uuid import UUID, uuid4

from rath.conformance.report import expect
from rath.conformance.store.subject import (
    FIRST,
    SECOND,
    THIRD,
    Check,
    Subject,
    cut_off,
    expect_log,
    expect_refused,
    finished,
    going_on,
    stored,
    writing,
)

__all__ = ["CHECKS"]


def a_log_that_was_cut_off_goes_on(subject: Subject) -> None:
    session = cut_off(subject.store, FIRST)
    with going_on(subject.other, session, len(FIRST), size=len(FIRST)) as log:
        expect(log.session == session, "the same session")
        expect_log(subject.store, session, FIRST, is_finished=False)
        log.append(SECOND)
        log.finish()
    expect_log(subject.store, session, FIRST + SECOND, is_finished=True)


def what_follows_the_kept_bytes_is_cut_off(subject: Subject) -> None:
    for keep in (0, len(FIRST) - 3, len(FIRST), len(FIRST) + 1):
        session = cut_off(subject.store, FIRST, SECOND, THIRD)
        with going_on(subject.store, session, keep) as log:
            log.append(THIRD)
        expect_log(subject.other, session, (FIRST + SECOND)[:keep] + THIRD, is_finished=False)


def a_finished_log_that_goes_on_is_unfinished(subject: Subject) -> None:
    session = finished(subject.store, FIRST)
    with going_on(subject.store, session, len(FIRST)) as log:
        expect_log(subject.other, session, FIRST, is_finished=False)
        log.append(SECOND)
    expect_log(subject.other, session, FIRST + SECOND, is_finished=False)


def a_log_that_was_cut_to_nothing_is_begun_anew(subject: Subject) -> None:
    session = finished(subject.store, FIRST)
    with going_on(subject.store, session, 0):
        pass
    expect(subject.store.read(session) is None, "no log where none of its bytes is left")
    expect(session not in subject.store.stamps(), "no stamp of it")
    finished(subject.other, SECOND, session=session)
    expect_log(subject.store, session, SECOND, is_finished=True)


def a_log_that_was_changed_meanwhile_is_not_cut(subject: Subject) -> None:
    for write in (finished, cut_off):
        session = write(subject.store, FIRST, SECOND)
        is_finished = stored(subject.store, session).is_finished
        size = len(FIRST + SECOND)
        for told in (size - 1, size + 1):
            expect_refused(
                "reopen of a log of another size",
                subject.store.reopen,
                session,
                len(FIRST),
                size=told,
            )
        expect_refused("reopen past the end", subject.store.reopen, session, size + 1)
        expect_log(subject.store, session, FIRST + SECOND, is_finished=is_finished)
        expect(not subject.store.is_being_written(session), "no lock left by who was refused")


def a_log_may_be_written_anew_at_once(subject: Subject) -> None:
    for write, is_finished in ((finished, True), (cut_off, False)):
        session = write(subject.store, FIRST, SECOND)
        stamp, size = subject.store.stamps()[session], len(FIRST + SECOND)
        subject.other.rewrite(session, THIRD + FIRST + FIRST, size=size)
        expect_log(subject.store, session, THIRD + FIRST + FIRST, is_finished=is_finished)
        expect(subject.store.stamps()[session] != stamp, "another stamp of a log written anew")
        expect(not subject.store.is_being_written(session), "no lock left by who wrote it anew")
        expect_refused("other lines than were read", subject.store.rewrite, session, THIRD, size=1)
        expect_log(subject.other, session, THIRD + FIRST + FIRST, is_finished=is_finished)
    expect_refused("writing nothing anew", subject.store.rewrite, uuid4(), THIRD, size=0)
    with writing(subject.store) as log:
        log.append(FIRST)
        size = len(FIRST)
        expect_refused("writing anew beside a writer", subject.other.rewrite, log.session, THIRD,
                       size=size)  # fmt: skip
        log.append(SECOND)
    expect(stored(subject.store, log.session).data == FIRST + SECOND, "what its writer wrote")


def the_first_lines_of_another_log_take_the_place_of_a_finished_one(subject: Subject) -> None:
    session, size = finished(subject.store, FIRST, SECOND), len(FIRST + SECOND)
    expect_refused(
        "a restart of a log of another size", subject.store.restart, session, THIRD, size=size - 1
    )
    expect_log(subject.other, session, FIRST + SECOND, is_finished=True)
    log = subject.store.restart(session, THIRD, size=size)
    try:
        expect_log(subject.other, session, THIRD, is_finished=False)
        log.append(FIRST)
        log.finish()
    finally:
        log.abandon()
    expect_log(subject.other, session, THIRD + FIRST, is_finished=True)


def what_is_not_there_does_not_go_on(subject: Subject) -> None:
    session = uuid4()
    expect_refused("reopen of nothing", subject.store.reopen, session, 0)
    expect(subject.store.read(session) is None, "still nothing")
    finished(subject.store, session=session)


def late_lines_are_added_to_a_finished_log(subject: Subject) -> None:
    session = finished(subject.store, FIRST)
    added = subject.other.append_to_finished(session, len(FIRST), SECOND)
    expect(added, "True for a log of that size")
    expect_log(subject.store, session, FIRST + SECOND, is_finished=True)
    for size in (len(FIRST), len(FIRST + SECOND) + 1):
        added = subject.store.append_to_finished(session, size, THIRD)
        expect(not added, f"False for {size} bytes where it has {len(FIRST + SECOND)}")
    expect_log(subject.store, session, FIRST + SECOND, is_finished=True)


def late_lines_need_a_finished_log(subject: Subject) -> None:
    def late(session: UUID, size: int) -> None:
        expect_refused(
            "late lines of a log that is not finished",
            subject.store.append_to_finished,
            session,
            size,
            SECOND,
        )

    late(uuid4(), 0)
    late(cut_off(subject.store, FIRST), len(FIRST))
    with writing(subject.store) as log:
        log.append(FIRST)
        late(log.session, len(FIRST))
    expect(stored(subject.store, log.session).data == FIRST, "the log as it was")


_FEATURE = "Going on with logs"

CHECKS = (
    Check(_FEATURE, a_log_that_was_cut_off_goes_on),
    Check(_FEATURE, what_follows_the_kept_bytes_is_cut_off),
    Check(_FEATURE, a_finished_log_that_goes_on_is_unfinished),
    Check(_FEATURE, a_log_that_was_cut_to_nothing_is_begun_anew),
    Check(_FEATURE, a_log_that_was_changed_meanwhile_is_not_cut),
    Check(_FEATURE, a_log_may_be_written_anew_at_once),
    Check(_FEATURE, the_first_lines_of_another_log_take_the_place_of_a_finished_one),
    Check(_FEATURE, what_is_not_there_does_not_go_on),
    Check("Late lines", late_lines_are_added_to_a_finished_log),
    Check("Late lines", late_lines_need_a_finished_log),
)
