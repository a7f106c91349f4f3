"""What a memory backend implements, and the store that it opens."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self

from rath import config
from rath._async.plane import Handle, Plane
from rath._async.runtime import runtime
from rath.errors import MemoryBackendError, MemoryStoreClosed
from rath.memory.capabilities import MemoryCapabilities
from rath.memory.op_types import MemoryOp
from rath.memory.results import MemoryExecutionFailure, MemoryResult

__all__ = ["MemoryBackend", "MemoryStore", "MemoryStoreSpec"]


@dataclass
class MemoryStoreSpec:
    """Which store to open."""

    namespace: str | None = None
    """Separates stores that would be one otherwise."""
    account_id: str | None = None
    user_id: str | None = None
    agent_id: str | None = None
    options: Mapping[str, Any] | None = field(default=None, repr=False)
    """What only one backend understands; `path` names the directory of a local store."""

    @classmethod
    def from_config(
        cls, name: str | None = None, *, store: config.ConfigStore | None = None, **overrides: Any
    ) -> Self:
        """Build the spec of a configured memory provider.

        Args:
            name: Entry of `memory.providers`; `memory.default_provider` by default.
            store: Where to look; by default the project's config, then the user's.
            overrides: Fields of the spec; every other name is one of its options.

        Raises:
            KeyError: No such entry, or no default.
            UntrustedConfig: The entry is a project's and acts, and the user has not trusted it.
        """
        if store is None:
            found = config.find_memory_provider(name)
            store, name, entry = found.store, found.name, found.entry
        else:
            entry = store.get_memory_provider(name)
            name = name or store.config.memory.default_provider or ""
        given = entry.model_dump(exclude={"backend_kind"}, exclude_none=True)
        own = {own.name for own in fields(cls)}
        options = {key: overrides.pop(key) for key in list(overrides) if key not in own}
        explicit: Mapping[str, Any] = overrides.pop("options", None) or {}
        own_options = {**explicit, **options}
        config.check_trusted(store, "memory", "providers", name, given=own_options)
        return cls(**overrides, options={**given, **own_options})


class MemoryBackend(Plane[MemoryStoreSpec, Any, MemoryOp, MemoryResult]):
    """A kind of memory store.

    A driver implements the coroutines `aopen`, `aclose` and `adispatch` of `Plane` on natives of
    its own. A class that overrides `open`, `close` and `dispatch` instead works too: they run on
    worker threads, and its `open` builds the `MemoryStore` itself. Of the two forms of a method,
    the one of the most derived class counts.
    """

    _n_open = 0

    @classmethod
    def is_available(cls) -> bool:
        """Return whether the backend can be used here and now."""
        return True

    @classmethod
    @abstractmethod
    def capabilities(cls) -> MemoryCapabilities:
        """Return what the backend can do."""

    @classmethod
    @abstractmethod
    def supported_ops(cls) -> frozenset[type[MemoryOp]]:
        """Return the operations that it knows; any other raises `UnsupportedMemoryOp`."""

    def store_count(self) -> int:
        """Return how many stores of this backend are open."""
        return self._n_open

    def count_stores(self, change: int) -> None:
        """Count stores that a hook opened or closed; called by the stores themselves."""
        self._n_open += change

    def open(self, spec: MemoryStoreSpec | None = None) -> MemoryStore:
        """Open a store and wait for it; it starts with no holders.

        Raises:
            MemoryBackendError: The store cannot be opened.
        """
        store = self.lazy(spec)
        store.skip_blocking_open()
        return store.ensure_open()

    def lazy(self, spec: MemoryStoreSpec | None = None) -> MemoryStore:
        """Return a store that opens on first use; its `handle` is "" until then."""
        return MemoryStore(self, "", spec)

    def close(self, store: MemoryStore) -> None:
        """Close a store, whoever holds it, and wait for that; a closed one stays closed."""
        runtime().run(store.aclose_by_hook, label=f"closing {store.handle}")

    def dispatch(self, store: MemoryStore, op: MemoryOp) -> MemoryResult:
        """Run one operation and wait for its result; a closed store gives a failure."""
        if store.closed:
            return MemoryExecutionFailure("store_closed", str(store.closed_error()))
        return runtime().run(lambda: store.adispatch_by_hook(op), label=type(op).__name__)

    async def aattach(self, handle: str, spec: MemoryStoreSpec | None) -> Any:
        """Return the native of the store that is known by `handle`.

        Called for a `MemoryStore` that was built by hand for a backend with coroutine hooks.
        """
        raise MemoryBackendError(
            f"memory backend {self.name!r} cannot attach to {handle!r}; open the store with "
            "backend.open(spec)"
        )


class MemoryStore(Handle[MemoryStoreSpec, Any, MemoryOp, MemoryResult]):
    """A counted handle on a memory store.

    `backend.open(...)` gives an open one, `backend.lazy(...)` one that opens on first use.
    Constructed directly, it stands for a store that is open already, as the `open` of a backend
    of your own returns it.

    Args:
        backend: The backend that runs its operations.
        handle: Name by which the backend knows the store.
        spec: What it was opened with.
        closed: Whether it has been closed.
    """

    def __init__(
        self,
        backend: MemoryBackend,
        handle: str,
        spec: MemoryStoreSpec | None = None,
        closed: bool = False,
    ) -> None:
        self.backend = backend
        self._driver = _Driver(backend, self, handle)
        # A class with its own `open` made this store, and knows it by this very object.
        made_by_open = bool(handle) and not closed and _is_sync(backend, "open")
        super().__init__(self._driver, spec, native=self if made_by_open else None)
        self._name = handle
        self._closed = closed

    def skip_blocking_open(self) -> None:
        """Let the coroutine hook open this store even where the backend has its own `open`."""
        self._driver.opens_by_hook = True

    @property
    def closed(self) -> bool:
        """Whether it was closed; backends that close it themselves may set this."""
        # A `close(store)` written for 1.3 does nothing for a store that looks closed already.
        return self._closed and not self._driver.is_closing

    @closed.setter
    def closed(self, value: bool) -> None:
        self._closed = value
        if value:
            self._driver.is_closing = False
            self._native = None
            runtime().forget(self)

    async def adispatch_by_hook(self, op: MemoryOp) -> MemoryResult:
        """Run one operation past a blocking `dispatch` of the backend, which may be the caller."""
        if not _is_sync(self.backend, "dispatch"):
            return await self.adispatch(op)
        native = await self.aopened()
        result: MemoryResult = await self.backend.adispatch(native, op)
        return result

    async def aclose_by_hook(self) -> None:
        """Close past a blocking `close` of the backend, which may be the caller."""
        if self._driver.leaving is None:
            self._driver.closes_by_hook = True
            await self.aclose()
        else:
            await self._driver.aclose_leaving()

    def closed_error(self) -> MemoryStoreClosed:
        return MemoryStoreClosed(self.handle)

    def __repr__(self) -> str:
        return f"MemoryStore({self.backend.name!r}, {self.handle!r}, closed={self.closed})"


class _Driver(Plane[MemoryStoreSpec, Any, MemoryOp, MemoryResult]):
    """Chooses, for each call of one store, between a coroutine hook and a blocking method.

    The native is what the hook opened; or the store itself or another one, where a blocking
    `open` made that.
    """

    def __init__(self, backend: MemoryBackend, store: MemoryStore, handle: str) -> None:
        self.name = backend.name
        self.opens_by_hook = False
        self.closes_by_hook = False
        self.is_closing = False
        """A blocking `close` is at work on the store, which must not look closed to it."""
        self.leaving: Any = None
        """The native that a blocking `close` may hand to the hook of its base class."""
        self._backend = backend
        self._store = store
        self._handle = handle

    def identify(self, native: Any) -> str:
        if self._handle:
            return self._handle
        return native.handle if isinstance(native, MemoryStore) else self._backend.identify(native)

    async def aopen(self, spec: MemoryStoreSpec | None) -> Any:
        backend = self._backend
        if not self.opens_by_hook and _is_sync(backend, "open"):
            opened = await runtime().call_in_worker(lambda: backend.open(spec))
            # It is closed by the store around it; at exit, too.
            runtime().forget(opened)
            return opened
        if self._handle:
            native = await backend.aattach(self._handle, spec)
        else:
            native = await backend.aopen(spec)
        backend.count_stores(+1)
        return native

    async def aclose(self, native: Any) -> None:
        backend = self._backend
        if not self.closes_by_hook and _is_sync(backend, "close"):
            store = native if isinstance(native, MemoryStore) else self._store
            self.is_closing = True
            self.leaving = native
            try:
                await runtime().call_in_worker(lambda: backend.close(store))
            finally:
                self.is_closing = False
                self.leaving = None
        elif isinstance(native, MemoryStore) and native is not self._store:
            await native.aclose()
        else:
            await self._aclose_native(native)

    async def aclose_leaving(self) -> None:
        """Close by the hook what a blocking `close` was called for."""
        await self._aclose_native(self.leaving)

    async def adispatch(self, native: Any, op: MemoryOp) -> MemoryResult:
        backend = self._backend
        if _is_sync(backend, "dispatch"):
            store = native if isinstance(native, MemoryStore) else self._store
            return await runtime().call_in_worker(lambda: backend.dispatch(store, op))
        if isinstance(native, MemoryStore) and native is not self._store:
            return await native.adispatch(op)
        result: MemoryResult = await backend.adispatch(native, op)
        return result

    async def _aclose_native(self, native: Any) -> None:
        self._backend.count_stores(-1)
        await self._backend.aclose(native)


def _is_sync(backend: MemoryBackend, method: Literal["open", "close", "dispatch"]) -> bool:
    """Return whether the most derived class implements a method in its blocking form."""
    for cls in type(backend).__mro__:
        if cls is MemoryBackend or f"a{method}" in vars(cls):
            return False
        if method in vars(cls):
            return True
    return True
