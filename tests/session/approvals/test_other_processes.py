"""What waits in a store is answered and gone on with by other processes, killed ones among them."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from rath import autosave
from rath.errors import PersistenceError
from rath.flow import Agent, Workflow
from rath.session import Session
from rath.session.log.verify import verify
from rath.session.outcome import Completed, NeedsApproval, NeedsDecision, NeedsInput
from rath.session.persistence.store import default_store
from rath.testing import ScriptedClient
from tests.session.calls.test_asking import asking
from tests.support.approvals import Noting, calls_of, go, log_of, results, tool_runs, waiting

SAY = """
import json, sys
from rath.session import Session
session = Session.load(sys.argv[1])
for method, *given in json.loads(sys.argv[2]):
    getattr(session, method)(*given)
print(session.outcome)
"""
GO_ON = """
import json, os, sys
from rath.session import Session
from tests.session.calls.test_asking import asking
from tests.support.approvals import Noting, go, log_of

def work(number):
    with open(sys.argv[2], "a") as log:
        log.write(f"{number}\\n")
    if number == int(sys.argv[3]):
        os.kill(os.getpid(), 9)
    return {"said": number}

tool = Noting(work=work, effects=sys.argv[4])
out = go(["done"], tool, user=Session.load(sys.argv[1]))
print(type(out.outcome).__name__)
"""
NOBODY = -1


def elsewhere(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own."""
    root = Path(__file__).parents[3]
    paths = [str(root), str(root / "src"), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        check=False,
    )


def say(session: UUID, *words: list[Any]) -> str:
    """Have another process say something to a stored session."""
    done = elsewhere(SAY, str(session), json.dumps(words))
    assert done.returncode == 0, done.stderr
    return done.stdout


def go_on(session: UUID, log: Path, *, dies_at: int = NOBODY, effects: str = "idempotent") -> str:
    """Have another process go on; returns how it ended, "" where it was killed."""
    return elsewhere(GO_ON, str(session), str(log), str(dies_at), effects).stdout.strip()


def made(log: Path) -> list[int]:
    """The calls that were made, in any order."""
    return sorted(int(line) for line in log.read_text().split()) if log.exists() else []


@pytest.mark.full
@pytest.mark.timeout(60)
@pytest.mark.parametrize("seed", [1, 2])
def test_ten_calls_are_answered_elsewhere_in_any_order_and_exactly_those_allowed_are_made(
    seed: int, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    numbers = list(range(10))
    session = waiting(*numbers, persist=True)
    reply = {n: chance.choice(["approve", "deny", "edit"]) for n in numbers}
    given: dict[str, Any] = {"approve": [], "deny": ["no"], "edit": None}
    order = chance.sample(numbers, len(numbers))
    for at, n in enumerate(order):
        more = [{"n": n + 100}] if reply[n] == "edit" else given[reply[n]]
        left = tuple(f"c{each}" for each in numbers if each not in order[: at + 1])
        reports = say(session.id, [reply[n], f"c{n}", *more])
        assert reports.strip() == repr(NeedsApproval(session.id, left))
    log = tmp_path / "log"
    assert go_on(session.id, log, effects="non_idempotent") == "Completed"
    wanted = [n + 100 if reply[n] == "edit" else n for n in numbers if reply[n] != "deny"]
    assert made(log) == sorted(wanted)
    out = Session.load(session.id)
    assert [call for call, _ in results(out)] == [f"c{n}" for n in numbers]
    expected = {"approve": "done", "deny": "denied", "edit": "done"}
    assert [run.status for run in tool_runs(out).values()] == [expected[reply[n]] for n in numbers]
    assert verify(default_store(), session.id).is_sound
    assert out.replay().chunk_table == out.chunk_table


def test_two_who_decide_at_once_lose_nothing() -> None:
    session = waiting(1, 2, persist=True)
    first, second = Session.load(session.id), Session.load(session.id)
    first.approve("c1")
    with pytest.raises(PersistenceError, match=r"changed by somebody else.*Load the session again"):
        second.approve("c2")
    assert second.outcome == NeedsApproval(session.id, ("c1", "c2"))
    Session.load(session.id).approve("c2")
    assert Session.load(session.id).outcome == NeedsApproval(session.id, ())


@pytest.mark.full
def test_killed_in_the_round_that_was_allowed_a_call_of_unknown_end_is_not_made_again(
    tmp_path: Path,
) -> None:
    session, log = waiting(1, persist=True), tmp_path / "log"
    say(session.id, ["edit", "c1", {"n": 7}])
    assert go_on(session.id, log, dies_at=7, effects="non_idempotent") == ""
    assert made(log) == [7]
    found = Session.load(session.id)
    assert found.outcome == NeedsDecision(session.id, ("c1",))
    with pytest.raises(ValueError, match=r"session.decide"):
        found.approve("c1")
    assert go_on(session.id, log, effects="non_idempotent") == "NeedsDecision"
    assert made(log) == [7]
    # With that it is made again, and with the arguments that were allowed.
    say(session.id, ["decide", "c1", "retry"])
    assert go_on(session.id, log, effects="non_idempotent") == "Completed"
    assert made(log) == [7, 7]
    ((_, reply),) = results(Session.load(session.id))
    assert reply["arguments"] == {"n": 7}


@pytest.mark.parametrize("n_lost", [1, 40, 200])
def test_a_decision_whose_writer_was_killed_is_none_and_can_be_made_again(n_lost: int) -> None:
    session = waiting(1, 2, persist=True).approve("c1")
    path = log_of(session.id)
    path.write_bytes(path.read_bytes()[:-n_lost])
    found = Session.load(session.id)
    assert found.outcome == NeedsApproval(session.id, ("c1", "c2"))
    found.approve("c1").approve("c2")
    tool = Noting()
    go(["done"], tool, user=Session.load(session.id))
    assert sorted(tool.calls) == [1, 2]


class Pair(Workflow):
    """Two agents, one after the other; each turn of the script is a turn of either."""

    def __init__(self, turns: list[Any], tool: Noting) -> None:
        provider = ScriptedClient(turns).provider
        self.first = Agent("first", provider, [tool], system_tools=False)
        self.second = Agent("second", provider, system_tools=False)

    def forward(self, session: Session) -> Session:
        return self.second(self.first(session))


def test_a_workflow_goes_on_where_its_agent_waits_and_does_the_rest() -> None:
    tool = Noting()
    with autosave():
        out = Pair([calls_of(1)], tool)(Session.from_user_message("go")).synchronize()
    outcome = out.outcome
    assert isinstance(outcome, NeedsApproval)
    assert outcome.session != out.id
    stopped = Session.load(outcome.session).approve("c1")
    done = Pair(["one", "two"], tool).resume(stopped)
    assert (done.id, done.text(), done.outcome) == (out.id, "two", Completed())
    assert tool.calls == [1]


ASKING = """
import sys
from rath.session import Session
from tests.session.calls.test_asking import asking
from tests.support.approvals import go, log_of
out = go(["done"], asking(), user=Session.load(sys.argv[1]))
print(type(out.outcome).__name__)
"""


def test_a_question_is_answered_by_another_process_and_the_run_goes_on_in_a_third() -> None:
    session = go([calls_of(1, 2)], asking(), persist=True)
    assert isinstance(session.outcome, NeedsInput)
    say(session.id, ["answer", "red", "c1"], ["answer", "blue", "c2"])
    done = elsewhere(ASKING, str(session.id))
    assert done.stdout.strip() == "Completed", done.stderr
    assert results(Session.load(session.id)) == [("c1", ["red", 1]), ("c2", ["blue", 2])]
