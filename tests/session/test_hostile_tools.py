"""Tools and backends that misbehave: the run goes on, and nothing moves or stays behind."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from rath.session import Session, lineage_journal_tracking, session_graph_mode_override
from rath.session.outcome import Cancelled, RoundLimit
from rath.session.record import ToolRun
from rath.testing import FakeBackend, tool_call
from tests.support.sessions import AsyncFunctionTool, FunctionTool, run
from tests.support.waiting import PATIENCE, at_a_deadline


def result_of(out: Session, index: int = 2) -> Any:
    return json.loads(out.chunk_table[index].payload["content"])


def test_cancelling_a_run_ends_its_sub_agents() -> None:
    inner: list[Session] = []
    begun, asked, go = (threading.Event() for _ in range(3))

    def hold(*_: object) -> None:
        begun.set()
        go.wait(PATIENCE)

    def ask(session: Session, _: object) -> str | None:
        inner.append(run([tool_call("hold"), "x"], FunctionTool("hold", hold), user=session))
        asked.set()
        return inner[0].text()

    outer = run([tool_call("ask"), "never"], FunctionTool("ask", ask))
    assert begun.wait(PATIENCE)
    assert asked.wait(PATIENCE)
    outer.cancel()
    assert isinstance(outer.outcome, Cancelled)
    assert isinstance(inner[0].outcome, Cancelled)
    go.set()


def test_a_sandbox_that_was_closed_under_a_run_is_not_replaced() -> None:
    def close(session: Session, _: object) -> None:
        sandbox = session.require_sandbox()
        sandbox.backend.close(sandbox)

    def look(session: Session, _: object) -> str:
        return session.require_sandbox().handle

    user = Session.from_user_message("go").bind_sandbox(FakeBackend().open())
    out = run(
        [tool_call("close"), tool_call("look"), "done"],
        FunctionTool("close", close),
        FunctionTool("look", look),
        user=user,
    )
    assert "session sandbox is closed" in result_of(out, 4)["message"]
    entries = [entry for entry in out.record if isinstance(entry, ToolRun)]
    assert {entry.sandbox.sandbox_id for entry in entries if entry.sandbox} == {"fake-1"}
    with pytest.raises(RuntimeError, match="session sandbox is closed"):
        user.fork().require_sandbox()


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


def test_an_async_tool_past_its_deadline_holds_its_lane_until_it_ends() -> None:
    log: list[str] = []

    async def stubborn(*_: object) -> None:
        log.append("first begins")
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            log.append("first ends")

    async def second(*_: object) -> None:
        log.append("second begins")

    def run_until(deadline: float) -> Session:
        log.clear()
        return run(
            [tool_call("f", {"key": "k"}), tool_call("g", {"key": "k"}), "done"],
            AsyncFunctionTool("f", stubborn, timeout=deadline),
            AsyncFunctionTool("g", second),
        ).synchronize()

    out = at_a_deadline(run_until, lambda _: "first begins" in log)
    assert result_of(out)["error_kind"] == "abandoned"
    assert log == ["first begins", "first ends", "second begins"]


def test_late_entries_count_in_the_usage() -> None:
    from rath.session import select_session  # noqa: PLC0415  # beside its one user
    from rath.testing import ScriptedClient  # noqa: PLC0415  # beside its one user

    user = Session.from_user_message("help")
    client = ScriptedClient(["0"])
    agent = Session.from_agent_prompt("route")
    select_session(user, agent, "a", agent_provider=client.provider)
    assert user.cumulative_usage is not None
    assert user.cumulative_usage == user.fork().cumulative_usage
    (edge,) = user.fork().provenance.parents
    assert len(edge.late) == 2


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


def test_a_suspended_agent_session_passes_through() -> None:
    begun, go = threading.Event(), threading.Event()

    def hold(*_: object) -> None:
        begun.set()
        go.wait(PATIENCE)

    agent = run([tool_call("hold"), "x"], FunctionTool("hold", hold))
    begun.wait(PATIENCE)
    out = run(["never"], agent=agent.cancel())
    assert out.outcome == Cancelled(agent.id)
    go.set()
