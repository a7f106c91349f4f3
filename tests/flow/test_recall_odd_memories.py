"""Memories that hang, fail or answer nonsense: the run goes on without what they did not give."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from rath import flow
from rath.flow.memory_inject import DefaultRecallInjection
from rath.memory import (
    MemoryExecutionFailure,
    MemoryFindResult,
    MemoryHit,
    MemoryOp,
    MemoryOpRead,
    MemoryReadResult,
    MemoryResult,
    MemoryStore,
)
from rath.session import Session
from rath.session.record import ModelCall, RecalledNote
from rath.testing import ScriptedClient
from tests.support.fake_memory import FakeMemory
from tests.support.waiting import PATIENCE, at_a_deadline

HIT = MemoryHit("memory://user/a", 0.9, "likes tea")
UNTOLD = ["p", "What do I like?"]
"""What a model reads that nothing was recalled for."""


def run(
    memory: FakeMemory, policy: DefaultRecallInjection | None = None
) -> tuple[Session, list[str | None]]:
    """The session of a run, and what its model read."""
    client = ScriptedClient(["ok"])
    agent = flow.Agent("p", client.provider, memory=memory.open(), memory_inject=policy)
    out = agent(Session.from_user_message("What do I like?")).synchronize()
    return out, [message.content for message in client.requests[0].messages]


def recalled(session: Session) -> tuple[RecalledNote, ...]:
    """The notes that the only call of a session saw."""
    (call,) = [entry for entry in session.record if isinstance(entry, ModelCall)]
    assert call.seen is not None
    return call.seen.recalled


def raising(error: BaseException) -> Callable[[MemoryOp], MemoryResult]:
    """A memory that answers with an error."""

    def answer(op: MemoryOp) -> MemoryResult:
        raise error

    return answer


class Silent(FakeMemory):
    """A memory that never answers."""

    async def adispatch(self, native: Any, op: MemoryOp) -> MemoryResult:
        self.asked.append(op)
        await asyncio.Event().wait()
        raise AssertionError


class Stuck(FakeMemory):
    """A memory as 1.3 programs bring it, whose blocking method hangs until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()

    def dispatch(self, store: MemoryStore, op: MemoryOp) -> MemoryResult:
        self.asked.append(op)
        self.released.wait(PATIENCE)
        return MemoryFindResult((HIT,))


@pytest.mark.parametrize("kind", [Silent, Stuck], ids=["coroutine", "blocking"])
def test_a_memory_that_hangs_does_not_hang_the_run(
    kind: type[FakeMemory], caplog: pytest.LogCaptureFixture
) -> None:
    memory = kind()

    def run_until(deadline: float) -> tuple[float, Session, list[str | None]]:
        return deadline, *run(memory, DefaultRecallInjection(timeout=deadline))

    deadline, out, read = at_a_deadline(run_until, lambda _: memory.asked != [])
    if isinstance(memory, Stuck):
        memory.released.set()
    assert (out.text(), read) == ("ok", UNTOLD)
    assert len(memory.asked) == 1
    assert f"nothing was recalled, within {deadline:g} s" in caplog.text


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad"), SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError(),
        StopIteration(), TimeoutError("slow"),
    ],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_whatever_a_memory_raises_the_run_goes_on(
    error: Any, caplog: pytest.LogCaptureFixture
) -> None:
    out, read = run(FakeMemory(raising(error)))
    assert (out.text(), read) == ("ok", UNTOLD)
    assert caplog.text


ODD: Any = MemoryHit
"""Backends are not checked: a hit may hold anything."""


@pytest.mark.parametrize(
    ("hits", "notes"),
    [
        ([ODD("a", 1.0, "x"), ODD("b", 0.9, "y"), ODD("a", 0.8, "z")], [("a", "x"), ("b", "y")]),
        ([ODD("", 1.0, "x"), ODD("", 0.9, "y"), ODD("", 0.8, "x")], [("", "x"), ("", "y")]),
        ([ODD("a", 1.0, None), ODD("b", 0.9, " "), ODD("c", 0.8, "y")], [("c", "y")]),
        ([ODD("a", 1.0, b"bytes"), ODD("b", 0.9, b"\xff\x00"), ODD("c", 1.0, 7)], [("a", "bytes")]),
        ([ODD("a", 1.0, "\ud800 x"), ODD("b\udc00", 1.0, "y")],
         [("a", "\ufffd x"), ("b\ufffd", "y")]),
        ([ODD(None, "high", "x")], []),
        ([None, "text"], []),
    ],
    ids=["twice", "without uri", "no text", "bytes", "half characters", "no uri", "no hits"],
)  # fmt: skip
def test_odd_hits_do_not_end_a_run(hits: list[Any], notes: list[tuple[str, str]]) -> None:
    out, _ = run(FakeMemory(hits=tuple(hits)))
    assert out.text() == "ok"
    assert [(note.uri, note.text) for note in recalled(out)] == notes


@pytest.mark.parametrize("score", [float("nan"), float("inf")])
def test_a_score_that_is_no_number_is_recorded_as_none(score: float) -> None:
    out, _ = run(FakeMemory(hits=(MemoryHit("memory://user/a", score, "tea"),)))
    assert recalled(out) == (RecalledNote("memory://user/a", "tea", None),)


@pytest.mark.parametrize(
    "read",
    [
        MemoryExecutionFailure("internal", "no disk"),
        MemoryReadResult("memory://user/a", b"\x89PNG\x00\xff", "detail"),
        MemoryReadResult("memory://user/a", " \n", "detail"),
    ],
    ids=["failure", "binary", "blank"],
)
def test_a_note_that_cannot_be_read_is_shown_by_its_snippet(read: MemoryResult) -> None:
    def answer(op: MemoryOp) -> MemoryResult:
        return read if isinstance(op, MemoryOpRead) else MemoryFindResult((HIT,))

    out, _ = run(FakeMemory(answer), DefaultRecallInjection(level="detail"))
    assert [note.text for note in recalled(out)] == ["likes tea"]
