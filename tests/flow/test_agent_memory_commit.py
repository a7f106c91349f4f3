"""Memories that an agent is bound to, and the transcripts that it stores and forgets."""

from __future__ import annotations

import gc
import logging
import os
import queue
import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from logging.handlers import QueueHandler
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

import pytest

import rath.memory
from rath import flow
from rath.config import ConfigStore, MemoryProviderConfig
from rath.errors import MemoryBackendError, MemoryBackendNotFound, ProviderServerError
from rath.flow.tool import FlowToolCall
from rath.llm import RathLLMChatRequest
from rath.memory import (
    MemoryCommitResult,
    MemoryExecutionFailure,
    MemoryFindResult,
    MemoryForgetResult,
    MemoryHit,
    MemoryOp,
    MemoryOpCommit,
    MemoryOpFind,
    MemoryOpForget,
    MemoryOpRead,
    MemoryOpWrite,
    MemoryReadResult,
    MemoryResult,
    MemoryStore,
    MemoryStoreSpec,
    MemoryWriteResult,
)
from rath.memory.notes import EXPIRES_AT
from rath.session import ChunkRow, Session, system_text_chunk
from rath.testing import FakeMemory as NoteMemory
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


def test_what_was_reported_is_committed() -> None:
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


def test_the_notes_that_were_displayed_are_reported_once_each_in_order() -> None:
    memory = FakeMemory(hits=(hit("b"), hit("a"), hit("b")))
    bound = agent(memory, "hello", "bye")
    first = bound(user())
    bound.commit_memory(bound(first.merge(Session.from_user_message("and now?"))).synchronize())
    (commit,) = memory.of(MemoryOpCommit)
    assert commit.used_uris == ("memory://user/b", "memory://user/a")


def test_notes_without_an_address_are_not_reported() -> None:
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


def test_a_run_is_committed_once_whatever_its_program_went_through(tmp_path: Path) -> None:
    client = ScriptedClient(["hello"])
    out = flow.Agent("p", client.provider)(user()).synchronize()
    # Here the process ended, after the run and before its commit.
    spec = MemoryStoreSpec(options={"path": str(tmp_path)})
    with flow.Agent("p", client.provider, memory=spec, commit_on_forward=True) as bound:
        for _ in range(5):
            bound.resume(out).synchronize()
        wait_until(lambda: n_commits(tmp_path) == 1)
        bound.resume(out).synchronize()
    assert n_commits(tmp_path) == 1


def n_commits(memory: Path) -> int:
    # Directories come and go meanwhile, which stops `rglob` and not `walk`.
    return sum("messages.json" in files for *_, files in os.walk(memory))


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


def bound_agent(memory: Any) -> flow.Agent:
    return flow.Agent("p", model="m", memory=memory)


def snippets(found: object) -> list[str | None]:
    """What a search found."""
    assert isinstance(found, MemoryFindResult)
    return [hit.snippet for hit in found.hits]


def test_a_store_is_held_until_close() -> None:
    store = FakeMemory().open()
    bound = bound_agent(store)
    assert (bound.memory, bound.agent.memory) == (store, store)
    assert store.refcount == 1
    bound.close()
    bound.close()
    assert (bound.memory, bound.agent.memory) == (None, None)
    assert store.closed


def test_a_shared_store_outlives_one_agent() -> None:
    store = FakeMemory().open()
    first, second = bound_agent(store), bound_agent(store)
    first.close()
    assert not store.closed
    second.close()
    assert store.closed


def test_a_forgotten_agent_gives_its_memory_back() -> None:
    store = FakeMemory().open()
    bound_agent(store)
    assert store.closed


def test_with_closes() -> None:
    store = FakeMemory().open()
    with bound_agent(store) as bound:
        assert not store.closed
    assert bound.memory is None


def test_local_is_the_same_store_in_every_run() -> None:
    with bound_agent("local") as first:
        first.remember_memory("The user likes tea.")
    with bound_agent("local") as second:
        assert snippets(second.recall_memory("tea")) == ["The user likes tea."]


def test_a_spec_opens_the_default_backend(tmp_path: Path) -> None:
    spec = MemoryStoreSpec(options={"path": str(tmp_path / "notes")})
    with bound_agent(spec) as bound:
        bound.remember_memory("x")
        assert bound.memory is not None
        assert bound.memory.handle == str((tmp_path / "notes").resolve())


def test_a_configured_name_comes_first(tmp_path: Path) -> None:
    store = ConfigStore()
    store.config.memory.providers["mine"] = MemoryProviderConfig(path=str(tmp_path / "mine"))
    store.save()
    with bound_agent("mine") as bound:
        assert bound.memory is not None
        assert bound.memory.handle == str((tmp_path / "mine").resolve())


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(MemoryBackendNotFound, match=r"'locl'.*'local'"):
        bound_agent("locl")


def test_anything_else_is_refused() -> None:
    with pytest.raises(TypeError, match=r"memory must be a MemoryStore.*got int"):
        bound_agent(7)


@pytest.mark.parametrize(
    ("method", "argument"),
    [
        ("remember_memory", "x"),
        ("recall_memory", "x"),
        ("commit_memory", Session.from_user_message("x")),
    ],
)
def test_without_a_memory_there_is_nothing_to_use(method: str, argument: object) -> None:
    with pytest.raises(RuntimeError, match="agent has no memory store"):
        getattr(bound_agent(None), method)(argument)


def test_an_identical_note_is_one_note() -> None:
    memory = FakeMemory()
    with bound_agent(memory.open()) as bound:
        bound.remember_memory("same")
        bound.remember_memory("same")
        bound.remember_memory("other")
        bound.remember_memory("same", scope="agent", category="facts")
    uris = [op.uri for op in memory.of(MemoryOpWrite)]
    assert len(set(uris)) == 3
    assert uris[0] == uris[1]
    assert uris[0].startswith("memory://user/memories/preferences/")
    assert uris[3].startswith("memory://agent/memories/facts/")


def test_recall_passes_its_arguments_on() -> None:
    memory = FakeMemory()
    with bound_agent(memory.open()) as bound:
        bound.recall_memory("words", top_k=2, target_uri="memory://user")
    assert memory.asked == [MemoryOpFind("words", "memory://user", 2)]


def noting_agent(memory: MemoryStore | MemoryStoreSpec | None) -> flow.Agent:
    """An agent with that memory, whose model says one thing."""
    model = ScriptedClient(["Noted."] * 3)
    return flow.Agent("You remember.", model.provider, memory=memory, system_tools=False)


@pytest.mark.parametrize("ttl", [3600, 3600.0, timedelta(hours=1)])
def test_a_note_is_preserved_for_a_while(ttl: timedelta | float) -> None:
    memory = NoteMemory()
    with noting_agent(memory.open()) as bound:
        before = datetime.now(UTC)
        bound.remember_memory("tea", ttl=ttl)
    [op] = memory.ops
    assert isinstance(op, MemoryOpWrite)
    assert op.metadata is not None
    end = datetime.fromisoformat(op.metadata[EXPIRES_AT])
    assert timedelta(hours=1) <= end - before < timedelta(hours=1, minutes=1)


@pytest.mark.parametrize(
    "ttl", [0, -1, float("nan"), float("inf"), 1e20, timedelta(0), timedelta.max], ids=str
)
def test_a_time_that_is_none_is_refused(ttl: timedelta | float) -> None:
    memory = NoteMemory()
    with (
        noting_agent(memory.open()) as bound,
        pytest.raises(ValueError, match="ttl must be"),
    ):
        bound.remember_memory("tea", ttl=ttl)
    assert memory.ops == []


@pytest.mark.parametrize("ttl", ["1h", True, 3j])
def test_another_type_of_time_is_refused(ttl: Any) -> None:
    with (
        noting_agent(NoteMemory().open()) as bound,
        pytest.raises(TypeError, match="ttl must be"),
    ):
        bound.remember_memory("tea", ttl=ttl)


def test_a_note_or_a_directory_is_forgotten() -> None:
    memory = NoteMemory({"memory://user/a": "tea", "memory://user/d/b": "milk"})
    with noting_agent(memory.open()) as bound:
        assert bound.forget_memory("memory://user/a") == MemoryForgetResult(("memory://user/a",))
        bound.forget_memory("memory://user/d", recursive=True)
    assert memory.notes == {}


def test_a_session_is_named_by_itself_or_its_id() -> None:
    memory = NoteMemory()
    session, identity = Session.from_user_message("x"), uuid4()
    with noting_agent(memory.open()) as bound:
        for named in (session, identity, "plain"):
            bound.forget_memory(session=named)
    assert memory.ops == [
        MemoryOpForget(None, str(session.id)),
        MemoryOpForget(None, str(identity)),
        MemoryOpForget(None, "plain"),
    ]


@pytest.mark.parametrize(
    ("named", "error"),
    [
        ({}, ValueError),
        ({"uri": "memory://user/a", "session": "s"}, ValueError),
        ({"uri": 3}, TypeError),
        ({"session": 3}, TypeError),
    ],
)
def test_what_names_nothing_or_two_things_is_refused(
    named: dict[str, Any], error: type[Exception]
) -> None:
    memory = NoteMemory()
    with (
        noting_agent(memory.open()) as bound,
        pytest.raises(error, match=r"expected|must be"),
    ):
        bound.forget_memory(**named)
    assert memory.ops == []


def test_without_a_memory_there_is_nothing_to_forget() -> None:
    with pytest.raises(RuntimeError, match="agent has no memory store"):
        noting_agent(None).forget_memory("memory://user/a")


def test_what_came_from_a_session_is_not_recalled_any_more(tmp_path: Path) -> None:
    with noting_agent(MemoryStoreSpec(options={"path": str(tmp_path / "store")})) as bound:
        kept = bound.remember_memory("The guest likes zebras.", ttl=timedelta(days=1))
        out = bound(Session.from_user_message("I like zebras, and tell nobody."))
        out.synchronize()
        bound.commit_memory(out, wait=True)
        assert isinstance(kept, MemoryWriteResult)
        erased = bound.forget_memory(session=out)
        assert isinstance(erased, MemoryForgetResult)
        assert len(erased.uris) == 1
        found = bound.recall_memory("zebras")
        assert isinstance(found, MemoryFindResult)
        assert [hit.uri for hit in found.hits] == [kept.uri]
    assert not (tmp_path / "store/session" / str(out.id)).exists()
