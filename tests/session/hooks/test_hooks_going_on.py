"""Runs with hooks that wait, go on, are stored and replayed: nothing recorded is shown again."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from typer.testing import CliRunner

import rath
from rath._core.blobs import Blob
from rath.cli.app import app
from rath.flow import Agent, CallRequest, Deny, ModelTurn, Sequential, ToolResultText, Workflow
from rath.session import Session
from rath.session.hooks import LoopHooks
from rath.session.log.verify import verify
from rath.session.outcome import NeedsApproval, NeedsDecision
from rath.session.persistence.store import default_store
from rath.session.questions import where_from
from rath.session.record import Change
from rath.testing import ScriptedClient, Turn, tool_call
from tests.support.api import sessions_of, writer_of
from tests.support.approvals import Noting, calls_of, decisions, go, interrupts, results, waiting
from tests.support.cut_off import cut_off
from tests.support.hooks import calling, telling
from tests.support.sessions import FunctionTool, entries_of, run
from tests.support.waiting import PATIENCE


class Hooks:
    """Hooks of a loop that double numbers, quote results, and count what they are shown."""

    def __init__(self) -> None:
        self.before: list[Any] = []
        self.after: list[str] = []
        self.all = LoopHooks(before_tool=(self.double,), after_tool=(self.quote,))

    def double(self, call: CallRequest) -> CallRequest:
        self.before.append(call.arguments["n"])
        return replace(call, arguments={"n": call.arguments["n"] * 2})

    def quote(self, call: CallRequest, result: ToolResultText) -> ToolResultText:
        self.after.append(result.text)
        return replace(result, text=f'["{call.call_id}", {result.text}]')


def changed(session: Session) -> list[str]:
    return [entry.what for entry in session.record if isinstance(entry, Change)]


def test_rules_of_approval_see_what_the_hooks_made_of_a_call() -> None:
    seen = list[Any]()

    def rule(call: CallRequest) -> bool:
        seen.append(call.arguments)
        return False

    hooks, tool = Hooks(), Noting(approval=rule)
    out = go([calls_of(1, 2), "end"], tool, hooks=hooks.all)
    assert seen == [{"n": 2}, {"n": 4}]
    assert (hooks.before, sorted(tool.calls)) == ([1, 2], [2, 4])
    assert [reply for _, reply in results(out)] == [["c1", {"said": 2}], ["c2", {"said": 4}]]


def test_an_approval_covers_the_arguments_of_the_hook_and_no_hook_is_asked_again() -> None:
    hooks, tool = Hooks(), Noting()
    session = waiting(1, 2, hooks=hooks.all)
    assert session.outcome == NeedsApproval(session.id, ("c1", "c2"))
    assert [one.call.arguments for one in session.open_calls] == ['{"n": 2}', '{"n": 4}']
    session.approve("c1").approve("c2")
    assert [one.arguments for one in decisions(session)] == [{"n": 2}, {"n": 4}]
    out = go(["end"], tool, user=session, hooks=hooks.all)
    assert (out.id, sorted(tool.calls), hooks.before) == (session.id, [2, 4], [1, 2])
    assert [reply for _, reply in results(out)] == [["c1", {"said": 2}], ["c2", {"said": 4}]]
    assert len(interrupts(out)) == 1
    assert out.replay().chunk_table == out.chunk_table


def test_a_tool_that_asked_is_made_again_with_what_the_hook_gave() -> None:
    hooks = Hooks()
    tool = Noting(work=lambda n: rath.ask(f"{n}?"), approval="never")
    session = go([calls_of(1)], tool, hooks=hooks.all)
    assert [one.question for one in session.questions] == ["2?"]
    out = go(["end"], tool, user=session.answer("yes"), hooks=hooks.all)
    assert (tool.calls, hooks.before, hooks.after) == ([2, 2], [1], ['"yes"'])
    assert out.text() == "end"


@pytest.mark.parametrize("is_decided", [False, True], ids=["open", "to be made again"])
def test_hooks_see_a_call_that_was_not_started(is_decided: bool) -> None:
    denied = LoopHooks(before_tool=(lambda _: Deny("not now"),))
    tool = Noting(approval="never")
    complete = go([calls_of(1), "end"], tool)
    left = cut_off(complete, 0)
    if is_decided:
        left.decide("c1", "retry")
    out = go(["end"], tool, user=left, hooks=denied)
    assert tool.calls == [1]
    assert [reply["error_kind"] for _, reply in results(out)] == ["denied"]


@pytest.mark.parametrize("is_changed", [False, True], ids=["as it was", "changed"])
def test_a_call_whose_hooks_a_crash_cut_off_has_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_changed: bool
) -> None:
    reached = threading.Event()

    async def hang(*_: object) -> None:
        reached.set()
        await asyncio.sleep(10)

    hooks, tool = Hooks(), Noting(approval="never", effects="read_only")
    changing = hooks.all.before_tool if is_changed else ()
    at_hook = LoopHooks(before_tool=(*changing, hang))
    session = run([calls_of(1)], tool, hooks=at_hook, persist=True, durability="row")
    assert reached.wait(PATIENCE)
    # A crash leaves what the log says now.
    writer = writer_of(session.id)
    assert writer is not None
    writer.settled().result(PATIENCE)
    shutil.copytree(tmp_path / "openrath-home", tmp_path / "left")
    session.cancel().synchronize()
    monkeypatch.setenv("OPENRATH_HOME", str(tmp_path / "left"))
    left = Session.load(session.id)
    (one,) = left.open_calls
    assert (one.state, one.call.arguments) == ("asked", '{"n": 2}' if is_changed else '{"n": 1}')
    out = go(["end"], tool, user=left, hooks=LoopHooks(before_tool=(lambda _: Deny("no"),)))
    assert (tool.calls, results(out)[0][1]["error_kind"]) == ([], "denied")


# Workflows around it.


class Ask(Workflow):
    """Asks an agent that needs an approval."""

    def __init__(self, turns: list[Turn], tool: Noting) -> None:
        provider = ScriptedClient(turns).provider
        self.agent = Agent("p", provider, [tool], system_tools=False)

    def forward(self, session: Session) -> Session:
        return self.agent(session)


def test_a_workflow_goes_on_from_what_its_hooks_gave() -> None:
    module, seen = Ask([calls_of(1), "end"], Noting()), list[str]()

    def change(_: Workflow, session: Session) -> Session:
        seen.append("before")
        return Session.from_user_message("changed")

    module.register_forward_pre_hook(change)
    module.agent.register_forward_pre_hook(lambda _, session: session.delegate("changed again"))
    session = module(Session.from_user_message("go")).synchronize()
    out = module.resume(session.approve("c1"))
    assert (out.id, out.text(), seen) == (session.id, "end", ["before"])
    assert out.chunk_table[0].payload["content"] == "changed again"


def without_hooks(asked: Agent) -> Agent:
    return asked


def with_hooks(asked: Agent) -> Agent:
    asked.register_model_hook(lambda _, turn: replace(turn, text=f"{turn.text}!"))
    asked.register_tool_hook(calling(lambda given: {"n": given["n"] * 2}), when="before")
    asked.register_tool_hook(telling(lambda text: f"<{text}>"), when="after")
    return asked


def failing(asked: Agent) -> Agent:
    """Add hooks that are never asked."""

    def fail(*_: object) -> None:
        raise AssertionError("a hook was asked in a replay")

    asked.register_model_hook(fail)
    asked.register_tool_hook(fail, when="before")
    asked.register_tool_hook(fail, when="after")
    return asked


@pytest.mark.parametrize("again", [without_hooks, with_hooks, failing])
def test_a_program_replays_whatever_hooks_it_has(again: Callable[[Agent], Agent]) -> None:
    def program(client: ScriptedClient) -> Sequential:
        tool = Noting(approval="never")
        return Sequential(Agent("p", client.provider, [tool], system_tools=False))

    first = program(ScriptedClient([calls_of(1, 2), "end"]))
    with_hooks(first[0])  # type: ignore[arg-type]  # an agent
    out = first(Session.from_user_message("go")).synchronize()
    assert out.text() == "end!"
    assert changed(out) == ["answer", "arguments", "arguments", "result", "result", "answer"]
    second = program(ScriptedClient([]))
    again(second[0])  # type: ignore[arg-type]  # as before
    with rath.replay(out):
        replayed = second(Session.from_user_message("go")).synchronize()
    assert replayed.chunk_table == out.chunk_table
    assert changed(replayed) == changed(out)


def test_a_run_that_was_cut_off_with_a_result_keeps_what_the_hook_made_of_it() -> None:
    hooks, tool = Hooks(), Noting(approval="never")
    complete = go([calls_of(1, 2), "end"], tool, hooks=hooks.all)
    left = cut_off(complete, 0, known=[0], begun=[1])
    assert isinstance(left.outcome, NeedsDecision)
    out = go(["end"], tool, user=left.decide("c2", "skip"), hooks=hooks.all)
    assert results(out)[0] == ("c1", ["c1", {"said": 2}])


def agent_with(tool: Noting, *turns: Any, persist: bool = True) -> Agent:
    provider = ScriptedClient(turns).provider
    return Agent("go", provider, [tool], system_tools=False, persist=persist)


def ten_times(_: Agent, call: CallRequest) -> CallRequest:
    return replace(call, arguments={"n": call.arguments["n"] * 10})


def never(_: Agent, __: CallRequest) -> Deny:
    return Deny("never")


def start() -> Session:
    return Session.from_user_message("go")


@pytest.mark.parametrize("is_loaded", [False, True], ids=["in memory", "loaded"])
def test_a_changed_call_that_was_denied_is_not_made_when_the_run_goes_on(is_loaded: bool) -> None:
    def hook(_: Agent, call: CallRequest) -> Deny | None:
        return Deny("not this one") if call.call_id == "c1" else None

    tool = Noting()
    agent = agent_with(tool, calls_of(1, 2), "done")
    agent.register_tool_hook(ten_times, when="before")
    agent.register_tool_hook(hook, when="before")
    out = agent(start()).synchronize()
    session = Session.load(out.id) if is_loaded else out
    assert [one.state for one in session.open_calls] == ["known", "asked"]
    assert session.replay().outcome == session.outcome
    done = agent(session.approve("c2"))
    assert results(done)[0][1]["error_kind"] == "denied"
    assert tool.calls == [20]
    assert done.replay().chunk_table == done.chunk_table


def before(_: Agent, call: CallRequest) -> CallRequest:
    return replace(call, arguments={"x": "quiet"})


def after(_: Agent, call: CallRequest, result: ToolResultText) -> ToolResultText:
    return replace(result, text=result.text.replace("secret", "hidden"))


def answer(_: Agent, turn: ModelTurn) -> ModelTurn:
    return replace(turn, text=turn.text and turn.text.replace("bob", "someone"))


def inward(_: Agent, session: Session) -> Session:
    return Session.from_user_message("tell me")


def outward(_: Agent, session: Session, output: Session) -> Session:
    return output.synchronize().fork()


NAMES = {one: f"{__name__}:{one.__name__}" for one in (before, after, answer, inward, outward)}


def guarded(*, persist: bool = False) -> Session:
    """A session in which each kind of hook has changed something."""
    script: list[Turn] = [tool_call("look", {"x": "loud"}, id="c"), "it was bob"]
    tool = FunctionTool("look", lambda *_: "a secret")
    agent = Agent("p", ScriptedClient(script).provider, [tool], system_tools=False, persist=persist)
    agent.register_forward_pre_hook(inward)
    agent.register_tool_hook(before, when="before")
    agent.register_tool_hook(after, when="after")
    agent.register_model_hook(answer)
    agent.register_forward_hook(outward)
    return agent(Session.from_user_message("tell bob"))


def contents(session: Session) -> list[tuple[str, str, bytes | None, bytes | None]]:
    return [
        (one.what, one.hook, one.before.data, one.after.data) for one in entries_of(session, Change)
    ]


@pytest.mark.parametrize("persist", [False, True], ids=["saved", "recorded"])
def test_each_change_is_in_a_stored_record_with_both_contents(persist: bool) -> None:
    out = guarded(persist=persist)
    out.save()
    loaded = Session.load(out.id)
    assert entries_of(loaded, Change) == entries_of(out, Change)
    found = contents(loaded)
    assert found == contents(out)
    assert [one[:2] for one in found] == [
        ("input", NAMES[inward]),
        ("arguments", NAMES[before]),
        ("result", NAMES[after]),
        ("answer", NAMES[answer]),
        ("output", NAMES[outward]),
    ]
    assert found[1][2:] == (b'{"x": "loud"}', b'{"x": "quiet"}')
    assert found[2][2:] == (b'"a secret"', b'"a hidden"')
    assert verify(default_store(), out.id).problems == ()
    assert loaded.replay().chunk_table == out.chunk_table


def test_a_change_stands_in_the_log_before_the_result_that_it_led_to() -> None:
    script: list[Turn] = [tool_call("look", {}, tool_call("look", {}, id="d"), id="c"), "end"]
    tool = FunctionTool("look", lambda *_: "a secret")
    agent = Agent("p", ScriptedClient(script).provider, [tool], system_tools=False, persist=True)
    agent.register_tool_hook(after, when="after")
    out = agent(Session.from_user_message("go")).synchronize()
    lines = [json.loads(line) for line in Path(out.save()).read_bytes().splitlines()]
    reports = [line.get("event") for line in lines]
    since = reports[reports.index("intent") :]
    assert since[2:6] == ["change", "result", "change", "result"]


def test_a_change_whose_contents_are_lost_is_left_out() -> None:
    session = Session.from_user_message("x")
    lost = Blob.from_bytes(b"gone", keep=0)
    change = Change(operation=uuid4(), hook="m:h", what="output", before=lost, after=lost)
    session.add_entry(change)
    assert where_from(session).ancestors[-1].changes == ()
    assert sessions_of(change) == ("", "")


def command(*args: str) -> str:
    made = CliRunner().invoke(app, args, env={"COLUMNS": "200"})
    assert made.exit_code == 0, made.output
    return " ".join(made.output.split())


def test_the_commands_name_the_hooks() -> None:
    out = guarded()
    out.save()
    display = command("show", str(out.id))
    for hook, what in ((before, "arguments of c"), (after, "result of c"), (answer, "answer")):
        assert f"hook {NAMES[hook]} changed the {what}" in display
    origin = command("explain", str(out.id), "--origin")
    assert f"the hook {NAMES[after]} changed the result" in origin
    assert f"input: the hook {NAMES[inward]} gave" in origin
    assert f"output: the hook {NAMES[outward]} gave" in origin
    assert f"put there by the hook {NAMES[after]}" in command("blame", str(out.id), "hidden")
    taken = command("blame", str(out.id), "secret")
    assert f"taken out of the result of c by the hook {NAMES[after]}" in taken
    assert "taken out of the answer by the hook" in command("blame", str(out.id), "bob")
