"""The interface of memory backends, and the store that one opens."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import field, fields
from functools import partial, wraps
from typing import Any, Literal, Self, TypeVar

from rath import config
from rath._async.bridge import arun_serial, run_serial
from rath._async.plane import Handle, Plane
from rath._async.runtime import runtime
from rath._async.workers import SerialWorker
from rath._core.dataclasses import dataclass
from rath._core.lazy_imports import lazy_function
from rath._core.references import Reduction, Referenced, not_portable
from rath.config.redaction import find_secret
from rath.errors import MemoryBackendError, MemoryStoreClosed
from rath.memory.capabilities import MemoryCapabilities
from rath.memory.op_types import MemoryOp, with_plain_directory
from rath.memory.results import MemoryExecutionFailure, MemoryResult

__all__ = ["MemoryBackend", "MemoryStore", "MemoryStoreSpec"]

T = TypeVar("T")

_log = logging.getLogger("rath.memory")

_MARK = "_rath_runs_on_store_thread"


@dataclass
class MemoryStoreSpec(Referenced):
    """Specification of a store."""

    namespace: str | None = None
    """Separates stores that would be one otherwise."""
    account_id: str | None = None
    user_id: str | None = None
    agent_id: str | None = None
    options: Mapping[str, Any] | None = field(default=None, repr=False)
    """Options of one backend; `path` names the directory of a local store."""

    config_entry: str | None = field(default=None, compare=False, repr=False)
    """Name of the entry that it was built from; set by `from_config`."""

    def _pickle_reference(self) -> Reduction:
        """Return the name of its config entry, and what is not read from there.

        Raises:
            TypeError: An option holds what must not travel.
        """
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        name, options = given.pop("config_entry"), dict(self.options or {})
        if name is not None:
            entry = config.find_memory_provider(name).entry
            configured = entry.model_dump(exclude={"backend_kind"}, exclude_none=True)
            options = {key: it for key, it in options.items() if configured.get(key) != it}
        place = find_secret("options", options)
        if place is not None:
            raise not_portable(
                f"MemoryStoreSpec({place}=...) may hold a secret, which must not travel",
                "put it into a config entry, and name that, MemoryStoreSpec.from_config('NAME')",
            )
        return _spec_again, (type(self), name, {**given, "options": options or None})

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
        configured = entry.model_dump(exclude={"backend_kind"}, exclude_none=True)
        own = {own.name for own in fields(cls)}
        options = {key: overrides.pop(key) for key in list(overrides) if key not in own}
        explicit: Mapping[str, Any] = overrides.pop("options", None) or {}
        own_options = {**explicit, **options}
        config.check_trusted(store, "memory", "providers", name, given=own_options)
        return cls(**overrides, options={**configured, **own_options}, config_entry=name)


def _spec_again(
    kind: type[MemoryStoreSpec], name: str | None, given: dict[str, Any]
) -> MemoryStoreSpec:
    return kind(**given) if name is None else kind.from_config(name, **given)


_get_backend = lazy_function("rath.memory.registry", "get")
_get_backend_class = lazy_function("rath.memory.registry", "get_class")
_names = lazy_function("rath.memory.registry", "list_names")


def _store_again(backend: str, spec: MemoryStoreSpec | None) -> MemoryStore:
    store: MemoryStore = _get_backend(backend).lazy(spec)
    return store


class MemoryBackend(Plane[MemoryStoreSpec, Any, MemoryOp, MemoryResult]):
    """A kind of memory store.

    A driver implements the coroutines `aopen`, `aclose` and `adispatch` of `Plane` on natives of
    its own. A class that overrides `open`, `close` and `dispatch` instead works too: its `open`
    builds the `MemoryStore` itself, and for each store they run on one worker thread, whoever
    calls them, so that a store may hold what belongs to a thread. Of the two forms of a method,
    the one of the most derived class counts.
    """

    _n_open = 0

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        run_on_store_thread(cls)

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

    def portable_spec(self, store: MemoryStore) -> MemoryStoreSpec | None:
        """Return what opens the same store in another process; by default its own spec."""
        return store.spec

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
        current = SerialWorker.current()
        is_by_us = current is not None and current.owner is backend
        self.worker: SerialWorker = (
            current if current is not None and is_by_us else SerialWorker(backend)
        )
        """Runs the blocking methods of the backend for this store."""
        self._driver = _Driver(backend, self, handle)
        # A class with its own `open` made this store, and knows it by this very object.
        is_from_open = bool(handle) and not closed and _is_sync(backend, "open")
        # An `open` that nobody wrapped: as in 1.3, calls of its thread stay on that thread.
        is_elsewhere = is_from_open and not (is_by_us or runtime().is_own_thread())
        self._home = threading.get_ident() if is_elsewhere else None
        super().__init__(self._driver, spec, native=self if is_from_open else None)
        self._name = handle
        self._closed = closed

    def _pickle_reference(self) -> Reduction:
        """Return backend and spec, by which the store is opened at its first use.

        Raises:
            TypeError: It is closed, or no backend of that name is registered.
        """
        name = _name_of(self.backend)
        if self.closed:
            raise not_portable(f"the memory store {self.handle!r} is closed", "open it again")
        if name not in _names() or _get_backend_class(name) is not type(self.backend):
            raise not_portable(
                f"{type(self.backend).__name__} is not the memory backend registered as {name!r}",
                "register it in a module that the other process imports",
            )
        return _store_again, (name, self.backend.portable_spec(self))

    def skip_blocking_open(self) -> None:
        """Let the coroutine hook open this store even where the backend has its own `open`."""
        self._driver.opens_by_hook = True

    @property
    def closed(self) -> bool:
        """Whether it was closed; backends that close it themselves may set this."""
        # A `close(store)` written for 1.3 does nothing for a store that looks closed already.
        return self._closed and not (self._driver.is_closing and self.is_on_its_thread())

    @closed.setter
    def closed(self, value: bool) -> None:
        self._closed = value
        if value:
            self._driver.is_closing = False
            self._native = None
            runtime().forget(self)

    def dispatch(self, op: MemoryOp) -> MemoryResult:
        """Run one operation and wait for its result; a closed handle raises."""
        if self.is_on_its_thread() and _is_sync(self.backend, "dispatch"):
            self._check_open()
            return self.backend.dispatch(self, with_plain_directory(op))
        return super().dispatch(op)

    def submit_close(self) -> None:
        """Start the closing; where calls run on the caller's own thread, close there."""
        if self._home != threading.get_ident() or self._in_use:
            super().submit_close()
            return
        try:
            self._driver.close_by_method(self)
        except Exception:  # noqa: BLE001  # as where nobody waits for the closing
            _log.exception("%r could not be closed", self)
        finally:
            self.closed = True
            self.worker.end()

    def is_on_its_thread(self) -> bool:
        """Tell whether the caller runs on the thread of the backend's blocking methods."""
        return SerialWorker.current() is self.worker or self._home == threading.get_ident()

    async def adispatch_by_hook(self, op: MemoryOp) -> MemoryResult:
        """Run one operation past a blocking `dispatch` of the backend, which may be the caller."""
        if not _is_sync(self.backend, "dispatch"):
            return await self.adispatch(op)
        native = await self.aopened()
        result: MemoryResult = await self.backend.adispatch(native, with_plain_directory(op))
        return result

    async def aclose_by_hook(self) -> None:
        """Close past a blocking `close` of the backend, which may be the caller."""
        if self._driver.leaving is None:
            self._driver.closes_by_hook = True
            await self.aclose()
        else:
            await self._driver.aclose_native(self._driver.leaving)

    def closed_error(self) -> MemoryStoreClosed:
        return MemoryStoreClosed(self.handle)

    def __repr__(self) -> str:
        return f"MemoryStore({_name_of(self.backend)!r}, {self.handle!r}, closed={self.closed})"


class _Driver(Plane[MemoryStoreSpec, Any, MemoryOp, MemoryResult]):
    """Chooses, for each call of one store, between a coroutine hook and a blocking method.

    The native is what the hook opened; or the store itself or another one, where a blocking
    `open` made that.
    """

    def __init__(self, backend: MemoryBackend, store: MemoryStore, handle: str) -> None:
        self.name = _name_of(backend)
        self.opens_by_hook = False
        self.closes_by_hook = False
        self.is_closing = False
        """A blocking `close` is at work on the store, which must not look closed to it."""
        self.leaving: Any = None
        """The native that a blocking `close` may hand to the hook of its base class."""
        # At run time also an object that only has the methods.
        self._backend: Any = backend
        self._store = store
        self._handle = handle

    def identify(self, native: Any) -> str:
        if self._handle:
            return self._handle
        if isinstance(self._backend, MemoryBackend) and not isinstance(native, MemoryStore):
            return self._backend.identify(native)
        return super().identify(native)

    async def aopen(self, spec: MemoryStoreSpec | None) -> Any:
        backend = self._backend
        if not self.opens_by_hook and _is_sync(backend, "open"):
            opened = await arun_serial(self._store.worker, lambda: backend.open(spec))
            if isinstance(opened, MemoryStore):
                runtime().forget(opened)  # it is closed by the store around it; at exit, too
            return opened
        if self._handle:
            native = await backend.aattach(self._handle, spec)
        else:
            native = await backend.aopen(spec)
        self._count(+1)
        return native

    async def aclose(self, native: Any) -> None:
        if not self.closes_by_hook and _is_sync(self._backend, "close"):
            worker = self._store.worker
            try:
                await asyncio.wrap_future(worker.submit(lambda: self.close_by_method(native)))
            finally:
                worker.end()
        elif isinstance(native, MemoryStore) and native is not self._store:
            await native.aclose()
        else:
            await self.aclose_native(native)

    async def adispatch(self, native: Any, op: MemoryOp) -> MemoryResult:
        backend = self._backend
        op = with_plain_directory(op)
        if _is_sync(backend, "dispatch"):
            store = native if isinstance(native, MemoryStore) else self._store
            return await arun_serial(self._store.worker, lambda: backend.dispatch(store, op))
        if isinstance(native, MemoryStore) and native is not self._store:
            return await native.adispatch(op)
        result: MemoryResult = await backend.adispatch(native, op)
        return result

    def close_by_method(self, native: Any) -> None:
        """Close by the blocking `close` of the backend, on this thread."""
        store = native if isinstance(native, MemoryStore) else self._store
        self.is_closing, self.leaving = True, native
        try:
            self._backend.close(store)
        finally:
            self.is_closing, self.leaving = False, None

    async def aclose_native(self, native: Any) -> None:
        """Close by the hook."""
        self._count(-1)
        await self._backend.aclose(native)

    def _count(self, change: int) -> None:
        if isinstance(self._backend, MemoryBackend):
            self._backend.count_stores(change)


def run_on_store_thread(cls: type) -> None:
    """Let the blocking methods of a class of memory backends run on the thread of their store.

    `open` runs on a new thread, which becomes that of the store it builds. Safe to call again.
    """
    for name in ("open", "close", "dispatch"):
        method = _blocking_method(cls, name)
        if inspect.isfunction(method) and not hasattr(method, _MARK):
            wrap = _on_new_thread if name == "open" else partial(_on_thread_of, name)
            wrapper = wrap(method)
            setattr(wrapper, _MARK, True)
            setattr(cls, name, wrapper)


def _blocking_method(cls: type, name: str) -> object:
    """Return the blocking form of a method; None where the most derived class has a hook."""
    for each in cls.__mro__:
        if each is MemoryBackend or f"a{name}" in vars(each):
            return None
        if name in vars(each):
            return vars(each)[name]
    return None


def _on_new_thread(method: Callable[..., T]) -> Callable[..., T]:
    @wraps(method)
    def open_on_thread(self: object, *args: Any, **kwargs: Any) -> T:
        call = partial(method, self, *args, **kwargs)
        current = SerialWorker.current()
        if current is not None and current.owner is self:
            return call()
        worker = SerialWorker(self)
        opened: object = None
        try:
            opened = result = run_serial(worker, call)
        finally:
            if not isinstance(opened, MemoryStore) or opened.worker is not worker:
                worker.end()
        return result

    return open_on_thread


def _on_thread_of(name: str, method: Callable[..., T]) -> Callable[..., T]:
    @wraps(method)
    def run_on_thread(self: object, *args: Any, **kwargs: Any) -> T:
        call = partial(method, self, *args, **kwargs)
        stores = (each for each in (*args, *kwargs.values()) if isinstance(each, MemoryStore))
        store = next(stores, None)
        if store is None:
            return call()
        is_nested = SerialWorker.current() is store.worker
        try:
            return call() if store.is_on_its_thread() else run_serial(store.worker, call)
        finally:
            if name == "close" and not is_nested:
                store.worker.end()

    return run_on_thread


def _name_of(backend: object) -> str:
    return str(getattr(backend, "name", "") or type(backend).__name__)


def _is_sync(backend: object, method: Literal["open", "close", "dispatch"]) -> bool:
    """Return whether the most derived class implements a method in its blocking form."""
    if _blocking_method(type(backend), method) is not None:
        return True
    return not (isinstance(backend, MemoryBackend) or hasattr(backend, f"a{method}"))
