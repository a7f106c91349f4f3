"""A session's constructors, bindings, pictures and registry, and what waits for its run."""

from __future__ import annotations

import asyncio
import re
import threading
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath import ask
from rath.errors import SelfWaitError
from rath.llm import Provider
from rath.session import (
    ChunkKind,
    ChunkRow,
    ChunkTable,
    Session,
    SessionRegistry,
    session_registry,
    user_text_chunk,
)
from rath.session.outcome import (
    BudgetExceeded,
    Cancelled,
    Completed,
    DeadlineExceeded,
    NeedsApproval,
    NeedsDecision,
    NeedsInput,
    RoundLimit,
    outcome_extras,
)
from rath.session.record import ToolRun
from rath.session.session import EDGE_ROWS, show_session
from rath.testing import tool_call
from tests.support.api import Outcome, Suspended
from tests.support.sessions import AsyncFunctionTool, FunctionTool, entries_of, row_lists, run
from tests.support.waiting import PATIENCE, wait_until


@pytest.mark.parametrize("wrong", [None, 3, b"bytes"])
def test_text_must_be_text(wrong: object) -> None:
    with pytest.raises(TypeError, match="expected text as a str"):
        Session.from_user_message(wrong)  # type: ignore[arg-type]  # that is tested


@pytest.mark.parametrize("name", [name for name in dir(Session) if not name.startswith("_")])
def test_no_public_attribute_can_be_set_or_deleted(name: str) -> None:
    session = Session.from_user_message("hi")
    display = repr(session)
    with pytest.raises(AttributeError, match=f"session.{name} cannot be set; "):
        setattr(session, name, uuid4())
    with pytest.raises(AttributeError):
        delattr(session, name)
    assert repr(session) == display


def test_a_wrong_argument_is_refused() -> None:
    hello: Any = "hi"
    with pytest.raises(ValueError, match="unknown kind 'agent'"):
        Session.create("agent")
    with pytest.raises(TypeError, match="from_user_message"):
        Session(hello)
    with pytest.raises(ValueError, match="two providers"):
        Session.from_user_message("hi").to(Provider(model="a"), provider="b")


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("id", "Session(chunk_table, id=...)"),
        ("chunk_table", "Session(chunk_table)"),
        ("provider", "session.to(provider)"),
        ("sandbox", "session.bind_sandbox(sandbox)"),
        ("sandbox_backend", "session.to(backend, spec=...)"),
        ("lineage_operator", "LineageRecorder.stamp_new_session"),
    ],
)
def test_a_refused_setter_says_what_to_do_instead(name: str, instead: str) -> None:
    with pytest.raises(AttributeError, match=re.escape(instead)):
        setattr(Session.from_user_message("hi"), name, None)


def test_text_skips_turns_that_only_call_tools() -> None:
    out = run([tool_call("missing", {}), "  the end\n"])
    assert out.text() == "  the end\n"
    assert Session.from_user_message("hi").text() == ""


def test_to_a_provider_leaves_the_placement_alone() -> None:
    provider = Provider(model="m")
    session = Session.from_user_message("hi").to(provider)
    assert session.provider is provider
    assert session.sandbox_backend is None
    assert Session.from_user_message("hi").to(provider=provider).sandbox_backend is None


def test_the_sandbox_opens_on_first_use_and_is_shared_by_forks() -> None:
    session = Session.from_user_message("hi").to("local")
    fork = session.fork()
    sandbox = fork.require_sandbox()
    assert session.require_sandbox() is sandbox
    assert sandbox.refcount == 2


def test_close_sandbox_keeps_backend_and_spec(tmp_path: Path) -> None:
    session = Session.from_user_message("hi").to("local", spec=str(tmp_path))
    first = session.require_sandbox()
    assert session.close_sandbox() is session
    assert first.closed
    assert session.sandbox is None
    assert session.require_sandbox() is not first


def test_with_opens_and_closes_and_may_be_nested() -> None:
    session = Session.from_user_message("hi").to("local")
    with session:
        sandbox = session.sandbox
        with session:
            assert session.sandbox is sandbox
        assert sandbox is not None
        assert not sandbox.closed
    assert session.sandbox is None
    assert sandbox.closed


def test_the_active_session_is_known_by_its_id_until_it_is_unset() -> None:
    registry, session = SessionRegistry(), Session.from_user_message("hi")
    assert registry.get_active_id() is None
    registry.set_active(session)
    assert registry.get_active_id() == session.id
    registry.set_active(None)
    assert registry.get_active_id() is None


def test_a_run_registers_its_sessions_and_makes_its_output_active() -> None:
    user, agent = Session.from_user_message("go"), Session.from_agent_prompt("x")
    out = run(["done"], user=user, agent=agent)
    registry = session_registry()
    assert [registry.get(one.id) for one in (user, agent, out)] == [user, agent, out]
    assert registry.get_active_id() == out.id
    out.synchronize()


ID = UUID("12345678-0000-4000-8000-000000000000")


def show(*rows: ChunkRow) -> str:
    return show_session(ID, ChunkTable(rows), "implicit")


@given(n_rows=st.integers(0, 30))
def test_a_long_table_shows_its_edges_and_counts_the_rest(n_rows: int) -> None:
    lines = show(*[user_text_chunk(str(index)) for index in range(n_rows)])
    display = [index for index in range(n_rows) if f"[{index}] user:" in lines]
    if n_rows <= 2 * EDGE_ROWS + 1:
        assert display == list(range(n_rows))
        assert "omitted" not in lines
    else:
        edge = EDGE_ROWS
        assert display == [*range(edge), *range(n_rows - edge, n_rows)]
        assert f"    ... ({n_rows - 2 * edge} chunks omitted) ...,\n" in lines


@given(rows=row_lists)
def test_any_row_is_one_line(rows: list[ChunkRow]) -> None:
    n_lines = min(len(rows), 2 * EDGE_ROWS + 1)
    assert len(show(*rows).split("\n")) == (4 if not rows else 5 + n_lines)


class Held:
    """A tool that holds its run until the test lets it go."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go = threading.Event()

    @property
    def tool(self) -> FunctionTool:
        def hold(*_: object) -> str:
            self.begun.set()
            self.go.wait(PATIENCE)
            return "held"

        return FunctionTool("hold", hold)


def test_what_does_not_need_rows_never_waits() -> None:
    held = Held()
    out = run([tool_call("hold"), "done"], held.tool)
    assert out.is_pending
    assert out.lineage is not None
    assert len(out.parent_session_ids) == 2
    assert repr(out).endswith("pending …, operator='run_session_loop')")
    held.begun.wait()
    assert [row.kind for row in out.partial_table] == [ChunkKind.USER, ChunkKind.ASSISTANT]
    held.go.set()
    assert out.text() == "done"


def test_await_and_sync_reads_work_in_an_event_loop() -> None:
    assert not run(["done"], lazy=False).is_pending

    async def main() -> tuple[str | None, str | None]:
        return (await run(["hello"])).text(), run(["hello"]).text()

    assert asyncio.run(main()) == ("hello", "hello")


def test_cancel_keeps_what_was_written_and_says_what_was_cut_off() -> None:
    held = Held()
    out = run([tool_call("hold", id="c1"), "never"], held.tool)
    held.begun.wait()
    assert out.cancel() is out
    assert out.outcome == Cancelled(out.id)
    assert len(out.chunk_table) == 2
    (tool_run,) = entries_of(out, ToolRun)
    assert tool_run.status == "interrupted"
    assert ("loop.outcome", "cancelled") in out.lineage_extras
    held.go.set()


def test_a_run_can_be_cancelled_while_its_input_is_pending() -> None:
    held = Held()
    first = run([tool_call("hold"), "one"], held.tool)
    second = run(["two"], user=first)
    second.cancel()
    assert second.outcome == Cancelled(second.id)
    held.go.set()
    assert first.text() == "one"


def test_a_tool_that_reads_its_own_result_is_refused_by_name() -> None:
    sessions: list[Session] = []
    ready = threading.Event()

    def read(*_: object) -> str | None:
        ready.wait()
        return sessions[0].text()

    sessions.append(run([tool_call("read"), "done"], FunctionTool("read", read)))
    ready.set()
    result = sessions[0].chunk_table[2].payload["content"]
    assert "SelfWaitError" in result
    assert "partial_table" in result


def test_a_blocking_read_in_an_async_tool_is_refused() -> None:
    gate = threading.Event()

    def hold(*_: object) -> None:
        gate.wait(PATIENCE)

    async def ask(session: Session, _: Any) -> str | None:
        below = run([tool_call("hold"), "x"], FunctionTool("hold", hold), user=session)
        try:
            return below.text()
        except SelfWaitError as exc:
            return str(exc)
        finally:
            gate.set()
            await below

    out = run([tool_call("ask"), "done"], AsyncFunctionTool("ask", ask))
    assert "await session" in out.chunk_table[2].payload["content"]


OUTCOME_ID = uuid4()


@pytest.mark.parametrize(
    ("outcome", "extras", "is_suspended"),
    [
        (Completed(), (), False),
        (RoundLimit(3), (("loop.truncated", True),), False),
        (BudgetExceeded(10, 11), (("loop.outcome", "budget_exceeded"),), False),
        (DeadlineExceeded(1.5), (("loop.outcome", "deadline_exceeded"),), False),
        (Cancelled(OUTCOME_ID), (("loop.outcome", "cancelled"),), True),
        (NeedsApproval(OUTCOME_ID, ("c1",)), (("loop.outcome", "suspended"),), True),
        (NeedsInput(OUTCOME_ID, "which?"), (("loop.outcome", "suspended"),), True),
        (NeedsDecision(OUTCOME_ID, ("c1",)), (("loop.outcome", "suspended"),), True),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, tuple | bool) else None,
)
def test_each_outcome_has_its_extras(
    outcome: Outcome, extras: tuple[tuple[str, object], ...], is_suspended: bool
) -> None:
    assert outcome_extras(outcome) == extras
    assert isinstance(outcome, Suspended) == is_suspended


def test_a_session_is_read_as_its_rows() -> None:
    session = run([tool_call("f"), "done"], FunctionTool("f", lambda *_: "x"))
    rows = list(session.chunk_table)
    assert (len(session), list(session), session.rows) == (4, rows, tuple(rows))
    empty = Session.create("empty")
    assert (len(empty), list(empty), bool(empty)) == (0, [], True)


def test_usage_is_that_of_all_calls_and_never_none() -> None:
    session = run(["done"])
    assert session.usage == session.cumulative_usage
    none = Session.from_user_message("hi")
    assert (none.cumulative_usage, none.usage.total_tokens) == (None, 0)


def test_a_picture_tells_how_a_run_ended_and_what_it_waits_for() -> None:
    tool = FunctionTool("remove", lambda *_: "x")
    call = tool_call("remove", {"path": "/"}, id="c1")
    limited = run([call], tool, max_tool_rounds=1).synchronize()
    assert "  outcome=RoundLimit(max_tool_rounds=1),\n)" in repr(limited)
    waiting = run([call], tool, approval="always").synchronize()
    said = "an approval of remove('{\"path\": \"/\"}'), id 'c1'"
    assert f"  outcome=NeedsApproval, waits for {said},\n)" in repr(waiting)
    passed = waiting.say("and now?")
    assert f"outcome=NeedsApproval, passed on from session {str(waiting.id)[:8]}" in repr(passed)
    asking = run([call], FunctionTool("remove", lambda *_: ask("Really?"))).synchronize()
    assert "waits for an answer to 'Really?' of remove(" in repr(asking)
    assert repr(run(["done"]).synchronize()).endswith("  operator='run_session_loop',\n)")


def test_a_picture_of_a_failed_run_tells_the_error_and_does_not_count_as_reading_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    session = run([RuntimeError("the endpoint is gone")])
    wait_until(session.core.body.done, "the run does not end")
    assert "failed='RuntimeError: the endpoint is gone" in repr(session)
    session.core.body.tell_unread()
    assert "nobody read its result" in caplog.text


def test_what_takes_a_coroutine_waits_for_a_session() -> None:
    async def main() -> list[str]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run([text]).wait()) for text in ("one", "two")]
        return [task.result().text() for task in tasks]

    assert asyncio.run(main()) == ["one", "two"]
    assert asyncio.run(run(["three"]).wait()).text() == "three"
    failed = run([RuntimeError("gone")])
    with pytest.raises(RuntimeError, match="gone"):
        asyncio.run(failed.wait())
