"""The memory backends by name; other packages add theirs under the entry points `rath.memories`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from rath._core.registry import EntryDescription, Registry
from rath.errors import MemoryBackendNotFound
from rath.memory.abc import MemoryBackend, run_on_store_thread

BackendT = TypeVar("BackendT", bound=type[MemoryBackend])


def _prepare(name: str, cls: type[MemoryBackend]) -> None:
    # Of another package; it may have no base class of ours.
    cls.name = getattr(cls, "name", "") or name
    run_on_store_thread(cls)


_backends: Registry[type[MemoryBackend]] = Registry(
    "memory backend",
    group="rath.memories",
    builtins={
        "local": "rath.memory.adapters.local:LocalMemoryBackend",
        "openviking": "rath.memory.adapters.openviking:OpenVikingMemoryBackend",
    },
    not_found=MemoryBackendNotFound,
    prepare=_prepare,
    default="local",
)


def register(name: str) -> Callable[[BackendT], BackendT]:
    """Register a class as the memory backend `name`.

    Raises:
        ValueError: The name is taken.

    Example:
        ```python
        @register("redis")
        class RedisMemory(MemoryBackend): ...
        ```
    """

    def add(cls: BackendT) -> BackendT:
        _backends.register(name, cls)
        cls.name = name
        run_on_store_thread(cls)
        return cls

    return add


def list_names() -> list[str]:
    """Return all known names, in the order of their registration; loads nothing."""
    return list(_backends.names())


def get_class(name: str) -> type[MemoryBackend]:
    """Return the class of a backend, importing it on first use.

    Raises:
        MemoryBackendNotFound: No such name.
    """
    return _backends.get(name)


def get(name: str) -> MemoryBackend:
    """Return a new instance of a backend.

    Raises:
        MemoryBackendNotFound: No such name.
    """
    return get_class(name)()


def is_available(name: str) -> bool:
    """Return whether there is such a backend and it can be used here and now."""
    return _backends.is_available(name)


def describe(name: str) -> EntryDescription:
    """Return whether a backend can work here, why not, and its capabilities.

    Raises:
        MemoryBackendNotFound: No backend has that name.
    """
    return _backends.describe(name)


def preferred(names: list[str]) -> MemoryBackend:
    """Return a new instance of the first backend of `names` that is available.

    Raises:
        MemoryBackendNotFound: None of them is.
    """
    return get(_backends.first_available(names, hint=" None of them is available here."))


def set_default(name: str) -> None:
    """Let `current()` return backends of that name.

    Raises:
        MemoryBackendNotFound: No such name.
    """
    _backends.set_default(name)


def current() -> MemoryBackend:
    """Return a new instance of the default backend, `local` unless `set_default` was called."""
    return get(_backends.default())
