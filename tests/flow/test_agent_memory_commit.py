"""Transcripts that an agent stores: at once, later, or after every run."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterator, Mapping
from logging.handlers import QueueHandler
from typing import Any, TypeAlias

import pytest

from rath import flow
from rath.errors import MemoryBackendError, ProviderServerError
from rath.flow.tool import FlowToolCall
from rath.memory import (
    MemoryCommitResult,
    MemoryExecutionFailure,
    MemoryOp,
    MemoryOpCommit,
    MemoryResult,
)
from rath.session import Session
from rath.testing import ScriptedClient, Turn, tool_call
from tests.support.fake_memory import FakeMemory
from tests.support.images import picture

Log: TypeAlias = "queue.SimpleQueue[logging.LogRecord]"


class Gate(FlowToolCall):
    """A tool that waits until the test lets it go."""

    def __init__(self) -> None:
        self.opened = threading.Event()

    @property
    def name(self) -> str:
        return "gate"

    @property
    def parameters(self) -> Mapping[str, Any]:
        return {"type": "object"}

    def __call__(self, session: Session, arguments: Mapping[str, Any]) -> str:
        self.opened.wait(10)
        return "open"


def user() -> Session:
    return Session.from_user_message("hi")


def agent(memory: FakeMemory, *turns: Turn, **options: Any) -> flow.Agent:
    return flow.Agent("p", ScriptedClient(turns).provider, memory=memory.open(), **options)


@pytest.fixture
def logged() -> Iterator[Log]:
    """What agents log, to wait for."""
    records: Log = queue.SimpleQueue()
    log, handler = logging.getLogger("rath.flow.agent"), QueueHandler(records)
    log.addHandler(handler)
    yield records
    log.removeHandler(handler)


def test_what_was_said_is_committed() -> None:
    memory, gate = FakeMemory(), Gate()
    gate.opened.set()
    bound = agent(memory, tool_call("gate", {}), "hello", tools=[gate])
    out = bound(user()).synchronize()
    result = bound.commit_memory(out)
    assert result == MemoryCommitResult("task", "memory://session/x", 0)
    assert memory.of(MemoryOpCommit) == [
        MemoryOpCommit(
            str(out.id),
            ({"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}),
            wait=False,
        )
    ]


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("What is it?", "[image/png 8 B sha256:4c4b6a3b] What is it?"),
        ("", "[image/png 8 B sha256:4c4b6a3b] "),
    ],
)
def test_images_are_committed_as_labels(text: str, content: str) -> None:
    memory = FakeMemory()
    bound = agent(memory, "a cat")
    bound.commit_memory(bound(Session.from_user_message(text, images=[picture()])).synchronize())
    (commit,) = memory.of(MemoryOpCommit)
    assert commit.messages[0] == {"role": "user", "content": content}


def test_a_pending_session_is_not_waited_for() -> None:
    memory, gate = FakeMemory(), Gate()
    bound = agent(memory, tool_call("gate", {}), "hello", tools=[gate])
    out = bound(user())
    result = bound.commit_memory(out)
    assert result == MemoryCommitResult(str(out.id), None, -1)
    assert memory.asked[1:] == []
    bound.close()
    gate.opened.set()
    commits = committed(memory)
    assert [op.session_id for op in commits] == [str(out.id)]
    assert commits[0].messages[-1] == {"role": "assistant", "content": "hello"}


def committed(memory: FakeMemory) -> list[MemoryOpCommit]:
    """The commits, once the first is there."""
    assert memory.has_committed.wait(10)
    return memory.of(MemoryOpCommit)


def test_a_pending_session_is_waited_for_when_asked() -> None:
    memory = FakeMemory()
    bound = agent(memory, "hello")
    out = bound(user())
    result = bound.commit_memory(out, wait=True)
    assert result == MemoryCommitResult("task", "memory://session/x", 0)
    assert [op.wait for op in memory.of(MemoryOpCommit)] == [True]


def test_commit_on_forward_commits_every_run_without_waiting() -> None:
    memory, gate = FakeMemory(), Gate()
    bound = agent(memory, tool_call("gate", {}), "hello", tools=[gate], commit_on_forward=True)
    out = bound(user())
    assert out.is_pending
    gate.opened.set()
    assert [op.session_id for op in committed(memory)] == [str(out.id)]


def test_commit_on_forward_without_a_memory_is_nothing() -> None:
    bound = flow.Agent("p", ScriptedClient(["hello"]).provider, commit_on_forward=True)
    assert bound(user()).text() == "hello"


def test_a_failed_run_is_not_committed_and_that_is_logged(logged: Log) -> None:
    memory = FakeMemory()
    bound = agent(memory, ProviderServerError("the server failed"), commit_on_forward=True)
    out = bound(user())
    assert "the server failed" in logged.get(timeout=10).getMessage()
    assert memory.of(MemoryOpCommit) == []
    with pytest.raises(ProviderServerError, match="the server failed"):
        out.text()


def test_a_commit_that_fails_leaves_the_run_alone(logged: Log) -> None:
    def answer(op: MemoryOp) -> MemoryResult:
        if isinstance(op, MemoryOpCommit):
            raise MemoryBackendError("no disk")
        return MemoryExecutionFailure("not_found", "nothing")

    out = agent(FakeMemory(answer), "hello", commit_on_forward=True)(user())
    message = logged.get(timeout=10).getMessage()
    assert out.text() == "hello"
    assert str(out.id) in message
    assert "no disk" in message


def test_a_commit_that_was_refused_is_logged(logged: Log) -> None:
    def answer(op: MemoryOp) -> MemoryResult:
        return MemoryExecutionFailure("unauthorized", f"no access for {type(op).__name__}")

    agent(FakeMemory(answer), "hello", commit_on_forward=True)(user()).synchronize()
    assert "no access" in logged.get(timeout=10).getMessage()


def test_a_failed_session_raises_at_an_explicit_commit() -> None:
    bound = agent(FakeMemory(), ProviderServerError("the server failed"))
    out = bound(user())
    with pytest.raises(ProviderServerError):
        out.synchronize()
    with pytest.raises(ProviderServerError):
        bound.commit_memory(out)


def test_what_was_committed_is_recalled() -> None:
    with flow.Agent("p", ScriptedClient(["Paris."]).provider, memory="local") as bound:
        out = bound(Session.from_user_message("Which city is the capital of France?"))
        bound.commit_memory(out, wait=True)
        found = bound.recall_memory("capital France")
    assert "Which city is the capital of France?" in repr(found)
