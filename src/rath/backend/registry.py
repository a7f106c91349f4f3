"""The sandbox backends by name, one instance of each in the process."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import TypeVar

from rath._core.registry import EntryDescription, Registry
from rath.backend.abc import Backend, require_hooks
from rath.errors import BackendNotFound

B = TypeVar("B", bound=Backend)


def _check_complete(_name: str, cls: object) -> None:
    if not (isinstance(cls, type) and issubclass(cls, Backend)):
        raise TypeError(f"expected a subclass of rath.backend.Backend, got {cls!r}")
    require_hooks(cls)
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(cls.__abstractmethods__))
        raise TypeError(f"{cls.__name__} cannot be registered: it does not implement {missing}")


_classes: Registry[type[Backend]] = Registry(
    "sandbox backend",
    group="rath.backends",
    builtins={
        "local": "rath.backend.local:LocalBackend",
        "opensandbox": "rath.backend.opensandbox:OpenSandboxBackend",
        "bubblewrap": "rath.backend.bubblewrap:BubblewrapBackend",
    },
    not_found=BackendNotFound,
)
_instances: dict[str, Backend] = {}
_lock = threading.RLock()


def register(name: str) -> Callable[[type[B]], type[B]]:
    """Return a class decorator that registers a backend under `name`.

    Another package may do without it: an entry point `name = "package.module:Class"` in the group
    `rath.backends` registers the class on installation and imports it on first use.

    Raises:
        ValueError: The name is taken.
        TypeError: The class lacks something that a backend needs.

    Example:
        @register("mine")
        class MyBackend(Backend): ...
    """

    def add(cls: type[B]) -> type[B]:
        _check_complete(name, cls)
        _classes.register(name, cls)
        cls.name = name
        return cls

    return add


def unregister(name: str) -> None:
    """Forget a backend that `register` added; what is open on it stays open."""
    with _lock:
        _classes.unregister(name)
        _instances.pop(name, None)


def list_names() -> list[str]:
    """Return the known names, built-in ones first, then in the order of registration."""
    return list(_classes.names())


def get_class(name: str) -> type[Backend]:
    """Return the class of that name, importing it on first use.

    Raises:
        BackendNotFound: No backend has that name.
    """
    return _classes.get(name)


def get(name: str) -> Backend:
    """Return the instance of that name, the same one at every call.

    Raises:
        BackendNotFound: No backend has that name.
        TypeError: An entry point names something that is not a complete backend.
    """
    with _lock:
        if name not in _instances:
            cls = get_class(name)
            _check_complete(name, cls)
            # The instance bears the name: an entry point's class never saw it, and one class may
            # be registered under several.
            instance = cls()
            instance.name = name
            _instances[name] = instance
        return _instances[name]


def is_available(name: str) -> bool:
    """Tell whether a backend of that name is known and can work here."""
    return _classes.is_available(name)


def describe(name: str) -> EntryDescription:
    """Return whether a backend can work here, why not, and its capabilities.

    Raises:
        BackendNotFound: No backend has that name.
    """
    return _classes.describe(name)


def preferred(names: list[str]) -> Backend:
    """Return the first of `names` that can work here.

    Raises:
        BackendNotFound: None of them can.
    """
    return get(_classes.first_available(names))


def set_default(name: str) -> None:
    """Make `name` the backend that `current` returns.

    Raises:
        BackendNotFound: No backend has that name.
    """
    _classes.set_default(name)


def current() -> Backend:
    """Return the default backend; there is none until `set_default` names one.

    Raises:
        BackendNotFound: No default was set.
    """
    return get(_classes.default(hint=" Name one with set_default(...)."))
