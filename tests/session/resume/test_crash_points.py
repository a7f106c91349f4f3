"""A program whose store ends after its n-th write goes on to the same end, for every n."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from rath import autosave
from rath.llm.registry import make_client
from rath.session import Session
from rath.session.log.verify import verify
from rath.session.record import ModelCall, ToolRun
from rath.testing import ScriptedClient
from tests.support.api import program_of
from tests.support.crash_program import CrashProgram
from tests.support.journal_store import JournalStore
from tests.support.lanes import quick_sample
from tests.support.sessions import entries_of

N_PARTS = 16
"""Tests among which the points are dealt out, so that each is short."""


class Whole(NamedTuple):
    """A run whose store stayed."""

    store: JournalStore
    rows: list[str]


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    store = JournalStore()
    with pytest.MonkeyPatch.context() as patch, autosave():
        patch.setenv("OPENRATH_STORE", store.url)
        log = tmp_path_factory.mktemp("whole") / "calls"
        out = CrashProgram(log)(Session.from_user_message("go")).synchronize()
        yield Whole(store, rows_of(out))


def rows_of(session: Session) -> list[str]:
    return [row.digest.hex() for row in session.chunk_table]


def sessions_in(store: JournalStore) -> list[Session]:
    """Load what has at least its first line."""
    logs = [store.read(each) for each in store.stamps()]
    started = [log.session for log in logs if log is not None and b"\n" in log.data]
    return [Session.load(each, store=store) for each in started]


def known_results(sessions: list[Session]) -> set[str]:
    runs: list[ToolRun] = []
    for session in sessions:
        left = session.core.body.result().unfinished
        runs += [line.run for line in left.results] if left is not None else []
        runs += entries_of(session, ToolRun)
    return {str((run.arguments or {})["key"]) for run in runs if run.status == "done"}


def n_asked(program: CrashProgram) -> int:
    """Return how often the model of a program was asked; all parts of it have the same one."""
    provider = program.planner.agent.provider
    assert provider is not None
    client = make_client(provider)
    assert isinstance(client, ScriptedClient)
    return len(client.requests)


def began(session: Session, store: JournalStore) -> bool:
    try:
        program_of(session, store).place()
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("torn", [False, True], ids=["whole", "torn"])
@pytest.mark.parametrize("part", quick_sample(range(N_PARTS)))
def test_after_any_write_it_goes_on(part: int, torn: bool, complete: Whole, tmp_path: Path) -> None:
    for n_writes in range(part, len(complete.store.events) + 1, N_PARTS):
        store = complete.store.after(n_writes, torn=torn)
        sessions = sessions_in(store)
        assert all(verify(store, session.id).is_sound for session in sessions)
        known = known_results(sessions)
        for session in [each for each in sessions if began(each, store)][:1]:
            log = tmp_path / f"calls-{n_writes}"
            paid = {call.id for each in sessions for call in entries_of(each, ModelCall)}
            program = CrashProgram(log)
            out = program.resume(session, store=store)
            assert rows_of(out) == complete.rows, n_writes
            counted = [call.id for call in entries_of(out, ModelCall)]
            assert len(set(counted)) == len(counted), n_writes
            assert paid <= set(counted), n_writes
            assert len(counted) == len(paid) + n_asked(program), n_writes
            made = log.read_text().split() if log.exists() else []
            assert not known & set(made), n_writes
            assert len(made) == len(set(made)), n_writes
            assert all(verify(store, each.id).is_sound for each in sessions_in(store)), n_writes
