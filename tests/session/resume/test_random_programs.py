"""Random programs that fail, wait, are cancelled and go on: a log tells all that memory holds."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rath
from rath import autosave
from rath.flow import Agent
from rath.llm.chat_response import RathLLMAssistantMessage
from rath.session import Session
from rath.session.log.verify import verify
from rath.session.open_calls import OpenCall
from rath.session.outcome import Cancelled, Completed
from rath.session.persistence.store import default_store
from rath.session.run.stored_programs import pass_on, waiting_sessions
from rath.testing import ScriptedClient, Turn, tool_call
from tests.support.api import open_calls
from tests.support.sessions import AsyncFunctionTool, FunctionTool
from tests.support.waiting import PATIENCE

GONE = "the endpoint is gone"
Kind = Literal["quick", "unsafe", "broken", "asked", "asks", "cancels", "helps"]
UNSAFE = ("unsafe", "asked", "cancels")
"""Tools whose calls nobody may repeat without a decision."""


@pytest.fixture(autouse=True, scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        directory = tmp_path_factory.mktemp("random")
        patch.setenv("OPENRATH_HOME", str(directory / "home"))
        patch.chdir(directory)
        yield


@dataclass
class World:
    """What the calls of a program have done; each has a key of its own, which is its id."""

    chance: Random
    has_helpers: bool
    """Else some calls cancel the run: one inside a helper ends a moment after its caller."""

    made: Counter[str] = field(default_factory=Counter[str])
    retried: Counter[str] = field(default_factory=Counter[str])
    helpers: dict[str, Agent] = field(default_factory=dict[str, Agent])
    run: Session | None = None
    is_there: threading.Event = field(default_factory=threading.Event)

    def agent(self, name: str, depth: int = 0) -> Agent:
        turns: list[Turn] = [self._turn(depth) for _ in range(self.chance.randint(0, 2))]
        if self.chance.random() < 0.2:
            turns.insert(self.chance.randint(0, len(turns)), RuntimeError(GONE))
        client = ScriptedClient([*turns, "done"])
        return Agent(name, client.provider, self._tools(), system_tools=False)

    def _turn(self, depth: int) -> RathLLMAssistantMessage:
        kinds: list[Kind] = ["quick", "unsafe", "broken", "asked", "asks"]
        if not self.has_helpers:
            kinds.append("cancels")
        elif depth < 2:
            kinds.append("helps")
        parts: list[Any] = []
        for _ in range(self.chance.randint(1, 3)):
            kind = self.chance.choice(kinds)
            key = f"{kind}-{self.chance.getrandbits(64)}"
            if kind == "helps":
                self.helpers[key] = self.agent(key, depth + 1)
            parts += tool_call(kind, {"key": key}, id=key).tool_calls or ()
        return RathLLMAssistantMessage(tool_calls=tuple(parts))

    def _tools(self) -> list[FunctionTool]:
        tools = [
            FunctionTool(name, work, parallel_safe=self.chance.random() < 0.7)
            for name, work in [
                ("quick", self._work),
                ("unsafe", self._work),
                ("broken", self._break),
                ("asked", self._work),
                ("asks", self._ask),
                ("helps", self._help),
            ]
        ]
        tools.append(AsyncFunctionTool("cancels", self._cancel, parallel_safe=True))
        for tool in tools:
            tool.effects = "non_idempotent" if tool.name in UNSAFE else "idempotent"
            tool.approval = "always" if tool.name == "asked" else "never"
        return tools

    def _work(self, _: Session, arguments: Mapping[str, Any]) -> str:
        self.made[arguments["key"]] += 1
        return str(arguments["key"])

    def _break(self, _: Session, arguments: Mapping[str, Any]) -> None:
        raise ValueError(self._work(_, arguments))

    def _ask(self, _: Session, arguments: Mapping[str, Any]) -> Any:
        return rath.ask(f"what about {arguments['key']}?")

    def _help(self, _: Session, arguments: Mapping[str, Any]) -> str:
        helper = self.helpers[arguments["key"]]
        return pass_on(helper(Session.from_user_message("please help"))).text() or ""

    async def _cancel(self, _: Session, arguments: Mapping[str, Any]) -> str:
        self.made[arguments["key"]] += 1
        if self.made[arguments["key"]] == 1:
            threading.Thread(target=self._cancel_run, daemon=True).start()
            await asyncio.Event().wait()
        return "not any more"

    def _cancel_run(self) -> None:
        assert self.is_there.wait(PATIENCE)
        assert self.run is not None
        self.run.cancel()

    def say(self, session: Session, call: OpenCall) -> None:
        """Say something to a call that waits."""
        match call.waits_for:
            case "approval":
                edit = partial(session.edit, arguments={"key": call.call.id})
                answer: Any = self.chance.choice([session.approve, session.deny, edit])
                answer(call)
            case "input":
                session.answer(self.chance.randrange(9), call)
            case _:
                choice: Any = self.chance.choice(["retry", "skip", "done"])
                self.retried[call.call.id] += choice == "retry"
                session.decide(call, choice)


def assert_log_tells(live: Session) -> Session:
    """Check that what is loaded is what memory holds; return it."""
    loaded, body = Session.load(live.id), live.core.body.latest
    assert body is not None
    has_failed = live.core.body.error() is not None
    record = body.record if has_failed else live.record
    assert loaded.chunk_table == body.table
    assert [row.id for row in loaded.chunk_table] == [row.id for row in body.table]
    assert list(loaded.record) == list(record)
    assert has_failed or loaded.outcome == live.outcome
    calls = open_calls(body, live.id, late=None if has_failed else record)
    assert list(map(reports, loaded.open_calls)) == list(map(reports, calls))
    assert verify(default_store(), live.id).is_sound
    return loaded


def reports(call: OpenCall) -> tuple[object, ...]:
    """What matters of an open call, and can be compared."""
    result = None if call.result is None else call.result.run.id
    decision = None if call.decision is None else call.decision.id
    approval = None if call.said.approval is None else call.said.approval.id
    place = call.asked_in, call.index, call.call
    return (*place, call.state, call.effects, call.waits_for, decision, approval, result)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(chance=st.randoms(use_true_random=True), stored=st.booleans(), helpers=st.booleans())
def test_no_call_is_repeated_and_the_log_tells_all(
    chance: Random, stored: bool, helpers: bool
) -> None:
    world = World(chance, helpers)
    agent = world.agent("first")
    with autosave() if stored else nullcontext():
        world.run = run = agent(Session.from_user_message("go"))
        for _ in range(60):
            world.is_there.set()
            try:
                run.synchronize()
            except RuntimeError as error:
                assert str(error) == GONE  # noqa: PT017  # it may fail, and need not
            loaded = assert_log_tells(run) if stored else run
            if run.core.body.error() is None and run.outcome == Completed():
                break
            run = chance.choice([run, loaded])
            is_cut = run.core.body.error() is None and isinstance(run.outcome, Cancelled)
            waits = (
                [run] if is_cut else waiting_sessions(run) if run.core.body.error() is None else ()
            )
            for each in waits:
                for call in each.open_calls:
                    if call.waits:
                        world.say(each, call)
            world.is_there.clear()
            world.run = run = agent.resume(run, cancelled="go_on")
    assert run.outcome == Completed()
    for key, n_made in world.made.items():
        if key.partition("-")[0] in UNSAFE:
            assert n_made <= 1 + world.retried[key]
    assert run.replay().chunk_table == run.chunk_table
