"""A store of blocking methods keeps to one thread, as an SQLite connection asks for."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

from rath import flow, memory
from rath.session import Session
from rath.session.outcome import Cancelled
from rath.testing import FakeMemory, ScriptedClient
from tests.support.waiting import PATIENCE, wait_until

FIND = memory.MemoryOpFind("tea")
WRITE = memory.MemoryOpWrite("memory://user/tea", "likes tea")


class SqliteMethods:
    """The blocking methods of 1.3 over a connection that only its own thread may use."""

    def __init__(self) -> None:
        self.databases: dict[str, sqlite3.Connection] = {}
        self.threads: list[threading.Thread] = []
        self.was_closed = threading.Event()

    def open(self, spec: memory.MemoryStoreSpec | None = None) -> memory.MemoryStore:
        self.threads.append(threading.current_thread())
        handle = uuid4().hex
        self.databases[handle] = sqlite3.connect(":memory:")
        self.databases[handle].execute("CREATE TABLE note (uri TEXT, content TEXT)")
        return memory.MemoryStore(self, handle, spec)  # type: ignore[arg-type]  # a mixin or a duck

    def dispatch(self, store: memory.MemoryStore, op: memory.MemoryOp) -> memory.MemoryResult:
        self.threads.append(threading.current_thread())
        database = self.databases[store.handle]
        if isinstance(op, memory.MemoryOpWrite):
            database.execute("INSERT INTO note VALUES (?, ?)", (op.uri, op.content))
            return memory.MemoryWriteResult(op.uri, len(op.content))
        rows = database.execute("SELECT uri, content FROM note").fetchall()
        return memory.MemoryFindResult(
            tuple(memory.MemoryHit(uri, 1.0, content) for uri, content in rows)
        )

    def close(self, store: memory.MemoryStore) -> None:
        if store.closed:
            return
        self.threads.append(threading.current_thread())
        self.databases.pop(store.handle).close()
        store.closed = True
        self.was_closed.set()


class SqliteMemory(SqliteMethods, memory.MemoryBackend):
    """A backend whose methods come from elsewhere."""

    @classmethod
    def capabilities(cls) -> memory.MemoryCapabilities:
        return FakeMemory.capabilities()

    @classmethod
    def supported_ops(cls) -> frozenset[type[memory.MemoryOp]]:
        return frozenset({memory.MemoryOpFind, memory.MemoryOpWrite})


class DerivedMemory(SqliteMemory):
    """Adds to each method of its base class."""

    def open(self, spec: memory.MemoryStoreSpec | None = None) -> memory.MemoryStore:
        return super().open(spec)

    def dispatch(self, store: memory.MemoryStore, op: memory.MemoryOp) -> memory.MemoryResult:
        return super().dispatch(store, op)

    def close(self, store: memory.MemoryStore) -> None:
        super().close(store)


class AskingMemory(SqliteMemory):
    """Answers a search by another one on the same store, as from an agent inside."""

    def dispatch(self, store: memory.MemoryStore, op: memory.MemoryOp) -> memory.MemoryResult:
        if op == memory.MemoryOpFind("again"):
            return store.dispatch(FIND)
        if op == memory.MemoryOpFind("from another thread"):
            with ThreadPoolExecutor() as pool:
                asking = partial(store.dispatch, memory.MemoryOpFind("nothing"))
                return pool.submit(copy_context().run, asking).result(PATIENCE)
        if op == memory.MemoryOpFind("nothing"):
            return memory.MemoryFindResult(())
        return super().dispatch(store, op)


@pytest.fixture
def name() -> str:
    return f"sqlite-{uuid4().hex}"


def opened(backend: Any) -> memory.MemoryStore:
    store: memory.MemoryStore = backend.open()
    return store


def lazy(backend: Any) -> memory.MemoryStore:
    return memory.MemoryStore(backend, "")


OPENINGS = [opened, lazy]
BACKENDS = [SqliteMemory, DerivedMemory]


def is_one_thread_that_ends(backend: SqliteMethods) -> bool:
    """Wait for the end of the thread, and tell whether it was one, and a daemon."""
    thread = backend.threads[0]
    thread.join(PATIENCE)
    return {*backend.threads} == {thread} and thread.daemon and not thread.is_alive()


@pytest.mark.parametrize("backend_class", BACKENDS)
@pytest.mark.parametrize("opening", OPENINGS)
def test_open_dispatch_and_close_share_one_thread_which_ends(
    backend_class: type[SqliteMemory], opening: Callable[[Any], memory.MemoryStore]
) -> None:
    backend = backend_class()
    with opening(backend) as store:
        assert store.dispatch(WRITE) == memory.MemoryWriteResult(WRITE.uri, 9)
        found = store.dispatch(FIND)
        assert isinstance(found, memory.MemoryFindResult)
        assert [hit.snippet for hit in found.hits] == ["likes tea"]
    assert backend.was_closed.wait(PATIENCE)
    assert is_one_thread_that_ends(backend)


@pytest.mark.parametrize("backend_class", BACKENDS)
def test_the_methods_of_the_backend_keep_to_that_thread(backend_class: type[SqliteMemory]) -> None:
    backend = backend_class()
    store = backend.open()
    assert backend.dispatch(store=store, op=WRITE) == memory.MemoryWriteResult(WRITE.uri, 9)
    threads = [threading.Thread(target=backend.dispatch, args=(store, FIND)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    backend.close(store)
    assert (store.closed, len(backend.threads)) == (True, 7)
    assert is_one_thread_that_ends(backend)


def test_an_agent_recalls_commits_and_closes_on_that_thread(name: str) -> None:
    memory.register(name)(SqliteMemory)
    client = ScriptedClient(["Tea it is."])
    with flow.Agent("p", client.provider, memory=name) as agent:
        assert agent.memory is not None
        backend = agent.memory.backend
        assert isinstance(backend, SqliteMemory)
        agent.remember_memory("likes tea")
        assert agent(Session.from_user_message("Tea?")).text() == "Tea it is."
    assert "likes tea" in str(client.requests[0].messages)
    assert backend.was_closed.wait(PATIENCE)
    assert is_one_thread_that_ends(backend)


def test_a_registered_class_needs_no_base_class_of_ours(name: str) -> None:
    class Registered(SqliteMethods):
        pass

    memory.register(name)(Registered)  # type: ignore[type-var]  # has what is called, and no more
    backend: Any = memory.get(name)
    with backend.open() as store:
        store.dispatch(WRITE)
        with flow.Agent("p", model="m", memory=store) as agent:
            assert isinstance(agent.recall_memory("tea"), memory.MemoryFindResult)
    assert backend.was_closed.wait(PATIENCE)
    assert is_one_thread_that_ends(backend)


def test_an_object_with_the_three_methods_works_where_it_was_opened() -> None:
    backend: Any = SqliteMethods()
    store = backend.open()
    assert repr(store) == f"MemoryStore('SqliteMethods', {store.handle!r}, closed=False)"
    with store:
        assert isinstance(store.dispatch(WRITE), memory.MemoryWriteResult)
        assert isinstance(store.dispatch(FIND), memory.MemoryFindResult)
    assert (store.closed, backend.databases) == (True, {})
    assert {*backend.threads} == {threading.current_thread()}


def test_an_object_with_the_three_methods_opens_on_first_use() -> None:
    backend = SqliteMethods()
    with lazy(backend) as store:
        assert isinstance(store.dispatch(WRITE), memory.MemoryWriteResult)
    assert backend.was_closed.wait(PATIENCE)
    assert is_one_thread_that_ends(backend)


def test_an_object_with_coroutine_hooks_alone_is_a_backend() -> None:
    class Hooks:
        closed = False

        async def aopen(self, spec: memory.MemoryStoreSpec | None) -> object:
            return object()

        async def adispatch(self, native: object, op: memory.MemoryOp) -> memory.MemoryResult:
            return memory.MemoryFindResult(())

        async def aclose(self, native: object) -> None:
            self.closed = True

    backend: Any = Hooks()
    with lazy(backend) as store:
        assert store.dispatch(FIND) == memory.MemoryFindResult(())
    wait_until(lambda: backend.closed)


def test_stores_do_not_wait_for_each_other() -> None:
    both = threading.Barrier(2)

    class Meeting(SqliteMemory):
        def dispatch(self, store: memory.MemoryStore, op: memory.MemoryOp) -> memory.MemoryResult:
            both.wait(PATIENCE)
            return super().dispatch(store, op)

    backend = Meeting()
    with backend.open() as one, backend.open() as other:
        thread = threading.Thread(target=one.dispatch, args=(FIND,))
        thread.start()
        assert other.dispatch(FIND) == memory.MemoryFindResult(())
        thread.join(PATIENCE)


@pytest.mark.parametrize("query", ["again", "from another thread"])
def test_a_dispatch_that_asks_its_own_store_does_not_wait_for_itself(query: str) -> None:
    backend = AskingMemory()
    with backend.open() as store:
        assert store.dispatch(memory.MemoryOpFind(query)) == memory.MemoryFindResult(())


def test_a_failed_open_says_what_went_wrong_and_leaves_no_thread() -> None:
    class Failing(SqliteMemory):
        def open(self, spec: memory.MemoryStoreSpec | None = None) -> memory.MemoryStore:
            self.threads.append(threading.current_thread())
            raise SystemExit("no disk")

    backend = Failing()
    with pytest.raises(SystemExit, match="no disk"):
        backend.open()
    assert is_one_thread_that_ends(backend)


def test_an_abandoned_call_holds_the_thread_and_not_the_caller() -> None:
    begun, go_on = threading.Event(), threading.Event()

    class Slow(SqliteMemory):
        def dispatch(self, store: memory.MemoryStore, op: memory.MemoryOp) -> memory.MemoryResult:
            begun.set()
            go_on.wait(PATIENCE)
            return super().dispatch(store, op)

    backend = Slow()
    store = backend.open()
    with flow.Agent("p", ScriptedClient(["Tea."]).provider, memory=store) as agent:
        run = agent(Session.from_user_message("Tea?"))
        assert begun.wait(PATIENCE)
        run.cancel()
        assert isinstance(run.outcome, Cancelled)
    wait_until(lambda: store.closed, "the run has let the store go")
    assert not backend.was_closed.is_set()
    go_on.set()
    assert backend.was_closed.wait(PATIENCE)
    assert is_one_thread_that_ends(backend)
