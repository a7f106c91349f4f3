"""Origins of values and of code, the first value of several that is set, values for a block."""

from __future__ import annotations

import sys
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar, cast

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Sourced(Generic[T_co]):
    """A value and its origin."""

    value: T_co = field(repr=False)
    """Left out of `repr`: it may be a key."""

    origin: str
    """One of "call", "session", "env NAME", "config FILE", "default"."""


def first_set(*candidates: Sourced[T | None]) -> Sourced[T] | None:
    """Return the first candidate whose value is set, or None when none is.

    None and blank strings count as unset; strings come back stripped.
    """
    for candidate in candidates:
        value = candidate.value
        if isinstance(value, str):
            # A stripped string is still a T; no checker can see that.
            value = cast("T", value.strip()) or None
        if value is not None:
            return Sourced(value, candidate.origin)
    return None


class ValueScope(Generic[T]):
    """Give a context variable a value in a block; afterwards it has the one from before.

    A class and no generator: each round of a run enters several.
    """

    __slots__ = ("_token", "_value", "_variable")
    _token: Token[T]

    def __init__(self, variable: ContextVar[T], value: T) -> None:
        self._variable = variable
        self._value = value

    def __enter__(self) -> None:
        self._token = self._variable.set(self._value)

    def __exit__(self, *_: object) -> None:
        self._variable.reset(self._token)


def origin_of(kind: object) -> str:
    """Return `module:qualname` of a class or function."""
    name = getattr(kind, "__qualname__", type(kind).__qualname__)
    return f"{module_name(str(getattr(kind, '__module__', None) or '<unknown>'))}:{name}"


def module_name(module: str) -> str:
    """Return the name under which a module is imported, also of the one that runs as a program.

    So a tool of `shop.py` has the same name whether that runs by itself or is imported.
    """
    if module != "__main__":
        return module
    main = sys.modules[module]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return str(spec.name).removesuffix(".__main__")
    path = getattr(main, "__file__", None)
    return Path(path).stem if path else module
