"""One log, one writer: what it says when it is cut off, disturbed, or asked too late."""

from __future__ import annotations

import contextvars
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from rath.errors import PersistenceError
from rath.session import ChunkRow, Session
from rath.session.events import Row
from rath.session.log.writer import LogWriter, SerialQueue
from rath.session.outcome import Cancelled
from rath.session.persistence.store import FileStore, SessionLog, stores
from rath.testing import tool_call
from rath.testing.store import FakeSessionStore
from tests.support.api import (
    Identity,
    beginning,
    find_log,
    recorder_module,
    writer_of,
)
from tests.support.sessions import FunctionTool, run, verdict
from tests.support.waiting import PATIENCE


class SlowLog:
    """A log whose `append` or `finish` waits until the test says so."""

    def __init__(self, inner: SessionLog, store: SlowStore) -> None:
        self._inner = inner
        self._store = store

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def append(self, data: bytes, **options: object) -> None:
        self._store.reach("append", data)
        self._inner.append(data, **options)  # type: ignore[arg-type]  # handed on

    def finish(self) -> None:
        self._store.reach("finish", b"")
        self._inner.finish()


class SlowStore(FakeSessionStore):
    """A store in memory in which one session waits at one operation."""

    def __init__(self, at: str, says: bytes = b"") -> None:
        super().__init__()
        self.at, self.says = at, says
        self.reached, self.go = threading.Event(), threading.Event()

    def create(self, session: UUID) -> SessionLog:
        slow: object = SlowLog(super().create(session), self)
        assert isinstance(slow, SlowLog)
        return slow  # type: ignore[return-value]  # it has all that a log has

    def reach(self, what: str, data: bytes) -> None:
        if what == self.at and self.says in data:
            self.reached.set()
            assert self.go.wait(PATIENCE)


class Full(SlowStore):
    """A store that has no space for what says some words."""

    def reach(self, what: str, data: bytes) -> None:
        if self.says in data:
            raise PersistenceError("No space left on device")


def use(store: FakeSessionStore, monkeypatch: pytest.MonkeyPatch) -> None:
    scheme = f"slow{uuid4().hex}"
    stores.register(scheme, lambda _: store)
    monkeypatch.setenv("OPENRATH_STORE", f"{scheme}://x")


def test_a_run_cancelled_at_its_end_is_so_in_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    store = SlowStore("append", b"finished")
    use(store, monkeypatch)
    user, agent = Session.from_user_message("go"), Session.from_agent_prompt("x")
    store.go.set()
    for session in (user, agent):
        session.save()
    store.go.clear()
    store.reached.clear()
    out = run(["done"], user=user, agent=agent, persist=True)
    store.reached.wait(PATIENCE)
    assert out.cancel().outcome == Cancelled(out.id)
    store.go.set()
    out.add_entry()
    assert Session.load(out.id, store=store).outcome == Cancelled(out.id)


def test_a_slow_disk_holds_up_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Safe(FunctionTool):
        effects = "read_only"

    store = SlowStore("append", b"tool_run")
    use(store, monkeypatch)
    monkeypatch.setattr(recorder_module, "MAX_WAITING", 2)
    n_made: list[int] = []
    tool = Safe("f", lambda *_: n_made.append(1))
    out = run([*[tool_call("f")] * 20, "done"], tool, persist=True)
    store.reached.wait(PATIENCE)
    seen = -1
    while seen != len(n_made):
        seen = len(n_made)
        threading.Event().wait(0.05)
    assert seen < 20
    store.go.set()
    assert len(out.chunk_table) == 42
    assert list(Session.load(out.id, store=store).record) == list(out.record)


NOT_JSON = Row(1, ChunkRow("user", {"content": object()}))


def started(store: FakeSessionStore) -> LogWriter:
    session = Session.from_user_message("hi")
    writer = LogWriter(store, session.id)
    first = beginning(
        Identity(session=session.id, provenance=session.provenance), session.core.body.result()
    )
    writer.open(lambda inner, which: inner.create(which), lambda: first).result(timeout=PATIENCE)
    return writer


def test_lines_before_one_that_cannot_be_encoded_are_written() -> None:
    store = FakeSessionStore()
    writer = started(store)
    writer.queue(verdict())
    with pytest.raises(PersistenceError, match="cannot hold what it is given: TypeError"):
        writer.write(NOT_JSON).result(timeout=PATIENCE)
    with pytest.raises(PersistenceError, match="cannot hold"):
        writer.write(verdict()).result(timeout=PATIENCE)
    assert len(Session.load(writer.session, store=store).record) == 1
    assert not store.writers


def test_a_log_of_version_1_takes_nothing(tmp_path: Path) -> None:
    session = uuid4()
    header: dict[str, Any] = {
        "record_type": "header", "schema_version": 1, "id": str(session),
        "created_at": "2026-01-01T00:00:00+00:00", "parent_session_ids": [],
        "lineage_operator": "implicit", "lineage_kind": "unknown", "lineage_extras": [],
        "sandbox_backend": None, "sandbox_spec": None, "sandbox_handle_id": None,
    }  # fmt: skip
    trailer: dict[str, Any] = {"record_type": "trailer", "closed_at": "2026-01-01T00:00:00+00:00",
               "final_chunk_count": 0, "cumulative_usage": None}  # fmt: skip
    store = FileStore(tmp_path)
    store.path(session).write_text("".join(f"{json.dumps(one)}\n" for one in (header, trailer)))
    writer = LogWriter.of_stored(store, session)
    record = Session.create("empty").record.append(verdict())
    with pytest.raises(PersistenceError, match=r"schema version 1.*fork the session"):
        writer.keep_up_with(record).result(timeout=PATIENCE)
    loaded = Session.load(session, store=store)
    loaded.add_entry(verdict())
    assert len(loaded.record) == 1


def test_a_round_that_was_read_is_counted_before_more_is_added() -> None:
    go, started = threading.Event(), threading.Event()

    def hold(*_: object) -> None:
        started.set()
        go.wait(PATIENCE)

    tools = [
        FunctionTool("quick", lambda *_: "x", parallel_safe=True),
        FunctionTool("hold", hold, parallel_safe=True),
    ]
    calls = tool_call("quick", "", tool_call("hold"))
    complete = tool_call("quick", "", tool_call("quick"))
    out = run([complete, calls], *tools, persist=True)
    started.wait(PATIENCE)
    out.cancel().add_entry()
    go.set()
    written = find_log(FileStore(), out.id)
    assert written is not None
    assert written.state.n_rows == len(out.chunk_table)
    assert written.n_entries == len(out.record)
    loaded = Session.load(out.id)
    loaded.add_entry(verdict())
    assert list(Session.load(out.id).record) == list(loaded.record)


_FORK = f"""
import os, sys, warnings
from rath.session import Session
from {writer_of.__module__} import writer_of

session = Session.from_user_message("hi")
session.save()
warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
child = os.fork()
if child == 0:
    print(writer_of(session.id) is None, flush=True)
    print(session.fork().save() != session.save(), flush=True)
    sys.exit(0)
os.waitpid(child, 0)
print(writer_of(session.id) is None, flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_child_does_not_wait_for_its_parents_threads() -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", _FORK], env=env, check=True, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    assert done.stdout == "True\nTrue\nFalse\n"


def test_a_job_sees_nothing_of_the_run_that_put_it() -> None:
    """Else whoever puts the first job is above all others, and a job may wait for its own run."""
    run = contextvars.ContextVar("run", default="none")
    token = run.set("the run that is above")
    try:
        assert SerialQueue().put(run.get).result(timeout=PATIENCE) == "none"
    finally:
        run.reset(token)


def test_no_model_is_asked_before_its_reply_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    use(Full("append", b"The answer cannot be used"), monkeypatch)
    asked: list[object] = []

    def answer(request: object) -> str:
        asked.append(request)
        return "7"

    out = run(["no number", answer], output=int, persist=True, durability="row")
    with pytest.raises(PersistenceError, match="No space left"):
        out.synchronize()
    assert asked == []
