"""Packages that load their public names on first use (PEP 562).

    if TYPE_CHECKING:
        from rath.plane.loop import run as run
    else:
        __getattr__, __dir__ = lazy_names(__name__, {"loop": ("run",)})

Checkers of types see the imports, and Python the names that stand for them.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any

__all__ = ["lazy_function", "lazy_modules", "lazy_names"]


def lazy_names(
    package: str, modules: Mapping[str, Collection[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return what a package needs as `__getattr__` and `__dir__` to load its names on first use.

    Its modules can be reached as attributes too, as if it had imported them.

    Args:
        package: Its `__name__`.
        modules: By module of the package, such as "loop" or "graph.kind", or by the full name of
            another one, the names it gives. No name may be that of one of these modules, which
            would hide it once it is loaded.

    Raises:
        ValueError: A module would hide a name.
    """
    module_of = {name: module for module, names in modules.items() for name in names}
    hidden = module_of.keys() & {module.partition(".")[0] for module in modules}
    if hidden:
        raise ValueError(f"{min(hidden)!r} is a module of {package!r} and a name; rename one")

    def load(name: str) -> Any:
        if name in module_of:
            module = module_of[name]
            is_inside = not module.startswith("rath.")
            return getattr(
                importlib.import_module(f"{package}.{module}" if is_inside else module), name
            )
        if not name.startswith("_"):
            submodule = f"{package}.{name}"
            try:
                return importlib.import_module(submodule)
            except ModuleNotFoundError as exc:
                if exc.name != submodule:
                    raise
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *module_of})

    return load, names


def lazy_function(module: str, name: str) -> Callable[..., Any]:
    """Return what calls a function that is imported at the first call.

    For the few methods that need what is built on their own class, and for code that most programs
    never load: the import stands in no graph of modules, so a caller says why it needs one.

    Args:
        module: The full name of the module.
        name: The function in it.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(importlib.import_module(module), name)(*args, **kwargs)

    return call


def lazy_modules(importer: str, *names: str, **aliases: str) -> list[Any]:
    """Return a placeholder for each module: it is imported when `importer` reads a name from it.

        if TYPE_CHECKING:
            import asyncio
        else:
            (asyncio,) = lazy_modules(__name__, "asyncio")

    The module then replaces its placeholder in `importer`, which may not read one while it loads.

    Args:
        importer: Its `__name__`.
        names: Modules that stand under the last part of their names.
        aliases: Those that stand under another name, where a variable has the one of the module.
    """
    by_alias = {name.rpartition(".")[2]: name for name in names} | aliases
    variables = vars(sys.modules[importer])
    return [_LazyModule(variables, alias, name) for alias, name in by_alias.items()]


class _LazyModule:
    """Stands for a module until one of its names is read."""

    __slots__ = ("_alias", "_name", "_variables")

    def __init__(self, variables: dict[str, Any], alias: str, name: str) -> None:
        self._variables = variables
        self._alias = alias
        self._name = name

    def __getattr__(self, name: str) -> Any:
        module = self._variables[self._alias] = importlib.import_module(self._name)
        return getattr(module, name)
