"""Which memory an agent gets, and how long it keeps it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rath import flow
from rath.config import ConfigStore, MemoryProviderConfig
from rath.errors import MemoryBackendNotFound
from rath.memory import MemoryFindResult, MemoryOpFind, MemoryOpWrite, MemoryStoreSpec
from rath.session import Session
from tests.support.fake_memory import FakeMemory


def agent(memory: Any) -> flow.Agent:
    return flow.Agent("p", model="m", memory=memory)


def snippets(found: object) -> list[str | None]:
    """What a search found."""
    assert isinstance(found, MemoryFindResult)
    return [hit.snippet for hit in found.hits]


def test_a_store_is_held_until_close() -> None:
    store = FakeMemory().open()
    bound = agent(store)
    assert (bound.memory, bound.agent.memory) == (store, store)
    assert store.refcount == 1
    bound.close()
    bound.close()
    assert (bound.memory, bound.agent.memory) == (None, None)
    assert store.closed


def test_a_shared_store_outlives_one_agent() -> None:
    store = FakeMemory().open()
    first, second = agent(store), agent(store)
    first.close()
    assert not store.closed
    second.close()
    assert store.closed


def test_a_forgotten_agent_gives_its_memory_back() -> None:
    store = FakeMemory().open()
    agent(store)
    assert store.closed


def test_with_closes() -> None:
    store = FakeMemory().open()
    with agent(store) as bound:
        assert not store.closed
    assert bound.memory is None


def test_local_is_the_same_store_in_every_run() -> None:
    with agent("local") as first:
        first.remember_memory("The user likes tea.")
    with agent("local") as second:
        assert snippets(second.recall_memory("tea")) == ["The user likes tea."]


def test_a_spec_opens_the_default_backend(tmp_path: Path) -> None:
    spec = MemoryStoreSpec(options={"path": str(tmp_path / "notes")})
    with agent(spec) as bound:
        bound.remember_memory("x")
        assert bound.memory is not None
        assert bound.memory.handle == str((tmp_path / "notes").resolve())


def test_a_configured_name_comes_first(tmp_path: Path) -> None:
    store = ConfigStore()
    store.config.memory.providers["mine"] = MemoryProviderConfig(path=str(tmp_path / "mine"))
    store.save()
    with agent("mine") as bound:
        assert bound.memory is not None
        assert bound.memory.handle == str((tmp_path / "mine").resolve())


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(MemoryBackendNotFound, match=r"'locl'.*'local'"):
        agent("locl")


def test_anything_else_is_refused() -> None:
    with pytest.raises(TypeError, match=r"memory must be a MemoryStore.*got int"):
        agent(7)


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
        getattr(agent(None), method)(argument)


def test_an_identical_note_is_one_note() -> None:
    memory = FakeMemory()
    with agent(memory.open()) as bound:
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
    with agent(memory.open()) as bound:
        bound.recall_memory("words", top_k=2, target_uri="memory://user")
    assert memory.asked == [MemoryOpFind("words", "memory://user", 2)]
