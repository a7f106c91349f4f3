"""Two processes run one session by key, and are stopped, cut off and woken at random points."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID, uuid4

import pytest

from rath.session import Session
from rath.session.log.verify import verify
from rath.session.outcome import Completed
from rath.session.persistence.store import SessionStore, open_store
from rath.session.record import ToolRun
from rath.session.run.stored_programs import waiting_sessions
from tests.support.lanes import quick_sample
from tests.support.postgres_proxy import PostgresProxy, running_proxy
from tests.support.postgres_server import PostgresServer, postgres
from tests.support.sessions import entries_of
from tests.support.two_runners import Runner, answered_calls, counted, go, rows_of

__all__ = ["postgres"]

N_POINTS = 50 if os.environ.get("RATH_FULL") == "1" else 3
SEED = int(os.environ.get("RATH_SEED", "17"))
NOTED = ("p2", "p4", "l1", "l2", "f1")
"""Calls of a tool that must not be made twice."""

KEYS = {*NOTED, "p1", "p3", "r1", "r2", "h1"}
MAX_DECISIONS = 20


class Campaign:
    """Two runners of one session, and what is to hold of it.

    Args:
        folder: Where the program has its effects.
        store: The store, as this process reaches it.
        chance: Decides about everything.
    """

    def __init__(self, folder: Path, store: SessionStore, chance: Random) -> None:
        self.folder = folder
        self.store = store
        self.chance = chance
        self.known: dict[str, int] = {}
        """By call whose answer is recorded: how often it was made until then."""

    def start(self, url: str, n_events: int, stack: contextlib.ExitStack) -> Runner:
        """Start a runner that stops somewhere, and wait until it has."""
        at = self.chance.randint(1, n_events)
        runner = Runner(self.folder, url, at)
        stack.callback(runner.close)
        is_stopped = runner.wait_for_stop()
        sys.stdout.write(f"a runner {'stops at' if is_stopped else 'has ended before'} {at}\n")
        return runner

    def look(self) -> None:
        """Note which calls are answered by now."""
        made = counted(self.folder, "calls")
        for call in answered_calls(self.store):
            self.known.setdefault(call, made[call])

    def check_end(self, runner: Runner) -> None:
        """Check that a runner has told what became of its run."""
        told = runner.result()
        sys.stdout.write(f"it ends with {told['end']} {told.get('text', '')}\n")
        if told.get("is_told"):
            return
        assert told["end"] in ("Completed", "NeedsDecision"), told
        if told["end"] == "Completed":
            stored = Session.load(UUID(told["id"]), store=self.store)
            assert rows_of(stored) == told["rows"]

    def finish(self) -> Session:
        """Go on until all is done, and decide what nobody may repeat unasked."""
        for _ in range(MAX_DECISIONS):
            out = go(self.folder, self.store)
            if out.outcome == Completed():
                return out
            seen = counted(self.folder, "effects")
            for session in waiting_sessions(out):
                for call in session.open_calls:
                    if call.waits:
                        is_done = seen[call.call.id.rpartition("-")[2]]
                        session.decide(call, "done" if is_done else "retry")
        raise AssertionError("it never ends")

    def check(self, n_unseen: int) -> None:
        """Check effects, calls and logs.

        Args:
            n_unseen: Calls that a runner may have made that had lost its log and could not know.
        """
        out = self.finish()
        assert out.text() == "finisher is done"
        effects, calls = counted(self.folder, "effects"), counted(self.folder, "calls")
        # A helper that lost its log is an error of the tool that asked it, as the record says.
        failed = {run.call_id for run in entries_of(out, ToolRun) if run.status != "done"}
        assert KEYS - set(effects) <= ({"h1"} if "right-r1" in failed else set())
        assert {key: effects[key] for key in NOTED} == dict.fromkeys(NOTED, 1)
        again = {call: calls[call] - n for call, n in self.known.items() if calls[call] != n}
        sys.stdout.write(f"made again of {len(self.known)}: {again}; effects: {effects}\n")
        assert sum(again.values()) <= n_unseen
        assert [str(v) for v in map(self._verify, self.store.stamps()) if not v.is_sound] == []

    def _verify(self, session: UUID) -> Any:
        return verify(self.store, session)


@pytest.fixture(scope="module")
def n_events(tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many events a run has that nobody stops."""
    folder = tmp_path_factory.mktemp("whole")
    runner = Runner(folder, str(folder / "store"))
    return int(runner.result()["n_events"])


@pytest.mark.parametrize("number", quick_sample(range(N_POINTS)))
def test_runners_of_one_session_in_files(tmp_path: Path, n_events: int, number: int) -> None:
    chance = Random(f"{SEED} {number}")
    sys.stdout.write(f"RATH_SEED={SEED}, point {number}\n")
    url = str(tmp_path / "store")
    campaign = Campaign(tmp_path, open_store(url), chance)
    with contextlib.ExitStack() as stack:
        first = campaign.start(url, n_events, stack)
        campaign.look()
        second = campaign.start(url, n_events, stack)
        campaign.look()
        for runner in chance.sample([first, second], 2):
            runner.wake()
            campaign.check_end(runner)
    campaign.check(n_unseen=0)


class Link:
    """How a runner reaches the server: through a proxy of its own, which can cut it off."""

    def __init__(self, proxy: PostgresProxy, schema: str) -> None:
        self._proxy = proxy
        self.url = proxy.url(schema=schema)

    def fail(self, way: str) -> None:
        """Cut it off now, or with the next answer; or leave it."""
        sys.stdout.write(f"its connections: {way}\n")
        if way == "cut":
            self._proxy.cut()
        elif way == "lose an answer":
            self._proxy.lose_answer_to(b"")


FAILURES = ("leave", "cut", "cut", "lose an answer")


@pytest.mark.timeout(180)
@pytest.mark.parametrize("number", quick_sample(range(N_POINTS)))
def test_runners_of_one_session_in_postgres(
    postgres: PostgresServer, tmp_path: Path, n_events: int, number: int
) -> None:
    chance = Random(f"{SEED} {number} postgres")
    sys.stdout.write(f"RATH_SEED={SEED}, point {number}\n")
    schema = f"s{uuid4().hex}"
    campaign = Campaign(tmp_path, open_store(postgres.url(schema=schema)), chance)
    with contextlib.ExitStack() as stack:
        links = [Link(stack.enter_context(running_proxy(postgres)), schema) for _ in range(2)]
        runners: list[Runner] = []
        for link in links:
            # Of three events of a write in files a server has two: it never tears a line.
            runners.append(campaign.start(link.url, n_events * 2 // 3, stack))
            link.fail(chance.choice(FAILURES))
            campaign.look()
        order = chance.sample(runners, 2)
        if chance.random() < 0.5:
            order[1].wake()
        for runner in order:
            runner.wake()
            campaign.check_end(runner)
    campaign.check(n_unseen=2)
    campaign.store.close()
