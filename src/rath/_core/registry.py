"""One registry for every plane: explicit names, built-in import paths and entry points."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Generic, TypeVar

from rath._core.dataclasses import dataclass
from rath._core.lazy_imports import lazy_modules

if TYPE_CHECKING:
    from importlib import metadata

    from rath._core import text
else:
    metadata, text = lazy_modules(__name__, "importlib.metadata", "rath._core.text")

T = TypeVar("T")

NotFound = Callable[[str, list[str], str], LookupError]
"""Builds the error for an unknown name from (name, known names, hint)."""


@dataclass(frozen=True, slots=True)
class EntryDescription:
    """The availability and the capabilities of a registered name."""

    name: str
    problem: str | None
    """Why it cannot be used here and now, with the advice of its driver; None where it can."""

    capabilities: object
    """The value of its class method `capabilities`; None without one, or with a problem."""


class Registry(Generic[T]):
    """Names that map to objects of one plane; objects are loaded on first use.

    Three sources, in this order: `register(...)`, the built-in names, and the installed entry
    points of `group`. An explicit registration hides the other two. A built-in name is listed
    in the code and not in the metadata of the package: so it is there in a checkout whose metadata
    is old, no module of the core imports a driver, and the metadata of all that is installed is
    read only where it is needed.

    Args:
        plane: What the entries are, as in "sandbox backend"; used in error texts.
        group: Entry-point group in which other packages may add names.
        builtins: Name to `module:attribute`, as the metadata of a package has it.
        not_found: Builds the error for an unknown name; a plain LookupError by default.
        prepare: Called with the name and what was imported for it, once; may refuse it.
        default: The name that is used where none is given.
    """

    def __init__(
        self,
        plane: str,
        *,
        group: str,
        builtins: Mapping[str, str] | None = None,
        not_found: NotFound | None = None,
        prepare: Callable[[str, T], None] = lambda _name, _obj: None,
        default: str | None = None,
    ) -> None:
        self.plane = plane
        self.group = group
        self._builtins = dict(builtins or {})
        self._not_found = not_found or self._lookup_error
        self._prepare = prepare
        self._default = default
        self._loaded: dict[str, T] = {}
        self._plugins: dict[str, metadata.EntryPoint] | None = None
        self._lock = threading.RLock()

    def register(self, name: str, obj: T, *, replace: bool = False) -> None:
        """Add `obj` under `name`.

        Raises:
            ValueError: The name is taken and `replace` is False.
        """
        with self._lock:
            if not replace and self.is_known(name):
                raise ValueError(
                    f"{self.plane} {name!r} is already registered; choose another name or pass "
                    "replace=True"
                )
            self._loaded[name] = obj

    def unregister(self, name: str) -> None:
        """Forget an explicit registration; built-in names and plug-ins stay.

        A default that was set to the name is forgotten with it.
        """
        with self._lock:
            self._loaded.pop(name, None)
            if self._default == name:
                self._default = None

    def check(self, name: str) -> None:
        """Refuse a name that is not known; loads nothing.

        Raises:
            LookupError: As `get` does.
        """
        if not self.is_known(name):
            raise self._unknown(name)

    def get(self, name: str) -> T:
        """Return the object of that name, importing it on first use.

        Raises:
            LookupError: No such name; the text names the nearest match and all known names.
        """
        with self._lock:
            if name in self._loaded:
                return self._loaded[name]
        # Outside the lock: what is imported may itself register names, from any thread.
        loaded = self._load(name)
        self._prepare(name, loaded)
        with self._lock:
            return self._loaded.setdefault(name, loaded)

    def names(self) -> tuple[str, ...]:
        """Return all known names, explicit and built-in ones first; loads nothing."""
        with self._lock:
            return tuple(dict.fromkeys([*self._builtins, *self._loaded, *self._entry_points()]))

    def is_available(self, name: str) -> bool:
        """Return whether there is such an entry, and it can be used here and now.

        It can where it has no `is_available()` of its own, or that says so.
        """
        if name not in self.names():
            return False
        try:
            check: object = getattr(self.get(name), "is_available", None)
        except ImportError:
            return False
        return not callable(check) or bool(check())

    def describe(self, name: str) -> EntryDescription:
        """Return whether an entry can be used here and now, why not, and what it offers.

        The reason is that of its `unavailable_reason()`, or that its `is_available()` is False.

        Raises:
            LookupError: No such name.
        """
        entry = self.get(name)
        reason: Callable[[], str | None] | None = getattr(entry, "unavailable_reason", None)
        problem: str | None = None
        if reason is not None:
            problem = reason()
        elif not self.is_available(name):
            problem = "says that it cannot work here: is_available() is False"
        offered: Callable[[], object] | None = getattr(entry, "capabilities", None)
        if problem is not None or offered is None:
            return EntryDescription(name, problem, None)
        return EntryDescription(name, None, offered())

    def first_available(self, names: Iterable[str], *, hint: str = "") -> str:
        """Return the first of `names` that is available.

        Raises:
            LookupError: None of them is; the text ends with `hint`.
        """
        wanted = list(names)
        found = next((name for name in wanted if self.is_available(name)), None)
        if found is None:
            raise self._not_found(", ".join(wanted), list(self.names()), hint)
        return found

    def set_default(self, name: str) -> None:
        """Let `default` return that name.

        Raises:
            LookupError: No such name.
        """
        self.get(name)
        self._default = name

    def default(self, *, hint: str = "") -> str:
        """Return the default name.

        Raises:
            LookupError: There is none; the text ends with `hint`.
        """
        if self._default is None:
            raise self._not_found("<default>", list(self.names()), hint)
        return self._default

    def is_known(self, name: str) -> bool:
        """Return whether there is such a name; loads nothing."""
        return name in self._loaded or name in self._builtins or name in self._entry_points()

    def _entry_points(self) -> dict[str, metadata.EntryPoint]:
        if self._plugins is None:
            self._plugins = {point.name: point for point in metadata.entry_points(group=self.group)}
        return self._plugins

    def _load(self, name: str) -> T:
        builtin = self._builtins.get(name)
        if builtin is not None:
            module, _, attribute = builtin.partition(":")
            loaded: T = getattr(importlib.import_module(module), attribute)
            return loaded
        point = self._entry_points().get(name)
        if point is not None:
            plugin: T = point.load()
            return plugin
        raise self._unknown(name)

    def _unknown(self, name: str) -> LookupError:
        known = list(self.names())
        return self._not_found(name, known, text.did_you_mean(name, known))

    def _lookup_error(self, name: str, known: list[str], hint: str) -> LookupError:
        return LookupError(
            f"no {self.plane} named {name!r}.{hint} Known: {', '.join(known) or 'none'}. "
            f"Plug-ins register under {self.group!r}."
        )
