"""A program that waited for approvals is cut off while it goes on: each id goes on once more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple
from uuid import UUID

import pytest

from rath import autosave
from rath.session import Session
from rath.session.outcome import Completed, NeedsApproval, NeedsDecision
from tests.support.journal_store import JournalStore
from tests.support.lanes import quick_sample
from tests.support.waiting_program import WaitingTeam, allow, problems

N_PARTS = 8


"""Tests among which the points are dealt out, so that each is short."""


class Whole(NamedTuple):
    """A program that waited twice, and that nobody cut off."""

    store: JournalStore
    waited: UUID
    """The session that the program returned as long as it waited."""

    n_before: int
    """Writes before it went on for the first time."""

    rows: list[str]


@pytest.fixture(scope="module")
def complete() -> Iterator[Whole]:
    store = JournalStore()
    with pytest.MonkeyPatch.context() as patch, autosave():
        patch.setenv("OPENRATH_STORE", store.url)
        out = WaitingTeam(2)(Session.from_user_message("go")).synchronize()
        assert allow(out, store, limit=1) == 1
        n_before = len(store.events)
        again = WaitingTeam(2).resume(Session.load(out.id, store=store), store=store).synchronize()
        assert isinstance(again.outcome, NeedsApproval)
        assert allow(again, store) == 1
        done = WaitingTeam(2).resume(Session.load(out.id, store=store), store=store).synchronize()
        assert (done.id, done.outcome) == (out.id, Completed())
        yield Whole(store, out.id, n_before, rows_of(done))


def rows_of(session: Session) -> list[str]:
    return [row.digest.hex() for row in session.chunk_table]


@pytest.mark.parametrize("torn", [False, True], ids=["whole", "torn"])
@pytest.mark.parametrize("part", quick_sample(range(N_PARTS)))
def test_after_every_write_the_same_id_goes_on(part: int, torn: bool, complete: Whole) -> None:
    for n_writes in range(complete.n_before + part, len(complete.store.events) + 1, N_PARTS):
        store = complete.store.after(n_writes, torn=torn)
        assert problems(store) == [], n_writes
        team = WaitingTeam(2)
        out = team.resume(Session.load(complete.waited, store=store), store=store).synchronize()
        while isinstance(out.outcome, NeedsApproval):
            assert allow(out, store), n_writes
            out = team.resume(Session.load(complete.waited, store=store), store=store).synchronize()
        is_done = out.outcome == Completed()
        assert is_done or isinstance(out.outcome, NeedsDecision), n_writes
        assert not is_done or (out.id, rows_of(out)) == (complete.waited, complete.rows), n_writes
        assert len(team.sending.sent) == len(set(team.sending.sent)), n_writes
        assert problems(store) == [], n_writes
