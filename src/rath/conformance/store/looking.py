"""What tells that a log has changed, and following one that is written."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from uuid import UUID, uuid4

from rath.conformance.report import Unlike, expect
from rath.conformance.store.subject import (
    FIRST,
    SECOND,
    THIRD,
    Check,
    Subject,
    cut_off,
    finished,
    going_on,
    shown,
    writing,
)

__all__ = ["CHECKS"]


def a_stamp_changes_with_its_log(subject: Subject) -> None:
    with writing(subject.store) as log:
        session, seen = log.session, list[str]()

        def look(what: str) -> None:
            stamp = subject.other.stamps().get(session, "")
            expect(bool(stamp), f"a stamp after {what}")
            expect(stamp not in seen, f"another stamp after {what}, got {stamp!r} again")
            seen.append(stamp)

        log.append(FIRST)
        look("an append")
        log.append(SECOND)
        look("another append")
        log.finish()
        look("finish")
    subject.store.append_to_finished(session, len(FIRST + SECOND), THIRD)
    look("a late line")
    with going_on(subject.store, session, len(FIRST)) as again:
        look("a cut")
        again.append(SECOND + THIRD)
        look("an append as long as what was cut off")


def a_stamp_stays_as_long_as_its_log_does(subject: Subject) -> None:
    session, other = finished(subject.store), cut_off(subject.store)
    before = subject.store.stamps()
    finished(subject.store)
    subject.store.read(session)
    subject.store.is_being_written(session)
    after = subject.other.stamps()
    for each in (session, other):
        expect(before.get(each) == after.get(each), "the same stamp of a log that did not change")


def following_gives_each_line_until_the_log_is_closed(subject: Subject) -> None:
    with writing(subject.store) as log, _following(subject, log.session, 0) as lines:
        for line in (FIRST, SECOND + THIRD, FIRST):
            log.append(line)
            given = next(lines, None)
            if given != line:
                raise Unlike(f"expected {shown(line)} as soon as it is there, got {given!r}")
        log.append(SECOND)
        log.finish()
        rest = b"".join(lines)
        expect(rest == SECOND, f"the rest and then the end, got {shown(rest)}")


def following_begins_where_it_is_told(subject: Subject) -> None:
    data = FIRST + SECOND + THIRD
    for write in (finished, cut_off):
        session = write(subject.store, FIRST, SECOND, THIRD)
        for start in (0, 3, len(FIRST), len(FIRST) + 2, len(data)):
            given = b"".join(subject.other.follow(session, start))
            expect(given == data[start:], f"{shown(data[start:])}, got {shown(given)}")
    expect(list(subject.store.follow(uuid4(), 0)) == [], "nothing of a session without a log")


@contextmanager
def _following(subject: Subject, session: UUID, start: int) -> Generator[Iterator[bytes]]:
    lines = subject.other.follow(session, start)
    try:
        yield lines
    finally:
        if isinstance(lines, Generator):
            lines.close()


CHECKS = (
    Check("Stamps", a_stamp_changes_with_its_log),
    Check("Stamps", a_stamp_stays_as_long_as_its_log_does),
    Check("Following", following_gives_each_line_until_the_log_is_closed),
    Check("Following", following_begins_where_it_is_told),
)
