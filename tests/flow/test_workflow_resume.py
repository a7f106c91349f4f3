"""A workflow goes on with a call of it: what was done is served, the rest is made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any
from uuid import UUID, uuid4

import pytest

from rath._async.deferred import Deferred
from rath._async.runtime import runtime
from rath.errors import PersistenceError, ResumeMismatch
from rath.flow import Agent, Compressor, Selector, Workflow
from rath.flow.tool import FlowToolCall
from rath.session import ChunkTable, Session
from rath.session.graph.recording import Provenance
from rath.session.outcome import Cancelled, Completed, NeedsDecision
from rath.session.record import ModelCall, RecalledNote, Verdict
from rath.testing import FakeBackend, ScriptedClient, tool_call
from tests.session.programs.test_going_on import Counting, f_calls, rows_of
from tests.support.api import Body, HoldingRecall, Suspended
from tests.support.sessions import FunctionTool, run

Forward = Callable[["Program", Session], Session]


class Program(Workflow):
    """A workflow of one client, whose steps are given."""

    def __init__(self, client: ScriptedClient, forward: Forward, *tools: FlowToolCall) -> None:
        super().__init__()
        self.step = forward
        self.first = Agent("first", client.provider, list(tools), system_tools=False)
        self.second = Agent("second", client.provider, list(tools), system_tools=False)
        self.short = Compressor("short", client.provider)
        self.choose = Selector(client.provider)

    def forward(self, session: Session) -> Session:
        return self.step(self, session)


def go() -> Session:
    return Session.from_user_message("go")


def both(program: Program, session: Session) -> Session:
    return program.second(program.first(session))


GONE = RuntimeError("the endpoint is gone")


def failed(forward: Forward, script: list[Any], *tools: FlowToolCall) -> Session:
    out = Program(ScriptedClient(script), forward, *tools)(go())
    with pytest.raises(RuntimeError):
        out.synchronize()
    return out


def resumed(session: Session, forward: Forward, script: list[Any], *tools: FlowToolCall) -> Session:
    client = ScriptedClient(script)
    out = Program(client, forward, *tools).resume(session).synchronize()
    assert client.n_left == 0
    return out


def test_a_run_that_has_noted_nothing_yet_is_waited_for() -> None:
    release = asyncio.Event()

    def after_release(program: Program, _: Session) -> Session:
        return program.first(pending)

    async def make(_: Deferred[Body]) -> Body:
        await release.wait()
        return go().core.body.result()

    cell = Deferred.start(make, owner=uuid4(), label="an input", on_cancel=_nothing)
    pending = Session.from_body(cell, Provenance())
    out = Program(ScriptedClient(["one"]), after_release)(pending)
    assert out.core.body.latest is None
    with ThreadPoolExecutor(1) as pool:
        again = pool.submit(resumed, out, after_release, [])
        runtime().run(lambda: _set(release), label="a test")
        assert (again.result().id, again.result().outcome) == (out.id, Completed())


def _nothing(_: Body | None) -> Body:
    return Body(ChunkTable())


async def _set(event: asyncio.Event) -> None:
    event.set()


# ---- what was done is served


def test_a_call_that_failed_is_asked_again_and_what_was_done_is_not() -> None:
    out = failed(both, ["one", GONE])
    again = resumed(out, both, ["two"])
    assert (again.id, again.text()) == (out.id, "two")
    assert again.outcome == Completed()


def test_a_call_that_was_done_is_served_without_a_model() -> None:
    out = Program(ScriptedClient(["one", "two"]), both)(go()).synchronize()
    again = resumed(out, both, [])
    assert (again.id, rows_of(again)) == (out.id, rows_of(out))
    assert again.record == out.record


def test_any_session_of_the_call_stands_for_it() -> None:
    out = Program(ScriptedClient(["one", "two"]), both)(go()).synchronize()
    edge = out.provenance.parents[0]
    assert edge.body is not None
    assert edge.provenance is not None
    first = Session.from_body(edge.body, edge.provenance, id=edge.id)
    assert resumed(first, both, ["two"]).id == out.id


def branches(program: Program, session: Session) -> Session:
    left, right = session.fork(), session.fork()
    merged = program.first(left).merge(program.first(right))
    return program.second(program.short(merged))


def test_branches_and_a_summary_are_served() -> None:
    out = failed(branches, [*["one"] * 2, "in short", GONE])
    again = resumed(out, branches, ["two"])
    assert [row.payload["content"] for row in again.chunk_table] == ["in short", "two"]


def test_what_was_made_of_a_failed_run_is_made_again() -> None:
    def of_a_fork(program: Program, session: Session) -> Session:
        return program.short(program.first(session).fork())

    out = failed(of_a_fork, [GONE])
    assert resumed(out, of_a_fork, ["one", "in short"]).text() == "in short"


def chosen(program: Program, session: Session) -> Session:
    one = program.first(session)
    return program.choose.forward(one, program.first, program.second)(one)


def test_a_selection_is_served_from_the_record_of_what_it_served() -> None:
    out = failed(chosen, ["one", "1", GONE])
    assert resumed(out, chosen, ["two"]).text() == "two"


def test_a_selection_that_was_asked_twice_is_served_as_it_ended() -> None:
    out = failed(chosen, ["one", "either", "1", GONE])
    assert resumed(out, chosen, ["two"]).text() == "two"


def test_a_selection_whose_second_question_failed_is_asked_again() -> None:
    def ask(program: Program, session: Session) -> Session:
        with suppress(RuntimeError):
            return chosen(program, session)
        return program.second(session)

    first = Program(ScriptedClient(["one", "either", GONE, "two"]), ask)(go()).synchronize()
    assert resumed(first, ask, ["one", "0", "chosen"]).text() == "chosen"


def test_a_selection_that_was_not_answered_is_asked_again() -> None:
    def ask(program: Program, session: Session) -> Session:
        try:
            return chosen(program, session)
        except RuntimeError:
            return program.second(session)

    first = Program(ScriptedClient(["one", GONE, "two"]), ask)(go()).synchronize()
    root = first.provenance.parents[0].id
    edge = first.provenance.parents[0]
    assert edge.body is not None
    assert resumed(first, ask, ["one", "0", "chosen"]).id != root


def test_a_menu_that_differs_is_refused() -> None:
    def other(program: Program, session: Session) -> Session:
        one = program.first(session)
        return program.choose.forward(one, program.second)(one)

    out = failed(chosen, ["one", "1", GONE])
    with pytest.raises(ResumeMismatch, match="the menu differs"):
        Program(ScriptedClient([]), other).resume(out)


class Judge(FakeBackend):
    name = "judge"


def checked(name: str) -> Forward:
    def forward(program: Program, session: Session) -> Session:
        session.check(name, "true")
        return program.first(session)

    return forward


def with_place(client: ScriptedClient, forward: Forward) -> Session:
    session = go().bind_sandbox(Judge().lazy())
    out = Program(client, forward)(session)
    with pytest.raises(RuntimeError):
        out.synchronize()
    return out


def test_a_verdict_is_served_and_its_command_is_not_run_again() -> None:
    out = with_place(ScriptedClient([GONE]), checked("tests"))
    again = resumed(out, checked("tests"), ["one"])
    assert len([entry for entry in again.record if isinstance(entry, Verdict)]) == 1


def test_a_check_of_something_else_is_refused() -> None:
    out = with_place(ScriptedClient([GONE]), checked("tests"))
    with pytest.raises(ResumeMismatch, match="the check differs"):
        Program(ScriptedClient([]), checked("style")).resume(out)


def test_a_session_that_is_made_on_the_way_has_its_place() -> None:
    def leaf(program: Program, session: Session) -> Session:
        made = Session.from_user_message("beside it")
        return program.second(program.first(made).merge(made).merge(session))

    out = failed(leaf, ["one", GONE])
    again = resumed(out, leaf, ["two"])
    said = [row.payload["content"] for row in again.chunk_table]
    assert said == ["beside it", "one", "go", "two"]


class Held(HoldingRecall):
    """A recall that counts how often it is let go."""

    n_closed = 0

    def __call__(self, session: Session) -> list[RecalledNote]:
        return []

    def close(self) -> None:
        self.n_closed += 1


def test_a_recall_is_let_go_where_nothing_has_to_be_recalled() -> None:
    held = Held()

    def recalling(program: Program, session: Session) -> Session:
        provider = program.first.agent.provider
        return program.second(run([], user=session, agent_provider=provider, recall=held))

    out = failed(recalling, ["one", GONE])
    assert resumed(out, recalling, ["two"]).text() == "two"
    assert held.n_closed == 2


# ---- calls of tools


class Helped(FunctionTool):
    """A tool that asks an agent of its own."""

    effects = "idempotent"

    def __init__(self, client: ScriptedClient) -> None:
        super().__init__("help", self._ask)
        self._agent = Agent("helper", client.provider, system_tools=False)

    def _ask(self, _: Session, __: Mapping[str, Any]) -> Any:
        return self._agent(Session.from_user_message("please help")).text()


def test_a_recorded_result_is_never_made_again() -> None:
    tool, again = Counting(), Counting()
    out = failed(both, [f_calls(1, 2), GONE], tool)
    assert resumed(out, both, ["one", "two"], again).text() == "two"
    assert (sorted(tool.calls), again.calls) == ([1, 2], [])


def test_the_calls_of_agents_in_tools_count_once() -> None:
    script = [tool_call("help"), GONE]
    out = failed(both, script, Helped(ScriptedClient(["I help"])))
    again = resumed(out, both, ["one", "two"], Helped(ScriptedClient([])))
    calls = [entry.id for entry in again.record if isinstance(entry, ModelCall)]
    assert len(calls) == len(set(calls)) == 5


# ---- sessions that wait


def waits(session: UUID) -> NeedsDecision:
    return NeedsDecision(session, ())


def cut(session: Session, outcome: Callable[[UUID], Suspended]) -> Session:
    """The first agent's session, as a run that was cut off before its last answer left it."""
    edge = session.provenance.parents[0]
    assert edge.body is not None
    assert edge.provenance is not None
    body = edge.body.result()
    cut_body = type(body)(body.table.prefix(1), body.record.prefix(1), outcome(edge.id))
    return Session.from_body(Deferred.of(cut_body), edge.provenance, id=edge.id)


def test_a_run_that_was_cut_off_goes_on_with_its_complete_call() -> None:
    out = Program(ScriptedClient(["one", "two"]), both)(go()).synchronize()
    again = resumed(cut(out, waits), both, ["one", "two"])
    assert (again.id, rows_of(again)) == (out.id, rows_of(out))


def test_a_cancelled_run_stays_as_it_is_unless_it_is_to_go_on() -> None:
    out = Program(ScriptedClient(["one", "two"]), both)(go()).synchronize()
    cancelled = cut(out, Cancelled)
    kept = resumed(cancelled, both, [])
    assert kept.outcome == Cancelled(cancelled.id)
    client = ScriptedClient(["one", "two"])
    again = Program(client, both).resume(cancelled, cancelled="go_on")
    assert (again.id, again.text()) == (out.id, "two")


def test_what_passed_on_that_another_waits_stands_for_the_call_of_that_one() -> None:
    out = Program(ScriptedClient(["one", "two"]), both)(go()).synchronize()
    waiting = cut(out, waits)
    client = ScriptedClient([])
    passed_on = Agent("another", client.provider, system_tools=False)(waiting).synchronize()
    assert resumed(passed_on, both, ["one", "two"]).id == out.id


# ---- what does not fit


def other_transcript(program: Program, session: Session) -> Session:
    return program.second(program.first(Session.from_user_message("something else")))


def other_agent(program: Program, session: Session) -> Session:
    return program.second(program.second(session))


def other_kind(program: Program, session: Session) -> Session:
    return program.second(program.short(session))


@pytest.mark.parametrize(
    ("forward", "problem"),
    [
        (other_transcript, r"the transcript is another one: .*'go', now .*'something else'"),
        (other_agent, "transcript is another one: .*'one', now it is no row 1"),
    ],
)
def test_a_program_that_does_something_else_is_refused(forward: Forward, problem: str) -> None:
    out = Program(ScriptedClient(["one", "two"]), both)(go()).synchronize()
    program = Program(ScriptedClient(["x", "y"]), forward)
    with pytest.raises(ResumeMismatch, match=problem):
        program.resume(out).synchronize()


def forked(program: Program, session: Session) -> Session:
    return program.first(session.fork())


def detached(program: Program, session: Session) -> Session:
    return program.first(session.detach())


def merged(program: Program, session: Session) -> Session:
    return program.first(session.merge(Session.from_user_message("more")))


@pytest.mark.parametrize("before", [forked, merged])
@pytest.mark.parametrize("now", [forked, detached, merged])
def test_another_derivation_is_refused(before: Forward, now: Forward) -> None:
    out = failed(before, [GONE])
    if before is now:
        assert resumed(out, now, ["one"]).text() == "one"
        return
    with pytest.raises(ResumeMismatch):
        Program(ScriptedClient([]), now).resume(out)


def test_a_mismatch_says_where_what_was_expected_and_what_is_there() -> None:
    out = failed(forked, [GONE])
    with pytest.raises(ResumeMismatch) as caught:
        Program(ScriptedClient([]), detached).resume(out)
    assert caught.value.where == "Program#0"
    assert caught.value.expected == "fork (share)"
    assert caught.value.found == "detach (share)"


def test_another_workflow_is_refused() -> None:
    out = Program(ScriptedClient(["one", "two"]), both)(go()).synchronize()
    with pytest.raises(ValueError, match="a call of another workflow than this Agent"):
        Agent("first", ScriptedClient([]).provider).resume(out)


def test_an_agent_resumes_its_own_call() -> None:
    client = ScriptedClient([GONE, "one"])
    agent = Agent("first", client.provider, system_tools=False)
    out = agent(go())
    with pytest.raises(RuntimeError):
        out.synchronize()
    assert agent.resume(out).text() == "one"


def test_a_session_of_no_workflow_is_refused() -> None:
    with pytest.raises(ValueError, match="was made by no workflow"):
        Program(ScriptedClient([]), both).resume(go())


def test_a_root_that_is_nowhere_is_named() -> None:
    out = Program(ScriptedClient(["one", "two"]), both)(go()).synchronize()
    lonely = Session.from_body(out.core.body, type(out.provenance)(), id=out.id)
    with pytest.raises(PersistenceError, match=r"with which the run .* began"):
        Program(ScriptedClient([]), both).resume(lonely)


def test_what_is_no_session_is_refused() -> None:
    program = Program(ScriptedClient([]), both)
    with pytest.raises(TypeError, match="takes a Session"):
        program.resume(uuid4())  # type: ignore[arg-type]  # what is refused
    with pytest.raises(ValueError, match="expected 'keep' or 'go_on'"):
        program.resume(go(), cancelled="no")  # type: ignore[arg-type]  # what is refused


def test_forward_must_return_a_session_here_too() -> None:
    out = Program(ScriptedClient(["one", "two"]), both)(go()).synchronize()
    program = Program(ScriptedClient([]), lambda *_: None)  # type: ignore[arg-type]  # what is refused
    with pytest.raises(TypeError, match="is a return missing"):
        program.resume(out)
