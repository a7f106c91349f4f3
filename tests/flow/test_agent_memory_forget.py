"""What an agent keeps for a while, and what it forgets on request."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from rath import flow
from rath.memory import (
    MemoryFindResult,
    MemoryForgetResult,
    MemoryOpForget,
    MemoryOpWrite,
    MemoryStore,
    MemoryStoreSpec,
    MemoryWriteResult,
)
from rath.memory.notes import EXPIRES_AT
from rath.session import Session
from rath.testing import FakeMemory, ScriptedClient


def agent(memory: MemoryStore | MemoryStoreSpec | None) -> flow.Agent:
    """An agent with that memory, whose model says one thing."""
    model = ScriptedClient(["Noted."] * 3)
    return flow.Agent("You remember.", model.provider, memory=memory, system_tools=False)


@pytest.mark.parametrize("ttl", [3600, 3600.0, timedelta(hours=1)])
def test_a_note_is_kept_for_a_while(ttl: timedelta | float) -> None:
    memory = FakeMemory()
    with agent(memory.open()) as bound:
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
    memory = FakeMemory()
    with agent(memory.open()) as bound, pytest.raises(ValueError, match="ttl must be"):
        bound.remember_memory("tea", ttl=ttl)
    assert memory.ops == []


@pytest.mark.parametrize("ttl", ["1h", True, 3j])
def test_another_type_of_time_is_refused(ttl: Any) -> None:
    with agent(FakeMemory().open()) as bound, pytest.raises(TypeError, match="ttl must be"):
        bound.remember_memory("tea", ttl=ttl)


def test_a_note_or_a_directory_is_forgotten() -> None:
    memory = FakeMemory({"memory://user/a": "tea", "memory://user/d/b": "milk"})
    with agent(memory.open()) as bound:
        assert bound.forget_memory("memory://user/a") == MemoryForgetResult(("memory://user/a",))
        bound.forget_memory("memory://user/d", recursive=True)
    assert memory.notes == {}


def test_a_session_is_named_by_itself_or_its_id() -> None:
    memory = FakeMemory()
    session, identity = Session.from_user_message("x"), uuid4()
    with agent(memory.open()) as bound:
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
    memory = FakeMemory()
    with agent(memory.open()) as bound, pytest.raises(error, match=r"expected|must be"):
        bound.forget_memory(**named)
    assert memory.ops == []


def test_without_a_memory_there_is_nothing_to_forget() -> None:
    with pytest.raises(RuntimeError, match="agent has no memory store"):
        agent(None).forget_memory("memory://user/a")


def test_what_came_from_a_session_is_not_recalled_any_more(tmp_path: Path) -> None:
    with agent(MemoryStoreSpec(options={"path": str(tmp_path / "store")})) as bound:
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
