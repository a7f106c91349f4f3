"""What a run inside another one does is in its own log before it is in the log of its caller."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future
from uuid import UUID

import pytest

from rath import autosave
from rath._core.blobs import Blob
from rath.flow import Agent
from rath.llm import Provider
from rath.llm.chat_request import RathLLMChatRequest
from rath.llm.chat_response import RathLLMAssistantMessage
from rath.session import Session
from rath.session.persistence.store import SessionLog
from rath.session.record import InnerLog, Operation, Verdict, parent_sink
from rath.testing import ScriptedClient, tool_call
from tests.support.journal_store import JournalStore
from tests.support.sessions import FunctionTool, entries_of, run, verdict
from tests.support.waiting import PATIENCE, wait_until

# ---- a log of which the test says when it is written


class InnerWrite(Future[None]):
    """A write to the log of a run inside, which says when somebody waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_waited_for = threading.Event()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self.is_waited_for.set()
        return super().exception(timeout)


def noting(entry: Verdict, log: InnerLog | None) -> Callable[[object], None]:
    """Return a callback that notes an entry as a run inside would, once."""
    todo = [entry]

    def note(_: object) -> None:
        while todo:
            parent_sink()(todo.pop(), log)

    return note


def is_in_log(store: JournalStore, session: UUID, entry: Verdict) -> bool:
    return any(str(entry.id).encode() in one.data for one in store.events if one.session == session)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> JournalStore:
    made = JournalStore()
    monkeypatch.setenv("OPENRATH_STORE", made.url)
    return made


def test_an_entry_of_a_run_inside_waits_for_the_log_of_that_run(store: JournalStore) -> None:
    entry, inner = verdict(), InnerWrite()
    out = run(["done"], persist=True, on_event=noting(entry, InnerLog(lambda: inner)))
    assert inner.is_waited_for.wait(PATIENCE)
    assert not is_in_log(store, out.id, entry)
    inner.set_result(None)
    assert entry in out.record
    assert is_in_log(store, out.id, entry)


# ---- agents that ask agents


Says = Callable[[RathLLMChatRequest], str]


class SlowStore(JournalStore):
    """Holds up the write of the first tool call, until the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.go = threading.Event(), threading.Event()

    def create(self, session: UUID) -> SessionLog:
        return SlowLog(self, super().create(session))


class SlowLog(SessionLog):
    """A log of a `SlowStore`."""

    def __init__(self, store: SlowStore, inner: SessionLog) -> None:
        self.session, self.where = inner.session, inner.where
        self._store, self._inner = store, inner

    @property
    def closed(self) -> bool:
        return self._inner.closed

    def append(self, data: bytes, *, blobs: Collection[Blob] = (), durable: bool = False) -> None:
        if b'"tool_run"' in data and not self._store.reached.is_set():
            self._store.reached.set()
            assert self._store.go.wait(PATIENCE)
        self._inner.append(data, blobs=blobs, durable=durable)

    def finish(self) -> None:
        self._inner.finish()

    def abandon(self) -> None:
        self._inner.abandon()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> SlowStore:
    made = SlowStore()
    monkeypatch.setenv("OPENRATH_STORE", made.url)
    return made


def look_tool(made: list[str]) -> FunctionTool:
    """Return a tool that may be called again, and notes that it was."""

    class Look(FunctionTool):
        effects = "idempotent"

    return Look("look", lambda *_: made.append("look"))


def team(depth: int, made: list[str], *, says: Says) -> Agent:
    """Return an agent that asks an agent, and so on; the last one looks, and then `says`."""
    asks = calls_once(tool_call("look", id="looks"), says)
    agent = Agent("0", asks, [look_tool(made)], system_tools=False)
    for level in range(1, depth):
        tools = [agent.as_tool("ask", effects="idempotent")]
        asks = calls_once(tool_call("ask", {"task": "go"}, id="asks"), done)
        agent = Agent(str(level), asks, tools, system_tools=False)
    return agent


def calls_once(call: RathLLMAssistantMessage, says: Says) -> Provider:
    """Return a provider whose model makes a call unless it has a result, and then `says`."""

    def turn(request: RathLLMChatRequest) -> RathLLMAssistantMessage | str:
        return says(request) if request.messages[-1].role == "tool" else call

    return ScriptedClient([turn] * 4).provider


def done(_: RathLLMChatRequest) -> str:
    return "done"


def assert_written_inside_first(store: JournalStore, out: Session) -> None:
    """Check for each entry that each log has it before the log of the run around has it."""
    runs = entries_of(out, Operation)
    depth = {each.operation: at for at, each in enumerate(runs)}
    for entry in out.record:
        data = str(entry.id).encode()
        logs = [each.session for each in runs[: depth[entry.operation] + 1]]
        having = [(at, one.session) for at, one in enumerate(store.events) if data in one.data]
        firsts = [next(at for at, session in having if session == log) for log in logs]
        assert firsts == sorted(firsts, reverse=True), entry


@pytest.mark.parametrize("depth", [2, 3])
def test_a_slow_log_inside_holds_up_the_logs_around_it(depth: int, slow: SlowStore) -> None:
    asked_again = threading.Event()

    def say(_: RathLLMChatRequest) -> str:
        asked_again.set()
        return "looked"

    with autosave():
        out = team(depth, [], says=say)(Session.from_user_message("go"))
        assert slow.reached.wait(PATIENCE)
        assert asked_again.wait(PATIENCE)
        # Whatever a log could write without waiting is written by the end of another run.
        run(["meanwhile"]).synchronize()
        assert not any(b'"tool_run"' in one.data for one in slow.events)
        slow.go.set()
        assert out.text() == "done"
    assert_written_inside_first(slow, out)


def test_the_result_of_another_call_waits_with_what_it_is_written_with(slow: SlowStore) -> None:
    asked_again, may_answer = threading.Event(), threading.Event()

    class Sibling(FunctionTool):
        effects = "idempotent"
        parallel_safe = True

    def wait(*_: object) -> str:
        assert slow.reached.wait(PATIENCE)
        assert asked_again.wait(PATIENCE)
        return "waited"

    def say(_: RathLLMChatRequest) -> str:
        asked_again.set()
        assert may_answer.wait(PATIENCE)
        return "looked"

    ask = team(1, [], says=say).as_tool("ask", effects="idempotent", parallel_safe=True)
    sibling = Sibling("wait", wait, parallel_safe=True)
    both = tool_call("ask", {"task": "go"}, tool_call("wait", id="waits"), id="asks")
    with autosave():
        boss = Agent("boss", calls_once(both, done), [ask, sibling], system_tools=False)
        out = boss(Session.from_user_message("go"))
        assert slow.reached.wait(PATIENCE)
        run(["meanwhile"]).synchronize()
        assert not any(b'"tool_run"' in one.data for one in slow.events)
        slow.go.set()
        wait_until(lambda: any(b"waited" in one.data for one in slow.events))
        may_answer.set()
        assert out.text() == "done"
    assert_written_inside_first(slow, out)
