"""Scripted clients, fake memories, sandboxes and stores."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TypeVar
from uuid import UUID

import pytest

from rath._async.runtime import runtime
from rath.backend import (
    BackendSandbox,
    BackendToolFilesEdit,
    BackendToolFilesRead,
    BackendToolFilesWrite,
    FileContent,
    ToolExecutionFailure,
)
from rath.backend.changes import manifest_digest
from rath.backend.effects import FileEffect, observe_effects
from rath.backend.results import FileEditResult
from rath.backend.snapshots import FrozenWorkspace, NewFile, Seed
from rath.errors import PersistenceError, RateLimitError
from rath.llm import (
    ChatClient,
    Provider,
    RathLLMChatRequest,
    RathLLMMessage,
    RathLLMStreamDelta,
    chat_client_for,
)
from rath.memory import (
    MemoryExecutionFailure,
    MemoryForgetResult,
    MemoryListResult,
    MemoryOp,
    MemoryOpCommit,
    MemoryOpFind,
    MemoryOpForget,
    MemoryOpList,
    MemoryOpRead,
    MemoryOpTree,
    MemoryOpWrite,
    MemoryReadResult,
    MemoryResult,
    MemorySource,
    MemoryWriteResult,
)
from rath.memory.notes import EXPIRES_AT, SESSION_ID, note_op
from rath.testing import FakeBackend, FakeMemory, FakeSessionStore, ScriptedClient, tool_call
from tests.support.asking import exchange


def text_of(client: ChatClient) -> str | None:
    return exchange(client).response.primary_choice.message.content


def test_it_answers_with_its_turns_in_order() -> None:
    client = ScriptedClient(["one", lambda req: f"{len(req.messages)} message"])
    assert [text_of(client), text_of(client)] == ["one", "1 message"]
    assert client.n_left == 0
    assert len(client.requests) == 2


def test_a_tool_call_is_a_turn() -> None:
    client = ScriptedClient([tool_call("add", {"a": 1}, tool_call("sub", "{"), content="I add.")])
    choice = exchange(client).response.primary_choice
    assert choice.message.tool_calls is not None
    first, second = choice.message.tool_calls
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I add.")
    assert first.function.arguments_parsed == {"a": 1}
    assert second.function.arguments_parse_error
    assert first.id != second.id


def test_deltas_are_a_turn() -> None:
    deltas = [RathLLMStreamDelta(content_delta="a"), RathLLMStreamDelta(content_delta="b")]
    client = ScriptedClient([deltas, deltas])
    seen: list[RathLLMStreamDelta] = []
    assert text_of(client) == "ab"
    exchange(client, on_delta=seen.append)
    assert seen == deltas


def test_a_text_is_streamed_word_by_word() -> None:
    seen: list[RathLLMStreamDelta] = []
    exchange(ScriptedClient(["one two three"]), on_delta=seen.append)
    assert [delta.content_delta for delta in seen[:3]] == ["one", " two", " three"]


def test_an_error_is_raised() -> None:
    with pytest.raises(RateLimitError):
        exchange(ScriptedClient([RateLimitError("slow")]))


def test_an_ended_script_says_so() -> None:
    client = ScriptedClient(["one"])
    exchange(client)
    with pytest.raises(RuntimeError, match="the script has 1 turns and this is request 2"):
        exchange(client)


def test_usage_counts_words() -> None:
    usage = exchange(ScriptedClient(["one two"])).response.usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (1, 2, 3)


def test_its_provider_leads_to_it() -> None:
    client, other = ScriptedClient(["x"]), ScriptedClient(["y"])
    assert chat_client_for(client.provider) is client
    assert chat_client_for(other.provider) is other
    assert client.provider.model == "scripted"


def test_a_given_provider_keeps_its_fields() -> None:
    client = ScriptedClient([], provider=Provider(model="m", temperature=0.5, api_key="k"))
    assert (client.provider.model, client.provider.temperature) == ("m", 0.5)
    assert chat_client_for(client.provider) is client


def test_threads_may_share_it() -> None:
    client = ScriptedClient([str(number) for number in range(50)])
    request = RathLLMChatRequest(messages=(RathLLMMessage("user", "x"),))
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(client.complete, [request] * 50))
    texts = {answered.primary_choice.message.content for answered in answers}
    assert texts == {str(number) for number in range(50)}


A = "memory://user/memories/a"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def ask_memory(memory: FakeMemory, op: MemoryOp) -> MemoryResult:
    with memory.open() as store:
        return store.dispatch(op)


def test_notes_are_a_dict_that_a_test_may_read_and_change() -> None:
    memory = FakeMemory({A: "tea"})
    memory.notes["memory://user/memories/b"] = "milk"
    ask_memory(memory, MemoryOpWrite(A, "coffee"))
    assert memory.notes == {A: "coffee", "memory://user/memories/b": "milk"}
    assert memory.ops_of(MemoryOpWrite) == [MemoryOpWrite(A, "coffee")]


def test_an_operation_may_be_scripted() -> None:
    failure = MemoryExecutionFailure("timeout", "too slow")
    memory = FakeMemory({A: "tea"}, answer=lambda op: failure if op == MemoryOpRead(A) else None)
    assert ask_memory(memory, MemoryOpRead(A)) == failure
    assert isinstance(ask_memory(memory, MemoryOpFind("tea")), MemoryResult)


def test_a_note_expires_by_the_clock_of_the_test() -> None:
    time = [NOW]
    memory = FakeMemory(clock=lambda: time[0])
    until = NOW + timedelta(hours=1)
    ask_memory(memory, MemoryOpWrite(A, "tea", metadata={EXPIRES_AT: until.isoformat()}))
    assert ask_memory(memory, MemoryOpRead(A)) == MemoryReadResult(
        A, "tea", "detail", expires_at=until.timestamp()
    )
    time[0] = until
    assert isinstance(ask_memory(memory, MemoryOpRead(A)), MemoryExecutionFailure)
    assert memory.notes == {}


def test_writing_again_without_a_time_keeps_a_note() -> None:
    time = [NOW]
    memory = FakeMemory(clock=lambda: time[0])
    ask_memory(
        memory, MemoryOpWrite(A, "tea", metadata={EXPIRES_AT: NOW.isoformat().replace("26", "27")})
    )
    ask_memory(memory, MemoryOpWrite(A, "tea"))
    time[0] = NOW + timedelta(days=1000)
    assert isinstance(ask_memory(memory, MemoryOpRead(A)), MemoryReadResult)


@pytest.mark.parametrize("until", ["tomorrow", "2026-01-01T00:00:00"])
def test_a_time_that_is_none_is_refused(until: str) -> None:
    memory = FakeMemory()
    result = ask_memory(memory, MemoryOpWrite(A, "tea", metadata={EXPIRES_AT: until}))
    assert isinstance(result, MemoryExecutionFailure)
    assert result.kind == "unsupported"
    assert memory.notes == {}


def test_a_note_tells_the_sessions_that_it_comes_from() -> None:
    memory = FakeMemory(clock=lambda: NOW)
    for session, rows in (("one", (1, 2)), ("two", ()), ("one", (5,))):
        ask_memory(memory, note_op("tea", session_id=session, rows=rows))
    (uri,) = memory.notes
    read = ask_memory(memory, MemoryOpRead(uri))
    assert isinstance(read, MemoryReadResult)
    learned_at = NOW.timestamp()
    assert read.sources == (
        MemorySource("one", (1, 2, 5), learned_at=learned_at),
        MemorySource("two", learned_at=learned_at),
    )


def test_a_note_goes_with_the_last_session_that_it_comes_from() -> None:
    memory = FakeMemory()
    for session in ("one", "two"):
        ask_memory(memory, note_op("tea", session_id=session))
    (uri,) = memory.notes
    assert ask_memory(memory, MemoryOpForget(session_id="one")) == MemoryForgetResult(())
    assert ask_memory(memory, MemoryOpForget(session_id="two")) == MemoryForgetResult((uri,))


def test_a_note_that_was_also_given_without_a_session_outlives_it() -> None:
    memory = FakeMemory()
    ask_memory(memory, note_op("tea"))
    ask_memory(memory, note_op("tea", session_id="one"))
    assert ask_memory(memory, MemoryOpForget(session_id="one")) == MemoryForgetResult(())
    assert list(memory.notes.values()) == ["tea"]


def test_another_text_at_a_place_has_other_sources() -> None:
    memory = FakeMemory()
    ask_memory(memory, MemoryOpWrite(A, "tea", metadata={SESSION_ID: "one"}))
    ask_memory(memory, MemoryOpWrite(A, "coffee", metadata={SESSION_ID: "two"}))
    assert ask_memory(memory, MemoryOpForget(session_id="one")) == MemoryForgetResult(())


def test_forgetting_a_session_erases_its_transcripts() -> None:
    memory = FakeMemory()
    for session in ("one", "two"):
        ask_memory(memory, MemoryOpCommit(session, ({"role": "user", "content": "tea?"},)))
    ask_memory(memory, MemoryOpForget(session_id="one"))
    assert [uri.split("/")[3] for uri in memory.notes] == ["two"]


def test_a_run_is_committed_once() -> None:
    memory = FakeMemory()
    said = ({"role": "user", "content": "tea?"},)
    places = [ask_memory(memory, MemoryOpCommit("one", said, run=run)) for run in ("r", "r", "q")]
    assert places[0] == places[1] != places[2]
    assert len(memory.notes) == 2


def test_roots_list_every_scope() -> None:
    memory = FakeMemory({A: "tea", "memory://agent/b": "milk"})
    for root in ("memory:/", "viking:/"):
        listed = ask_memory(memory, MemoryOpList(root))
        assert isinstance(listed, MemoryListResult)
        assert [entry.uri for entry in listed.entries] == ["memory://agent", "memory://user"]
    tree = ask_memory(memory, MemoryOpTree("memory:/", depth=5))
    assert isinstance(tree, MemoryListResult)
    assert A in [entry.uri for entry in tree.entries]


def test_a_place_that_is_taken_gives_a_longer_name() -> None:
    op = note_op("tea")
    memory = FakeMemory({op.uri: "other"})
    result = ask_memory(memory, op)
    assert isinstance(result, MemoryWriteResult)
    assert result.uri.startswith(op.uri)
    assert memory.notes == {op.uri: "other", result.uri: "tea"}


def test_of_a_note_that_is_written_again_the_longer_time_counts() -> None:
    time = [NOW]
    memory = FakeMemory(clock=lambda: time[0])
    for hours in (3, 1):
        until = (NOW + timedelta(hours=hours)).isoformat()
        ask_memory(memory, MemoryOpWrite(A, "tea", metadata={EXPIRES_AT: until}))
    time[0] = NOW + timedelta(hours=2)
    assert memory.notes == {A: "tea"}
    assert isinstance(ask_memory(memory, MemoryOpRead(A)), MemoryReadResult)


T = TypeVar("T")


def wait(make: Callable[[], Awaitable[T]]) -> T:
    async def done() -> T:
        return await make()

    return runtime().run(done, label="a test")


def put(sandbox: BackendSandbox, path: str, data: str) -> None:
    sandbox.dispatch(BackendToolFilesWrite(path, data))


def copy_of(seed: Seed) -> BackendSandbox:
    async def origin() -> Seed:
        return seed

    return FakeBackend().lazy(origin=origin).ensure_open()


def test_frozen_files_stay_as_they_are() -> None:
    with FakeBackend().open() as sandbox:
        put(sandbox, "a", "1")
        frozen = sandbox.freeze()
        put(sandbox, "a", "2")
        sandbox.native.remove("a")
    assert wait(lambda: frozen.aread("a")) == b"1"
    assert list(wait(frozen.amanifest)) == ["a"]
    with pytest.raises(FileNotFoundError, match="no file at 'b'"):
        wait(lambda: frozen.aread("b"))


def test_a_copy_begins_with_frozen_files_and_changes() -> None:
    with FakeBackend().open() as sandbox:
        for path in ("a", "b", "c"):
            put(sandbox, path, "1")
        frozen = sandbox.freeze()
    changes = {"a": NewFile(b"2", 0o100755), "b": None, "none": None}
    copy = copy_of(Seed(frozen, changes))
    assert copy.native.files == {"a": b"2", "c": b"1"}
    assert copy.native.mode("a") == 0o100755


def test_the_base_of_two_copies_is_what_both_began_with() -> None:
    with FakeBackend().open() as sandbox:
        first = sandbox.freeze()
        put(sandbox, "a", "1")
        second = sandbox.freeze()
    one, other = copy_of(Seed(first)), copy_of(Seed(second))
    assert one.freeze().base_with(other.freeze()) is first
    assert other.freeze().base_with(second) is second
    assert FakeBackend().lazy().freeze().base_with(first) is None


def test_a_copy_that_was_never_opened_can_be_frozen() -> None:
    with FakeBackend().open() as sandbox:
        put(sandbox, "a", "1")
        frozen = sandbox.freeze()

    async def origin() -> Seed:
        return Seed(frozen)

    unopened = FakeBackend().lazy(origin=origin)
    twice = unopened.freeze(), unopened.freeze()
    assert [wait(lambda each=each: each.aread("a")) for each in twice] == [b"1", b"1"]  # type: ignore[misc]  # bound at once
    assert twice[1].base_with(frozen) is frozen
    assert twice[0].base_with(frozen) is frozen


def test_equal_files_have_equal_digests() -> None:
    def digest(sandbox: BackendSandbox) -> str | None:
        return wait(sandbox.aworkspace_digest)

    one, other = FakeBackend().open(), FakeBackend().open()
    put(one, "a", "1")
    before = digest(other)
    put(other, "a", "1")
    assert digest(one) == digest(other) == manifest_digest(wait(one.freeze().amanifest))
    assert digest(one) != before


def test_files_of_another_backend_are_no_beginning() -> None:
    class Other(FrozenWorkspace):
        async def amanifest(self) -> dict[str, object]:  # type: ignore[override]  # never asked
            return {}

        async def aread(self, path: str) -> bytes:
            return b""

        def base_with(self, other: FrozenWorkspace) -> None:
            return None

    with pytest.raises(TypeError, match="begins with files that a FakeBackend froze"):
        copy_of(Seed(Other()))


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (BackendToolFilesRead("a"), FileContent("1\n2\n3")),
        (BackendToolFilesRead("a", offset=1), FileContent("2\n3", None, 3)),
        (BackendToolFilesRead("a", offset=1, limit=1), FileContent("2\n", 2, 3)),
        (BackendToolFilesRead("a", limit=9), FileContent("1\n2\n3", None, 3)),
        (BackendToolFilesRead("a", "no such"), "decode_error"),
        (BackendToolFilesRead("a", offset=-1), "bad_range"),
        (BackendToolFilesRead("a", None), FileContent(b"1\n2\n3")),
        (BackendToolFilesRead("a", None, 2, 2), FileContent(b"2\n", 4, 5)),
    ],
)
def test_a_part_of_a_file_can_be_read(op: BackendToolFilesRead, expected: object) -> None:
    with FakeBackend().open() as sandbox:
        put(sandbox, "a", "1\n2\n3")
        result = sandbox.dispatch(op)
    assert expected == (result.kind if isinstance(result, ToolExecutionFailure) else result)


def test_an_edit_replaces_a_text_and_tells_its_effect() -> None:
    with FakeBackend().open() as sandbox, observe_effects() as effects:
        sandbox.dispatch(BackendToolFilesWrite("a", "one two one\n", 0o755))
        effects.clear()
        result = sandbox.dispatch(BackendToolFilesEdit("a", "one", "1", replace_all=True))
        assert sandbox.native.mode("a") == 0o100755
    assert result == FileEditResult(2, "--- a/a\n+++ b/a\n@@ -1 +1 @@\n-one two one\n+1 two 1\n")
    (effect,) = effects
    assert isinstance(effect, FileEffect)
    assert (effect.kind, effect.before_mode, effect.after_mode) == ("changed", 0o100755, 0o100755)


@pytest.mark.parametrize("old", ["none", "one", ""])
def test_an_edit_that_does_not_fit_is_a_failure(old: str) -> None:
    with FakeBackend().open() as sandbox:
        put(sandbox, "a", "one one")
        result = sandbox.dispatch(BackendToolFilesEdit("a", old, "x"))
        assert isinstance(result, ToolExecutionFailure)
        assert sandbox.native.files == {"a": b"one one"}


ID = UUID(int=7)


def test_the_write_that_was_named_fails_and_ends_its_log() -> None:
    store = FakeSessionStore(fail_at=2)
    log, other = store.create(ID), store.create(UUID(int=8))
    log.append(b"1\n")
    with pytest.raises(PersistenceError, match="No space left on device"):
        log.append(b"2\n")
    with pytest.raises(PersistenceError, match="an earlier write failed"):
        log.append(b"3\n")
    with pytest.raises(PersistenceError, match="stays unfinished"):
        log.finish()
    assert log.closed
    other.append(b"1\n")
    other.finish()
    found = store.read(ID)
    assert found is not None
    assert (found.data, found.is_finished) == (b"1\n", False)
    assert store.n_writes == 3


def test_durable_writes_are_counted() -> None:
    store = FakeSessionStore()
    log = store.create(ID)
    log.append(b"1\n", durable=True)
    log.append(b"2\n")
    log.finish()
    store.append_to_finished(ID, 4, b"3\n")
    assert (store.n_writes, store.n_durable) == (3, 2)


def test_what_was_cut_off_is_preserved() -> None:
    store = FakeSessionStore()
    log = store.create(ID)
    log.append(b"1\n2\n")
    log.finish()
    store.reopen(ID, 2).abandon()
    assert store.asides == [b"2\n"]


def test_following_waits_and_sees_a_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    store = FakeSessionStore()
    log = store.create(ID)
    log.append(b"1\n")

    def wait(_seconds: float) -> None:
        log.append(b"2\n")
        log.finish()

    monkeypatch.setattr("time.sleep", wait)
    assert list(store.follow(ID, 0)) == [b"1\n", b"2\n"]
    lines = store.follow(ID, 4)
    store.reopen(ID, 2).abandon()
    with pytest.raises(PersistenceError, match="was cut"):
        next(lines)
