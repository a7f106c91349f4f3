"""The loop: rounds, tools, limits, what the model is sent and what the record keeps."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from rath.errors import BudgetExceededError, ToolNameConflictError
from rath.llm import Provider, RathLLMStreamDelta, RathLLMTokenUsage
from rath.session import ChunkKind, ChunkRow, Session, run_session_loop, user_text_chunk
from rath.session.outcome import BudgetExceeded, Completed, DeadlineExceeded, RoundLimit
from rath.session.record import ModelCall, Operation, RecalledNote, ToolRun
from rath.testing import ScriptedClient, tool_call
from tests.support.sessions import FunctionTool, run
from tests.support.waiting import PATIENCE, at_a_deadline

AGENT = Session.from_agent_prompt("You are a test.")


def echo(_: Session, arguments: Any) -> Any:
    return arguments


def result_of(out: Session, index: int = 2) -> Any:
    return json.loads(out.chunk_table[index].payload["content"])


def tool_runs(out: Session) -> list[ToolRun]:
    return [entry for entry in out.record if isinstance(entry, ToolRun)]


# ---- caller's mistakes raise at once


def test_no_provider_raises_at_the_call() -> None:
    with pytest.raises(ValueError, match="no provider for run_session_loop"):
        run_session_loop(Session.from_user_message("hi"), AGENT)


def test_missing_key_raises_at_the_call() -> None:
    with pytest.raises(ValueError, match="No API key found"):
        run_session_loop(Session.from_user_message("hi"), AGENT, agent_provider=Provider(model="m"))


def test_unknown_kind_raises_at_the_call() -> None:
    provider = Provider(model="m", provider_kind="nope")
    with pytest.raises(ValueError, match="unknown provider_kind"):
        run_session_loop(Session.from_user_message("hi"), AGENT, agent_provider=provider)


def test_two_tools_of_one_name_raise_at_the_call() -> None:
    with pytest.raises(ToolNameConflictError, match="'x'"):
        run(["hi"], FunctionTool("x", echo), FunctionTool("x", echo))


def test_a_tool_with_a_built_in_name_raises_at_the_call() -> None:
    with pytest.raises(ToolNameConflictError, match="run_shell_command"):
        run(["hi"], FunctionTool("run_shell_command", echo), system_tools=True)


@pytest.mark.parametrize("wrong", [echo, "tool", FunctionTool], ids=["function", "text", "class"])
def test_what_is_no_tool_raises_at_the_call(wrong: object) -> None:
    with pytest.raises(TypeError, match="tool"):
        run(["hi"], wrong)  # type: ignore[arg-type]  # that is tested


class NoExecutor:
    """Has one of the three methods."""

    def complete(self, _: object) -> None: ...


class LateSchemas(NoExecutor):
    """Gives its schemas as a coroutine, which nobody can await in the caller's thread."""

    def dispatch_tool(self, *_: object) -> None: ...
    async def tool_schemas(self) -> tuple[()]:
        return ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_event": 5}, "on_event must be a function, not int"),
        ({"recall": "notes"}, "recall must be a function, not str"),
        ({"executor": NoExecutor()}, "lacks dispatch_tool, tool_schemas"),
        ({"executor": LateSchemas}, "given as the class LateSchemas"),
        ({"executor": LateSchemas()}, "must be a plain `def`"),
        ({"system_tools": "run_code"}, "a list of names, not 'run_code'"),
        ({"system_tools": 5}, "a list of names, not 5"),
    ],
)
def test_an_argument_of_the_wrong_type_raises_at_the_call(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        run(["never"], **options)


@pytest.mark.parametrize(
    "options",
    [{"timeout": 0}, {"timeout": "1"}, {"max_tool_rounds": -1}, {"max_tool_rounds": True}],
)
def test_impossible_limits_raise_at_the_call(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        run(["hi"], **options)


def test_on_event_with_an_executor_raises_at_the_call() -> None:
    from rath.session import DefaultSessionLoopExecutor  # noqa: PLC0415  # beside its one user

    client = ScriptedClient(["hi"])
    with pytest.raises(ValueError, match="custom executor"):
        run(["hi"], executor=DefaultSessionLoopExecutor(client), on_event=print)


def test_on_event_with_a_client_that_cannot_stream_raises_at_the_call() -> None:
    class Whole:
        provider = Provider(model="m")

        def complete(self, _: object) -> None: ...

    from rath.llm import register_chat_client  # noqa: PLC0415  # beside its one user

    register_chat_client("whole-only", lambda _: Whole())  # type: ignore[arg-type,return-value]  # a bad client is the point
    with pytest.raises(TypeError, match="complete_stream"):
        run([], agent_provider=Provider(model="m", provider_kind="whole-only"), on_event=print)


# ---- rounds


def test_a_turn_without_calls_ends_the_loop() -> None:
    out = run(["done"])
    assert [row.kind for row in out.chunk_table] == [ChunkKind.USER, ChunkKind.ASSISTANT]
    assert out.outcome == Completed()


def test_agent_rows_are_sent_and_never_copied() -> None:
    client = ScriptedClient(["done"])
    out = run_session_loop(
        Session.from_user_message("hi"), AGENT, agent_provider=client.provider
    ).synchronize()
    assert [(m.role, m.content) for m in client.requests[0].messages] == [
        ("system", "You are a test."),
        ("user", "hi"),
    ]
    assert out.chunk_table[0].kind is ChunkKind.USER


def test_results_stand_in_call_order_whatever_ends_first() -> None:
    first, second = threading.Event(), threading.Event()

    def slow(*_: object) -> str:
        second.wait(PATIENCE)
        first.set()
        return "slow"

    def fast(*_: object) -> str:
        second.set()
        first.wait(PATIENCE)
        return "fast"

    tools = [
        FunctionTool("slow", slow, parallel_safe=True),
        FunctionTool("fast", fast, parallel_safe=True),
    ]
    out = run([tool_call("slow", {}, tool_call("fast", {})), "done"], *tools)
    assert [result_of(out, 2), result_of(out, 3)] == ["slow", "fast"]


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


def test_round_limit() -> None:
    out = run([tool_call("f")] * 3, FunctionTool("f", echo), max_tool_rounds=2)
    assert out.outcome == RoundLimit(2)
    assert ("loop.truncated", True) in out.lineage_extras
    assert len(out.chunk_table) == 5


def test_a_later_run_completes_after_a_round_limit() -> None:
    cut = run([tool_call("f")], FunctionTool("f", echo), max_tool_rounds=1)
    assert run(["done"], user=cut).outcome == Completed()


def test_deadline_ends_the_run_and_keeps_its_rows() -> None:
    begun, go = threading.Event(), threading.Event()

    def hold(*_: object) -> None:
        begun.set()
        go.wait(PATIENCE)

    def run_until(deadline: float) -> tuple[float, Session]:
        tool = FunctionTool("hold", hold)
        return deadline, run([tool_call("hold"), "never"], tool, timeout=deadline).synchronize()

    deadline, out = at_a_deadline(run_until, lambda _: begun.is_set())
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
    assert tool_runs(out)[0].status == "failed"
    assert out.text() == "sorry"


def test_empty_arguments_mean_none() -> None:
    assert result_of(run([tool_call("f", ""), "done"], FunctionTool("f", echo))) == {}


@pytest.mark.parametrize(
    "error", [ValueError("v"), SystemExit(3), KeyboardInterrupt(), StopIteration("s")], ids=repr
)
def test_any_exception_of_a_tool_becomes_a_result(error: BaseException) -> None:
    def fail(*_: object) -> None:
        raise error

    failure = result_of(run([tool_call("f"), "done"], FunctionTool("f", fail)))
    assert failure["error_kind"] == "tool_execution_exception"
    assert failure["detail"] == type(error).__name__


def test_one_failing_tool_does_not_disturb_its_siblings() -> None:
    def fail(*_: object) -> None:
        raise ValueError("v")

    out = run(
        [tool_call("fail", {}, tool_call("f", {"x": 1})), "done"],
        FunctionTool("fail", fail, parallel_safe=True),
        FunctionTool("f", echo, parallel_safe=True),
    )
    assert result_of(out, 3) == {"x": 1}


def test_a_resource_key_that_fails_is_the_tools_failure() -> None:
    class Bad(FunctionTool):
        def resource_key(self, arguments: Any) -> tuple[str, ...]:
            raise ValueError("no key")

    failure = result_of(run([tool_call("f"), "done"], Bad("f", echo)))
    assert failure["message"] == "ValueError: no key"


def test_a_tool_over_its_deadline_is_abandoned() -> None:
    go = threading.Event()
    hold = FunctionTool("hold", lambda *_: go.wait(PATIENCE), timeout=0.05)
    out = run([tool_call("hold"), "done"], hold)
    assert result_of(out)["error_kind"] == "abandoned"
    assert tool_runs(out)[0].status == "abandoned"
    go.set()


def test_the_lane_of_an_abandoned_call_stays_held() -> None:
    go = threading.Event()
    hold = FunctionTool("hold", lambda *_: go.wait(PATIENCE), timeout=0.05)
    out = run([tool_call("hold"), tool_call("hold"), "done"], hold)
    assert result_of(out, 4)["error_kind"] == "abandoned"
    go.set()


# ---- what the record keeps


def test_the_record_of_a_run() -> None:
    out = run([tool_call("f", {"x": 1}), "done"], FunctionTool("f", echo)).synchronize()
    operation, first, tool_run, second = out.record
    assert isinstance(operation, Operation)
    assert isinstance(first, ModelCall)
    assert isinstance(tool_run, ToolRun)
    assert isinstance(second, ModelCall)
    assert {entry.operation for entry in out.record} == {operation.operation}
    assert [row.payload["content"] for row in operation.head] == ["You are a test."]
    assert [tool.name for tool in operation.tools] == ["f"]
    assert first.rows == (out.chunk_table[1].id,)
    assert tool_run.rows == (out.chunk_table[2].id,)
    assert tool_run.arguments == {"x": 1}
    assert tool_run.origin.endswith(":FunctionTool")
    assert (first.seen and first.seen.n_rows, second.seen and second.seen.n_rows) == (1, 3)


def test_a_tool_run_names_its_sandbox_and_its_file_effects(tmp_path: Path) -> None:
    user = Session.from_user_message("go").to("local", spec=str(tmp_path))
    call = tool_call("write_workspace_file", {"path": "a.txt", "content": "hi"})
    out = run([call, "done"], user=user, system_tools=True)
    (entry,) = tool_runs(out)
    assert entry.sandbox is not None
    assert (entry.sandbox.backend, entry.sandbox.root) == ("local", str(tmp_path))
    (effect,) = entry.file_effects
    assert (effect.path, effect.kind, effect.attribution) == ("a.txt", "created", "exact")
    assert entry.origin == "built-in"


def test_a_non_zero_exit_is_recorded(tmp_path: Path) -> None:
    user = Session.from_user_message("go").to("local", spec=str(tmp_path))
    out = run(
        [tool_call("run_shell_command", {"cmd": "exit 3"}), "done"], user=user, system_tools=True
    )
    assert tool_runs(out)[0].exit_code == 3


def test_a_long_result_is_cut_stays_json_and_says_where_the_rest_is() -> None:
    out = run([tool_call("f"), "done"], FunctionTool("f", lambda *_: "x" * 100_000))
    shown = result_of(out)
    assert shown["truncated"] is True
    (entry,) = tool_runs(out)
    assert entry.full is not None
    assert entry.full.data == json.dumps("x" * 100_000).encode()
    assert shown["full_result"] == f"sha256:{entry.full.digest}"


def test_system_tools_by_name() -> None:
    client = ScriptedClient(["done"])
    run(["x"], agent_provider=client.provider, system_tools=["run_code"]).synchronize()
    assert [tool.name for tool in client.requests[0].tools or ()] == ["run_code"]


def test_without_a_sandbox_a_built_in_tool_says_how_to_get_one() -> None:
    out = run([tool_call("workspace_path_exists", {"path": "a"}), "done"], system_tools=True)
    assert "session.to" in result_of(out)["message"]


# ---- usage and budget


def test_usage_adds_up_over_a_chain_each_call_once() -> None:
    first = run(["one"])
    second = run(["two"], user=first.fork())
    merged = second.merge(first)
    calls = [entry for entry in merged.record if isinstance(entry, ModelCall)]
    total = sum(entry.evidence.usage.total_tokens for entry in calls if entry.evidence.usage)
    assert len(calls) == 2
    assert merged.cumulative_usage is not None
    assert merged.cumulative_usage.total_tokens == total


def test_a_budget_without_a_callback_stops_the_run(caplog: pytest.LogCaptureFixture) -> None:
    client = ScriptedClient([tool_call("f"), "never"], provider=Provider(budget_total_tokens=1))
    with caplog.at_level(logging.WARNING, logger="rath.session.loop"):
        out = run([], FunctionTool("f", echo), agent_provider=client.provider)
        assert isinstance(out.outcome, BudgetExceeded)
    assert "budget_total_tokens" in caplog.text
    assert len(client.requests) == 1


def test_a_chain_at_its_cap_fires_before_the_first_call() -> None:
    used = run(["one two three"])
    client = ScriptedClient(["never"], provider=Provider(budget_total_tokens=3))
    assert isinstance(run([], user=used, agent_provider=client.provider).outcome, BudgetExceeded)
    assert client.requests == []


def test_budget_callback_may_end_the_run_with_its_error() -> None:
    fired: list[RathLLMTokenUsage] = []

    def stop(_: Session, usage: RathLLMTokenUsage) -> None:
        fired.append(usage)
        raise BudgetExceededError("enough")

    provider = Provider(budget_total_tokens=1, on_budget_exceeded=stop)
    client = ScriptedClient([tool_call("f"), "never"], provider=provider)
    out = run([], FunctionTool("f", echo), agent_provider=client.provider)
    for _ in range(2):
        with pytest.raises(BudgetExceededError, match="enough"):
            out.synchronize()
    assert len(fired) == 1


def test_budget_callback_that_returns_lets_the_run_go_on() -> None:
    snapshots: list[int] = []

    def note(session: Session, _: RathLLMTokenUsage) -> None:
        snapshots.append(len(session.chunk_table))

    provider = Provider(budget_total_tokens=1, on_budget_exceeded=note)
    client = ScriptedClient([tool_call("f"), "done"], provider=provider)
    assert run([], FunctionTool("f", echo), agent_provider=client.provider).text() == "done"
    assert snapshots == [2]


# ---- streaming


def test_deltas_come_in_order_and_the_end_waits_for_them() -> None:
    seen: list[str] = []

    def on_event(delta: RathLLMStreamDelta) -> None:
        seen.append(delta.content_delta or "")

    out = run(["one two three"], on_event=on_event)
    assert out.text() == "one two three"
    assert "".join(seen) == "one two three"


def test_async_callbacks_work_too() -> None:
    seen: list[str] = []

    async def on_event(delta: RathLLMStreamDelta) -> None:
        seen.append(delta.content_delta or "")

    run(["one two"], on_event=on_event).synchronize()
    assert "".join(seen) == "one two"


def test_a_callback_that_fails_is_logged_and_the_run_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def on_event(_: RathLLMStreamDelta) -> None:
        raise ValueError("bad callback")

    assert run(["hello"], on_event=on_event).text() == "hello"
    assert "bad callback" in caplog.text


def test_a_callback_may_end_the_run_over_its_budget() -> None:
    def on_event(_: RathLLMStreamDelta) -> None:
        raise BudgetExceededError("enough")

    with pytest.raises(BudgetExceededError):
        run(["hello"], on_event=on_event).text()


# ---- recalled notes


def test_recalled_notes_are_one_user_message_before_the_last_user_row() -> None:
    client = ScriptedClient(["done", "again"])
    notes = [RecalledNote("memory://user/a", "The user likes tea.", 0.5)]

    def recall(_: Session) -> list[RecalledNote]:
        return notes

    out = run([], agent_provider=client.provider, recall=recall)
    assert len(out.chunk_table) == 2
    roles = [message.role for message in client.requests[0].messages]
    assert roles == ["system", "user", "user"]
    context = client.requests[0].messages[1].content or ""
    assert "The user likes tea." in context
    call = next(entry for entry in out.record if isinstance(entry, ModelCall))
    assert call.seen is not None
    assert call.seen.recalled == tuple(notes)
    assert (call.seen.context_at, call.seen.context) == (0, context)


def test_recalled_notes_do_not_pile_up_over_turns() -> None:
    client = ScriptedClient(["one", "two"])

    def recall(_: Session) -> list[ChunkRow]:
        return [user_text_chunk("a note")]

    first = run([], agent_provider=client.provider, recall=recall)
    run([], user=first, agent_provider=client.provider, recall=recall).synchronize()
    notes = [m for m in client.requests[1].messages if "a note" in (m.content or "")]
    assert len(notes) == 1


def test_a_recall_that_fails_is_logged_and_the_run_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def recall(_: Session) -> list[RecalledNote]:
        raise OSError("no memory")

    assert run(["hello"], recall=recall).text() == "hello"
    assert "no memory" in caplog.text


# ---- persistence of a run


def test_persist_path_writes_the_run(tmp_path: Path) -> None:
    from rath.session import load_session  # noqa: PLC0415  # beside its one user

    path = tmp_path / "run.jsonl"
    out = run([tool_call("f"), "done"], FunctionTool("f", echo), persist_path=path).synchronize()
    loaded = load_session(out.id, path=path)
    assert loaded.closed
    assert loaded.chunk_table == out.chunk_table
    assert loaded.cumulative_usage is not None


def test_a_failed_run_leaves_a_partial_file(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with pytest.raises(ValueError, match="boom"):
        run([ValueError("boom")], persist_path=path).synchronize()
    assert not path.exists()


def test_no_run_leaves_a_thread_per_session() -> None:
    before = threading.active_count()
    sessions = [run(["done"]) for _ in range(200)]
    for session in sessions:
        session.synchronize()
    assert threading.active_count() - before < 50
