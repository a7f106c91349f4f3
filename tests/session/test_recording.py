"""A run is written while it goes on: every row once, a trailer only when it ended by itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rath._async.runtime import runtime
from rath._core.files import FileLock
from rath.errors import PersistenceError
from rath.session import (
    ChunkRow,
    ChunkTable,
    PersistedSession,
    Session,
    load_session,
    user_text_chunk,
)
from rath.session.outcome import Cancelled
from rath.session.persistence.paths import partial_beside
from rath.session.persistence.records import header_of
from rath.session.persistence.writer import SessionFile
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


class WatchedFile(SessionFile):
    """A file that tells when it was let go of."""

    let_go = threading.Event()

    def abandon(self) -> None:
        super().abandon()
        self.let_go.set()


class SlowDisk(RecordingPlan):
    """A plan whose file takes long to open."""

    begun = threading.Event()
    go = threading.Event()

    def open(self, session: Session) -> SessionFile:
        self.begun.set()
        self.go.wait(15)
        return WatchedFile(header_of(session), path=self.path)


def test_a_file_that_opens_after_its_run_was_cancelled_is_let_go(tmp_path: Path) -> None:
    plan = SlowDisk(tmp_path / "run.jsonl")
    session = Session.from_user_message("hi")

    async def record_and_cancel() -> None:
        recording = Recording(plan, lambda: session)
        task = asyncio.create_task(recording.begin())
        await runtime().call_in_worker(plan.begun.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    on_runtime(record_and_cancel)
    plan.go.set()
    assert WatchedFile.let_go.wait(15)
    SessionFile(header_of(session), path=plan.path).abandon()


def test_a_file_that_cannot_be_finished_is_let_go(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    broken = Session(ChunkTable([ChunkRow("user", {"content": object()})]))
    sessions = [Session(ChunkTable()), broken]

    async def record() -> None:
        async with Recording(RecordingPlan(path), lambda: sessions.pop(0)) as recording:
            await recording.begin()

    with pytest.raises(PersistenceError, match="cannot hold"):
        on_runtime(record)
    with FileLock(partial_beside(path)):
        pass  # whoever let go did it on a thread that nobody waits for
    with pytest.raises(PersistenceError, match="cannot hold"):
        SessionFile(header_of(broken), path=path).write_chunk(0, broken.chunk_table[0])


@pytest.mark.parametrize("name", ["run.jsonl", "below/run.jsonl"])
def test_a_relative_path_means_the_directory_of_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    go = threading.Event()
    monkeypatch.chdir(here)
    first = run([lambda _: "one" if go.wait(15) else "late"])
    out = run(["done"], user=first, persist_path=Path(name))
    monkeypatch.chdir(elsewhere)
    go.set()
    out.synchronize()
    assert (here / name).exists()
    assert not list(elsewhere.iterdir())


def test_a_home_that_moves_takes_no_run_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    monkeypatch.setenv("OPENRATH_HOME", str(tmp_path / "one"))
    first = run([lambda _: "one" if go.wait(15) else "late"])
    out = run(["done"], user=first, persist=True)
    monkeypatch.setenv("OPENRATH_HOME", str(tmp_path / "two"))
    go.set()
    out.synchronize()
    directory = tmp_path / "one" / "sessions"
    assert [path.name for path in directory.iterdir()] == [f"{out.id}.jsonl"]
    assert directory.stat().st_mode & 0o777 == 0o700


def test_a_run_that_cannot_be_written_fails(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no directory")
    with pytest.raises(PersistenceError, match="cannot be written"):
        run(["done"], persist_path=blocked / "run.jsonl").synchronize()


@pytest.mark.parametrize("opens", [True, False], ids=["opens", "fails to open"])
def test_a_file_that_was_still_being_opened_when_the_run_was_cancelled_is_let_go(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, opens: bool
) -> None:
    begun, go = threading.Event(), threading.Event()
    opened: list[SessionFile] = []

    class Slow(RecordingPlan):
        def open(self, session: Session) -> SessionFile:
            begun.set()
            go.wait(15)
            if not opens:
                raise PersistenceError("the disk is full")
            opened.append(super().open(session))
            return opened[0]

    async def record() -> None:
        plan = Slow(tmp_path / "run.jsonl", False)
        async with Recording(plan, lambda: Session.from_user_message("hi")) as recording:
            await recording.begin()

    running = runtime().submit(record, label="a test")
    begun.wait(15)
    runtime().cancel(running)
    assert isinstance(running.future.exception(timeout=15), asyncio.CancelledError)
    go.set()
    while opens and not (opened and opened[0].closed):
        on_runtime(lambda: runtime().call_in_worker(lambda: None))
    assert [file.name for file in tmp_path.iterdir()] == (
        [partial_beside(tmp_path / "run.jsonl").name] if opens else []
    )
    assert caplog.text == ""
