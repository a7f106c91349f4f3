"""A memory in a dict, as a double for tests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

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
from rath.testing import FakeMemory

A = "memory://user/memories/a"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def ask(memory: FakeMemory, op: MemoryOp) -> MemoryResult:
    with memory.open() as store:
        return store.dispatch(op)


def test_notes_are_a_dict_that_a_test_may_read_and_change() -> None:
    memory = FakeMemory({A: "tea"})
    memory.notes["memory://user/memories/b"] = "milk"
    ask(memory, MemoryOpWrite(A, "coffee"))
    assert memory.notes == {A: "coffee", "memory://user/memories/b": "milk"}
    assert memory.ops_of(MemoryOpWrite) == [MemoryOpWrite(A, "coffee")]


def test_an_operation_may_be_scripted() -> None:
    failure = MemoryExecutionFailure("timeout", "too slow")
    memory = FakeMemory({A: "tea"}, answer=lambda op: failure if op == MemoryOpRead(A) else None)
    assert ask(memory, MemoryOpRead(A)) == failure
    assert isinstance(ask(memory, MemoryOpFind("tea")), MemoryResult)


def test_a_note_expires_by_the_clock_of_the_test() -> None:
    time = [NOW]
    memory = FakeMemory(clock=lambda: time[0])
    until = NOW + timedelta(hours=1)
    ask(memory, MemoryOpWrite(A, "tea", metadata={EXPIRES_AT: until.isoformat()}))
    assert ask(memory, MemoryOpRead(A)) == MemoryReadResult(
        A, "tea", "detail", expires_at=until.timestamp()
    )
    time[0] = until
    assert isinstance(ask(memory, MemoryOpRead(A)), MemoryExecutionFailure)
    assert memory.notes == {}


def test_writing_again_without_a_time_keeps_a_note() -> None:
    time = [NOW]
    memory = FakeMemory(clock=lambda: time[0])
    ask(memory, MemoryOpWrite(A, "tea", metadata={EXPIRES_AT: NOW.isoformat().replace("26", "27")}))
    ask(memory, MemoryOpWrite(A, "tea"))
    time[0] = NOW + timedelta(days=1000)
    assert isinstance(ask(memory, MemoryOpRead(A)), MemoryReadResult)


@pytest.mark.parametrize("until", ["tomorrow", "2026-01-01T00:00:00"])
def test_a_time_that_is_none_is_refused(until: str) -> None:
    memory = FakeMemory()
    result = ask(memory, MemoryOpWrite(A, "tea", metadata={EXPIRES_AT: until}))
    assert isinstance(result, MemoryExecutionFailure)
    assert result.kind == "unsupported"
    assert memory.notes == {}


def test_a_note_tells_the_sessions_that_it_comes_from() -> None:
    memory = FakeMemory(clock=lambda: NOW)
    for session, rows in (("one", (1, 2)), ("two", ()), ("one", (5,))):
        ask(memory, note_op("tea", session_id=session, rows=rows))
    (uri,) = memory.notes
    read = ask(memory, MemoryOpRead(uri))
    assert isinstance(read, MemoryReadResult)
    learned_at = NOW.timestamp()
    assert read.sources == (
        MemorySource("one", (1, 2, 5), learned_at=learned_at),
        MemorySource("two", learned_at=learned_at),
    )


def test_a_note_goes_with_the_last_session_that_it_comes_from() -> None:
    memory = FakeMemory()
    for session in ("one", "two"):
        ask(memory, note_op("tea", session_id=session))
    (uri,) = memory.notes
    assert ask(memory, MemoryOpForget(session_id="one")) == MemoryForgetResult(())
    assert ask(memory, MemoryOpForget(session_id="two")) == MemoryForgetResult((uri,))


def test_a_note_that_was_also_given_without_a_session_outlives_it() -> None:
    memory = FakeMemory()
    ask(memory, note_op("tea"))
    ask(memory, note_op("tea", session_id="one"))
    assert ask(memory, MemoryOpForget(session_id="one")) == MemoryForgetResult(())
    assert list(memory.notes.values()) == ["tea"]


def test_another_text_at_a_place_has_other_sources() -> None:
    memory = FakeMemory()
    ask(memory, MemoryOpWrite(A, "tea", metadata={SESSION_ID: "one"}))
    ask(memory, MemoryOpWrite(A, "coffee", metadata={SESSION_ID: "two"}))
    assert ask(memory, MemoryOpForget(session_id="one")) == MemoryForgetResult(())


def test_forgetting_a_session_erases_its_transcripts() -> None:
    memory = FakeMemory()
    for session in ("one", "two"):
        ask(memory, MemoryOpCommit(session, ({"role": "user", "content": "tea?"},)))
    ask(memory, MemoryOpForget(session_id="one"))
    assert [uri.split("/")[3] for uri in memory.notes] == ["two"]


def test_a_run_is_committed_once() -> None:
    memory = FakeMemory()
    said = ({"role": "user", "content": "tea?"},)
    places = [ask(memory, MemoryOpCommit("one", said, run=run)) for run in ("r", "r", "q")]
    assert places[0] == places[1] != places[2]
    assert len(memory.notes) == 2


def test_roots_list_every_scope() -> None:
    memory = FakeMemory({A: "tea", "memory://agent/b": "milk"})
    for root in ("memory:/", "viking:/"):
        listed = ask(memory, MemoryOpList(root))
        assert isinstance(listed, MemoryListResult)
        assert [entry.uri for entry in listed.entries] == ["memory://agent", "memory://user"]
    tree = ask(memory, MemoryOpTree("memory:/", depth=5))
    assert isinstance(tree, MemoryListResult)
    assert A in [entry.uri for entry in tree.entries]


def test_a_place_that_is_taken_gives_a_longer_name() -> None:
    op = note_op("tea")
    memory = FakeMemory({op.uri: "other"})
    result = ask(memory, op)
    assert isinstance(result, MemoryWriteResult)
    assert result.uri.startswith(op.uri)
    assert memory.notes == {op.uri: "other", result.uri: "tea"}


def test_of_a_note_that_is_written_again_the_longer_time_counts() -> None:
    time = [NOW]
    memory = FakeMemory(clock=lambda: time[0])
    for hours in (3, 1):
        until = (NOW + timedelta(hours=hours)).isoformat()
        ask(memory, MemoryOpWrite(A, "tea", metadata={EXPIRES_AT: until}))
    time[0] = NOW + timedelta(hours=2)
    assert memory.notes == {A: "tea"}
    assert isinstance(ask(memory, MemoryOpRead(A)), MemoryReadResult)
