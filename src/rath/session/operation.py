"""Where in a program an operation happens: its module path, and its count at that path."""

from __future__ import annotations

import contextvars
import itertools
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Place:
    """The place of an operation within the outermost workflow call."""

    path: str
    """Dotted path of the workflow that made the operation, "" outside of any."""

    ordinal: int
    """How many operations were made at that path before."""


@dataclass(frozen=True, slots=True)
class _Scope:
    path: str
    counters: dict[str, Iterator[int]] = field(default_factory=dict[str, Iterator[int]])


_scope: contextvars.ContextVar[_Scope | None] = contextvars.ContextVar(
    "rath_operation_scope", default=None
)


@contextmanager
def operation_scope(segment: str) -> Generator[str]:
    """Enter a module: operations made inside have `segment` at the end of their path.

    Yields:
        The whole dotted path.
    """
    outer = _scope.get()
    path = segment if outer is None else f"{outer.path}.{segment}"
    token = _scope.set(_Scope(path) if outer is None else _Scope(path, outer.counters))
    try:
        yield path
    finally:
        _scope.reset(token)


def next_place() -> Place:
    """Return the place of an operation that is made now."""
    scope = _scope.get()
    if scope is None:
        return Place("", 0)
    return Place(scope.path, next(scope.counters.setdefault(scope.path, itertools.count())))
