"""Whatever a program goes through, its record counts each call that a model answered, once."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal
from uuid import UUID

import pytest

from rath import autosave
from rath._async.deferred import runs_above
from rath.errors import ProviderError, SessionDamaged
from rath.flow import Agent, Compressor, Selector, Workflow
from rath.llm import Provider, register_chat_client
from rath.llm.chat_request import RathLLMChatRequest
from rath.llm.chat_response import RathLLMAssistantMessage
from rath.session import Session
from rath.session.calls.decisions import Choice
from rath.session.hooks import ModelTurn
from rath.session.log.verify import verify
from rath.session.outcome import Completed
from rath.session.record import ModelCall
from rath.session.run.stored_programs import waiting_sessions
from rath.session.tooling import CallRequest
from rath.testing import ScriptedClient, tool_call
from tests.flow.test_workflow_resume import go
from tests.support.api import Entry, program_of
from tests.support.journal_store import JournalStore
from tests.support.lanes import quick_sample
from tests.support.sessions import FunctionTool
from tests.support.waiting import wait_until

MAX_GOES = 60
"""Far more than any of these programs needs."""

SCRIPT: dict[str, list[list[tuple[str, dict[str, Any]]]]] = {
    "planner": [[("look", {"key": "p1"}), ("helper", {"task": "help"})], [("look", {"key": "p2"})]],
    "left": [[("look", {"key": "l1"}), ("look", {"key": "l2"})]],
    "right": [[("helper", {"task": "more"})]],
    "helper": [[("look", {"key": "h1"})]],
}
"""By role: for each turn the calls that it makes; the turn after the last one is text."""


class Chances:
    """Chances of things that go on side by side: each has its own, whatever the others do."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._of: dict[str, random.Random] = {}

    def falls(self, what: str, probability: float) -> bool:
        """Tell whether something happens this time."""
        chance = self._of.setdefault(what, random.Random(f"{self.seed} {what}"))
        return chance.random() < probability


_names = itertools.count(1)


class Model:
    """A model that answers by the request alone, and fails at times.

    Args:
        chances: Decide when.
    """

    def __init__(self, chances: Chances) -> None:
        self.chances = chances
        self._lock = threading.Lock()
        self.n_answered = 0
        client = ScriptedClient([self.answer] * 10_000)
        name = f"accounting-{next(_names)}"
        register_chat_client(name, lambda _: client)
        self.provider = Provider(provider_kind=name, model="accounting")

    def answer(self, request: RathLLMChatRequest) -> RathLLMAssistantMessage:
        role = str(request.messages[0].content)
        if self.chances.falls(f"no line for {role}", 0.1):
            raise RuntimeError("the line is down")
        with self._lock:
            self.n_answered += 1
        if role == "short" and self.chances.falls("no summary", 0.3):
            return RathLLMAssistantMessage(content=" ")
        if role not in SCRIPT:
            return RathLLMAssistantMessage(content="1" if role == "select" else f"{role} is done")
        reply = [message for message in request.messages if _is_of(role, message.tool_calls or ())]
        if len(reply) == len(SCRIPT[role]):
            return RathLLMAssistantMessage(content=f"{role} is done")
        calls = [
            tool_call(name, arguments, id=f"{role}-{len(reply)}-{at}")
            for at, (name, arguments) in enumerate(SCRIPT[role][len(reply)])
        ]
        parts = [part for turn in calls for part in turn.tool_calls or ()]
        return RathLLMAssistantMessage(tool_calls=tuple(parts))


def _is_of(role: str, calls: Any) -> bool:
    return any(str(call["id"]).startswith(f"{role}-") for call in calls)


class Busy(Workflow):
    """Agents that ask each other, wait, are hooked, branch, sum up and choose."""

    def __init__(self, model: Model, *, helping: Literal["never", "always"]) -> None:
        super().__init__()
        look = FunctionTool("look", self._look, parallel_safe=True)
        look.effects = "idempotent"
        self.chances = model.chances

        def agent(role: str, *tools: Any, **options: Any) -> Agent:
            made = Agent(
                role,
                model.provider,
                list(tools),
                system_tools=False,
                description=role,
                **options,
            )
            made.register_model_hook(self._hooked)
            return made

        self.helper = agent("helper", look, approval=helping)
        helper = self.helper.as_tool("helper", effects="idempotent")
        self.planner = agent("planner", look, helper, approval=self._rule)
        self.planner.register_tool_hook(self._changed, when="before")
        self.left, self.right = agent("left", look), agent("right", helper)
        self.short = Compressor("short", model.provider)
        self.select = Selector(model.provider, select_instruction="select")
        self.finisher = agent("finisher")
        self.planned: Session | None = None
        self.last: Session | None = None
        """What is resumed where `forward` itself fails: all that was made is behind it."""

    def forward(self, session: Session) -> Session:
        self.planned = planned = self.planner(session)
        left, right = self.left(planned.fork()), self.right(planned.fork())
        self.last = short = self.short(left.merge(right))
        self.select.forward(short, self.planner, self.finisher)
        return self.finisher(short)

    def _look(self, _: Session, arguments: Mapping[str, Any]) -> Any:
        return {"saw": arguments["key"]}

    def _rule(self, call: CallRequest) -> bool:
        return str(call.arguments.get("key")) == "P1"

    def _hooked(self, agent: Agent, turn: ModelTurn) -> ModelTurn | None:
        if self.chances.falls(f"no hook for {agent.description}", 0.05):
            raise RuntimeError("the hook has no line")
        return replace(turn, text=f"{turn.text}!") if turn.text else None

    def _changed(self, _: Agent, call: CallRequest) -> CallRequest | None:
        if "key" not in call.arguments:
            return None
        return replace(call, arguments={"key": str(call.arguments["key"]).upper()[:2]})


def sessions_in(store: JournalStore) -> list[Session]:
    """Load what can be: what only passed on that another one waits may stand on what is gone."""
    logs = [store.read(each) for each in store.stamps()]
    found: list[Session] = []
    for log in logs:
        if log is not None and b"\n" in log.data:
            with contextlib.suppress(SessionDamaged):
                found.append(Session.load(log.session, store=store))
    return found


def say_yes(session: Session) -> None:
    """Approve all that a session waits for."""
    for each in waiting_sessions(session):
        for call in each.open_calls:
            if call.waits_for == "approval":
                each.approve(call)


def paid(sessions: list[Session]) -> set[Any]:
    """The ids of the calls that were answered."""
    entries: list[Entry] = [entry for session in sessions for entry in session.partial_record]
    return {e.id for e in entries if isinstance(e, ModelCall) and e.evidence.usage is not None}


def gone_on(program: Busy, session: Session | None, **options: Any) -> tuple[Session, bool]:
    """Have a program go on, or begin; return a session of it, and whether it is done."""
    try:
        if session is None:
            out = program(go())
        else:
            out = program.resume(session, **options)
    except (ProviderError, RuntimeError):
        assert program.last is not None
        return program.last, False
    assert program.planned is not None
    try:
        # In memory only who holds what waits can speak to it.
        waits = program.planned if waiting_sessions(program.planned) else out
        say_yes(waits)
        outcome = out.outcome
    except (ProviderError, RuntimeError):
        return out, False
    return waits, outcome == Completed()


def check(out: Session, n_expected: int) -> None:
    """Check that a record counts each call that was answered, once, and the sum is theirs."""
    calls = [e for e in out.record if isinstance(e, ModelCall) and e.evidence.usage is not None]
    assert len({call.id for call in calls}) == len(calls)
    assert len(calls) == n_expected
    usage = out.cumulative_usage
    assert usage is not None
    assert usage.total_tokens == sum(
        c.evidence.usage.total_tokens for c in calls if c.evidence.usage
    )


@pytest.mark.parametrize("seed", quick_sample(range(12), n_quick=3))
def test_in_memory_all_that_was_answered_is_counted_once(seed: int) -> None:
    model = Model(Chances(seed))
    program, out, is_done = Busy(model, helping="never"), None, False
    for _ in range(MAX_GOES):
        out, is_done = gone_on(program, out)
        if is_done:
            break
    assert is_done
    assert out is not None
    check(out, model.n_answered)


def first_of(store: JournalStore) -> Session | None:
    """A session of a stored program that says where it was made, None where none does yet."""
    for session in sessions_in(store):
        try:
            program_of(session, store).place()
        except ValueError:
            continue
        return session
    return None


@pytest.mark.parametrize("seed", quick_sample(range(12), n_quick=3))
def test_after_crashes_every_answer_counts_once(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    model, store = Model(Chances(seed)), JournalStore()
    program, out, is_done = Busy(model, helping="always"), None, False
    n_known, n_crashes = 0, 3
    with autosave():
        for _ in range(MAX_GOES):
            monkeypatch.setenv("OPENRATH_STORE", store.url)
            out, is_done = gone_on(program, out, store=store)
            if n_crashes and chance.random() < 0.5:
                n_crashes -= 1
                quiet(out)
                store = store.after(chance.randint(0, len(store.events)), torn=bool(seed % 2))
                # What the process still does that has gone counts no more.
                n_known, model = len(paid(sessions_in(store))), Model(model.chances)
                program, out, is_done = Busy(model, helping="always"), first_of(store), False
            if is_done:
                break
    assert is_done
    assert out is not None
    check(out, n_known + model.n_answered)
    assert all(verify(store, each.id).is_sound for each in sessions_in(store))


def quiet(session: Session) -> None:
    """Wait until nothing of a program goes on any more."""
    with contextlib.suppress(ProviderError, RuntimeError):
        session.synchronize()


@pytest.mark.parametrize("choice", ["skip", "done"])
def test_a_decision_keeps_what_was_paid(choice: Choice, monkeypatch: pytest.MonkeyPatch) -> None:
    store, crashed = JournalStore(), list[JournalStore]()
    monkeypatch.setenv("OPENRATH_STORE", store.url)

    def knows_of_two(boss: UUID) -> bool:
        log = store.read(boss)
        return log is not None and log.data.count(b'"purpose"') == 2

    def look(session: Session, _: object) -> str:
        (boss,) = runs_above.get() - {session.id}
        wait_until(lambda: knows_of_two(boss), "the calls in the log of the outer run")
        crashed.append(store.after(len(store.events)))
        return "seen"

    def boss_of(*turns: Any) -> Agent:
        inner = ScriptedClient([tool_call("look", {}, id="b"), "help"]).provider
        helper = Agent("helper", inner, [FunctionTool("look", look)], system_tools=False)
        tools = [helper.as_tool("helper")]
        return Agent("boss", ScriptedClient(turns).provider, tools, system_tools=False)

    with autosave():
        complete = boss_of(tool_call("helper", {"task": "x"}, id="a"), "done")(go()).synchronize()
    (left,) = crashed
    waits = Session.load(complete.id, store=left).decide("a", choice)
    out = boss_of("done").resume(waits, store=left).synchronize()
    check(out, 3)
