"""Agents as tools: tasks, answers, failures, and calls that are made again."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rath.backend.results import ToolExecutionFailure
from rath.errors import PersistenceError
from rath.flow import Agent, Sequential, Workflow
from rath.flow.tool.agent_tool import AgentTool
from rath.llm import Provider
from rath.llm.chat_request import RathLLMChatRequest
from rath.session import Session
from rath.session.outcome import Cancelled, Completed, NeedsApproval, NeedsDecision
from rath.session.record import Operation, ToolRun
from rath.session.tooling import ToolEffects
from rath.testing import ScriptedClient, tool_call
from rath.testing.chat import Turn
from tests.support.delegating_program import Team
from tests.support.images import picture
from tests.support.sessions import FunctionTool, run
from tests.support.waiting import PATIENCE

PNG = picture(b"x")


def agent(*turns: Turn, **options: Any) -> Agent:
    tools = options.pop("tools", None)
    provider = ScriptedClient(turns, provider=options.pop("given", None)).provider
    return Agent("sub", provider, tools, system_tools=False, **options)


def asked(task: str = "look") -> Any:
    return tool_call("helper", {"task": task})


def result_of(session: Session, index: int = 2) -> Any:
    return json.loads(session.chunk_table[index].payload["content"])


def children_of(session: Session) -> list[Operation]:
    return [
        entry
        for entry in session.record
        if isinstance(entry, Operation) and entry.session != session.id
    ]


def test_the_caller_reads_the_answer() -> None:
    out = run([asked(), "done"], agent("found it").as_tool("helper"))
    assert (result_of(out), out.text()) == ("found it", "done")


def test_the_child_sees_the_task_alone() -> None:
    client = ScriptedClient(["found it"])
    helper = Agent("sub", client.provider, system_tools=False).as_tool("helper")
    run([asked("what is it?"), "done"], helper).synchronize()
    (request,) = client.requests
    assert [message.content for message in request.messages] == ["sub", "what is it?"]


def test_the_child_is_in_the_lineage_of_its_caller() -> None:
    out = run([asked(), "done"], agent("found").as_tool("helper"), persist=True).synchronize()
    (made,) = children_of(out)
    child = Session.load(made.session)
    begun = child.provenance.parents[0]
    assert begun.provenance is not None
    assert begun.provenance.parent_ids == (out.id,)
    assert (begun.provenance.operator, begun.provenance.kind.value) == (
        "Session.delegate",
        "op_delegate",
    )


def test_usage_counts_once_also_when_the_child_is_merged() -> None:
    made: list[Session] = []

    class Kept(Workflow):
        def __init__(self) -> None:
            self.agent = agent("found it")

        def forward(self, session: Session) -> Session:
            made.append(self.agent(session))
            return made[-1]

    out = run([asked(), "done"], Kept().as_tool("helper")).synchronize()
    total = out.cumulative_usage
    assert total is not None
    (child,) = made
    assert out.merge(child).cumulative_usage == total
    assert child.merge(out).cumulative_usage == total
    used = child.cumulative_usage
    assert used is not None
    assert used.total_tokens < total.total_tokens


def test_a_budget_counts_over_caller_and_child() -> None:
    given = Provider(budget_total_tokens=2)
    out = run([asked(), "done"], agent("never", given=given).as_tool("helper"))
    told = result_of(out)
    assert told["error_kind"] == "agent_budget_exceeded"
    assert "budget_total_tokens=2" in told["message"]


def test_a_child_that_was_not_done_tells_what_it_reported() -> None:
    noop = FunctionTool("f", lambda *_: "x")
    script = [tool_call("f", content="half an answer")]
    helper = agent(*script, tools=[noop], max_tool_rounds=1).as_tool("helper")
    told = result_of(run([asked(), "done"], helper))
    assert (told["error_kind"], told["detail"]) == ("agent_round_limit", "half an answer")


def test_a_child_that_failed_is_a_failure_that_names_its_session() -> None:
    out = run([asked(), "done"], agent(RuntimeError("gone")).as_tool("helper")).synchronize()
    told = result_of(out)
    (made,) = children_of(out)
    assert told["error_kind"] == "agent_failed"
    assert str(made.session) in told["message"]
    assert out.outcome == Completed()


def test_a_child_without_a_word_is_a_failure() -> None:
    told = result_of(run([asked(), "done"], agent("").as_tool("helper")))
    assert told["error_kind"] == "agent_no_answer"


@dataclass
class Found:
    where: str
    lines: list[int]


def test_a_typed_answer_comes_as_json() -> None:
    said = '{"where": "a.py", "lines": [1, 2]}'
    out = run([asked(), "done"], agent(said, output=Found).as_tool("helper"))
    assert result_of(out) == {"where": "a.py", "lines": [1, 2]}


def test_a_plain_typed_answer_comes_as_it_is() -> None:
    out = run([asked(), "done"], agent("7", output=int).as_tool("helper"))
    assert result_of(out) == 7


def test_an_answer_that_never_fits_is_a_failure() -> None:
    helper = agent("none", output=int, output_retries=0).as_tool("helper")
    told = result_of(run([asked(), "done"], helper))
    assert told["error_kind"] == "agent_output_missing"


def test_agents_call_agents_three_deep() -> None:
    def level(name: str, *below: AgentTool) -> AgentTool:
        script: list[Turn] = [tool_call("helper", {"task": "on"})] if below else []
        return agent(*script, f"{name} answers", tools=list(below)).as_tool("helper")

    out = run([asked(), "done"], level("one", level("two", level("three"))))
    assert result_of(out) == "one answers"
    assert len(children_of(out)) == 3
    assert out.replay().text() == "done"


def test_fifty_children_run_next_to_each_other() -> None:
    gate = threading.Barrier(50)

    def answer(_: RathLLMChatRequest) -> str:
        gate.wait(timeout=PATIENCE)
        return "here"

    helper = agent(*[answer] * 50).as_tool("helper", parallel_safe=True)
    first, *others = [asked("look") for _ in range(50)]
    calls = [part for each in (first, *others) for part in each.tool_calls or ()]
    turn = type(first)(tool_calls=tuple(calls))
    out = run([turn, "done"], helper).synchronize()
    runs = [entry for entry in out.record if isinstance(entry, ToolRun)]
    assert [entry.status for entry in runs] == ["done"] * 50


def test_cancelling_the_caller_cancels_the_child() -> None:
    begun, handed, ended = (threading.Event() for _ in range(3))
    made: list[Session] = []

    def wait(*_: object) -> bool:
        begun.set()
        return ended.wait(PATIENCE)

    class Told(Workflow):
        def __init__(self) -> None:
            waits = FunctionTool("wait", wait)
            self.agent = agent(tool_call("wait"), "never", tools=[waits])

        def forward(self, session: Session) -> Session:
            made.append(self.agent(session))
            handed.set()
            return made[-1]

    out = run([asked(), "done"], Told().as_tool("helper"))
    assert begun.wait(PATIENCE)
    assert handed.wait(PATIENCE)
    out.cancel()
    assert isinstance(out.outcome, Cancelled)
    assert isinstance(made[0].outcome, Cancelled)
    ended.set()


def test_a_call_that_takes_too_long_ends_its_child() -> None:
    ended = threading.Event()
    waits = FunctionTool("wait", lambda *_: ended.wait(PATIENCE))
    helper = agent(tool_call("wait"), "never", tools=[waits]).as_tool("helper", timeout=0.05)
    told = result_of(run([asked(), "done"], helper))
    ended.set()
    assert told["error_kind"] == "abandoned"


def test_pictures_of_the_user_are_displayed_where_that_is_asked_for() -> None:
    client = ScriptedClient(["a dot"])
    helper = Agent("sub", client.provider, system_tools=False).as_tool("helper", images="last")
    user = Session.from_user_message("what is it?", images=[PNG])
    run([asked(), "done"], helper, user=user).synchronize()
    shown = client.requests[0].messages[-1].images
    assert shown is not None
    assert [image.blob.data for image in shown] == [PNG]


def test_pictures_are_not_displayed_by_default() -> None:
    client = ScriptedClient(["a dot"])
    helper = Agent("sub", client.provider, system_tools=False).as_tool("helper")
    user = Session.from_user_message("what is it?", images=[PNG])
    run([asked(), "done"], helper, user=user).synchronize()
    assert not client.requests[0].messages[-1].images


class WebResearcher(Workflow):
    """Looks things up.

    Slowly.
    """

    def __init__(self) -> None:
        self.agent = agent("found")

    def forward(self, session: Session) -> Session:
        return self.agent(session)


def test_a_class_of_ones_own_gives_name_and_description() -> None:
    tool = WebResearcher().as_tool()
    assert (tool.name, tool.description) == ("web_researcher", "Looks things up.\n\nSlowly.")
    assert tool.origin.endswith("test_agent_tool:WebResearcher")


def test_what_is_reported_comes_before_what_the_class_says() -> None:
    tool = agent("x", description="Helps.").as_tool("helper")
    assert (tool.name, tool.description) == ("helper", "Helps.")
    assert agent("x", description="Helps.").as_tool("helper", "Finds.").description == "Finds."


@pytest.mark.parametrize("nameless", [agent("x"), Sequential(agent("x"))], ids=["agent", "rath's"])
def test_what_has_no_name_of_its_own_needs_one(nameless: Workflow) -> None:
    with pytest.raises(ValueError, match=r"has no name of its own .*as_tool\('researcher'"):
        nameless.as_tool()


@pytest.mark.parametrize("name", ["two words", "é", "x" * 65, "a/b"])
def test_a_name_that_no_tool_can_have_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be the name of a tool"):
        agent("x").as_tool(name)


def test_unknown_options_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown images 'all'"):
        agent("x").as_tool("helper", images="all")  # type: ignore[arg-type]  # the point
    with pytest.raises(ValueError, match=r"effects must be one of .* not 'none'"):
        agent("x").as_tool("helper", effects="none")  # type: ignore[arg-type]  # the point


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"timeout": 0}, "timeout must be a number of seconds above 0, not 0"),
        ({"timeout": "5"}, "timeout must be seconds or None, not '5'"),
        ({"approval": True}, "approval must be 'never', 'always' or a function"),
        ({"parallel_safe": "no"}, "parallel_safe must be True or False, not 'no'"),
        ({"description": 3}, "description must be a str, not 3"),
        ({"name": 3}, "name must be a str, not 3"),
    ],
    ids=str,
)
def test_options_that_mean_nothing_are_refused(given: dict[str, Any], problem: str) -> None:
    options: dict[str, Any] = {"name": "helper", **given}
    with pytest.raises((TypeError, ValueError), match=problem):
        agent("x").as_tool(**options)


def test_calls_that_may_not_overlap_have_one_key() -> None:
    tool = agent("x").as_tool("helper")
    assert tool.resource_key({}) == tool.resource_key({})


def test_a_child_is_not_stored_where_its_caller_is_not() -> None:
    out = run([asked(), "done"], agent("found").as_tool("helper")).synchronize()
    (made,) = children_of(out)
    with pytest.raises(PersistenceError, match="not found"):
        Session.load(made.session)


def test_both_work_on_the_same_files(tmp_path: Path) -> None:
    writes = tool_call("write_workspace_file", {"path": "a.txt", "content": "made"})
    provider = ScriptedClient([writes, "written"]).provider
    helper = Agent("sub", provider, system_tools=["write_workspace_file"]).as_tool("helper")
    user = Session.from_user_message("go").to("local", spec=str(tmp_path))
    reads = tool_call("read_workspace_file", {"path": "a.txt"})
    out = run([asked(), reads, "done"], helper, user=user, system_tools=["read_workspace_file"])
    assert "made" in out.chunk_table[4].payload["content"]
    assert [change.path for change in out.files.changes()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "made"


def test_a_strict_replay_needs_neither_model_nor_agent() -> None:
    out = run([asked(), "done"], agent("found").as_tool("helper"), persist=True).synchronize()
    (made,) = children_of(out)
    assert Session.load(out.id).replay().chunk_table == out.chunk_table
    assert Session.load(made.session).replay().text() == "found"


def killed(notes: Path, effects: ToolEffects) -> Session:
    program = [sys.executable, "-m", "tests.support.delegating_program", str(notes), effects]
    done = subprocess.run(program, capture_output=True, text=True, timeout=15, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return Session.load(done.stdout.strip())


def gone_on(notes: Path, effects: ToolEffects, session: Session) -> Session:
    team = Team(notes, effects, outer=["boss is done"], inner=["worker is done"])
    return team.resume(session).synchronize()


def test_after_a_kill_the_child_goes_on_and_repeats_nothing(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    out = gone_on(notes, "idempotent", killed(notes, "idempotent"))
    assert (result_of(out), out.text()) == ("worker is done", "boss is done")
    assert notes.read_text() == "once\n"
    assert out.replay().text() == "boss is done"


def test_after_a_kill_a_call_that_must_not_be_repeated_waits(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    session = killed(notes, "non_idempotent")
    assert session.outcome == NeedsDecision(session.id, ("handed",))
    out = gone_on(notes, "non_idempotent", session.decide("handed", "retry"))
    assert (result_of(out), out.text()) == ("worker is done", "boss is done")
    assert notes.read_text() == "once\n"


# ---- waiting for somebody


class Guarded(FunctionTool):
    approval = "always"


class Boss(Workflow):
    """Hands its work to an agent whose tool must be allowed."""

    def __init__(self, outer: Sequence[Turn], inner: Sequence[Turn], done: list[str]) -> None:
        def act(*_: object) -> str:
            done.append("acted")
            return "acted"

        self.worker = agent(*inner, tools=[Guarded("act", act)])
        helper = self.worker.as_tool("helper", effects="idempotent")
        self.boss = agent(*outer, tools=[helper])

    def forward(self, session: Session) -> Session:
        return self.boss(session)


def waiting(done: list[str]) -> Session:
    boss = Boss([asked()], [tool_call("act", id="acting")], done)
    boss.boss.persist = True
    return boss(Session.from_user_message("go")).synchronize()


def test_a_child_that_waits_makes_its_caller_wait() -> None:
    done: list[str] = []
    out = waiting(done)
    outcome = out.outcome
    assert isinstance(outcome, NeedsApproval)
    assert outcome.session != out.id
    assert (outcome.calls, done) == (("acting",), [])
    assert len(out.chunk_table) == 2


@pytest.mark.parametrize("is_loaded", [False, True], ids=["in memory", "loaded"])
def test_once_the_child_may_go_on_its_caller_does(is_loaded: bool) -> None:
    done: list[str] = []
    out = waiting(done)
    outcome = out.outcome
    assert isinstance(outcome, NeedsApproval)
    Session.load(outcome.session).approve("acting")
    again = Boss(["boss is done"], ["worker is done"], done)
    after = again.resume(Session.load(out.id) if is_loaded else out).synchronize()
    assert (after.id, after.outcome, done) == (out.id, Completed(), ["acted"])
    assert (result_of(after), after.text()) == ("worker is done", "boss is done")
    assert Session.load(outcome.session).text() == "worker is done"


def test_called_by_hand_it_says_what_its_session_waits_for() -> None:
    helper = agent(tool_call("act"), tools=[Guarded("act", lambda *_: "x")]).as_tool("helper")

    async def call() -> object:
        return await helper(Session.from_user_message("go"), {"task": "look"})

    told = asyncio.run(call())
    assert isinstance(told, ToolExecutionFailure)
    assert told.kind == "agent_waits"
    assert "waits for somebody" in told.message
