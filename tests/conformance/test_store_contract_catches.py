"""The contract of session stores, run against faulty ones: each fails the checks that it must."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest

from rath._core.blobs import Blob
from rath.conformance.contract import run_clauses
from rath.conformance.store import CLAUSES, StoreSubject
from rath.errors import PersistenceError
from rath.session.persistence.store import CompleteLog, SessionLog, SessionStore, StoredLog
from rath.testing import FakeSessionStore
from rath.testing.store import FakeSessionLog, MemoryLog
from tests.support.broken_stores import KeepsInMemory, SeesNobody

Make = Callable[[], FakeSessionStore]

FAULTY: dict[str, tuple[type[FakeSessionStore], tuple[str, ...]]] = {}
"""A faulty store for each check, by the name of the check, and which other checks see it too."""

RESTARTS = "the_first_lines_of_another_log_take_the_place_of_a_finished_one"

OF_PROCESSES = (
    "a_writer_in_another_process_locks_the_log",
    "a_killed_writer_leaves_complete_lines_and_no_lock",
)


def breaks(check: str, *also: str) -> Callable[[type[FakeSessionStore]], type[FakeSessionStore]]:
    """Register a class as what only those checks must find."""

    def add(cls: type[FakeSessionStore]) -> type[FakeSessionStore]:
        FAULTY[check] = cls, also
        return cls

    return add


def failures(opener: Callable[[], SessionStore], names: Collection[str]) -> list[str]:
    """Return the checks of those that fail."""
    subject = StoreSubject(opener(), opener(), opener)
    chosen = [clause for clause in CLAUSES if clause.name in names]
    try:
        run_clauses("", chosen, lambda: nullcontext(subject))
    except AssertionError as error:
        return [line.split()[1].strip(":") for line in str(error).split("\n") if "failed" in line]
    return []


IN_PROCESS = [each.name for each in CLAUSES if each.name not in OF_PROCESSES]


@pytest.mark.parametrize("check", IN_PROCESS)
def test_a_fault_is_found_by_its_check(check: str) -> None:
    cls, also = FAULTY[check]
    store = cls()
    assert set(failures(lambda: store, IN_PROCESS)) == {check, *also}


def test_a_store_without_a_fault_fails_nothing() -> None:
    store = FakeSessionStore()
    assert failures(lambda: store, IN_PROCESS) == []


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("check", "cls"), list(zip(OF_PROCESSES, (SeesNobody, KeepsInMemory), strict=True))
)
def test_a_fault_between_processes_is_found(
    check: str, cls: Callable[[str], SessionStore], tmp_path: Path
) -> None:
    assert failures(partial(cls, str(tmp_path)), [check]) == [check]


# ---------------------------------------------------------------- writing and reading


class Written(FakeSessionStore):
    """Changes what is written."""

    def changed(self, session: UUID, data: bytes, *, durable: bool) -> bytes:
        raise NotImplementedError

    def write(
        self,
        session: UUID,
        entry: MemoryLog,
        data: bytes,
        blobs: Collection[Blob],
        *,
        durable: bool,
    ) -> None:
        changed = self.changed(session, data, durable=durable)
        super().write(session, entry, changed, blobs, durable=durable)


@breaks("what_is_appended_is_read_by_others_at_once", RESTARTS)
class WritesDurableLinesTwice(Written):
    def changed(self, session: UUID, data: bytes, *, durable: bool) -> bytes:
        return data * 2 if durable and session in self.writers else data


@breaks("every_byte_comes_back")
class DropsZeros(Written):
    def changed(self, session: UUID, data: bytes, *, durable: bool) -> bytes:
        return data.replace(b"\0", b"")


@breaks(
    "several_lines_are_one_append",
    "following_gives_each_line_until_the_log_is_closed",
    "many_complete_logs_are_stored_together",
)
class TakesOneLine(Written):
    def changed(self, session: UUID, data: bytes, *, durable: bool) -> bytes:
        return data if b"\0" in data else data[: data.find(b"\n") + 1]


@breaks("a_log_is_there_from_its_first_append_on", "a_store_tells_whether_it_holds_a_log")
class BeginsAtOnce(FakeSessionStore):
    def create(self, session: UUID) -> SessionLog:
        log = super().create(session)
        self.logs[session] = MemoryLog(bytearray(b"\n"))
        return log


@breaks(
    "a_session_without_a_log_has_none",
    "a_log_is_there_from_its_first_append_on",
    "what_is_not_there_does_not_go_on",
    "an_empty_log_can_be_created_again",
    "a_deleted_log_is_removed_and_can_be_restored",
)
class HasEveryLog(FakeSessionStore):
    def read(self, session: UUID) -> StoredLog | None:
        return super().read(session) or StoredLog(session, b"", is_finished=False, where="memory")


@breaks("a_store_tells_whether_it_holds_a_log")
class HoldsWhatItDeleted(FakeSessionStore):
    def holds(self, session: UUID) -> bool:
        return super().holds(session) or any(each == session for each, _ in self.trash)


class Ending(FakeSessionStore):
    """Opens logs of another class."""

    log: type[FakeSessionLog]

    def open(self, session: UUID, entry: MemoryLog) -> SessionLog:
        self.check_free(session)
        log = self.writers[session] = self.log(self, session, entry)
        return log


class Unfinished(FakeSessionLog):
    def abandon(self) -> None:
        self.entry.is_finished = True
        super().abandon()


@breaks(
    "a_log_is_finished_when_its_writer_says_so",
    "several_lines_are_one_append",
    "ending_twice_is_ending_once",
    "reopening_cuts_what_follows_its_bytes",
    "a_finished_log_that_goes_on_is_unfinished",
    "a_log_that_was_changed_meanwhile_is_not_cut",
    "a_log_may_be_written_anew_at_once",
    "late_lines_need_a_finished_log",
    "a_deleted_log_is_removed_and_can_be_restored",
)
class FinishesAll(Ending):
    log = Unfinished


class Stubborn(FakeSessionLog):
    def finish(self) -> None:
        if self.closed and self.entry.data:
            raise RuntimeError("closed already")
        super().finish()


@breaks("ending_twice_is_ending_once")
class EndsOnce(Ending):
    log = Stubborn


class Patient(FakeSessionLog):
    def append(self, data: bytes, *, blobs: Collection[Blob] = (), durable: bool = False) -> None:
        if not self.closed:
            super().append(data, blobs=blobs, durable=durable)


@breaks("a_closed_log_refuses_more")
class SwallowsLines(Ending):
    log = Patient


@breaks("a_store_says_where_it_is")
class Nowhere(FakeSessionStore):
    where = ""


@breaks("a_closed_store_can_be_used_again")
class ClosesForGood(FakeSessionStore):
    is_closed = False

    def close(self) -> None:
        self.is_closed = True

    def read(self, session: UUID) -> StoredLog | None:
        # Another handle is not closed; here there is but one.
        was_closed, self.is_closed = self.is_closed, False
        if was_closed:
            raise PersistenceError("closed")
        return super().read(session)


@breaks("many_complete_logs_are_stored_together")
class ReportsAllAsStored(FakeSessionStore):
    def create_many(self, logs: Sequence[CompleteLog]) -> set[UUID]:
        super().create_many(logs)
        return {each.session for each in logs}


# ---------------------------------------------------------------- writers


@breaks(
    "a_second_writer_is_refused",
    "a_log_may_be_written_anew_at_once",
    "of_many_that_begin_a_log_one_does",
    "a_log_that_is_written_is_not_deleted",
)
class LetsEverybodyIn(FakeSessionStore):
    def check_free(self, session: UUID) -> None:
        self.writers.pop(session, None)


@breaks("a_writer_is_visible_as_long_as_it_has_the_log")
class SeesBeginnersOnly(FakeSessionStore):
    def is_being_written(self, session: UUID) -> bool:
        log = self.writers.get(session)
        return isinstance(log, FakeSessionLog) and log.entry.n_changes < 2


@breaks("an_existing_log_is_not_created_again")
class BeginsAnew(FakeSessionStore):
    def create(self, session: UUID) -> SessionLog:
        with self.busy:
            return self.open(session, MemoryLog())


@breaks("of_many_that_begin_a_log_one_does")
class TiresOfRefusing(FakeSessionStore):
    def __init__(self) -> None:
        super().__init__()
        self.refused: dict[UUID, int] = {}

    def check_free(self, session: UUID) -> None:
        self.refused[session] = self.refused.get(session, -1) + 1
        if self.refused[session] < 5:
            super().check_free(session)


@breaks("many_logs_are_open_side_by_side")
class HasFewPlaces(FakeSessionStore):
    def check_free(self, session: UUID) -> None:
        super().check_free(session)
        if len(self.writers) >= 100:
            raise PersistenceError("too many connections")


# ---------------------------------------------------------------- going on


class Reopening(FakeSessionStore):
    """Changes how logs go on."""

    def reopen(self, session: UUID, keep: int, *, size: int | None = None) -> SessionLog:
        return super().reopen(session, keep, size=size)


@breaks("a_log_that_was_cut_off_goes_on")
class NamesAnother(Reopening):
    def reopen(self, session: UUID, keep: int, *, size: int | None = None) -> SessionLog:
        log = super().reopen(session, keep, size=size)
        if size is not None:
            log.session = UUID(int=1)
            self.writers[log.session] = log
        return log


@breaks("reopening_cuts_what_follows_its_bytes")
class CutsWholeLines(Reopening):
    def reopen(self, session: UUID, keep: int, *, size: int | None = None) -> SessionLog:
        entry = self.logs.get(session)
        end = entry.data.find(b"\n", keep - 1) + 1 if entry is not None and keep else keep
        return super().reopen(session, max(keep, end), size=size)


@breaks("a_finished_log_that_goes_on_is_unfinished")
class StaysFinished(Reopening):
    def reopen(self, session: UUID, keep: int, *, size: int | None = None) -> SessionLog:
        entry = self.logs.get(session, MemoryLog())
        was_finished, is_complete = entry.is_finished, len(entry.data) == keep
        log = super().reopen(session, keep, size=size)
        entry.is_finished = was_finished and is_complete
        return log


@breaks("an_empty_log_can_be_created_again")
class KeepsNothing(FakeSessionStore):
    def read(self, session: UUID) -> StoredLog | None:
        entry = self.logs.get(session)
        is_nothing = entry is not None and not entry.data and session not in self.writers
        return StoredLog(session, b"", False, "memory") if is_nothing else super().read(session)


@breaks("a_log_that_was_changed_meanwhile_is_not_cut", RESTARTS)
class DoesNotLook(Reopening):
    def reopen(self, session: UUID, keep: int, *, size: int | None = None) -> SessionLog:
        return super().reopen(session, keep)


@breaks("a_log_may_be_written_anew_at_once")
class WritesAnewWithoutALook(FakeSessionStore):
    def rewrite(self, session: UUID, data: bytes, *, size: int) -> None:
        entry = self.logs.get(session)
        super().rewrite(session, data, size=size if entry is None else len(entry.data))


@breaks(RESTARTS)
class KeepsTheOldLinesToo(FakeSessionStore):
    def restart(
        self, session: UUID, data: bytes, *, size: int, blobs: Collection[Blob] = ()
    ) -> SessionLog:
        log = self.reopen(session, size, size=size)
        log.append(data, blobs=blobs, durable=True)
        return log


@breaks("what_is_not_there_does_not_go_on")
class GoesOnWithNothing(Reopening):
    def reopen(self, session: UUID, keep: int, *, size: int | None = None) -> SessionLog:
        if session not in self.logs and session not in self.writers:
            return self.create(session)
        return super().reopen(session, keep, size=size)


@breaks("late_lines_are_added_to_a_finished_log")
class AddsAnyway(FakeSessionStore):
    def append_to_finished(
        self, session: UUID, size: int, data: bytes, *, blobs: Collection[Blob] = ()
    ) -> bool:
        entry = self.logs.get(session)
        size = size if entry is None else len(entry.data)
        return super().append_to_finished(session, size, data, blobs=blobs)


@breaks("late_lines_need_a_finished_log")
class AddsToWhatIsOpen(FakeSessionStore):
    def append_to_finished(
        self, session: UUID, size: int, data: bytes, *, blobs: Collection[Blob] = ()
    ) -> bool:
        entry = self.logs.get(session)
        if entry is not None and not entry.is_finished:
            self.write(session, entry, data, blobs, durable=True)
            return True
        return super().append_to_finished(session, size, data, blobs=blobs)


# ---------------------------------------------------------------- trash and content


@breaks("a_deleted_log_is_removed_and_can_be_restored")
class ForgetsHowItStood(FakeSessionStore):
    def restore(self, session: UUID) -> bool:
        is_back = super().restore(session)
        if is_back:
            self.logs[session].is_finished = True
        return is_back


@breaks("a_log_that_is_written_is_not_deleted")
class DeletesWhatIsWritten(FakeSessionStore):
    def delete(self, session: UUID) -> bool:
        writer = self.writers.pop(session, None)
        try:
            return super().delete(session)
        finally:
            if writer is not None:
                self.writers[session] = writer


@breaks("what_was_deleted_last_comes_back_first")
class BringsTheFirstBack(FakeSessionStore):
    def restore(self, session: UUID) -> bool:
        self.trash.reverse()
        try:
            return super().restore(session)
        finally:
            self.trash.reverse()


@breaks("an_emptied_trash_gives_nothing_back")
class EmptiesHalf(FakeSessionStore):
    def empty_trash(self) -> int:
        last = self.trash[-1:]
        n_removed = super().empty_trash()
        self.trash = last
        return n_removed


@breaks("content_is_stored_by_its_digest")
class TakesAnyCase(FakeSessionStore):
    def blob(self, digest: str) -> bytes | None:
        return super().blob(digest.lower())


@breaks("content_of_late_lines_is_stored")
class DropsLateContent(FakeSessionStore):
    def append_to_finished(
        self, session: UUID, size: int, data: bytes, *, blobs: Collection[Blob] = ()
    ) -> bool:
        return super().append_to_finished(session, size, data)


@breaks("content_stays_as_long_as_a_log_names_it")
class NeverSweeps(FakeSessionStore):
    def empty_trash(self) -> int:
        blobs = dict(self.blobs)
        n_removed = super().empty_trash()
        self.blobs.update(blobs)
        return n_removed


# ---------------------------------------------------------------- looking and following


@breaks("a_stamp_changes_with_its_log")
class StampsBySize(FakeSessionStore):
    def stamps(self) -> Mapping[UUID, str]:
        return {session: str(len(self.logs[session].data)) for session in super().stamps()}


@breaks("a_stamp_stays_as_long_as_its_log_does")
class StampsByReading(FakeSessionStore):
    n_reads = 0

    def read(self, session: UUID) -> StoredLog | None:
        self.n_reads += 1
        return super().read(session)

    def stamps(self) -> Mapping[UUID, str]:
        return {session: f"{stamp}-{self.n_reads}" for session, stamp in super().stamps().items()}


@breaks("shared_facts_are_those_of_a_state_of_a_log")
class SharesFactsOfEveryState(FakeSessionStore):
    shares_facts = True

    def __init__(self) -> None:
        super().__init__()
        self.facts: dict[tuple[str, UUID], bytes] = {}

    def shared_facts(self, kind: str, stamps: Mapping[UUID, str]) -> Mapping[UUID, bytes]:
        found = {session: self.facts.get((kind, session)) for session in stamps}
        return {session: fact for session, fact in found.items() if fact is not None}

    def share_facts(self, kind: str, facts: Mapping[UUID, tuple[str, bytes]]) -> None:
        known = {session: fact for session, (_, fact) in facts.items() if session in self.logs}
        self.facts.update({(kind, session): fact for session, fact in known.items()})


@breaks("following_gives_each_line_until_the_log_is_closed")
class FollowsTheDead(FakeSessionStore):
    def follow(self, session: UUID, start: int) -> Iterator[bytes]:
        return iter(()) if session in self.writers else super().follow(session, start)


@breaks("following_begins_at_its_offset")
class FollowsFromTheBeginning(FakeSessionStore):
    def follow(self, session: UUID, start: int) -> Iterator[bytes]:
        return super().follow(session, 0)
