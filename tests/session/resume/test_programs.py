"""Programs that go on in the less usual ways: pending parts, cut off calls, tools that ask."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from rath import autosave
from rath._async.lazy import Deferred
from rath.errors import ResumeMismatch
from rath.flow import Agent, Workflow
from rath.llm.chat_request import RathLLMChatRequest
from rath.session import Session
from rath.session.chunk import ChunkTable
from rath.session.graph.recording import Edge, Provenance
from rath.session.log.verify import verify
from rath.session.operation import Place
from rath.session.outcome import Cancelled, Completed, NeedsDecision
from rath.session.persistence.store import default_store
from rath.session.record import ModelCall, ToolRun, Verdict
from rath.testing import ScriptedClient, Turn, tool_call
from tests.flow.test_workflow_resume import GONE, Program, both, go, resumed
from tests.session.programs.test_going_on import Counting, f_calls, rows_of
from tests.support.api import (
    Body,
    entries_since,
    exchange_of,
    find_selection,
    find_verdict,
    program_of,
)
from tests.support.cut_off import cut_off
from tests.support.journal_store import JournalStore
from tests.support.sessions import AsyncFunctionTool, FunctionTool, run
from tests.support.waiting import PATIENCE


def parent(session: Session) -> Session:
    """The session that another one was made of first."""
    edge = session.provenance.parents[0]
    assert edge.body is not None
    assert edge.provenance is not None
    return Session.from_body(edge.body, edge.provenance, id=edge.id)


def on(session: Session, first: Session) -> Session:
    """The same session, made of `first` as it is now."""
    _, agent = session.provenance.parents
    provenance = Provenance(
        session.provenance.operator, session.provenance.kind, (first.as_parent(), agent)
    )
    return Session.from_body(session.body, provenance, id=session.id)


# ---- waiting inside a program


def waiting_program() -> tuple[Session, Session]:
    """The first session of a program, waiting for a decision, and the whole one."""
    whole = Program(ScriptedClient([f_calls(1, 2), "one", "two"]), both, Counting())(go())
    return cut_off(parent(whole.synchronize()), 0, begun=[0]), whole


def test_a_program_waits_as_long_as_a_call_of_it_does() -> None:
    waiting, whole = waiting_program()
    tool = Counting()
    out = resumed(waiting, both, [], tool)
    assert (out.id, out.outcome) == (whole.id, NeedsDecision(waiting.id, ("call_1",)))
    assert tool.calls == []


def test_what_passed_a_waiting_session_on_is_made_once_that_one_goes_on() -> None:
    waiting, whole = waiting_program()
    passed_on = resumed(waiting, both, [], Counting())
    waiting.decide("call_1", "skip")
    out = resumed(on(passed_on, waiting), both, ["one", "two"], Counting())
    assert (out.id, out.outcome, out.text()) == (whole.id, Completed(), "two")


def test_a_failed_run_with_a_call_that_was_cut_off_waits_too() -> None:
    waiting, _ = waiting_program()

    async def fail(_: Deferred[Body]) -> Body:
        raise RuntimeError("the disk is full")

    cell = Deferred.start(fail, owner=waiting.id, label="x", on_cancel=lambda _: Body(ChunkTable()))
    assert isinstance(cell.error() or _error_of(cell), RuntimeError)
    cell.report(waiting.body.result())
    failed = Session.from_body(cell, waiting.provenance, id=waiting.id)
    out = resumed(failed, both, [], Counting())
    assert out.outcome == NeedsDecision(waiting.id, ("call_1",))


def _error_of(cell: Deferred[Any]) -> BaseException | None:
    with pytest.raises(RuntimeError):
        cell.result()
    return cell.error()


def held(text: str) -> tuple[threading.Event, Turn]:
    """An answer that comes when it is let go."""
    may_go = threading.Event()

    def answer(_: object) -> str:
        assert may_go.wait(PATIENCE)
        return text

    return may_go, answer


def test_two_that_were_cut_off_go_on_one_after_the_other() -> None:
    whole = Program(ScriptedClient(["one", "two"]), both)(go()).synchronize()
    second = cut_off(on(whole, cut_off(parent(whole), None)), None)
    may_go, answer = held("one")
    out = Program(ScriptedClient([answer, "two"]), both).resume(
        on(second, cut_off(parent(whole), None))
    )
    may_go.set()
    assert (out.id, rows_of(out)) == (whole.id, rows_of(whole))


def test_what_was_done_is_served_when_what_it_was_made_of_has_gone_on() -> None:
    whole = Program(ScriptedClient(["one", "two"]), both)(go()).synchronize()
    out = resumed(on(whole, cut_off(parent(whole), None)), both, ["one"])
    assert (out.id, rows_of(out)) == (whole.id, rows_of(whole))


def test_what_was_made_of_something_else_is_refused_when_that_is_known() -> None:
    whole = Program(ScriptedClient(["one", "two"]), both)(go()).synchronize()
    may_go, answer = held("another one")
    out = Program(ScriptedClient([answer]), both).resume(on(whole, cut_off(parent(whole), None)))
    may_go.set()
    with pytest.raises(ResumeMismatch, match="the transcript differs"):
        out.text()


def test_what_still_runs_is_waited_for_and_not_made_again() -> None:
    asked, may_go = threading.Event(), threading.Event()

    def answer(_: object) -> str:
        asked.set()
        assert may_go.wait(PATIENCE)
        return "one"

    def forked(program: Program, session: Session) -> Session:
        return program.second(program.first(session).fork())

    out = Program(ScriptedClient([answer, "two"]), forked)(go())
    assert asked.wait(PATIENCE)
    again = Program(ScriptedClient([]), forked).resume(out)
    may_go.set()
    assert (again.id, again.text()) == (out.id, "two")


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


@pytest.mark.parametrize(
    ("effects", "waits"), [("non_idempotent", ("w",)), ("idempotent", ())], ids=["unsure", "sure"]
)
def test_a_call_that_was_cancelled_is_of_unknown_outcome(effects: Any, waits: Any) -> None:
    out = cancelled_inside(*waiting_tool(effects))
    assert tuple(each.call.id for each in out.open_calls if each.waits) == waits
    assert [each.state for each in out.open_calls] == ["begun"]


def test_a_cancelled_run_goes_on_where_it_was() -> None:
    out = cancelled_inside(*waiting_tool("idempotent"))
    quick = FunctionTool("wait", lambda *_: "at last")
    quick.effects = "idempotent"
    client = ScriptedClient(["done"])
    agent = Agent("one", client.provider, [quick])
    again = agent.resume(out, cancelled="go_on")
    assert (again.id, again.text()) == (out.id, "done")
    runs = [entry.status for entry in again.record if isinstance(entry, ToolRun)]
    assert runs == ["interrupted", "done"]


def test_a_decision_is_used_up_by_the_call_that_it_allowed() -> None:
    out = cancelled_inside(*waiting_tool("non_idempotent"))
    out.decide("w", "retry")
    body = out.inherited(out.body.result())
    cut = next(entry for entry in body.record if isinstance(entry, ToolRun))
    later = Body(body.table, body.record.append(cut), body.outcome)
    again = Session.from_body(Deferred.of(later), out.provenance, id=out.id)
    assert [each.waits for each in again.open_calls] == [True]
    assert again.decide("w", "skip").record[-2].operation == cut.operation


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
        whole = Program(ScriptedClient(SCRIPT), both, tool)(go()).synchronize()
    helper = tool.asked[0]
    done = next(
        at
        for at, event in enumerate(store.events, start=1)
        if event.kind == "finish" and event.session == helper.id
    )
    return whole, store.after(done), tool


def test_an_agent_in_a_call_that_is_made_again_is_served(stored: JournalStore) -> None:
    whole, cut, _ = asked_and_cut_off(stored)
    first = Session.load(parent(whole).id, store=cut)
    assert first.outcome == NeedsDecision(first.id, ())
    tool = Asking(ScriptedClient([]))
    out = Program(ScriptedClient(SCRIPT[1:]), both, tool).resume(first, store=cut)
    assert rows_of(out) == rows_of(whole)
    calls = [entry.id for entry in out.record if isinstance(entry, ModelCall)]
    assert len(calls) == len(set(calls)) == 4
    assert out.cumulative_usage == whole.cumulative_usage


def test_a_session_that_a_tool_made_stands_for_the_program_around_it(
    stored: JournalStore,
) -> None:
    whole, cut, tool = asked_and_cut_off(stored)
    inside = Session.load(tool.asked[0].id, store=cut)
    out = Program(ScriptedClient(SCRIPT[1:]), both, Asking(ScriptedClient([]))).resume(
        inside, store=cut
    )
    assert out.synchronize().id == whole.id


def test_what_is_made_anew_takes_the_place_of_what_was_stored(stored: JournalStore) -> None:
    with autosave():
        whole = Program(ScriptedClient([f_calls(1), "one", "two"]), both, Counting())(go())
        first = parent(whole.synchronize())
    said = next(
        at
        for at, event in enumerate(stored.events, start=1)
        if event.session == first.id and b'"intent"' in event.data
    )
    cut = stored.after(said)
    waiting = Session.load(first.id, store=cut)
    passed_on = Program(ScriptedClient([]), both, Counting()).resume(waiting, store=cut)
    assert passed_on.outcome == NeedsDecision(first.id, ("call_1",))
    Session.load(first.id, store=cut).decide("call_1", "retry")
    again = Session.load(passed_on.id, store=cut)
    out = Program(ScriptedClient(["one", "two"]), both, Counting()).resume(again, store=cut)
    assert (out.id, rows_of(out)) == (whole.id, rows_of(whole))
    assert rows_of(Session.load(out.id, store=cut)) == rows_of(whole)


def chain(program: Program, session: Session) -> Session:
    return program.short(program.second(program.first(session)).fork())


SAID = {"first": "one", "second": "two", "short": "in short"}


def by_role(request: RathLLMChatRequest) -> str:
    """What each agent of a program says, however often a model was asked before."""
    return SAID[str(request.messages[0].content)]


def answering() -> ScriptedClient:
    return ScriptedClient([by_role] * len(SAID))


def passed_on_and_decided(stored: JournalStore) -> tuple[Session, Session, JournalStore]:
    """A whole program, and one whose every session passed on that its first one waited."""
    with autosave():
        client = ScriptedClient([f_calls(1), *[by_role] * len(SAID)])
        whole = Program(client, chain, Counting())(go()).synchronize()
    said = next(at for at, event in enumerate(stored.events, 1) if b'"intent"' in event.data)
    cut = stored.after(said)
    first = Session.load(cut.events[-1].session, store=cut)
    passed_on = Program(ScriptedClient([]), chain, Counting()).resume(first, store=cut)
    assert passed_on.outcome == NeedsDecision(first.id, ("call_1",))
    first = Session.load(first.id, store=cut).decide("call_1", "retry")
    return whole, first, cut


def test_what_was_passed_on_through_several_sessions_is_made_once_it_is_decided(
    stored: JournalStore,
) -> None:
    whole, first, cut = passed_on_and_decided(stored)
    out = Program(answering(), chain, Counting()).resume(first, store=cut)
    assert (out.id, rows_of(out)) == (whole.id, rows_of(whole))
    assert rows_of(Session.load(out.id, store=cut)) == rows_of(whole)
    assert all(verify(cut, each).is_sound for each in cut.stamps())


def test_wherever_what_was_passed_on_is_made_anew_and_cut_off_it_goes_on(
    stored: JournalStore,
) -> None:
    whole, first, cut = passed_on_and_decided(stored)
    n_before = len(cut.events)
    Program(answering(), chain, Counting()).resume(first, store=cut).synchronize()
    for n_writes in range(n_before, len(cut.events)):
        store = cut.after(n_writes)
        again = Session.load(first.id, store=store)
        for call in (each.call.id for each in again.open_calls if each.waits):
            again.decide(call, "retry")
        out = Program(answering(), chain, Counting()).resume(again, store=store)
        assert rows_of(out) == rows_of(whole), n_writes


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


def test_a_parent_of_which_nothing_is_known_is_known_by_its_id() -> None:
    out = Joined(ScriptedClient([GONE]), OUTSIDE)(go())
    with pytest.raises(RuntimeError):
        out.synchronize()
    merged = parent(out)
    ours, theirs = merged.provenance.parents
    bare = Provenance("Session.merge", merged.provenance.kind, (ours, Edge(theirs.id)))
    lost = on(out, Session.from_body(merged.body, bare, id=merged.id))
    with pytest.raises(ResumeMismatch, match="a parent differs"):
        Joined(ScriptedClient([]), OUTSIDE).resume(lost)


# ---- places


def test_a_run_that_never_began_has_the_place_of_what_it_waited_for() -> None:
    out = Program(ScriptedClient([GONE]), both)(go())
    with pytest.raises(RuntimeError):
        out.synchronize()
    assert out.partial_table.rows == ()
    assert resumed(out, both, ["one", "two"]).text() == "two"


def test_a_session_whose_past_is_unknown_has_no_place() -> None:
    cell = Deferred[Body](None, ())
    unknown = Session.from_body(cell, Provenance(parents=(Edge(go().id), go().as_parent())))
    with pytest.raises(ValueError, match="was made by no workflow"):
        program_of(unknown).place()


def test_the_session_that_a_call_began_with_may_be_the_one_that_is_resumed() -> None:
    root = go()
    Program(ScriptedClient(["one", "two"]), both)(root).synchronize()
    place = Place("Program.first", 0, run=root.id, root=root.id)
    assert program_of(root).root(place) is root


def test_what_a_place_does_not_hold_is_made() -> None:
    record = go().record
    assert find_verdict(Place("x", 0), record, name="a", judge="b") is None
    bodies = (go().body.result(), go().body.result())
    assert find_selection(Place("x", 0), record, bodies, "?") is None
    assert entries_since(record, go().id) == ()


def test_an_answer_without_a_reason_ended_as_its_calls_say() -> None:
    out = run([f_calls(1), "done"], Counting()).synchronize()
    call = next(entry for entry in out.record if isinstance(entry, ModelCall))
    bare = structs.replace(
        call.evidence, finish_reason=None, served_model=None, requested_model=None
    )
    content: Any = out.chunk_table[1].content
    exchange = exchange_of(content, bare)
    assert exchange.response.primary_choice.finish_reason == "tool_calls"
    assert exchange.response.model == ""


def test_the_store_of_the_home_is_asked_for_a_session_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENRATH_HOME", str(tmp_path))
    out = Program(ScriptedClient(["one", "two"]), both)(go()).synchronize()
    assert program_of(out).store is None
    out.save()
    alike = Session.from_body(out.body, out.provenance, id=out.id)
    assert program_of(alike).store is default_store()
    assert not [entry for entry in out.record if isinstance(entry, Verdict)]
