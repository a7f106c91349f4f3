"""The store handle, over coroutine hooks and over the blocking methods of 1.3."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from rath import memory
from rath._async.runtime import runtime
from rath.errors import MemoryBackendError
from rath.testing import FakeMemory
from tests.support.waiting import PATIENCE

FIND = memory.MemoryOpFind("x")


class Blocking(memory.MemoryBackend):
    """A backend as it was written for 1.3."""

    def __init__(self) -> None:
        self.stores: list[memory.MemoryStore] = []
        self.closed: list[memory.MemoryStore] = []
        self.was_closed = threading.Event()
        self.threads: set[str] = set()

    @classmethod
    def is_available(cls) -> bool:
        return True

    @classmethod
    def capabilities(cls) -> memory.MemoryCapabilities:
        return FakeMemory.capabilities()

    @classmethod
    def supported_ops(cls) -> frozenset[type[memory.MemoryOp]]:
        return frozenset({memory.MemoryOpFind})

    def store_count(self) -> int:
        return len(self.stores)

    def open(self, spec: memory.MemoryStoreSpec | None = None) -> memory.MemoryStore:
        store = memory.MemoryStore(backend=self, handle=f"h{len(self.stores)}", spec=spec)
        self.stores.append(store)
        return store

    def close(self, store: memory.MemoryStore) -> None:
        if store.closed:
            return
        store.closed = True
        self.stores.remove(store)
        self.closed.append(store)
        self.was_closed.set()

    def dispatch(self, store: memory.MemoryStore, op: memory.MemoryOp) -> memory.MemoryResult:
        assert store in self.stores
        self.threads.add(threading.current_thread().name)
        return memory.MemoryFindResult(())


class Counting(FakeMemory):
    """A backend that wraps the public methods of another."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def open(self, spec: memory.MemoryStoreSpec | None = None) -> memory.MemoryStore:
        self.seen.append("open")
        return super().open(spec)

    def close(self, store: memory.MemoryStore) -> None:
        self.seen.append("close")
        super().close(store)

    def dispatch(self, store: memory.MemoryStore, op: memory.MemoryOp) -> memory.MemoryResult:
        self.seen.append("dispatch")
        return super().dispatch(store, op)


def test_the_operation_may_be_given_by_name() -> None:
    backend = FakeMemory()
    with backend.open(spec=None) as store:
        assert store.dispatch(op=FIND) == memory.MemoryFindResult(())
        assert backend.dispatch(store=store, op=FIND) == memory.MemoryFindResult(())


def test_a_closed_store_refuses_everything_by_its_own_error() -> None:
    backend = FakeMemory()
    store = backend.open()
    backend.close(store)
    backend.close(store)
    with pytest.raises(memory.MemoryStoreClosed) as caught:
        store.dispatch(FIND)
    assert caught.value.handle == store.handle
    with pytest.raises(memory.MemoryStoreClosed):
        store.acquire()


def test_a_backend_answers_for_a_closed_store_with_a_failure() -> None:
    backend = FakeMemory()
    store = backend.open()
    backend.close(store)
    result = backend.dispatch(store, FIND)
    assert isinstance(result, memory.MemoryExecutionFailure)
    assert result.kind == "store_closed"


def test_a_store_built_by_hand_needs_a_backend_that_attaches() -> None:
    store = memory.MemoryStore(FakeMemory(), "somewhere")
    assert (store.handle, store.refcount) == ("somewhere", 0)
    with pytest.raises(MemoryBackendError, match="cannot attach to 'somewhere'"):
        store.dispatch(FIND)


def test_a_store_may_be_built_closed() -> None:
    store = memory.MemoryStore(Blocking(), "h", None, True)
    assert store.closed
    with pytest.raises(memory.MemoryStoreClosed):
        store.dispatch(FIND)


def test_a_store_is_displayed_by_backend_and_handle() -> None:
    store = memory.MemoryStore(FakeMemory(), "somewhere")
    assert repr(store) == "MemoryStore('fake', 'somewhere', closed=False)"


def test_blocking_methods_run_on_worker_threads() -> None:
    backend = Blocking()
    store = backend.open()
    assert store.dispatch(FIND) == memory.MemoryFindResult(())
    assert all(name.startswith("rath-worker") for name in backend.threads)
    backend.close(store)


def test_the_last_release_closes_by_the_blocking_method() -> None:
    backend = Blocking()
    store = backend.open()
    with store:
        pass
    assert backend.was_closed.wait(50)
    assert (store.closed, backend.closed, backend.store_count()) == (True, [store], 0)


def test_a_store_is_closed_while_a_blocking_close_is_at_work() -> None:
    begun, go_on, seen = threading.Event(), threading.Event(), list[bool]()

    class Slow(Blocking):
        def close(self, store: memory.MemoryStore) -> None:
            seen.append(store.closed)
            begun.set()
            go_on.wait(PATIENCE)
            super().close(store)

    backend = Slow()
    with backend.open() as store:
        pass
    assert begun.wait(PATIENCE)
    assert (store.closed, store.refcount, seen) == (True, 0, [False])
    with pytest.raises(memory.MemoryStoreClosed):
        store.dispatch(FIND)
    go_on.set()
    assert backend.was_closed.wait(PATIENCE)


def test_a_release_that_nobody_acquired_closes_and_counts_no_holder() -> None:
    store = FakeMemory().open()
    store.release()
    assert (store.closed, store.refcount) == (True, 0)


def test_a_blocking_close_closes_once() -> None:
    backend = Blocking()
    store = backend.open()
    backend.close(store)
    runtime().run(store.aclose, label="closing again")
    assert backend.closed == [store]


def test_a_lazy_store_over_blocking_methods() -> None:
    backend = Blocking()
    spec = memory.MemoryStoreSpec(namespace="n")
    store = backend.lazy(spec)
    assert store.dispatch(FIND) == memory.MemoryFindResult(())
    assert store.handle == "h0"
    assert backend.stores[0].spec is spec
    runtime().run(store.aclose, label="closing")
    assert (len(backend.closed), backend.store_count()) == (1, 0)


def test_overridden_methods_may_call_those_they_override() -> None:
    backend = Counting()
    store = backend.open()
    assert store.dispatch(FIND) == memory.MemoryFindResult(())
    assert backend.dispatch(store, FIND) == memory.MemoryFindResult(())
    backend.close(store)
    assert backend.seen == ["open", "dispatch", "dispatch", "close"]
    assert (store.closed, backend.store_count()) == (True, 0)


def test_a_release_reaches_the_hook_through_an_overridden_close() -> None:
    backend = Counting()
    store = backend.lazy()
    with store:
        store.dispatch(FIND)
    runtime().run(store.aclose, label="waiting for the closing")
    assert backend.seen == ["open", "dispatch", "close"]
    assert backend.store_count() == 0


def test_the_most_derived_form_of_a_method_counts() -> None:
    class Hooked(Blocking):
        async def adispatch(self, native: Any, op: memory.MemoryOp) -> memory.MemoryResult:
            return memory.MemoryExecutionFailure("internal", "by the hook")

    backend = Hooked()
    store = backend.open()
    assert isinstance(store.dispatch(FIND), memory.MemoryExecutionFailure)
    backend.close(store)


def test_a_backend_without_hooks_and_methods_says_so() -> None:
    class Empty(memory.MemoryBackend):
        @classmethod
        def capabilities(cls) -> memory.MemoryCapabilities:
            return FakeMemory.capabilities()

        @classmethod
        def supported_ops(cls) -> frozenset[type[memory.MemoryOp]]:
            return frozenset()

    with pytest.raises(NotImplementedError, match="Empty implements no aopen"):
        Empty().open()
