"""Programs that go on in the less usual ways: pending parts, cut off calls, tools that ask."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import pytest

from rath import autosave
from rath.errors import BudgetExceededError, PersistenceError, ResumeMismatch
from rath.flow import Agent, Compressor, Workflow
from rath.llm.chat_request import RathLLMChatRequest
from rath.llm.chat_response import RathLLMAssistantMessage
from rath.llm.provider import Provider
from rath.session import Session
from rath.session.content import ToolFeedback
from rath.session.graph.recording import Provenance
from rath.session.log.verify import verify
from rath.session.outcome import BudgetExceeded, Cancelled, Completed, NeedsDecision
from rath.session.record import ModelCall, Operation
from rath.testing import ScriptedClient, Turn, tool_call
from tests.flow.test_workflow_resume import GONE, Program, both, go
from tests.session.programs.test_going_on import Counting, f_calls, rows_of
from tests.support.api import StoredSource
from tests.support.journal_store import JournalStore
from tests.support.sessions import AsyncFunctionTool, FunctionTool, entries_of
from tests.support.waiting import PATIENCE, wait_until


def parent(session: Session) -> Session:
    """The session that another one was made of first."""
    edge = session.provenance.parents[0]
    assert edge.body is not None
    assert edge.provenance is not None
    return Session.from_body(edge.body, edge.provenance, id=edge.id)


# ---- calls that were cut off


def cancelled_inside(tool: FunctionTool, inside: threading.Event) -> Session:
    agent = Agent("one", ScriptedClient([tool_call("wait", id="w")]).provider, [tool])
    out = agent(go())
    assert inside.wait(PATIENCE)
    assert out.cancel().synchronize().outcome == Cancelled(out.id)
    return out


def waiting_tool(effects: Any) -> tuple[FunctionTool, threading.Event]:
    inside = threading.Event()

    async def wait(*_: object) -> str:
        inside.set()
        await asyncio.Event().wait()
        return "never"

    tool = AsyncFunctionTool("wait", wait)
    tool.effects = effects
    return tool, inside


@pytest.mark.parametrize("is_stored", [False, True], ids=["in memory", "stored"])
def test_a_call_made_after_those_next_to_it_has_its_result_once(is_stored: bool) -> None:
    wait, inside = waiting_tool("idempotent")
    quick = FunctionTool("quick", lambda *_: "quick")
    wait.parallel_safe = quick.parallel_safe = True
    calls = tool_call("wait", "", tool_call("quick", id="q"), id="w")
    script = ScriptedClient([calls, RuntimeError("the endpoint is gone"), "done"])
    agent = Agent("one", script.provider, [wait, quick], system_tools=False)
    with autosave() if is_stored else nullcontext():
        out = agent(go())
        assert inside.wait(PATIENCE)
        wait_until(lambda: _has_result(out))
        assert out.cancel().synchronize().outcome == Cancelled(out.id)
        at_last = Counting("wait", "idempotent")
        agent = Agent("one", script.provider, [at_last, quick], system_tools=False)
        failed = agent.resume(out, cancelled="go_on")
        with pytest.raises(RuntimeError, match="the endpoint is gone"):
            failed.synchronize()
        again = agent.resume(Session.load(out.id) if is_stored else failed)
        assert again.text() == "done"
    contents = [row.content for row in again.chunk_table]
    reply = [each.call_id for each in contents if isinstance(each, ToolFeedback)]
    assert reply == ["q", "w"]
    assert len(at_last.calls) == 1
    assert again.replay().chunk_table == again.chunk_table


def _has_result(session: Session) -> bool:
    body = session.body.latest
    left = None if body is None else body.unfinished
    return left is not None and bool(left.results)


# ---- agents in tools


class Asking(FunctionTool):
    """A tool that asks an agent of its own."""

    effects = "idempotent"

    def __init__(self, client: ScriptedClient) -> None:
        super().__init__("ask", self._ask)
        self._agent = Agent("helper", client.provider, system_tools=False)
        self.asked: list[Session] = []

    def _ask(self, _: Session, __: Mapping[str, Any]) -> Any:
        self.asked.append(self._agent(Session.from_user_message("please help")).synchronize())
        return self.asked[-1].text()


SCRIPT: list[Turn] = [tool_call("ask", id="a"), "one", "two"]


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> JournalStore:
    store = JournalStore()
    monkeypatch.setenv("OPENRATH_STORE", store.url)
    return store


def asked_and_cut_off(store: JournalStore) -> tuple[Session, JournalStore, Asking]:
    """A program of which the store ends before the result of a call that had asked an agent."""
    tool = Asking(ScriptedClient(["I help"]))
    with autosave():
        complete = Program(ScriptedClient(SCRIPT), both, tool)(go()).synchronize()
    helper = tool.asked[0]
    done = next(
        at
        for at, event in enumerate(store.events, start=1)
        if event.kind == "finish" and event.session == helper.id
    )
    return complete, store.after(done), tool


def test_a_session_of_a_tool_stands_for_its_program(stored: JournalStore) -> None:
    complete, cut, tool = asked_and_cut_off(stored)
    inside = Session.load(tool.asked[0].id, store=cut)
    out = Program(ScriptedClient(SCRIPT[1:]), both, Asking(ScriptedClient([]))).resume(
        inside, store=cut
    )
    assert out.synchronize().id == complete.id


def chain(program: Program, session: Session) -> Session:
    return program.short(program.second(program.first(session)).fork())


SAID = {"first": "one", "second": "two", "short": "in short"}


def by_role(request: RathLLMChatRequest) -> str:
    """What each agent of a program says, however often a model was asked before."""
    return SAID.get(str(request.messages[0].content), "in short")


def answering() -> ScriptedClient:
    return ScriptedClient([by_role] * len(SAID))


def passed_on_and_decided(stored: JournalStore) -> tuple[Session, Session, JournalStore]:
    """A whole program, and one whose every session passed on that its first one waited."""
    with autosave():
        client = ScriptedClient([f_calls(1), *[by_role] * len(SAID)])
        complete = Program(client, chain, Counting())(go()).synchronize()
    reply = next(at for at, event in enumerate(stored.events, 1) if b'"intent"' in event.data)
    cut = stored.after(reply)
    first = Session.load(cut.events[-1].session, store=cut)
    passed_on = Program(ScriptedClient([]), chain, Counting()).resume(first, store=cut)
    assert passed_on.outcome == NeedsDecision(first.id, ("call_1",))
    first = Session.load(first.id, store=cut).decide("call_1", "retry")
    return complete, first, cut


def test_what_was_passed_on_goes_on_from_anywhere(stored: JournalStore) -> None:
    complete, first, cut = passed_on_and_decided(stored)
    n_before = len(cut.events)
    Program(answering(), chain, Counting()).resume(first, store=cut).synchronize()
    for n_writes in range(n_before, len(cut.events)):
        store = cut.after(n_writes)
        again = Session.load(first.id, store=store)
        for call in (each.call.id for each in again.open_calls if each.waits):
            again.decide(call, "retry")
        out = Program(answering(), chain, Counting()).resume(again, store=store)
        assert rows_of(out) == rows_of(complete), n_writes


# ---- parents that a program brings along


OUTSIDE = "a session that was made before the program ran"


class Joined(Workflow):
    def __init__(self, client: ScriptedClient, text: str) -> None:
        super().__init__()
        self.first = Agent("first", client.provider, system_tools=False)
        self.beside = Session.from_user_message(text)

    def forward(self, session: Session) -> Session:
        return self.first(session.merge(self.beside))


def test_a_parent_is_known_by_what_it_says() -> None:
    out = Joined(ScriptedClient([GONE]), OUTSIDE)(go())
    with pytest.raises(RuntimeError):
        out.synchronize()
    assert Joined(ScriptedClient(["one"]), OUTSIDE).resume(out).text() == "one"
    with pytest.raises(ResumeMismatch, match="a parent differs"):
        Joined(ScriptedClient([]), "another one").resume(out)


def agent(*turns: str) -> Agent:
    return Agent("one", ScriptedClient(turns).provider, system_tools=False)


def test_a_store_without_the_beginning_is_named() -> None:
    store = JournalStore()
    made = agent("one")(Session.from_user_message("go")).synchronize()
    alone = Session.from_body(made.body, Provenance(), id=made.id)
    with pytest.raises(PersistenceError, match=f"is not in {store.where}"):
        agent().resume(alone, store=store)


def stored_run() -> tuple[JournalStore, Session]:
    store = JournalStore()
    made = agent("one")(Session.from_user_message("go")).synchronize()
    made.save(store=store)
    return store, made


def test_a_log_that_lacks_only_its_name_is_finished_when_it_is_served() -> None:
    store, made = stored_run()
    n_events = next(
        at
        for at, event in enumerate(store.events)
        if (event.kind, event.session) == ("finish", made.id)
    )
    cut = store.after(n_events)
    found = StoredSource(cut).find(made.id)
    assert found is not None
    assert found.body.result().outcome == Completed()
    assert made.id in cut.finished


USELESS = tool_call("f")


"""An answer that is paid for, and no summary."""


def summed_up(program: Program, session: Session) -> Session:
    return program.second(program.short(program.first(session)))


def purposes(session: Session) -> list[str]:
    return [call.purpose for call in entries_of(session, ModelCall)]


def total(session: Session) -> int:
    """The tokens of all calls, each of another id."""
    calls = {call.id: call for call in entries_of(session, ModelCall)}.values()
    assert len(calls) == len(entries_of(session, ModelCall))
    return sum(call.evidence.usage.total_tokens for call in calls if call.evidence.usage)


def failed_summary(*more: Any, provider: Provider | None = None) -> Session:
    """A program whose compression failed after it was paid for."""
    out = Program(ScriptedClient(["one", USELESS, *more], provider=provider), summed_up)(go())
    with pytest.raises((RuntimeError, BudgetExceededError)):
        out.synchronize()
    return out


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> JournalStore:
    made = JournalStore()
    monkeypatch.setenv("OPENRATH_STORE", made.url)
    return made


def sessions_in(store: JournalStore) -> list[Session]:
    """Load what has at least its first line."""
    logs = [store.read(each) for each in store.stamps()]
    started = [log.session for log in logs if log is not None and b"\n" in log.data]
    return [Session.load(each, store=store) for each in started]


def loaded_first(store: JournalStore) -> Session:
    """A session of the stored program that says where it was made."""
    found = sessions_in(store)
    return next(one for one in found if any(isinstance(e, Operation) for e in one.record))


def test_no_write_of_the_second_try_loses_what_the_first_one_paid(store: JournalStore) -> None:
    with autosave():
        failed_summary()
        n_failed = len(store.events)
        gone = loaded_first(store)
        Program(ScriptedClient(["in short", "two"]), summed_up).resume(gone).synchronize()
    for n_writes in range(n_failed, len(store.events) + 1):
        for torn in (False, True):
            left = store.after(n_writes, torn=torn)
            known = {call.id for one in sessions_in(left) for call in entries_of(one, ModelCall)}
            client = ScriptedClient([by_role] * 2)
            again = Program(client, summed_up).resume(loaded_first(left), store=left)
            assert again.text() == "two"
            assert purposes(again) == ["turn", "compress", "compress", "turn"], n_writes
            assert known <= {call.id for call in entries_of(again, ModelCall)}
            assert len(entries_of(again, ModelCall)) == len(known) + len(client.requests), n_writes
            assert verify(left, again.id).is_sound


def test_a_compression_whose_instructions_changed_is_refused() -> None:
    out = failed_summary()
    program = Program(ScriptedClient(["in short", "two"]), summed_up)
    program.short = Compressor("another way", program.short.agent.provider)
    with pytest.raises(ResumeMismatch, match="instructions differs"):
        program.resume(out).synchronize()


def raising(*_: object) -> None:
    raise BudgetExceededError(1, 2)


def test_a_summary_that_was_paid_for_is_not_asked_for_again() -> None:
    limited = Provider(budget_total_tokens=8, on_budget_exceeded=raising)
    out = Program(ScriptedClient(["one", "a much longer summary"], provider=limited), summed_up)(
        go()
    )
    with pytest.raises(BudgetExceededError):
        out.synchronize()
    client = ScriptedClient(["two"])
    again = Program(client, summed_up).resume(out).synchronize()
    assert [row.payload["content"] for row in again.chunk_table] == ["a much longer summary", "two"]
    assert purposes(again) == ["turn", "compress", "turn"]


def test_a_compression_that_was_not_paid_for_is_served() -> None:
    limited = Provider(budget_total_tokens=1)
    client = ScriptedClient(["one"], provider=limited)
    out = Program(client, summed_up)(go()).synchronize()
    again = Program(ScriptedClient([]), summed_up).resume(out).synchronize()
    assert isinstance(again.outcome, BudgetExceeded)
    assert again.chunk_table == out.chunk_table


def cancelled_summary() -> Session:
    asked, may_end = threading.Event(), threading.Event()

    def hang(_: object) -> str:
        asked.set()
        may_end.wait(PATIENCE)
        return "too late"

    out = Program(ScriptedClient(["one", hang]), summed_up)(go())
    assert asked.wait(PATIENCE)
    short = parent(out)
    short.cancel().synchronize()
    may_end.set()
    return short


def test_a_cancelled_compression_goes_on_where_that_is_wanted() -> None:
    short = cancelled_summary()
    client = ScriptedClient(["in short", "two"])
    again = Program(client, summed_up).resume(short, cancelled="go_on").synchronize()
    assert [(call.purpose, call.status) for call in entries_of(again, ModelCall)][1:3] == [
        ("compress", "cancelled"),
        ("compress", "done"),
    ]


# ---- selections


def chooses(program: Program, session: Session) -> Session:
    first = program.first(session)
    return program.choose.forward(first, program.first, program.second)(first)


USELESS_CHOICES = [tool_call("f"), RathLLMAssistantMessage(content=" ")]


@pytest.mark.parametrize("useless", USELESS_CHOICES, ids=["tools", "nothing"])
def test_a_selection_that_failed_is_made_anew_and_counted(
    useless: Turn, store: JournalStore
) -> None:
    with autosave():
        with pytest.raises(RuntimeError, match="where one number was asked for"):
            Program(ScriptedClient(["one", useless]), chooses)(go())
        program = Program(ScriptedClient(["1", "two"]), chooses)
        again = program.resume(loaded_first(store), store=store).synchronize()
        assert purposes(again) == ["turn", "select", "select", "turn"]
    total(again)


def test_no_write_of_a_selection_leaves_a_part_of_it(store: JournalStore) -> None:
    with autosave():
        Program(ScriptedClient(["one", "1", "two"]), chooses)(go()).synchronize()
    for n_writes in range(len(store.events) + 1):
        for one in sessions_in(store.after(n_writes)):
            kinds = [e.kind for e in one.record if isinstance(e, Operation)]
            assert kinds.count("select") == purposes(one).count("select"), n_writes


# ---- typed answers


def test_a_repair_that_was_cut_off_is_counted_with_all_before_it() -> None:
    def asked(*turns: Turn) -> Agent:
        provider = ScriptedClient(turns).provider
        return Agent("first", provider, system_tools=False, output=int, output_retries=3)

    out = asked("no number", "nor this", GONE)(go())
    with pytest.raises(RuntimeError):
        out.synchronize()
    again = asked(tool_call("final_answer", {"value": 5})).resume(out).synchronize()
    assert purposes(again) == ["turn", "repair", "repair", "repair"]
    assert [call.status for call in entries_of(again, ModelCall)] == [
        "done",
        "done",
        "failed",
        "done",
    ]
    assert again.output == 5
