"""Notes that a model is reminded of before a run, whatever its memory answers."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from rath import flow
from rath.flow.memory_inject import DefaultRecallInjection, MemoryInjectionPolicy
from rath.memory import (
    MemoryExecutionFailure,
    MemoryFindResult,
    MemoryHit,
    MemoryOp,
    MemoryOpFind,
    MemoryOpRead,
    MemoryReadResult,
    MemoryResult,
    MemoryStore,
)
from rath.session import ChunkRow, ChunkTable, Session, assistant_turn_chunk, user_text_chunk
from rath.session.record import ModelCall, RecalledNote
from rath.testing import ScriptedClient
from tests.support.api import context_message, n_tokens
from tests.support.fake_memory import FakeMemory
from tests.support.fences import quoted_notes
from tests.support.waiting import PATIENCE, at_a_deadline

HITS = (
    MemoryHit("memory://user/a", 0.9, "likes tea"),
    MemoryHit("memory://user/b", 0.4, "has a dog"),
)


def user(*texts: str) -> Session:
    return Session(
        ChunkTable(tuple(user_text_chunk(text) for text in texts or ("What do I like?",)))
    )


def raising(error: BaseException) -> Callable[[MemoryOp], MemoryResult]:
    """A memory that answers with an error."""

    def answer(op: MemoryOp) -> MemoryResult:
        raise error

    return answer


def failing(op: MemoryOp) -> MemoryResult:
    """A memory that answers with a failure."""
    return MemoryExecutionFailure("internal", "no disk")


class Fixed:
    """A policy that always says the same."""

    def inject(self, session: Session, store: MemoryStore) -> tuple[ChunkRow, ...]:
        return (user_text_chunk(f"seen {len(session.chunk_table)}"),)


class Awaited:
    """A policy that is a coroutine."""

    async def inject(self, session: Session, store: MemoryStore) -> tuple[ChunkRow, ...]:
        return (user_text_chunk("awaited"),)


class Broken:
    """A policy that fails."""

    def inject(self, session: Session, store: MemoryStore) -> tuple[ChunkRow, ...]:
        raise ZeroDivisionError


def run(
    memory: FakeMemory, session: Session, policy: MemoryInjectionPolicy | None = None
) -> tuple[Session, list[str | None]]:
    """The session of a run, and what its model read."""
    client = ScriptedClient(["ok"])
    agent = flow.Agent("p", client.provider, memory=memory.open(), memory_inject=policy)
    out = agent(session).synchronize()
    return out, [message.content for message in client.requests[0].messages]


def test_notes_are_marked_as_data_and_come_from_the_user_role() -> None:
    client = ScriptedClient(["ok"])
    agent = flow.Agent("p", client.provider, memory=FakeMemory(hits=HITS).open())
    agent(user()).synchronize()
    note = client.requests[0].messages[1]
    assert note.role == "user"
    assert "not instructions" in (note.content or "")


def test_notes_are_no_rows_and_make_no_parents() -> None:
    session = user()
    out, _ = run(FakeMemory(hits=HITS), session)
    assert [row.payload["content"] for row in out.chunk_table] == ["What do I like?", "ok"]
    assert out.parent_session_ids[0] == session.id


def test_the_record_holds_what_was_recalled() -> None:
    out, _ = run(FakeMemory(hits=HITS), user())
    (call,) = (entry for entry in out.record if isinstance(entry, ModelCall))
    assert call.seen is not None
    assert [(note.uri, note.text, note.score) for note in call.seen.recalled] == [
        ("memory://user/a", "likes tea", 0.9),
        ("memory://user/b", "has a dog", 0.4),
    ]


def test_the_query_is_the_last_thing_the_user_reported() -> None:
    memory = FakeMemory()
    session = user("old", "wanted", "  ")
    answered = Session(
        session.chunk_table.extend(assistant_turn_chunk(tool_calls=None, content="x"))
    )
    run(memory, answered)
    assert memory.asked == [MemoryOpFind("wanted", None, 4)]


def test_without_a_user_row_nothing_is_asked() -> None:
    memory = FakeMemory(hits=HITS)
    run(memory, Session.from_agent_prompt("x"))
    assert memory.asked == []


@pytest.mark.parametrize("hits", [(), (MemoryHit("memory://user/a", 1.0, None),)])
def test_without_a_text_nothing_is_added(hits: tuple[MemoryHit, ...]) -> None:
    _, read = run(FakeMemory(hits=hits), user())
    assert read == UNTOLD


@pytest.mark.parametrize(
    ("policy", "text"), [(Fixed(), "seen 1"), (Awaited(), "awaited")], ids=["def", "async def"]
)
def test_a_policy_of_ones_own_is_asked(policy: MemoryInjectionPolicy, text: str) -> None:
    memory = FakeMemory(hits=HITS)
    _, read = run(memory, user(), policy)
    assert text in (read[1] or "")
    assert memory.asked == []


def test_a_policy_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    out, read = run(FakeMemory(), user(), Broken())
    assert read == ["p", "What do I like?"]
    assert out.text() == "ok"
    assert "ZeroDivisionError" in caplog.text


def test_a_memory_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        out, _ = run(FakeMemory(failing), user())
    assert out.text() == "ok"
    assert "no disk" in caplog.text


def test_a_closed_memory_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    memory = FakeMemory(hits=HITS)
    store = memory.open()
    agent = flow.Agent("p", ScriptedClient(["ok"]).provider, memory=store)
    store.release()
    assert agent(user()).text() == "ok"
    assert "nothing is recalled" in caplog.text
    assert memory.asked == []


def test_a_run_keeps_the_memory_open_when_its_agent_closes() -> None:
    memory = FakeMemory(hits=HITS)
    client = ScriptedClient(["first", "ok"])
    waited = flow.Agent("q", client.provider)(user())
    with flow.Agent("p", client.provider, memory=memory.open()) as agent:
        out = agent(waited)
    assert out.text() == "ok"
    assert len(memory.of(MemoryOpFind)) == 1


def test_rows_of_the_default_policy_name_their_notes() -> None:
    memory = FakeMemory(hits=(*HITS, MemoryHit("memory://user/c", 0.1)))
    with memory.open() as store:
        rows = DefaultRecallInjection(top_k=3, target_uri="memory://user").inject(user(), store)
    assert [row.payload["content"] for row in rows] == [
        "[memory:memory://user/a] likes tea",
        "[memory:memory://user/b] has a dog",
        "[memory:memory://user/c]",
    ]
    assert memory.asked == [MemoryOpFind("What do I like?", "memory://user", 3)]


@pytest.mark.parametrize(
    ("data", "text"), [("the whole note", "the whole note"), (b"bytes", "bytes")]
)
def test_more_of_a_note_is_read_when_asked_for(data: str | bytes, text: str) -> None:
    def answer(op: MemoryOp) -> MemoryResult:
        if isinstance(op, MemoryOpRead):
            return MemoryReadResult(op.uri, data, op.level)
        return MemoryFindResult(HITS[:1])

    with FakeMemory(answer).open() as store:
        rows = DefaultRecallInjection(level="detail").inject(user(), store)
    assert rows[0].payload["content"] == f"[memory:memory://user/a] {text}"


def test_policies_are_recognised() -> None:
    assert isinstance(DefaultRecallInjection(), MemoryInjectionPolicy)
    assert isinstance(Fixed(), MemoryInjectionPolicy)
    assert not isinstance(object(), MemoryInjectionPolicy)


# ---- policies that programs bring


class Fewer(DefaultRecallInjection):
    """What a program makes of the default by inheritance."""

    def inject(self, session: Session, store: MemoryStore) -> tuple[ChunkRow, ...]:
        return super().inject(session, store)[:1]


class Patient(DefaultRecallInjection):
    """A subclass that only has other defaults."""

    def __init__(self) -> None:
        super().__init__(top_k=1, timeout=None)


def recalled(session: Session) -> tuple[RecalledNote, ...]:
    """The notes that the only call of a session saw."""
    (call,) = [entry for entry in session.record if isinstance(entry, ModelCall)]
    assert call.seen is not None
    return call.seen.recalled


def test_a_subclass_with_an_inject_of_its_own_is_asked() -> None:
    out, _ = run(FakeMemory(hits=HITS), user(), Fewer())
    assert [note.shown for note in recalled(out)] == ["[memory:memory://user/a] likes tea"]


def test_a_subclass_without_one_keeps_uri_and_score() -> None:
    out, _ = run(FakeMemory(hits=HITS), user(), Patient())
    assert recalled(out)[0] == RecalledNote("memory://user/a", "likes tea", 0.9)


# ---- how much of the notes


def test_notes_fit_into_a_thousand_tokens() -> None:
    hits = tuple(MemoryHit(f"memory://user/{n}", 1.0 / n, f"{n} tea " * 300) for n in range(1, 5))
    out, read = run(FakeMemory(hits=hits), user())
    assert n_tokens(read[1] or "") <= 1000
    first, second = recalled(out)
    assert (first.n_left_out, first.text) == (0, hits[0].snippet and hits[0].snippet.strip())
    assert second.n_left_out > 0
    assert quoted_notes(read[1] or "")[1].endswith(" [cut]")


@pytest.mark.parametrize("given", [{"max_tokens": 0}, {"timeout": 0.0}, {"timeout": float("nan")}])
def test_a_limit_that_nothing_fits_into_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        DefaultRecallInjection(**given)


def test_rows_of_the_default_policy_keep_its_budget() -> None:
    hits = tuple(MemoryHit(f"memory://user/{n}", 1.0, "tea " * 400) for n in range(4))
    with FakeMemory(hits=(MemoryHit("memory://user/x", 2.0), *hits)).open() as store:
        rows = DefaultRecallInjection(top_k=5).inject(user(), store)
    texts = [str(row.payload["content"]) for row in rows]
    assert [text[:25] for text in texts] == [
        "[memory:memory://user/x]", "[memory:memory://user/0] ", "[memory:memory://user/1] ",
    ]  # fmt: skip
    assert texts[-1].endswith(" [cut]")
    assert n_tokens(context_message(texts[1:]).content or "") <= 1000


def test_a_run_that_has_ended_holds_the_memory_no_longer() -> None:
    store = FakeMemory(hits=HITS).open()
    agent = flow.Agent("p", ScriptedClient(["ok"]).provider, memory=store)
    out = agent(user()).synchronize()
    assert store.refcount == 1
    agent.close()
    assert (store.refcount, out.text()) == (0, "ok")


HIT = MemoryHit("memory://user/a", 0.9, "likes tea")
UNTOLD = ["p", "What do I like?"]
"""What a model reads that nothing was recalled for."""


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
        return deadline, *run(memory, user(), DefaultRecallInjection(timeout=deadline))

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
    out, read = run(FakeMemory(raising(error)), user())
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
    out, _ = run(FakeMemory(hits=tuple(hits)), user())
    assert out.text() == "ok"
    assert [(note.uri, note.text) for note in recalled(out)] == notes


@pytest.mark.parametrize("score", [float("nan"), float("inf")])
def test_a_score_that_is_no_number_is_recorded_as_none(score: float) -> None:
    out, _ = run(FakeMemory(hits=(MemoryHit("memory://user/a", score, "tea"),)), user())
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
def test_a_note_that_cannot_be_read_is_displayed_by_its_snippet(read: MemoryResult) -> None:
    def answer(op: MemoryOp) -> MemoryResult:
        return read if isinstance(op, MemoryOpRead) else MemoryFindResult((HIT,))

    out, _ = run(FakeMemory(answer), user(), DefaultRecallInjection(level="detail"))
    assert [note.text for note in recalled(out)] == ["likes tea"]
