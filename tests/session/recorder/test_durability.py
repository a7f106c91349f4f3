"""What each durability forces to disk, when a run waits for that, and what becomes of a failure."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Collection, Iterator
from contextlib import suppress
from itertools import count
from uuid import UUID

import pytest

from rath._core.blobs import Blob
from rath.errors import PersistenceError
from rath.session import Session
from rath.session.log.verify import verify
from rath.session.persistence.store import FileStore, stores
from rath.testing import Turn, tool_call
from rath.testing.store import FakeSessionStore, MemoryLog
from tests.support.api import partial_path_of
from tests.support.sessions import FunctionTool, run
from tests.support.waiting import PATIENCE

_numbers = count()


class SafeTool(FunctionTool):
    effects = "read_only"


class GateStore(FakeSessionStore):
    """A store whose writes wait at a gate once they say some words; knows what was forced."""

    def __init__(self) -> None:
        super().__init__()
        self.says = b"nothing"
        self.reached, self.gate = threading.Event(), threading.Event()
        self.forced: dict[int, int] = {}
        """By identity of a log: how many of its bytes would survive a loss of power."""

    def write(
        self,
        session: UUID,
        entry: MemoryLog,
        data: bytes,
        blobs: Collection[Blob],
        *,
        durable: bool,
    ) -> None:
        if self.says in data:
            self.reached.set()
            assert self.gate.wait(PATIENCE)
        super().write(session, entry, data, blobs, durable=durable)
        if durable:
            self.forced[id(entry)] = len(entry.data)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[GateStore]:
    """A default store with a gate, which is open in the end."""
    gated, scheme = GateStore(), f"gated{next(_numbers)}"
    stores.register(scheme, lambda _: gated)
    monkeypatch.setenv("OPENRATH_STORE", f"{scheme}://x")
    yield gated
    gated.gate.set()


def test_all_is_forced_before_a_call_that_is_not_idempotent(store: GateStore) -> None:
    seen: list[tuple[bool, bytes]] = []

    def look(session: Session, _: object) -> None:
        log = store.logs[session.id]
        last = bytes(log.data).splitlines()[-1]
        seen.append((store.forced[id(log)] == len(log.data), last[:17]))

    run([tool_call("f"), tool_call("f"), "done"], FunctionTool("f", look), persist=True).text()
    assert seen == [(True, b'{"event":"intent"')] * 2


def test_a_call_that_may_be_made_again_waits_for_no_disk(store: GateStore) -> None:
    store.says = b'"intent"'
    made = threading.Event()
    out = run([tool_call("f"), "done"], SafeTool("f", lambda *_: made.set()), persist=True)
    assert store.reached.wait(PATIENCE)
    assert made.wait(PATIENCE)
    assert not out.core.body.done()
    store.gate.set()
    made_by_run = list(out.record)
    assert list(Session.load(out.id, store=store).record) == made_by_run


def test_results_are_synced_while_the_next_model_call_runs(store: GateStore) -> None:
    store.says = b'"tool_run"'
    asked = threading.Event()

    def answer(_: object) -> str:
        asked.set()
        return "done"

    out = run([tool_call("f"), answer], FunctionTool("f", lambda *_: 1), persist=True)
    assert store.reached.wait(PATIENCE)
    assert asked.wait(PATIENCE)
    assert not out.core.body.done()
    store.gate.set()
    assert out.text() == "done"


@pytest.mark.parametrize(("durability", "n_forced"), [("turn", 2), ("none", 0)])
def test_a_round_is_handed_over_twice(store: GateStore, durability: str, n_forced: int) -> None:
    n_rounds, n_around = 40, 8  # parents, beginning and end
    script: list[Turn] = [*[tool_call("f")] * n_rounds, "done"]
    tool = FunctionTool("f", lambda *_: 1)
    run(script, tool, persist=True, durability=durability).synchronize()
    assert store.n_writes <= 2 * n_rounds + n_around
    assert store.n_durable <= n_forced * n_rounds + n_around


def error_of(session: Session) -> BaseException | None:
    """Wait for the end of a run, and return how it failed."""
    with suppress(PersistenceError):
        session.synchronize()
    return session.core.body.error()


class Disk:
    """`os.fsync`, which notes how much of each file was forced, and fails once it is told to."""

    def __init__(self, fail_at: int = 0, error: int = errno.EIO) -> None:
        self.fail_at, self.error = fail_at, error
        self.sizes: list[int] = []
        self._fsync = os.fsync

    def __call__(self, fd: int) -> None:
        status = os.fstat(fd)
        if stat.S_ISREG(status.st_mode):
            self.sizes.append(status.st_size)
            if len(self.sizes) == self.fail_at:
                raise OSError(self.error, os.strerror(self.error))
        self._fsync(fd)


def test_a_run_ends_when_all_of_it_is_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk()
    monkeypatch.setattr(os, "fsync", disk)
    user, agent = Session.from_user_message("go"), Session.from_agent_prompt("x")
    for session in (user, agent):
        session.save()
    disk.sizes.clear()
    tool = SafeTool("f", lambda *_: 1)
    out = run([tool_call("f"), "done"], tool, user=user, agent=agent, persist=True).synchronize()
    assert disk.sizes == sorted(disk.sizes)
    assert disk.sizes[-1] == FileStore().path(out.id).stat().st_size


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
@pytest.mark.parametrize("make", [SafeTool, FunctionTool], ids=["read only", "not idempotent"])
@pytest.mark.parametrize("fail_at", [1, 2, 3, 4, 5])
def test_a_disk_that_fails_late_fails_the_run(
    monkeypatch: pytest.MonkeyPatch, fail_at: int, make: type[FunctionTool], error: int
) -> None:
    user, agent = Session.from_user_message("go"), Session.from_agent_prompt("x")
    for session in (user, agent):
        session.save()
    disk, made = Disk(fail_at, error), list[int]()
    tool = make("f", lambda *_: made.append(1))
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", disk)
        script: list[Turn] = [tool_call("f"), tool_call("f"), "done"]
        out = run(script, tool, user=user, agent=agent, persist=True)
        failure = error_of(out)
    path = FileStore().path(out.id)
    if len(disk.sizes) < fail_at:  # what came together was forced together
        assert (failure, path.exists()) == (None, True)
        return
    assert isinstance(failure, PersistenceError)
    assert os.strerror(error) in str(failure)
    assert not path.exists()
    assert partial_path_of(path).stat().st_size >= disk.sizes[-1]
    assert verify(FileStore(), out.id).is_sound
    record = list(Session.load(out.id).record)
    assert record == list(out.partial_record.prefix(len(record)))
    # Before each call its intent is forced.
    assert make is SafeTool or len(made) < fail_at
