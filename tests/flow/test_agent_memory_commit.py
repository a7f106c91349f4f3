"""Transcripts that an agent stores: at once, later, or after every run."""

from __future__ import annotations

import gc
import logging
import os
import queue
import threading
from collections.abc import Iterator, Mapping
from logging.handlers import QueueHandler
from pathlib import Path
from typing import Any, TypeAlias

import pytest

import rath.memory
from rath import flow
from rath.errors import MemoryBackendError, ProviderServerError
from rath.flow.tool import FlowToolCall
from rath.llm import RathLLMChatRequest
from rath.memory import (
    MemoryCommitResult,
    MemoryExecutionFailure,
    MemoryFindResult,
    MemoryHit,
    MemoryOp,
    MemoryOpCommit,
    MemoryOpRead,
    MemoryReadResult,
    MemoryResult,
    MemoryStore,
    MemoryStoreSpec,
)
from rath.session import ChunkRow, Session, system_text_chunk
from rath.testing import ScriptedClient, Turn, tool_call
from tests.support.fake_memory import FakeMemory
from tests.support.images import picture
from tests.support.waiting import PATIENCE, wait_until

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
        self.opened.wait(PATIENCE)
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
    level = log.level
    log.addHandler(handler)
    yield records
    log.removeHandler(handler)
    log.setLevel(level)


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
            rows=(0, 3),
        )
    ]


def test_the_rows_of_messages_are_those_of_the_session() -> None:
    memory, gate = FakeMemory(), Gate()
    gate.opened.set()
    bound = agent(memory, tool_call("gate", {}), "hello", "bye", tools=[gate])
    out = bound(bound(user()).merge(Session.from_user_message("and now?"))).synchronize()
    bound.commit_memory(out)
    (commit,) = memory.of(MemoryOpCommit)
    assert commit.rows == (0, 3, 4, 5)
    assert [message["content"] for message in commit.messages] == ["hi", "hello", "and now?", "bye"]


def test_the_notes_that_were_shown_are_told_once_each_in_order() -> None:
    memory = FakeMemory(hits=(hit("b"), hit("a"), hit("b")))
    bound = agent(memory, "hello", "bye")
    first = bound(user())
    bound.commit_memory(bound(first.merge(Session.from_user_message("and now?"))).synchronize())
    (commit,) = memory.of(MemoryOpCommit)
    assert commit.used_uris == ("memory://user/b", "memory://user/a")


def test_notes_without_an_address_are_not_told() -> None:
    class Rows:
        def inject(self, session: Session, store: MemoryStore) -> tuple[ChunkRow, ...]:
            return (system_text_chunk("a note"),)

    memory = FakeMemory()
    bound = agent(memory, "hello", memory_inject=Rows())
    bound.commit_memory(bound(user()).synchronize())
    (commit,) = memory.of(MemoryOpCommit)
    assert commit.used_uris == ()


def hit(name: str) -> MemoryHit:
    """A hit with a text."""
    return MemoryHit(f"memory://user/{name}", 1.0, f"text of {name}")


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
    assert memory.has_committed.wait(PATIENCE)
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


def test_what_a_forward_hook_took_out_is_not_committed() -> None:
    memory = FakeMemory()
    bound = agent(memory, "write to ann@example.com", commit_on_forward=True)
    clean = Session.from_user_message("write to [address]")
    bound.register_forward_hook(lambda _, __, ___: clean)
    bound(user()).synchronize()
    (op,) = committed(memory)
    assert [message["content"] for message in op.messages] == ["write to [address]"]


def test_what_a_forward_hook_refuses_is_not_committed() -> None:
    memory = FakeMemory()
    bound = agent(memory, "no", "yes", commit_on_forward=True)

    def refuse(_: flow.Agent, __: Session, out: Session) -> None:
        if out.text() == "no":
            raise LookupError("refused")

    bound.register_forward_hook(refuse)
    with pytest.raises(LookupError, match="refused"):
        bound(user())
    out = bound(user())
    assert [op.session_id for op in committed(memory)] == [str(out.id)]


def test_forward_alone_commits_and_asks_no_hook() -> None:
    memory = FakeMemory()
    bound = agent(memory, "hello", commit_on_forward=True)
    bound.register_forward_hook(lambda _, __, ___: Session.from_user_message("never"))
    out = bound.forward(user())
    assert [op.session_id for op in committed(memory)] == [str(out.id)]


def runs(memory: FakeMemory, n: int) -> list[str | None]:
    """The runs of the first `n` commits."""
    wait_until(lambda: len(memory.of(MemoryOpCommit)) >= n)
    return [op.run for op in memory.of(MemoryOpCommit)]


def test_every_commit_of_a_run_that_is_served_again_names_that_run() -> None:
    memory = FakeMemory()
    bound = agent(memory, "hello", commit_on_forward=True)
    out = bound(user()).synchronize()
    assert bound.resume(out).synchronize().id == out.id
    assert runs(memory, 2) == [str(out.id)] * 2


def test_what_hooks_make_of_a_run_is_committed_as_that_run() -> None:
    memory, made = FakeMemory(), list[Session]()
    bound = agent(memory, "hello", commit_on_forward=True)
    bound.register_forward_hook(lambda _, __, out: made.append(out))
    bound.register_forward_hook(lambda _, __, ___: Session.from_user_message("clean"))
    bound(user()).synchronize()
    bound.resume(made[0]).synchronize()
    assert runs(memory, 2) == [str(made[0].id)] * 2
    assert {op.messages[0]["content"] for op in memory.of(MemoryOpCommit)} == {"clean"}


def test_a_commit_by_hand_names_no_run() -> None:
    memory = FakeMemory()
    bound = agent(memory, "hello")
    bound.commit_memory(bound(user()).synchronize())
    assert runs(memory, 1) == [None]


def test_a_run_is_committed_once_whatever_its_program_went_through(tmp_path: Path) -> None:
    client = ScriptedClient(["hello"])
    out = flow.Agent("p", client.provider)(user()).synchronize()
    # Here the process ended, after the run and before its commit.
    spec = MemoryStoreSpec(options={"path": str(tmp_path)})
    with flow.Agent("p", client.provider, memory=spec, commit_on_forward=True) as bound:
        for _ in range(5):
            bound.resume(out).synchronize()
        # Directories come and go meanwhile, which stops `rglob` and not `walk`.
        wait_until(lambda: any("messages.json" in files for *_, files in os.walk(tmp_path)))
        bound.resume(out).synchronize()
    assert len([*tmp_path.rglob("messages.json")]) == 1


def test_commit_on_forward_without_a_memory_is_nothing() -> None:
    bound = flow.Agent("p", ScriptedClient(["hello"]).provider, commit_on_forward=True)
    assert bound(user()).text() == "hello"


def test_a_failed_run_is_not_committed_and_that_is_logged(logged: Log) -> None:
    memory = FakeMemory()
    bound = agent(memory, ProviderServerError("the server failed"), commit_on_forward=True)
    out = bound(user())
    assert "the server failed" in logged.get(timeout=PATIENCE).getMessage()
    assert memory.of(MemoryOpCommit) == []
    with pytest.raises(ProviderServerError, match="the server failed"):
        out.text()


def test_a_failed_run_is_logged_once(logged: Log, caplog: pytest.LogCaptureFixture) -> None:
    bound = agent(FakeMemory(), ProviderServerError("no luck"), commit_on_forward=True)
    out = bound(user())
    logged.get(timeout=PATIENCE)
    # The record comes to one handler after the other.
    wait_until(lambda: "no luck" in caplog.text)
    del out
    gc.collect()
    assert caplog.text.count("no luck") == 1


def test_a_cancelled_run_is_not_committed_by_itself(logged: Log) -> None:
    logging.getLogger("rath.flow.agent").setLevel(logging.INFO)
    memory, gate = FakeMemory(), Gate()
    bound = agent(memory, tool_call("gate", {}), "hello", tools=[gate], commit_on_forward=True)
    out = bound(user())
    out.cancel()
    gate.opened.set()
    assert "the run ended as Cancelled" in logged.get(timeout=PATIENCE).getMessage()
    assert memory.of(MemoryOpCommit) == []


def test_a_cancelled_session_is_committed_when_asked() -> None:
    memory, gate = FakeMemory(), Gate()
    bound = agent(memory, tool_call("gate", {}), "hello", tools=[gate])
    out = bound(user())
    out.cancel()
    gate.opened.set()
    bound.commit_memory(out, wait=True)
    (commit,) = memory.of(MemoryOpCommit)
    assert commit.messages == ({"role": "user", "content": "hi"},)


def test_a_commit_that_fails_leaves_the_run_alone(logged: Log) -> None:
    def answer(op: MemoryOp) -> MemoryResult:
        if isinstance(op, MemoryOpCommit):
            raise MemoryBackendError("no disk")
        return MemoryExecutionFailure("not_found", "nothing")

    out = agent(FakeMemory(answer), "hello", commit_on_forward=True)(user())
    message = logged.get(timeout=PATIENCE).getMessage()
    assert out.text() == "hello"
    assert str(out.id) in message
    assert "no disk" in message


def test_a_commit_that_was_refused_is_logged(logged: Log) -> None:
    def answer(op: MemoryOp) -> MemoryResult:
        return MemoryExecutionFailure("unauthorized", f"no access for {type(op).__name__}")

    agent(FakeMemory(answer), "hello", commit_on_forward=True)(user()).synchronize()
    assert "no access" in logged.get(timeout=PATIENCE).getMessage()


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


def test_what_was_learned_names_the_rows_of_the_session(tmp_path: Path) -> None:
    reader = ScriptedClient(['[{"content": "They live in Paris.", "category": "x", "rows": [2]}]'])
    spec = MemoryStoreSpec(options={"path": str(tmp_path), "chat": reader.provider})
    gate = Gate()
    gate.opened.set()
    chat = ScriptedClient([tool_call("gate", {}), "Hello.", "Nice."])
    with flow.Agent("p", chat.provider, memory=spec, tools=[gate]) as bound:
        first = bound(Session.from_user_message("Hi."))
        out = bound(first.merge(Session.from_user_message("I live in Paris.")))
        result = bound.commit_memory(out, wait=True)
        assert isinstance(result, MemoryCommitResult)
        assert result.extracted_count == 1
        found = bound.recall_memory("Paris", target_uri="memory://user")
        assert isinstance(found, MemoryFindResult)
        store = bound.memory
        assert store is not None
        note = store.dispatch(MemoryOpRead(found.hits[0].uri))
    assert isinstance(note, MemoryReadResult)
    [source] = note.sources
    assert (source.session_id, source.rows) == (str(out.id), (4,))
    [row] = [out.chunk_table.rows[at] for at in source.rows]
    assert row.payload["content"] == "I live in Paris."


def test_commit_on_forward_lets_the_model_read_in_the_background(tmp_path: Path) -> None:
    asked = threading.Event()

    def read(request: RathLLMChatRequest) -> str:
        asked.set()
        return '[{"content": "They live in Paris."}]'

    spec = MemoryStoreSpec(options={"path": str(tmp_path), "chat": ScriptedClient([read])})
    backend = rath.memory.get("local")
    store = backend.open(spec)
    bound = flow.Agent("p", ScriptedClient(["Hi."]).provider, memory=store, commit_on_forward=True)
    out = bound(Session.from_user_message("I live in Paris."))
    assert out.text() == "Hi."
    assert asked.wait(PATIENCE)
    # Waits for what is learned in the background.
    backend.close(store)
    [note] = (tmp_path / "user/memories/extracted/general").glob("*.md")
    assert note.read_text() == "They live in Paris."
