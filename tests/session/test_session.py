"""A session's constructors, bindings, pictures and registry, and what waits for its run."""

from __future__ import annotations

import asyncio
import gc
import re
import threading
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath._core.text import short_id
from rath.errors import BackendNotFound, SelfWaitError
from rath.llm import Provider, RathLLMTokenUsage
from rath.session import (
    ChunkKind,
    ChunkRow,
    ChunkTable,
    Session,
    SessionRegistry,
    session_registry,
    user_text_chunk,
)
from rath.session.outcome import Cancelled, Completed
from rath.session.record import ModelCall, ToolRun
from rath.session.session import EDGE_ROWS, MAX_TEXT, show_session
from rath.testing import ScriptedClient, tool_call
from tests.support.images import picture
from tests.support.sessions import AsyncFunctionTool, FunctionTool, row_lists, run
from tests.support.waiting import PATIENCE, wait_until_let_go

USAGE = RathLLMTokenUsage(prompt_tokens=10, completion_tokens=5, total_tokens=15)


def test_create_refuses_other_kinds() -> None:
    with pytest.raises(ValueError, match="unknown kind 'agent'"):
        Session.create("agent")


@pytest.mark.parametrize("wrong", [None, 3, b"bytes"])
def test_text_must_be_text(wrong: object) -> None:
    with pytest.raises(TypeError, match="expected text as a str"):
        Session.from_user_message(wrong)  # type: ignore[arg-type]  # that is tested


def test_a_session_is_made_from_a_table() -> None:
    with pytest.raises(TypeError, match="from_user_message"):
        Session("hi")  # type: ignore[arg-type]  # that is tested


@pytest.mark.parametrize("name", [name for name in dir(Session) if not name.startswith("_")])
def test_no_public_attribute_can_be_set_or_deleted(name: str) -> None:
    session = Session.from_user_message("hi")
    shown = repr(session)
    with pytest.raises(AttributeError, match=f"session.{name} cannot be set; "):
        setattr(session, name, uuid4())
    with pytest.raises(AttributeError):
        delattr(session, name)
    assert repr(session) == shown


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


def test_a_subclass_may_have_attributes_of_its_own() -> None:
    class Tagged(Session):
        tag = "none"

    session = Tagged(ChunkTable())
    session.tag = "mine"
    assert session.tag == "mine"


def test_given_usage_is_carried_once() -> None:
    session = Session(ChunkTable((user_text_chunk("a"),)), cumulative_usage=USAGE)
    assert session.fork().cumulative_usage == USAGE
    assert session.fork().merge(session.detach()).cumulative_usage == USAGE


def test_text_skips_turns_that_only_call_tools() -> None:
    out = run([tool_call("missing", {}), "  the end\n"])
    assert out.text() == "  the end\n"
    assert Session.from_user_message("hi").text() is None


def test_to_places_and_returns_the_same_session(tmp_path: Path) -> None:
    session = Session.from_user_message("hi")
    assert session.to("local", spec=str(tmp_path)) is session
    assert session.sandbox_backend == "local"
    assert session.sandbox_spec is not None
    assert session.sandbox_spec.working_dir == str(tmp_path)
    assert session.sandbox is None


def test_to_an_unknown_backend_raises_at_once() -> None:
    with pytest.raises(BackendNotFound, match="Did you mean 'local'"):
        Session.from_user_message("hi").to("locl")


def test_to_a_provider_leaves_the_placement_alone() -> None:
    provider = Provider(model="m")
    session = Session.from_user_message("hi").to(provider)
    assert session.provider is provider
    assert session.sandbox_backend is None
    assert Session.from_user_message("hi").to(provider=provider).sandbox_backend is None


def test_to_refuses_two_providers() -> None:
    with pytest.raises(ValueError, match="two providers"):
        Session.from_user_message("hi").to(Provider(model="a"), provider="b")


def test_require_sandbox_without_a_place_teaches() -> None:
    with pytest.raises(RuntimeError, match=r'session\.to\("local"\)'):
        Session.from_user_message("hi").require_sandbox()


def test_the_sandbox_opens_on_first_use_and_is_shared_by_forks() -> None:
    session = Session.from_user_message("hi").to("local")
    fork = session.fork()
    sandbox = fork.require_sandbox()
    assert session.require_sandbox() is sandbox
    assert sandbox.refcount == 2


def test_a_dropped_fork_gives_its_count_back() -> None:
    session = Session.from_user_message("hi").to("local")
    sandbox = session.fork().require_sandbox()
    wait_until_let_go(lambda: sandbox.refcount == 1)
    assert not sandbox.closed


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


def test_with_replaces_a_closed_sandbox() -> None:
    session = Session.from_user_message("hi").to("local")
    first = session.require_sandbox()
    first.backend.close(first)
    with session:
        assert session.require_sandbox() is not first


def test_bind_sandbox_holds_the_new_and_releases_the_old() -> None:
    owner = Session.from_user_message("a").to("local")
    old = owner.require_sandbox()
    session = Session.from_user_message("hi").to("local")
    before = session.require_sandbox()
    assert session.bind_sandbox(old) is session
    assert session.sandbox is old
    assert before.closed
    count = old.refcount
    session.bind_sandbox(old)
    assert old.refcount == count


def test_the_output_of_a_run_keeps_the_input_sessions_provider() -> None:
    bound = ScriptedClient(["done"]).provider
    out = run(["done"], user=Session.from_user_message("hi").to(bound))
    assert out.provider is bound


def test_a_registered_session_is_found_by_its_id() -> None:
    registry, session = SessionRegistry(), Session.from_user_message("hi")
    registry.register(session)
    assert registry.get(session.id) is session
    assert registry.get(uuid4()) is None


def test_a_session_that_nobody_holds_is_gone() -> None:
    registry, session = SessionRegistry(), Session.from_user_message("hi")
    session_id = session.id
    registry.register(session)
    del session
    gc.collect()
    assert registry.get(session_id) is None


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


def test_derivations_and_new_sessions_are_not_registered() -> None:
    session = Session.create("user", "hi")
    forked = session.fork()
    assert session_registry().get(session.id) is None
    assert session_registry().get(forked.id) is None


ID = UUID("12345678-0000-4000-8000-000000000000")


def show(*rows: ChunkRow) -> str:
    return show_session(ID, ChunkTable(rows), "implicit")


def line_of(row: ChunkRow) -> str:
    return show(row).splitlines()[2].strip()


def test_a_crowd_of_images_is_cut() -> None:
    row = user_text_chunk("x", images=[picture()] * 100)
    assert MAX_TEXT < len(line_of(row)) < MAX_TEXT + 30


def test_repr_and_str_are_the_picture() -> None:
    session = Session.from_user_message("hi")
    assert (
        repr(session) == str(session) == show_session(session.id, session.chunk_table, "implicit")
    )


def test_a_pending_session_is_shown_without_waiting() -> None:
    go = threading.Event()
    out = run([tool_call("hold"), "done"], FunctionTool("hold", lambda *_: go.wait(PATIENCE)))
    shown = repr(out)
    go.set()
    assert shown == f"Session(id={short_id(out.id)}, pending …, operator='run_session_loop')"
    assert out.text() == "done"


@given(n_rows=st.integers(0, 30))
def test_a_long_table_shows_its_edges_and_counts_the_rest(n_rows: int) -> None:
    lines = show(*[user_text_chunk(str(index)) for index in range(n_rows)])
    shown = [index for index in range(n_rows) if f"[{index}] user:" in lines]
    if n_rows <= 2 * EDGE_ROWS + 1:
        assert shown == list(range(n_rows))
        assert "omitted" not in lines
    else:
        edge = EDGE_ROWS
        assert shown == [*range(edge), *range(n_rows - edge, n_rows)]
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


def test_partial_table_of_a_failed_session_never_raises() -> None:
    failed = run([tool_call("missing"), ValueError("boom")])
    with pytest.raises(ValueError, match="boom"):
        failed.synchronize()
    assert len(failed.partial_table) == 3
    statuses = [entry.status for entry in failed.partial_record if isinstance(entry, ModelCall)]
    assert statuses == ["done", "failed"]


def test_await_and_sync_reads_work_in_an_event_loop() -> None:
    async def main() -> tuple[str | None, str | None]:
        return (await run(["hello"])).text(), run(["hello"]).text()

    assert asyncio.run(main()) == ("hello", "hello")


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


def test_lazy_false_waits() -> None:
    assert not run(["done"], lazy=False).is_pending
