"""Values that know where they came from, the first of several that is set, values for a block."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
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


@contextmanager
def value_scope(variable: ContextVar[T], value: T) -> Generator[None]:
    """Give a context variable a value in a block; afterwards it has the one from before."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
