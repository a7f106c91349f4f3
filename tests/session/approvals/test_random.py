"""Random scripts with approvals, denials, edits, questions and deaths, against a simple model."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rath
from rath.session import Session
from rath.session.calls.decisions import Choice
from rath.session.log.verify import verify
from rath.session.open_calls import OpenCall
from rath.session.outcome import Completed
from rath.session.persistence.store import default_store
from rath.session.tooling import CallRequest
from rath.testing import tool_call
from tests.support.api import partial_path_of
from tests.support.approvals import Effects, Noting, calls_of, go, log_of, results


@pytest.fixture(autouse=True, scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        directory = tmp_path_factory.mktemp("random")
        patch.setenv("OPENRATH_HOME", str(directory / "home"))
        patch.chdir(directory)
        yield


@dataclass
class Call:
    """One call of the script."""

    needs_approval: bool
    n_questions: int
    effects: Effects


@dataclass
class Model:
    """What somebody has said, and what was seen to happen."""

    calls: list[Call]
    allowed: dict[int, tuple[str, int]] = field(default_factory=dict[int, tuple[str, int]])
    """Choice and number with which it is made."""

    answers: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    decided: dict[int, str] = field(default_factory=dict[int, str])
    made: Counter[int] = field(default_factory=Counter[int])
    dies_in: int | None = None
    """The call in which the process dies, after it has asked all it asks."""

    log: Path | None = None
    left: bytes | None = None
    """The log as the dead process has left it."""

    lock: threading.Lock = field(default_factory=threading.Lock)

    def work(self, number: int) -> Any:
        """A call: `number` is ten times its place, plus one where somebody has changed it."""
        at = number // 10
        with self.lock:
            if self.left is not None:
                return "the process is dead"
            assert not self.calls[at].needs_approval or self.allowed[at][0] != "deny"
            self.made[at] += 1
        said = [rath.ask(f"{at}.{each}?", int) for each in range(self.calls[at].n_questions)]
        with self.lock:
            if self.dies_in == at and self.left is None:
                assert self.log is not None
                self.left = partial_path_of(self.log).read_bytes()
        return {"number": number, "said": said}

    def rule(self, call: CallRequest) -> bool:
        return self.calls[int(call.call_id[1:]) // 10].needs_approval

    def tools(self) -> list[Noting]:
        return [
            Noting(name, self.work, approval=self.rule, effects=name)
            for name in ("idempotent", "non_idempotent")
        ]

    def turn(self) -> Any:
        parts = [
            tool_call(call.effects, {"n": 10 * at}, id=f"c{10 * at}")
            for at, call in enumerate(self.calls)
        ]
        whole = [part for turn in parts for part in turn.tool_calls or ()]
        return calls_of(0).__class__(tool_calls=tuple(whole))

    def expected(self, at: int) -> Any:
        """What the model reads of a call in the end."""
        choice, number = self.allowed.get(at, ("approve", 10 * at))
        if self.decided.get(at) in ("skip", "done"):
            return "skipped" if self.decided[at] == "skip" else "it was done"
        if choice == "deny":
            return "denied"
        said = [self.answers[at, each] for each in range(self.calls[at].n_questions)]
        return {"number": number, "said": said}


def read(said: Any) -> Any:
    """What a result says, without what stands around that of an edited call."""
    if said == "it was done":
        return said
    return said["result"] if "arguments" in said else said.get("error_kind", said)


def say(session: Session, call: OpenCall, model: Model, chance: Random) -> None:
    """Say something to a call that waits."""
    at = call.index
    match call.waits_for:
        case "approval":
            choice = chance.choice(["approve", "deny", "edit"])
            model.allowed[at] = (choice, 10 * at + (choice == "edit"))
            given = ({"n": 10 * at + 1},) if choice == "edit" else ()
            getattr(session, choice)(call, *given)
        case "input":
            assert call.question is not None
            nth = int(call.question.rstrip("?").split(".")[1])
            model.answers[at, nth] = chance.randrange(100)
            session.answer(model.answers[at, nth], call)
        case _:
            decision: Choice = chance.choice(get_args(Choice))
            model.decided[at] = decision
            session.decide(call, decision, result="it was done" if decision == "done" else None)


def go_on(session: Session, model: Model, chance: Random) -> Session:
    """Go on, perhaps in a process that dies in one of the calls; return what is found then."""
    open_now = [each.index for each in session.open_calls if each.is_made]
    # Which calls beside it have ended by then is a matter of threads.
    model.dies_in = chance.choice([None, *open_now])
    model.log, model.left = log_of(session.id), None
    known = {each.index for each in session.open_calls if each.state == "known"}
    before = Counter(model.made)
    out = go(["done"], *model.tools(), user=session)
    for at in known:
        assert model.made[at] == before[at], "a call whose result was recorded was repeated"
    left: bytes | None = model.left
    if left is None:
        return out
    path = log_of(session.id)
    path.unlink()
    partial_path_of(path).write_bytes(left)
    found = Session.load(session.id)
    (dead,) = [each for each in found.open_calls if each.index == model.dies_in]
    if model.calls[dead.index].effects == "non_idempotent":
        assert (dead.state, dead.waits_for) == ("begun", "decision")
    else:
        assert not dead.waits  # that it was begun need not be on disk yet
    return found


calls = st.builds(
    Call, st.booleans(), st.integers(0, 2), st.sampled_from(["idempotent", "non_idempotent"])
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(script=st.lists(calls, min_size=1, max_size=4), chance=st.randoms(use_true_random=True))
def test_whatever_is_said_and_whenever_it_dies_a_run_ends_as_was_said(
    script: list[Call], chance: Random
) -> None:
    model = Model(script)
    session = go([model.turn(), "done"], *model.tools(), persist=True)
    for _ in range(60):
        if session.outcome == Completed():
            break
        is_loaded_again = chance.random() < 0.5
        session = Session.load(session.id) if is_loaded_again else session
        waiting = [each for each in session.open_calls if each.waits]
        if waiting:
            say(session, chance.choice(waiting), model, chance)
        else:
            session = go_on(session, model, chance)
    assert session.outcome == Completed()
    told = [(call, read(said)) for call, said in results(session)]
    assert told == [(f"c{10 * at}", model.expected(at)) for at in range(len(script))]
    for at, call in enumerate(script):
        if call.needs_approval and model.allowed[at][0] == "deny":
            assert model.made[at] == 0
    assert verify(default_store(), session.id).is_sound
    loaded = Session.load(session.id)
    assert (loaded.chunk_table, loaded.record) == (session.chunk_table, session.record)
    assert loaded.replay().chunk_table == session.chunk_table
