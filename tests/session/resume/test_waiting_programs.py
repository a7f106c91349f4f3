"""A program that waited for approvals is cut off while it goes on: each id goes on once more."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from rath import autosave
from rath.session import Session
from rath.session.outcome import Completed, NeedsApproval, NeedsDecision
from rath.session.persistence.store import FileStore
from tests.support import waiting_program
from tests.support.decisions_program import VERBS
from tests.support.journal_store import JournalStore
from tests.support.lanes import quick_sample
from tests.support.waiting_program import WaitingTeam, allow, problems

ROLES = ("helper", "boss", "left", "right", "compressor", "finisher")
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


@pytest.mark.skipif(sys.platform == "win32", reason="processes are killed")
@pytest.mark.parametrize("dies", quick_sample(ROLES))
def test_killed_while_a_role_answers_the_files_are_sound_and_the_same_id_goes_on(
    dies: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENRATH_HOME", str(tmp_path / "home"))
    store, log = FileStore(tmp_path / "home" / "sessions"), tmp_path / "log"
    with autosave():
        out = WaitingTeam(log=log)(Session.from_user_message("go")).synchronize()
        allow(out)
        root = Path(__file__).parents[3]
        killed = subprocess.run(
            [sys.executable, "-m", waiting_program.__name__, str(out.id), str(log), dies],
            cwd=root,
            env={**os.environ, "OPENRATH_PERSIST": "1"},
            check=False,
        )
        assert killed.returncode == -signal.SIGKILL
        assert problems(store) == []
        done = WaitingTeam(log=log).resume(Session.load(out.id)).synchronize()
    assert (done.id, done.outcome, done.text()) == (out.id, Completed(), "finisher is done")
    assert log.read_text().split() == ["0"]
    assert problems(store) == []


@pytest.mark.parametrize(
    ("kind", "store"),
    [
        pytest.param(kind, store, marks=[pytest.mark.full] if store != "persist" else [])
        for kind in ("agent", "workflow")
        for store in ("persist", "autosave", "path")
        if (kind, store) != ("agent", "path")
    ],
)
def test_a_decision_holds_in_the_next_process(kind: str, store: str, tmp_path: Path) -> None:
    def step(name: str) -> Any:
        command = [sys.executable, "-m", "tests.support.decisions_program", name]
        done = subprocess.run(
            [*command, kind, store, str(tmp_path)],
            env=os.environ | ({"OPENRATH_PERSIST": "1"} if store == "autosave" else {}),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout or "null")

    step("begin")
    decided = step("decide")
    left = {verb: [] if verb == "decide" else ["c2"] for verb in VERBS}
    assert decided == {"left": left, "made": ["decide 1"]}
    went_on = step("go_on")
    assert went_on["left"] == left
    assert went_on["said"] == dict.fromkeys(VERBS, "It is done.")
    answered = ["answer 1 red", "answer 2 red"]
    made = ["approve 1", "approve 2", "other c1", "other c2", *answered]
    assert sorted(went_on["made"]) == sorted(["decide 1", *made])
