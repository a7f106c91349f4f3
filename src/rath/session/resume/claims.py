"""Which run has gone on with what waits, so that in one process there is never more than one."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any
from uuid import UUID
from weakref import WeakKeyDictionary

from rath._async.lazy import Deferred
from rath.session.body import Body

_lock = threading.RLock()
"""Reentrant: a run that is started under it looks up where its content is stored."""

_gone_on: WeakKeyDictionary[Deferred[Any], Deferred[Body]] = WeakKeyDictionary()
"""By the content with which a run went on: what that run makes."""

_same: WeakKeyDictionary[Deferred[Any], Deferred[Any]] = WeakKeyDictionary()
"""By content that only tells again what a run has left: what that left."""


_begun: WeakKeyDictionary[Deferred[Any], dict[UUID, Deferred[Body]]] = WeakKeyDictionary()
"""By content from which a program that is stored nowhere went on: what it has begun since."""


def newest(cell: Deferred[Body]) -> Deferred[Body]:
    """Return what the last run makes that has gone on with this content; it itself where none has.

    A run that failed before it had anything counts for nothing.
    """
    with _lock:
        return _newest(cell)


def original(cell: Deferred[Any]) -> Deferred[Any]:
    """Return the content of which this only tells again what is in it; it itself for any other."""
    with _lock:
        return _first(cell)


def has_gone_on(cell: Deferred[Body]) -> bool:
    """Tell whether a run has gone on with this content."""
    with _lock:
        return _newest(cell) is not _first(cell)


def require_waiting(cell: Deferred[Body], session: UUID) -> None:
    """Refuse to say something to a run that has gone on without it.

    Raises:
        ValueError: It has.
    """
    if has_gone_on(cell):
        raise ValueError(
            f"the run of session {session} has gone on since, so what is said now comes too late; "
            "give the session to its agent again for what came of it, and say it to that one"
        )


def say_same(cell: Deferred[Body], as_in: Deferred[Body]) -> None:
    """Note that content tells again what is in another cell, so that one run goes on with both."""
    if cell is not as_in:
        with _lock:
            _same[cell] = _first(as_in)


def claim(cell: Deferred[Body], start: Callable[[], Deferred[Body]]) -> tuple[Deferred[Body], bool]:
    """Have a run go on with content, unless one has done so meanwhile.

    Args:
        cell: The content.
        start: Submits the run, and returns what it makes; must not wait.

    Returns:
        What the run makes, and whether it was started here.
    """
    with _lock:
        first = _first(cell)
        made = _newest(first)
        if made is not first:
            return made, False
        made = _gone_on[first] = start()
        return made, True


def begun_since(cell: Deferred[Body]) -> dict[UUID, Deferred[Body]]:
    """Return what a program has begun that goes on from this content, by session; see `begin`."""
    with _lock:
        return _begun.setdefault(_first(cell), {})


def begin(
    begun: dict[UUID, Deferred[Body]], session: UUID, start: Callable[[], Deferred[Body]]
) -> tuple[Deferred[Body], bool]:
    """Have a session made, unless it is among what was begun; see `claim`."""
    with _lock:
        known = begun.get(session)
        if known is not None:
            return known, False
        made = begun[session] = start()
        return made, True


def _first(cell: Deferred[Body]) -> Deferred[Body]:
    while (before := _same.get(cell)) is not None:
        cell = before
    return cell


def _newest(cell: Deferred[Body]) -> Deferred[Body]:
    cell = _first(cell)
    while (made := _gone_on.get(cell)) is not None:
        if made.done() and made.error() is not None and made.latest is None:
            break
        cell = _first(made)
    return cell


def _forget_after_fork() -> None:
    """Start afresh in a forked child, where whoever held the lock is not; what is known stays."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):  # pragma: no branch  # Windows has no fork
    os.register_at_fork(after_in_child=_forget_after_fork)
