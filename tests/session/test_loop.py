"""The loop: rounds, tools, also hostile ones, limits, and what the record keeps."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rath.errors import ToolNameConflictError
from rath.flow.tool import (
    FlowToolCall,
    global_system_tools,
    merge_tools_for_loop,
)
from rath.llm import Provider
from rath.session import (
    Session,
    lineage_journal_tracking,
    run_session_loop,
    session_graph_mode_override,
)
from rath.session.outcome import Completed, DeadlineExceeded, RoundLimit
from rath.session.record import Operation, ToolRun
from rath.session.tooling import SystemTools
from rath.testing import FakeBackend, ScriptedClient, tool_call
from tests.support.api import builtin_tools, tool_registry, tool_table
from tests.support.sessions import AGENT, AsyncFunctionTool, FunctionTool, entries_of, run
from tests.support.waiting import PATIENCE, at_a_deadline


def echo(_: Session, arguments: Any) -> Any:
    return arguments


def result_of(out: Session, index: int = 2) -> Any:
    return json.loads(out.chunk_table[index].payload["content"])


# ---- caller's mistakes raise at once


class NoExecutor:
    """Has one of the three methods."""

    def complete(self, _: object) -> None: ...


class LateSchemas(NoExecutor):
    """Gives its schemas as a coroutine, which nobody can await in the caller's thread."""

    def dispatch_tool(self, *_: object) -> None: ...
    async def tool_schemas(self) -> tuple[()]:
        return ()


def offered(out: Session) -> list[str]:
    """The names of the tools that the run of a session offered."""
    (operation,) = entries_of(out, Operation)
    return [tool.name for tool in operation.tools]


def own_and(*others: str) -> list[str]:
    return sorted(["echo", *others])


def asked(user: Session, **options: Any) -> Session:
    given: dict[str, Any] = {"system_tools": True, **options}
    return run(["ok"], FunctionTool("echo", echo), user=user, **given).synchronize()


@pytest.mark.parametrize("system_tools", [True, ["run_code"]])
def test_without_a_sandbox_no_tools_of_one_are_offered(system_tools: Any) -> None:
    assert offered(asked(Session.from_user_message("go"), system_tools=system_tools)) == ["echo"]


def test_a_session_that_is_placed_and_not_opened_offers_them() -> None:
    user = Session.from_user_message("go").to("local")
    out = asked(user)
    assert offered(out) == own_and(*builtin_tools())
    assert out.sandbox is None or not out.sandbox.is_open
    assert offered(asked(user, system_tools=["run_code"])) == own_and("run_code")


def test_a_session_that_is_placed_later_offers_them_at_its_next_run() -> None:
    first = asked(Session.from_user_message("go"))
    second = asked(first.to("local"))
    names = {
        entry.operation: [tool.name for tool in entry.tools]
        for entry in entries_of(second, Operation)
    }
    assert list(names.values()) == [["echo"], own_and(*builtin_tools())]


def test_a_name_of_theirs_is_taken_also_where_they_are_not_offered() -> None:
    with pytest.raises(ToolNameConflictError, match="run_code"):
        run(["ok"], FunctionTool("run_code", echo), system_tools=True)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"user_session": "text"}, TypeError, "user_session must be a Session, not str"),
        ({"agent_session": "text"}, TypeError, "agent_session must be a Session, not str"),
        ({"agent_provider": None}, ValueError, "no provider for run_session_loop"),
        ({"agent_provider": "gpt"}, TypeError, "the provider must be a Provider, not str"),
        ({"agent_provider": Provider(model="m")}, ValueError, "No API key found"),
        ({"agent_provider": Provider(provider_kind="no")}, ValueError, "unknown provider_kind"),
        ({"tools": [FunctionTool("x", echo)] * 2}, ToolNameConflictError, "'x'"),
        (
            {"tools": [FunctionTool("run_code", echo)], "system_tools": True},
            ToolNameConflictError,
            "run_code",
        ),
        ({"tools": [lambda: None]}, TypeError, "@rath.tool"),
        ({"tools": ["tool"]}, TypeError, "tool"),
        ({"tools": [FunctionTool]}, TypeError, "tool"),
        ({"timeout": 0}, ValueError, "timeout"),
        ({"timeout": "1"}, ValueError, "timeout"),
        ({"max_tool_rounds": -1}, ValueError, "max_tool_rounds"),
        ({"max_tool_rounds": True}, ValueError, "max_tool_rounds"),
        ({"on_event": 5}, TypeError, "on_event must be a function, not int"),
        ({"recall": "notes"}, TypeError, "recall must be a function, not str"),
        ({"executor": NoExecutor()}, TypeError, "lacks dispatch_tool, tool_schemas"),
        ({"executor": LateSchemas}, TypeError, "given as the class LateSchemas"),
        ({"executor": LateSchemas()}, TypeError, "must be a plain `def`"),
        ({"system_tools": "run_code"}, TypeError, "a list of names, not 'run_code'"),
        ({"system_tools": 5}, TypeError, "a list of names, not 5"),
    ],
)
def test_a_callers_mistake_raises_at_the_call(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    given: dict[str, Any] = {
        "user_session": Session.from_user_message("hi"),
        "agent_session": AGENT,
        "agent_provider": ScriptedClient([]).provider,
        "system_tools": False,
    }
    with pytest.raises(error, match=message):
        run_session_loop(**{**given, **options})


# ---- rounds


def test_all_tools_of_a_round_see_one_snapshot_and_the_next_round_another() -> None:
    seen: list[tuple[Session, int]] = []

    def look(session: Session, _: object) -> None:
        seen.append((session, len(session.chunk_table)))

    look_tool = FunctionTool("look", look)
    out = run(
        [tool_call("look", {}, tool_call("look", {})), tool_call("look"), "done"], look_tool
    ).synchronize()
    assert seen[0][0] is seen[1][0]
    assert seen[0][0] is not seen[2][0]
    assert [length for _, length in seen] == [2, 2, 5]
    assert {session.id for session, _ in seen} == {out.id}


def test_a_run_ends_at_its_round_limit_and_a_later_one_completes() -> None:
    out = run([tool_call("f")] * 3, FunctionTool("f", echo), max_tool_rounds=2)
    assert out.outcome == RoundLimit(2)
    assert ("loop.truncated", True) in out.lineage_extras
    assert len(out.chunk_table) == 5
    assert run(["done"], user=out).outcome == Completed()


def test_deadline_ends_the_run_and_keeps_its_rows() -> None:
    started, go = threading.Event(), threading.Event()

    def hold(*_: object) -> None:
        started.set()
        go.wait(PATIENCE)

    def run_until(deadline: float) -> tuple[float, Session]:
        tool = FunctionTool("hold", hold)
        return deadline, run([tool_call("hold"), "never"], tool, timeout=deadline).synchronize()

    deadline, out = at_a_deadline(run_until, lambda _: started.is_set())
    go.set()
    assert out.outcome == DeadlineExceeded(deadline)
    assert len(out.chunk_table) == 2


# ---- tools that fail


@pytest.mark.parametrize(
    ("turn", "kind"),
    [
        (tool_call("nope", {}), "unknown_tool"),
        (tool_call("f", "{broken"), "invalid_tool_arguments"),
        (tool_call("f", "[1]"), "invalid_tool_arguments"),
        (tool_call("f", {"x": "text"}), "invalid_tool_arguments"),
        (tool_call("f", {}), "invalid_tool_arguments"),
    ],
    ids=["unknown", "no JSON", "no object", "wrong type", "missing"],
)
def test_what_the_model_got_wrong_it_reads(turn: Any, kind: str) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    out = run([turn, "sorry"], FunctionTool("f", echo, schema=schema))
    failure = result_of(out)
    assert (failure["ok"], failure["error_kind"]) == (False, kind)
    assert entries_of(out, ToolRun)[0].status == "failed"
    assert out.text() == "sorry"


@pytest.mark.parametrize(
    "error", [ValueError("v"), SystemExit(3), KeyboardInterrupt(), StopIteration("s")], ids=repr
)
def test_any_exception_of_a_tool_becomes_a_result(error: BaseException) -> None:
    def fail(*_: object) -> None:
        raise error

    failure = result_of(run([tool_call("f"), "done"], FunctionTool("f", fail)))
    assert failure["error_kind"] == "tool_execution_exception"
    assert failure["detail"] == type(error).__name__


def test_a_resource_key_that_fails_is_the_tools_failure() -> None:
    class Bad(FunctionTool):
        def resource_key(self, arguments: Any) -> tuple[str, ...]:
            raise ValueError("no key")

    failure = result_of(run([tool_call("f"), "done"], Bad("f", echo)))
    assert failure["message"] == "ValueError: no key"


def test_a_tool_over_its_deadline_is_abandoned_and_its_lane_stays_held() -> None:
    go = threading.Event()
    hold = FunctionTool("hold", lambda *_: go.wait(PATIENCE), timeout=0.05)
    out = run([tool_call("hold"), tool_call("hold"), "done"], hold)
    assert [result_of(out, at)["error_kind"] for at in (2, 4)] == ["abandoned"] * 2
    assert entries_of(out, ToolRun)[0].status == "abandoned"
    go.set()


# ---- what the record keeps


def test_a_tool_run_names_its_sandbox_its_file_effects_and_its_exit_code(tmp_path: Path) -> None:
    user = Session.from_user_message("go").to("local", spec=str(tmp_path))
    call = tool_call("write_workspace_file", {"path": "a.txt", "content": "hi"})
    failing = tool_call("run_shell_command", {"cmd": "exit 3"})
    entry, failed = entries_of(run([call, failing, "done"], user=user, system_tools=True), ToolRun)
    assert entry.sandbox is not None
    assert (entry.sandbox.backend, entry.sandbox.root) == ("local", str(tmp_path))
    (effect,) = entry.file_effects
    assert (effect.path, effect.kind, effect.attribution) == ("a.txt", "created", "exact")
    assert (entry.origin, failed.exit_code) == ("built-in", 3)


# ---- persistence of a run


def test_a_cancelled_error_of_a_backend_is_a_result() -> None:
    class Cancelling(FakeBackend):
        async def adispatch(self, native: Any, op: Any) -> Any:
            raise asyncio.CancelledError

    user = Session.from_user_message("go").bind_sandbox(Cancelling().open())
    call = tool_call("workspace_path_exists", {"path": "a"})
    out = run([call, "done"], user=user, system_tools=True)
    assert result_of(out)["detail"] == "CancelledError"
    assert out.text() == "done"


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
def test_an_exception_without_a_text_is_a_result(is_async: bool) -> None:
    def fail(*_: object) -> None:
        raise Silent

    async def afail(*_: object) -> None:
        raise Silent

    tool = AsyncFunctionTool("f", afail) if is_async else FunctionTool("f", fail)
    assert result_of(run([tool_call("f"), "done"], tool))["message"] == "Silent"


def test_a_resource_key_that_never_returns_is_given_up() -> None:
    go = threading.Event()

    class Slow(FunctionTool):
        def resource_key(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
            go.wait(PATIENCE)
            return ("x",)

    slow = Slow("f", lambda *_: 1, timeout=0.05)
    out = run([tool_call("f", {}, tool_call("f", {})), "done"], slow)
    assert [result_of(out, 2)["error_kind"], result_of(out, 3)["error_kind"]] == ["abandoned"] * 2
    go.set()


def test_without_graph_mode_a_run_still_names_its_producers_and_its_outcome() -> None:
    user, agent = Session.from_user_message("go"), Session.from_agent_prompt("x")
    with session_graph_mode_override(False), lineage_journal_tracking() as journal:
        out = run([tool_call("f")], FunctionTool("f", lambda *_: 1), user=user, agent=agent,
                  max_tool_rounds=1)  # fmt: skip
    assert out.outcome == RoundLimit(1)
    assert out.lineage is not None
    assert out.lineage.producer_user_session_id == user.id
    assert out.lineage_extras == (("loop.truncated", True),)
    assert out.parent_session_ids == ()
    assert journal.visit_order == []


class Named(FlowToolCall):
    """A tool with a name and nothing else."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    @property
    def parameters(self) -> Mapping[str, Any]:
        return {"type": "object", "properties": {}}

    def __call__(self, session: Session, arguments: Mapping[str, Any]) -> str:
        return self._name


def test_the_loop_finds_the_built_in_tools_of_flow() -> None:
    assert builtin_tools() == global_system_tools()
    assert set(tool_registry.names()) >= set(builtin_tools())


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["run_code"], id="built-in name"),
        pytest.param(["mine", "mine"], id="own name"),
    ],
)
def test_a_name_stands_once(names: list[str]) -> None:
    with pytest.raises(ToolNameConflictError, match=names[-1]):
        merge_tools_for_loop([Named(name) for name in names])


def test_a_tool_that_is_older_than_the_built_in_one_wins() -> None:
    mine = Named("edit_workspace_file")
    table = merge_tools_for_loop([mine])
    assert table["edit_workspace_file"] is mine
    assert table.keys() == global_system_tools().keys()


@pytest.mark.parametrize(
    ("names", "system_tools"),
    [
        pytest.param(["edit_workspace_file"], ["edit_workspace_file"], id="asked for by name"),
        pytest.param(["edit_workspace_file"] * 2, True, id="two own ones"),
    ],
)
def test_two_tools_that_were_asked_for_are_a_conflict(
    names: list[str], system_tools: SystemTools
) -> None:
    with pytest.raises(ToolNameConflictError, match="edit_workspace_file"):
        tool_table([Named(name) for name in names], system_tools=system_tools)


@pytest.mark.parametrize(
    ("attribute", "value", "problem"),
    [
        ("name", "", "must be a non-empty str, not ''"),
        ("name", 3, "must be a non-empty str, not 3"),
        ("parameters", [], "parameters of tool 'odd' must be a JSON Schema mapping"),
        ("timeout", "soon", "timeout of tool 'odd' must be seconds, not 'soon'"),
        ("timeout", -1, "timeout of tool 'odd' must be seconds, not -1"),
        ("timeout", 0, "timeout of tool 'odd' must be seconds, not 0"),
        ("timeout", True, "timeout of tool 'odd' must be seconds, not True"),
    ],
)
def test_a_tool_that_describes_itself_wrongly_is_refused(
    attribute: str, value: object, problem: str
) -> None:
    wrong = type("Odd", (Named,), {attribute: value})("odd")
    with pytest.raises(TypeError, match=problem):
        run([], wrong)
