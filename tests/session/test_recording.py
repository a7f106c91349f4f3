"""A run is written while it goes on: every row once, a trailer only when it ended by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath._async.runtime import runtime
from rath.errors import PersistenceError
from rath.session import ChunkTable, PersistedSession, Session, load_session, user_text_chunk
from rath.session.outcome import Cancelled
from rath.session.persistence.paths import partial_beside
from rath.session.recording import Recording, RecordingPlan
from rath.testing import tool_call
from tests.support.sessions import FunctionTool, run

T = TypeVar("T")


def table_of(count: int) -> ChunkTable:
    return ChunkTable(user_text_chunk(str(index)) for index in range(count))


def on_runtime(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    return runtime().run(make, label="a test")


def texts(session: PersistedSession) -> list[str]:
    return [row.payload["content"] for row in session.chunk_table]


@given(sizes=st.lists(st.integers(0, 8), min_size=1, max_size=5).map(sorted))
def test_every_row_is_written_once_however_the_table_grows(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int]
) -> None:
    path = tmp_path_factory.mktemp("run") / "run.jsonl"
    tables = [table_of(size) for size in sizes]
    sessions = [Session(table) for table in (tables[0], tables[-1])]
    first = sessions[0].id

    async def record() -> None:
        async with Recording(RecordingPlan(path), lambda: sessions.pop(0)) as recording:
            await recording.begin()
            for table in tables:
                await recording.flush(table)
                await recording.flush(table)

    on_runtime(record)
    loaded = load_session(first, path=path)
    assert loaded.closed
    assert texts(loaded) == [str(index) for index in range(sizes[-1])]


def test_without_a_plan_nothing_is_asked_for_and_nothing_written(tmp_path: Path) -> None:
    asked: list[int] = []

    def snapshot() -> Session:
        asked.append(1)
        return Session.from_user_message("hi")

    async def record() -> None:
        async with Recording(None, snapshot) as recording:
            await recording.begin()
            await recording.flush(table_of(2))

    on_runtime(record)
    assert asked == []


def test_what_fails_before_the_file_is_open_leaves_none(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"

    async def record() -> None:
        async with Recording(RecordingPlan(path), lambda: Session.from_user_message("hi")):
            raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        on_runtime(record)
    assert list(tmp_path.iterdir()) == []


def test_what_fails_later_leaves_the_partial_file(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    session = Session.from_user_message("hi")

    async def record() -> None:
        async with Recording(RecordingPlan(path), lambda: session) as recording:
            await recording.begin()
            raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        on_runtime(record)
    assert not path.exists()
    assert b'"hi"' in partial_beside(path).read_bytes()


def test_the_header_names_the_remote_sandbox(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    out = run(["done"], persist_path=path, sandbox_handle_id="sandbox-7").synchronize()
    assert load_session(out.id, path=path).header.sandbox_handle_id == "sandbox-7"


def test_persist_writes_to_the_store_of_the_home() -> None:
    out = run(["done"], persist=True).synchronize()
    loaded = load_session(out.id)
    assert loaded.closed
    assert loaded.chunk_table == out.chunk_table


def test_a_cancelled_run_leaves_its_partial_file(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    begun, go = threading.Event(), threading.Event()

    def hold(*_: object) -> None:
        begun.set()
        go.wait(15)

    out = run([tool_call("hold"), "never"], FunctionTool("hold", hold), persist_path=path)
    begun.wait(15)
    assert out.cancel().outcome == Cancelled(out.id)
    go.set()
    assert not path.exists()
    assert partial_beside(path).exists()


def test_a_run_that_cannot_be_written_fails(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no directory")
    with pytest.raises(PersistenceError, match="cannot be written"):
        run(["done"], persist_path=blocked / "run.jsonl").synchronize()
