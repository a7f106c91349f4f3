"""Runs return at once; what needs rows waits, what does not never does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from operator import attrgetter, methodcaller
from typing import Any

import pytest

from rath.errors import SelfWaitError
from rath.session import ChunkKind, Session
from rath.session.outcome import Cancelled, Completed
from rath.session.record import ModelCall, ToolRun
from rath.testing import tool_call
from tests.support.sessions import AsyncFunctionTool, FunctionTool, run
from tests.support.waiting import PATIENCE


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


def test_a_chain_of_pending_sessions_never_blocks() -> None:
    held = Held()
    first = run([tool_call("hold"), "one"], held.tool)
    chain = run(["three"], user=run(["two"], user=first.fork()).detach())
    merged = chain.merge(first)
    assert all(session.is_pending for session in (first, chain, merged))
    held.go.set()
    assert merged.text() == "three"
    texts = [row.payload["content"] for row in merged.chunk_table if row.kind == "assistant"]
    assert texts == [None, "one", "two", "three"]


def test_a_failed_run_fails_what_comes_from_it_with_the_same_error() -> None:
    failed = run([ValueError("boom")])
    later = run(["never"], user=failed.fork())
    with pytest.raises(ValueError, match="boom") as caught:
        later.text()
    with pytest.raises(ValueError, match="boom") as again:
        failed.chunk_table  # noqa: B018  # the read is what is tested
    assert again.value is caught.value


def test_the_error_names_session_round_and_call() -> None:
    failed = run([tool_call("missing"), ValueError("boom")])
    with pytest.raises(ValueError, match="boom") as caught:
        failed.text()
    (note,) = caught.value.__notes__
    assert str(failed.id) in note
    assert "model call 2" in note
    assert "test_the_error_names_session_round_and_call" in note or "sessions.py" in note


def test_partial_table_of_a_failed_session_never_raises() -> None:
    failed = run([tool_call("missing"), ValueError("boom")])
    with pytest.raises(ValueError, match="boom"):
        failed.synchronize()
    assert len(failed.partial_table) == 3
    statuses = [entry.status for entry in failed.partial_record if isinstance(entry, ModelCall)]
    assert statuses == ["done", "failed"]


def test_await_in_an_event_loop() -> None:
    async def main() -> str | None:
        session = await run(["hello"])
        return session.text()

    assert asyncio.run(main()) == "hello"


def test_sync_reads_work_inside_a_running_loop() -> None:
    async def main() -> str | None:
        return run(["hello"]).text()

    assert asyncio.run(main()) == "hello"


def test_cancelling_an_await_leaves_the_run_alone() -> None:
    held = Held()
    out = run([tool_call("hold"), "done"], held.tool)

    async def main() -> None:
        async def wait() -> Session:
            return await out

        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(main())
    held.go.set()
    assert out.text() == "done"


def test_cancel_keeps_what_was_written_and_says_what_was_cut_off() -> None:
    held = Held()
    out = run([tool_call("hold", id="c1"), "never"], held.tool)
    held.begun.wait()
    assert out.cancel() is out
    assert out.outcome == Cancelled(out.id)
    assert len(out.chunk_table) == 2
    (tool_run,) = [entry for entry in out.record if isinstance(entry, ToolRun)]
    assert tool_run.status == "interrupted"
    assert ("loop.outcome", "cancelled") in out.lineage_extras
    held.go.set()


def test_a_cancelled_session_passes_through_later_operations_unchanged() -> None:
    held = Held()
    out = run([tool_call("hold"), "never"], held.tool)
    held.begun.wait()
    later = run(["never asked"], user=out.cancel().fork())
    assert later.outcome == Cancelled(out.id)
    assert later.chunk_table == out.chunk_table
    held.go.set()


def test_cancel_after_the_end_changes_nothing() -> None:
    out = run(["done"]).synchronize()
    assert out.cancel().outcome == Completed()


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


def test_an_async_tool_awaits_a_sub_agent() -> None:
    async def ask(session: Session, _: Any) -> str | None:
        return (await run(["from below"], user=session)).text()

    out = run([tool_call("ask"), "done"], AsyncFunctionTool("ask", ask))
    assert out.chunk_table[2].payload["content"] == '"from below"'


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


@pytest.mark.parametrize(
    "read",
    [
        attrgetter("chunk_table"),
        attrgetter("cumulative_usage"),
        attrgetter("record"),
        methodcaller("text"),
    ],
    ids=["chunk_table", "cumulative_usage", "record", "text"],
)
def test_reads_wait_for_the_run(read: Callable[[Session], object]) -> None:
    assert read(run(["done"])) is not None


def test_lazy_false_waits() -> None:
    assert not run(["done"], lazy=False).is_pending
