"""References: the place of a thing in a pickle, where its state stays at home.

A `Referenced` object is pickled as `_pickle_reference` says: by names, specs and URLs, from which
another process makes it again. A copy (`copy.copy`, `copy.deepcopy`) is what it always was.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeAlias

from rath._core.options import origin_of

__all__ = ["Referenced", "find_code", "is_by_value", "not_portable", "require_importable"]

Reduction: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function that both processes can import, and its arguments."""

_BY_VALUE = ("cloudpickle", "dill")
"""Packages whose picklers send the code of what cannot be imported."""

_SAME_MAIN = ("multiprocessing",)
"""Packages whose processes have the program of this one as `__main__`."""


class Referenced:
    """What is pickled as a reference, and copied as any object."""

    __slots__ = ()

    def _pickle_reference(self) -> Reduction | None:
        """Return what makes this object again elsewhere; None for its class and its attributes.

        Raises:
            TypeError: It cannot leave this process; the text says what to do.
        """
        return None

    def __reduce_ex__(self, protocol: Any) -> Any:
        own_rule = type(self).__reduce__ is not object.__reduce__
        if own_rule or "copy" in _pickler():
            return super().__reduce_ex__(protocol)
        require_importable(type(self))
        return self._pickle_reference() or super().__reduce_ex__(protocol)


def not_portable(what: str, instead: str) -> TypeError:
    """Return the error of what no reference leads to.

    Args:
        what: It, with the reason; never a value that may be secret.
        instead: What to do.
    """
    return TypeError(f"{what}; {instead}")


def find_code(module: str, qualname: str) -> Any:
    """Return what a module has under a dotted name, None where there is no such thing."""
    found: Any = sys.modules.get(module)
    if found is None:
        try:
            found = import_module(module)
        except ImportError:
            return None
    for name in qualname.split("."):
        found = getattr(found, name, None)
    return found


def require_importable(code: Any, *, known_as: object = None) -> None:
    """Refuse a class or function that another process cannot import, unless its code is sent.

    Args:
        code: The class or function.
        known_as: What may stand in its place under its name, such as the tool made of it.

    Raises:
        TypeError: It is local to a function, a lambda, or of a program's own `__main__`.
    """
    module, qualname = str(code.__module__), str(code.__qualname__)
    if module == "__main__":
        if not is_by_value() and not any(each in _pickler() for each in _SAME_MAIN):
            raise not_portable(
                f"{qualname} is declared in the program that runs, __main__, which another process "
                "cannot import",
                "move it to a module, or pickle it with cloudpickle, which sends its code",
            )
    elif not is_by_value() and not any(
        find_code(module, qualname) is each for each in (code, known_as or code)
    ):
        raise not_portable(
            f"{origin_of(code)} cannot be found by that name from another process",
            "declare it at the top of a module, or pickle it with cloudpickle, which sends its "
            "code",
        )


def is_by_value() -> bool:
    """Tell whether the pickler at work sends the code of what cannot be imported."""
    return any(each in _pickler() for each in _BY_VALUE)


def _pickler() -> tuple[str, ...]:
    """Return the parts of the name of the module that pickles or copies.

    A pickler tells nobody what it is; that of the standard library leaves no frame, those of
    other packages do.
    """
    frame = inspect.currentframe()
    while frame is not None:
        parts = tuple(str(frame.f_globals.get("__name__")).split("."))
        if parts[0] not in {"rath", "pickle", "copyreg"}:
            return parts
        frame = frame.f_back
    return ()
