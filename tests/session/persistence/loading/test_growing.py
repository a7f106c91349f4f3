"""Sessions that are read while a program that they belong to goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import pytest

from rath import autosave
from rath.flow import Workflow
from rath.session import Session
from rath.session.outcome import Completed, NeedsApproval
from rath.session.persistence.store import StoredLog
from tests.support.journal_store import JournalStore
from tests.support.waiting_program import WaitingTeam, allow, problems

N_READERS = 2
N_PROGRAMS = 3


class WatchedStore(JournalStore):
    """A store in which something happens just before a log is read."""

    def __init__(self) -> None:
        super().__init__()
        self.before_read: Callable[[UUID], None] = lambda _: None

    def read(self, session: UUID) -> StoredLog | None:
        self.before_read(session)
        return super().read(session)


class ForkAndMerge(Workflow):
    """A session with two ways to what waits: by a fork, and directly."""

    def __init__(self) -> None:
        super().__init__()
        self.team = WaitingTeam()

    def forward(self, session: Session) -> Session:
        asked = self.team.boss(session)
        return asked.fork().merge(asked)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[WatchedStore]:
    made = WatchedStore()
    monkeypatch.setenv("OPENRATH_STORE", made.url)
    with autosave():
        yield made


def goes_on_before_the_fork_is_read(store: WatchedStore) -> UUID:
    """Have a program wait, and go on to its end as soon as a reader comes to the fork."""
    out = ForkAndMerge()(Session.from_user_message("go")).synchronize()
    assert isinstance(out.outcome, NeedsApproval)
    out.save(store=store)  # waits until all are stored
    allow(out, store)
    fork, boss = out.parent_session_ids
    read: list[UUID] = []

    def go_on(session: UUID) -> None:
        read.append(session)
        if session == fork:
            assert boss in read, "read before, as it was when it waited"
            store.before_read = lambda _: None
            done = ForkAndMerge().resume(Session.load(out.id, store=store), store=store)
            done.synchronize().save(store=store)

    store.before_read = go_on
    return out.id


def test_what_grows_between_two_reads_is_read_again(store: WatchedStore) -> None:
    session = goes_on_before_the_fork_is_read(store)
    loaded = Session.load(session, store=store)
    assert (loaded.outcome, loaded.text()) == (Completed(), "boss is done")


def test_what_grows_while_it_is_checked_is_no_damage(store: WatchedStore) -> None:
    session = goes_on_before_the_fork_is_read(store)
    assert problems(store, session) == []


@pytest.mark.slow
def test_readers_of_programs_that_go_on_never_see_half_of_what_was_written(
    store: WatchedStore,
) -> None:
    is_over = threading.Event()

    def read_all() -> int:
        n_read = 0
        while not is_over.is_set():
            for session in [*store.stamps()]:
                Session.load(session, store=store)
                n_read += 1
        return n_read

    with ThreadPoolExecutor(N_READERS) as readers:
        reading = [readers.submit(read_all) for _ in range(N_READERS)]
        try:
            for _ in range(N_PROGRAMS):
                out = WaitingTeam(5)(Session.from_user_message("go")).synchronize()
                while isinstance(out.outcome, NeedsApproval):
                    allow(out, store)
                    loaded = Session.load(out.id, store=store)
                    out = WaitingTeam(5).resume(loaded, store=store).synchronize()
                assert out.outcome == Completed()
        finally:
            is_over.set()
        assert all(each.result() for each in reading)
