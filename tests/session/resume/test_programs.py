"""Programs that go on in the less usual ways: pending parts, cut off calls, tools that ask."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from rath import autosave
from rath.errors import BudgetExceededError, PersistenceError, ResumeMismatch
from rath.flow import Agent, Compressor, Workflow
from rath.llm.chat_request import RathLLMChatRequest
from rath.llm.chat_response import RathLLMAssistantMessage
from rath.llm.provider import Provider
from rath.session import Session
from rath.session.graph.recording import Provenance
from rath.session.log.verify import verify
from rath.session.outcome import BudgetExceeded, Cancelled
from rath.session.record import ModelCall, Operation
from rath.testing import ScriptedClient, Turn, tool_call
from tests.flow.test_workflow_resume import GONE, Program, go
from tests.support.journal_store import JournalStore
from tests.support.sessions import AsyncFunctionTool, FunctionTool, entries_of
from tests.support.waiting import PATIENCE


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


# ---- agents in tools


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> JournalStore:
    store = JournalStore()
    monkeypatch.setenv("OPENRATH_STORE", store.url)
    return store


SAID = {"first": "one", "second": "two", "short": "in short"}


def by_role(request: RathLLMChatRequest) -> str:
    """What each agent of a program says, however often a model was asked before."""
    return SAID.get(str(request.messages[0].content), "in short")


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
    alone = Session.from_body(made.core.body, Provenance(), id=made.id)
    with pytest.raises(PersistenceError, match=f"is not in {store.where}"):
        agent().resume(alone, store=store)


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
    expected = r"prompt is another one: .* row 0 \(system\) .*, now .* \(system\) 'another way'"
    with pytest.raises(ResumeMismatch, match=expected):
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
